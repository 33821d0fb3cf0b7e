"""Preludes (see tests.torture.workplace): signals at points of a command, broken streams, a clock that is set back."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

# Phase of a command -> functions that are called in it.
PHASES = {
  "reading": ["albert.io.files:open_file", "albert.io.files:exists"],
  "writing": ["albert.io.files:staging_path", "albert.io.local_files:sync", "albert.io.files:replace"],
  "training": ["albert.training.loop:Trainer._check_losses", "albert.runs.metrics_log:MetricsLog.write"],
  "saving": ["albert.weights.checkpoints:write_bundle", "albert.weights.checkpoints:CheckpointManager._rename"],
  "evaluation": ["albert.training.evaluator:Evaluator.run"],
}


def _hook(before: Any) -> None:
  """Calls before(phase) whenever a function of a phase is called; in this process, not in those that it starts."""
  os.environ.pop("TORTURE_PRELUDE", None)
  for phase, names in PHASES.items():
    for name in names:
      module_name, _, path = name.partition(":")
      if module_name not in sys.modules and not module_name.startswith("albert.io."):
        continue  # a command without TensorFlow
      owner: Any = importlib.import_module(module_name)
      *outer, last = path.split(".")
      for part in outer:
        owner = getattr(owner, part)
      setattr(owner, last, _wrapped(getattr(owner, last), phase, before))


def _wrapped(function: Any, phase: str, before: Any) -> Any:
  def call(*arguments: Any, **named: Any) -> Any:
    before(phase)
    return function(*arguments, **named)

  return call


def count(path: str) -> None:
  """Writes, when the process ends, how often each phase was entered."""
  counts: Counter[str] = Counter()
  pid = os.getpid()
  _hook(lambda phase: counts.update([phase]))
  import atexit

  atexit.register(lambda: os.getpid() == pid and Path(path).write_text(json.dumps(counts), encoding="utf-8"))


def interrupt(phase: str, at: int, number: int, again_after: float | None) -> None:
  """Sends this process a signal when it enters a phase for the `at`-th time, and again `again_after` seconds later."""
  left = [at]
  pid = os.getpid()

  def before(entered: str) -> None:
    if entered == phase and os.getpid() == pid:
      left[0] -= 1
      if left[0] == 0:
        if again_after is not None:
          timer = threading.Timer(again_after, os.kill, (pid, number))
          timer.daemon = True
          timer.start()
        signal.raise_signal(number)

  _hook(before)


def break_stdout(how: str) -> None:
  """Closes standard output, or makes it a pipe that nobody reads, or a full disk."""
  if how == "closed":
    os.close(1)
    return
  if how == "full":
    opened = os.open("/dev/full", os.O_WRONLY)
  else:
    reader, opened = os.pipe()
    os.close(reader)
  os.dup2(opened, 1)
  os.close(opened)


def set_clock_back(calls: int, seconds: float) -> None:
  """After so many calls of time.time and time.time_ns they are that many seconds behind."""
  left = [calls]
  real, real_ns = time.time, time.time_ns

  def behind() -> float:
    left[0] -= 1
    return 0.0 if left[0] > 0 else seconds

  time.time = lambda: real() - behind()
  time.time_ns = lambda: real_ns() - int(1e9 * behind())
