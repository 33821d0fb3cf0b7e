"""Handles signals during training: after the first signal, the run is saved and stops."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from albert.errors import Stopped


class StopRequest:
  """A context manager that turns the first SIGTERM or SIGINT into a request to save and stop.

  The first signal only sets `signal_number`, which the training loop reads. A second one has its usual effect. The
  handler prints nothing: it may interrupt a write to the same stream, which then raises an error. If C code, such as R
  or a program that embeds Python, has installed a handler of a signal, this handler stays, because Python could not
  restore it.

  Attributes:
    signal_number: the number of the signal that was received; 0 if none was.
  """

  def __init__(self) -> None:
    self.signal_number = 0
    self._previous_handlers: dict[int, Any] = {}

  def __enter__(self) -> StopRequest:
    for signal_number in (signal.SIGTERM, signal.SIGINT):
      if signal.getsignal(signal_number) is None:
        continue
      try:
        self._previous_handlers[signal_number] = signal.signal(signal_number, self._handle)
      except ValueError:  # Python allows signal handlers in the main thread only
        break
    return self

  def _handle(self, signal_number: int, frame: FrameType | None) -> None:
    del frame
    self.signal_number = signal_number
    signal.signal(signal_number, self._previous_handlers[signal_number])

  def error(self, step: int) -> Stopped:
    """Makes the error that ends a run that was stopped and saved at `step`."""
    # If another process received the signal, its number is not known here.
    signal_number = self.signal_number or signal.SIGTERM
    return Stopped(f"stopped at step {step} and saved; the same command resumes there", signal_number)

  def __exit__(self, *unused: object) -> None:
    for signal_number, handler in self._previous_handlers.items():
      signal.signal(signal_number, handler)
