"""Preludes (see Workplace.start) for the part "signals": signals in a phase, broken streams, a clock set back."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.torture.faults import find_function

# Phase of a command -> functions that are called in this phase.
PHASES = {
  "reading": ["albert.io.files:open_file", "albert.io.files:exists"],
  "writing": ["albert.io.files:staging_path", "albert.io.local_files:sync", "albert.io.files:replace"],
  "training": ["albert.training.loop:Trainer._time_steps", "albert.runs.logs:MetricsLog.write"],
  "saving": ["albert.weights.checkpoints:write_bundle", "albert.weights.checkpoints:CheckpointManager._rename"],
  "evaluation": ["albert.training.evaluator:Evaluator.run"],
}


def _notify_of_phases(enter_phase: Callable[[str], object]) -> None:
  """Makes each call of a function in PHASES call enter_phase(phase) first, in this process but not in its children."""
  os.environ.pop("TORTURE_PRELUDE", None)  # which child processes would inherit
  for phase, targets in PHASES.items():
    for target in targets:
      module_name = target.partition(":")[0]
      if module_name not in sys.modules and not module_name.startswith("albert.io."):
        continue  # the module imports TensorFlow, and the command works without it
      owner, function_name = find_function(target)
      setattr(owner, function_name, _with_notification(getattr(owner, function_name), phase, enter_phase))


def _with_notification(function: Any, phase: str, enter_phase: Callable[[str], object]) -> Any:
  def call(*arguments: Any, **named: Any) -> Any:
    enter_phase(phase)
    return function(*arguments, **named)

  return call


def count(path: str) -> None:
  """Counts how often each phase is entered, and writes the counts as JSON to `path` when the process ends."""
  counts: Counter[str] = Counter()
  pid = os.getpid()
  _notify_of_phases(lambda phase: counts.update([phase]))

  def write_counts() -> None:
    if os.getpid() == pid:  # not in a forked child
      Path(path).write_text(json.dumps(counts), encoding="utf-8")

  atexit.register(write_counts)


def interrupt(phase: str, at: int, number: int, again_after: float | None) -> None:
  """Sends this process the signal `number` when it enters a phase for the `at`-th time."""
  num_entries = 0
  pid = os.getpid()

  def enter_phase(entered_phase: str) -> None:
    nonlocal num_entries
    if entered_phase == phase and os.getpid() == pid:
      num_entries += 1
      if num_entries == at:
        if again_after is not None:
          timer = threading.Timer(again_after, os.kill, (pid, number))
          timer.daemon = True
          timer.start()
        signal.raise_signal(number)

  _notify_of_phases(enter_phase)


def break_stdout(how: str) -> None:
  """Closes standard output ("closed"), or replaces it by a full disk ("full") or a pipe without a reader ("unread")."""
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
  """Sets time.time and time.time_ns back by `seconds`, from the `calls`-th call of any of the two on."""
  num_calls = 0
  real_time, real_time_ns = time.time, time.time_ns

  def count_call() -> float:
    """Returns by how many seconds the clock is set back at this call."""
    nonlocal num_calls
    num_calls += 1
    return 0.0 if num_calls < calls else seconds

  time.time = lambda: real_time() - count_call()
  time.time_ns = lambda: real_time_ns() - int(1e9 * count_call())
