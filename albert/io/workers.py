"""A pool of processes for many pieces of work: bounded memory, no orphans, a clear word when one dies."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, TypeVar

from albert.errors import RunError

_MAX_WAITING_BYTES = 128 << 20

Task = TypeVar("Task")
Result = TypeVar("Result")


def _enter_worker(initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
  # Ctrl-C reaches every process of the terminal; the parent alone decides what it means.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  parent = multiprocessing.parent_process()
  if parent is not None:
    # A parent that was killed cannot say so: without this, its workers would wait for ever.
    threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
  initializer(*arguments)


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
  """A process begun here never gets a terminal's Ctrl-C, also not before `_enter_worker`; this one gets it later."""
  previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _end_after(parent: BaseProcess) -> None:
  parent.join()
  os._exit(1)


class Workers:
  """Runs functions in `num_processes` processes, or here when that is 1; a context manager.

  Args:
    num_processes: how many.
    initializer: called with `arguments` in every process first. A task's function finds there what it needs.
    arguments: picklable.
  """

  def __init__(self, num_processes: int, initializer: Callable[..., None], arguments: tuple[Any, ...] = ()):
    self._num_processes = num_processes
    self._executor: futures.ProcessPoolExecutor | None = None
    if num_processes == 1:
      initializer(*arguments)
    else:
      self._others = {process.pid for process in multiprocessing.active_children()}
      # Spawned, not forked: a copy of a process with threads is not safe, and it would carry the parent's memory.
      self._executor = futures.ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), _enter_worker, (initializer, arguments)
      )

  def map(
    self,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    num_bytes: Callable[[Task], int] = lambda task: 0,
  ) -> Iterator[tuple[Task, Result]]:
    """Yields (task, function(task)) as they are done. Tasks are taken from their iterator as room allows.

    Args:
      function: of a module, so that it can be pickled.
      tasks: picklable.
      num_bytes: size of the data a task carries; tasks that wait hold a bounded total.
    """
    if self._executor is None:
      for task in tasks:
        yield task, function(task)
      return
    waiting: dict[futures.Future[Result], Task] = {}
    source = iter(tasks)
    try:
      while True:
        held = sum(map(num_bytes, waiting.values()))
        while len(waiting) < self._num_processes + 2 and held < _MAX_WAITING_BYTES:
          following = list(itertools.islice(source, 1))
          if not following:
            break
          with _sigint_blocked():
            future = self._executor.submit(function, following[0])
          waiting[future] = following[0]
          held += num_bytes(following[0])
        if not waiting:
          return
        done, _ = futures.wait(waiting, return_when=futures.FIRST_COMPLETED)
        for future in done:
          yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
      raise RunError(
        "a worker process died, perhaps for want of memory: run the same command again, with fewer "
        "--num_processes; what is finished is kept"
      ) from error

  def __enter__(self) -> Workers:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    if self._executor is None:
      return
    if kind is not None:
      for process in multiprocessing.active_children():
        if process.pid not in self._others:
          process.terminate()
    self._executor.shutdown(wait=True, cancel_futures=True)
