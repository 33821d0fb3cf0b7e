"""A prelude (see Workplace.start) of the part "kills": a process kills itself at a chosen call of a function."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import signal
import threading
import time
from typing import Any


def _kill() -> None:
  os.kill(os.getpid(), signal.SIGKILL)


def _kill_after(delay: float) -> None:
  time.sleep(delay)
  _kill()


def kill_at(
  target: str, number: int = 1, when: str = "before", delay: float = 0.0, contains: str = "", process: str = "main"
) -> None:
  """Replaces a function, so that its `number`-th call kills this process with SIGKILL."""
  is_worker = multiprocessing.parent_process() is not None or _was_spawned()
  if is_worker != (process == "worker"):
    return
  owner, name = find_function(target)
  function = getattr(owner, name)
  num_calls = 0

  @functools.wraps(function)
  def counted(*arguments: Any, **named: Any) -> Any:
    nonlocal num_calls
    if not contains or any(contains in str(value) for value in (*arguments, *named.values())):
      num_calls += 1
      if num_calls == number:
        if when == "before":
          _kill()
        if when == "within":
          threading.Thread(target=_kill_after, args=(delay,), daemon=True).start()
        function(*arguments, **named)
        _kill()  # for "within", if the call was shorter than the delay
    return function(*arguments, **named)

  setattr(owner, name, counted)


def find_function(target: str) -> tuple[Any, str]:
  """Finds the function "module:name" or "module:class.name". Returns the module or class, and the function's name."""
  module_name, _, path = target.partition(":")
  owner: Any = importlib.import_module(module_name)
  *parents, function_name = path.split(".")
  for parent in parents:
    owner = getattr(owner, parent)
  return owner, function_name


def _was_spawned() -> bool:
  """Whether this is a process of loky. A prelude runs before multiprocessing.parent_process() is set."""
  with open("/proc/self/cmdline", "rb") as file:
    return b"loky.backend.popen" in file.read()
