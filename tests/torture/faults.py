"""Faults that a process of the campaign does to itself: what Workplace.start calls as its prelude."""

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
  """Kills this process with SIGKILL at the `number`-th call of a function.

  Args:
    target: "module:name" or "module:class.name" of the function. It is replaced in its module alone.
    number: of the call, from 1.
    when: before the call, after it, or within it.
    delay: seconds from the beginning of the call, for within; if the call has ended by then, the kill comes at its end.
    contains: only calls count that have this text in an argument.
    process: "main" counts the calls of the process that was started, "worker" those of each of its worker processes.
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
        if when != "before":  # within: the call was quicker than the delay
          _kill()
        return result
    return function(*arguments, **named)

  setattr(owner, name, counted)


def _is_worker() -> bool:
  """True in a process that multiprocessing has spawned, before its interpreter has told it so."""
  with open("/proc/self/cmdline", "rb") as file:
    return b"multiprocessing.spawn" in file.read()
