"""A prelude (see Workplace.start) with which a process kills itself at a chosen call of a function."""

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
  """Replaces a function by one that kills this process with SIGKILL at its `number`-th call.

  Args:
    target: "module:name" or "module:class.name" of the function. Modules that have imported it by name keep the
      original function.
    number: the number of the call, from 1.
    when: "before" the call, "after" it, or "within" it.
    delay: for "within": seconds after the beginning of the call. If the call is shorter, the kill comes at its end.
    contains: if given, only calls that have this text in an argument are counted.
    process: "main" to kill the started process, "worker" to kill its worker processes. Each counts its own calls.
  """
  is_worker = multiprocessing.parent_process() is not None or _is_worker()
  if is_worker != (process == "worker"):
    return
  module_name, path = target.split(":")
  owner: Any = importlib.import_module(module_name)
  *parents, name = path.split(".")
  for parent in parents:
    owner = getattr(owner, parent)
  function = getattr(owner, name)
  calls = 0

  @functools.wraps(function)
  def counted(*arguments: Any, **named: Any) -> Any:
    nonlocal calls
    if not contains or any(contains in str(value) for value in (*arguments, *named.values())):
      calls += 1
      if calls == number:
        if when == "before":
          _kill()
        if when == "within":
          threading.Thread(target=_kill_after, args=(delay,), daemon=True).start()
        result = function(*arguments, **named)
        if when != "before":  # for "within": the call was shorter than the delay
          _kill()
        return result
    return function(*arguments, **named)

  setattr(owner, name, counted)


def _is_worker() -> bool:
  """Whether multiprocessing has spawned this process. multiprocessing.parent_process() knows it only a little later."""
  with open("/proc/self/cmdline", "rb") as file:
    return b"multiprocessing.spawn" in file.read()
