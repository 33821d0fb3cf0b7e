"""Preludes (see Workplace.start): signals in the phases of a command, broken streams, a clock that is set back."""

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


def _call_before_phases(before: Any) -> None:
  """From now on calls before(phase) at each call of a function of a phase. Processes that this one starts don't."""
  os.environ.pop("TORTURE_PRELUDE", None)
  for phase, names in PHASES.items():
    for name in names:
      module_name, _, path = name.partition(":")
      if module_name not in sys.modules and not module_name.startswith("albert.io."):
        continue  # a command that doesn't import TensorFlow hasn't loaded it, and must not
      owner: Any = importlib.import_module(module_name)
      *parents, function_name = path.split(".")
      for parent in parents:
        owner = getattr(owner, parent)
      setattr(owner, function_name, _wrapped(getattr(owner, function_name), phase, before))


def _wrapped(function: Any, phase: str, before: Any) -> Any:
  def call(*arguments: Any, **named: Any) -> Any:
    before(phase)
    return function(*arguments, **named)

  return call


def count(path: str) -> None:
  """Counts how often each phase is entered, and writes the counts as JSON when the process ends."""
  counts: Counter[str] = Counter()
  pid = os.getpid()
  _call_before_phases(lambda phase: counts.update([phase]))
  import atexit

  atexit.register(lambda: os.getpid() == pid and Path(path).write_text(json.dumps(counts), encoding="utf-8"))


def interrupt(phase: str, at: int, number: int, again_after: float | None) -> None:
  """Sends this process the signal `number` when it enters a phase for the `at`-th time.

  If `again_after` is not None, the signal comes once more after so many seconds.
  """
  num_entered = 0
  pid = os.getpid()

  def before(entered: str) -> None:
    nonlocal num_entered
    if entered == phase and os.getpid() == pid:
      num_entered += 1
      if num_entered == at:
        if again_after is not None:
          timer = threading.Timer(again_after, os.kill, (pid, number))
          timer.daemon = True
          timer.start()
        signal.raise_signal(number)

  _call_before_phases(before)


def break_stdout(how: str) -> None:
  """Closes standard output ("closed"), or makes it a full disk ("full") or a pipe without a reader ("unread")."""
  if how == "closed":
    os.close(1)
    return
  if how == "full":
    replacement = os.open("/dev/full", os.O_WRONLY)
  else:
    reader, replacement = os.pipe()
    os.close(reader)
  os.dup2(replacement, 1)
  os.close(replacement)


def set_clock_back(calls: int, seconds: float) -> None:
  """Sets time.time and time.time_ns back by `seconds` from their `calls`-th call on (calls of both are counted)."""
  num_calls = 0
  real_time, real_time_ns = time.time, time.time_ns

  def seconds_behind() -> float:
    nonlocal num_calls
    num_calls += 1
    return 0.0 if num_calls < calls else seconds

  time.time = lambda: real_time() - seconds_behind()
  time.time_ns = lambda: real_time_ns() - int(1e9 * seconds_behind())
