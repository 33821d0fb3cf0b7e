"""Signals during training: a signal while a line is written, and handlers that are not Python's."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time

import pytest

from albert.io.progress import log
from albert.training.loop import StopRequest


def test_a_signal_during_a_write_to_a_full_pipe_is_a_request_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
  """As Ctrl-C during `run_classifier.py ... 2>&1 | less`, which reads only what it shows."""
  reader, writer = os.pipe()

  def interrupt() -> None:
    time.sleep(0.2)  # the pipe is full by then
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    time.sleep(0.1)
    while os.read(reader, 1 << 16):
      pass
    os.close(reader)

  thread = threading.Thread(target=interrupt)
  with io.TextIOWrapper(open(writer, "wb"), line_buffering=True) as stream:
    monkeypatch.setattr(sys, "stderr", stream)
    thread.start()
    with StopRequest() as stop:
      while not stop.signal_number:
        log("step " + "x" * 1000)
  thread.join()
  assert stop.signal_number == signal.SIGINT


def test_a_handler_that_c_code_has_installed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
  before = signal.getsignal(signal.SIGTERM)
  monkeypatch.setattr(signal, "getsignal", lambda number: None)  # as Python says of such a handler
  with StopRequest():
    monkeypatch.undo()
    assert signal.getsignal(signal.SIGTERM) is before
