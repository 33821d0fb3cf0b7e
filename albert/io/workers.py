"""A pool of worker processes, which leaves none behind and reports one that died; and errors about lost processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, TypeVar

from albert.errors import RunError

WorkItem = TypeVar("WorkItem")
Result = TypeVar("Result")
Call = TypeVar("Call", bound=Hashable)
# The errors of TensorFlow, which is not imported here, if another process or the host of a TPU does not answer.
_LOST_PROCESS_ERRORS = ("UnavailableError", "AbortedError", "DeadlineExceededError", "CancelledError")
# A worker or TPU that was restarted answers but has lost its state. TensorFlow then raises other errors, which contain
# one of these texts (see tensorflow/python/distribute/coordinator/cluster_coordinator.py).
_RESTART_MESSAGES = (
  "context_id",
  "device incarnation",
  "halted unexpectedly",
  "not been initialized",
  "neither a type of a primitive operation nor a name of a function registered",
  "preempted",
  "primary device is not remote",
  "relevant tensor remote_handle",
  "socket closed",
  "tpu is unhealthy",
  "unknown device",
  "worker was restarted",
)
_MAX_REASON_CHARS = 200


class WorkerPool(Protocol):
  """Processes that functions can be called in: those of this machine (`Workers`), or those of a cluster."""

  def map(self, function: Callable[[WorkItem], Result], items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, Result]]:
    """Calls a function for each item in the processes. See `Workers.map`."""


def submit_ahead(
  items: Iterable[WorkItem],
  *,
  submit: Callable[[WorkItem], Call],
  wait: Callable[[Collection[Call]], Iterable[Call]],
  can_submit_more: Callable[[int], bool],
) -> Iterator[tuple[WorkItem, Call]]:
  """Submits calls to other processes, some of them ahead of the results. The pools of processes share this loop.

  The next item is taken from `items` only when few submitted calls have not finished yet.

  Args:
    items: arguments of the calls.
    submit: starts the call for an item, and returns an object that stands for the call.
    wait: waits until at least one of some calls has finished, and returns the finished ones.
    can_submit_more: whether another call may be submitted beside this number of calls that have not finished.

  Yields:
    (item, its call), in the order in which the calls finish.
  """
  submitted: dict[Call, WorkItem] = {}
  remaining = iter(items)
  while True:
    while can_submit_more(len(submitted)):
      next_item = list(itertools.islice(remaining, 1))  # empty at the end
      if not next_item:
        break
      submitted[submit(next_item[0])] = next_item[0]
    if not submitted:
      return
    for call in wait(submitted.keys()):
      yield submitted.pop(call), call


def _start_worker(parent_pid: int, initializer: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
  def exit_after_parent() -> None:
    while os.getppid() == parent_pid:
      time.sleep(0.5)
    os._exit(1)

  # Ctrl-C sends SIGINT to all processes of the terminal; only the parent process handles it.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  # If the parent is killed, it cannot stop its workers, which would wait forever.
  threading.Thread(target=exit_after_parent, daemon=True).start()
  if initializer is not None:
    initializer(*arguments)


class Workers:
  """Runs functions in worker processes; a context manager.

  Args:
    num_processes: number of worker processes. With 1, functions run in this process.
    initializer: function that is called once in each process, for example to load data that the functions use; None
      if they need none.
    arguments: arguments of `initializer`; picklable.
  """

  def __init__(
    self, num_processes: int, initializer: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
  ):
    self._num_processes = num_processes
    self._initializer = (initializer, arguments)
    self._executor: futures.ProcessPoolExecutor | None = None
    self._earlier_pids = {process.pid for process in multiprocessing.active_children()}
    if num_processes == 1 and initializer is not None:
      initializer(*arguments)

  def map(self, function: Callable[[WorkItem], Result], items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, Result]]:
    """Calls a function for each item in the worker processes.

    The next item is taken from `items` only when few submitted items have no result yet.

    Args:
      function: a function of a module, so that it can be pickled.
      items: arguments of the calls; picklable.

    Yields:
      (item, function(item)), in the order in which the calls finish.

    Raises:
      RunError: a worker process died.
    """
    if self._num_processes == 1:
      for item in items:
        yield item, function(item)
      return
    executor = self._executor = self._executor or self._start_executor(function)

    def submit(item: WorkItem) -> futures.Future[Result]:
      # The first calls start the worker processes. With this mask they ignore Ctrl-C before `_start_worker` runs, too.
      previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
      try:
        return executor.submit(function, item)
      finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    calls = submit_ahead(
      items,
      submit=submit,
      wait=lambda submitted: futures.wait(submitted, return_when=futures.FIRST_COMPLETED).done,
      can_submit_more=lambda num_submitted: num_submitted < self._num_processes + 2,
    )
    try:
      for item, future in calls:
        yield item, future.result()
    except BrokenProcessPool as error:
      remedy = "run the same command again with fewer --num_processes; finished work is kept"
      raise RunError(f"a worker process died, perhaps because memory ran out: {remedy}") from error

  def _start_executor(self, function: Callable[..., Any]) -> futures.ProcessPoolExecutor:
    """Makes the executor of worker processes that can run a function."""
    from loky.backend import get_context

    # Spawned, not forked: forking a process with threads is unsafe, and a fork shares the parent's memory. A worker
    # imports the main module only if it needs it: it may be a script without `if __name__ == "__main__"`, which would
    # run again. multiprocessing always imports it, so the processes are loky's.
    needs_main = b"__main__" in bytes(ForkingPickler.dumps((function, self._initializer)))
    context = get_context("loky_init_main" if needs_main else "loky")
    return futures.ProcessPoolExecutor(self._num_processes, context, _start_worker, (os.getpid(), *self._initializer))

  def __enter__(self) -> Workers:
    return self

  def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
    if self._executor is None:
      return
    if kind is not None:
      for process in multiprocessing.active_children():
        if process.pid not in self._earlier_pids:
          process.terminate()
    self._executor.shutdown(wait=True, cancel_futures=True)


def is_lost_process(error: Exception) -> bool:
  """Whether TensorFlow raised this error because another process or a TPU stopped or was restarted."""
  return type(error).__name__ in _LOST_PROCESS_ERRORS or any(text in str(error).lower() for text in _RESTART_MESSAGES)


def describe_error(error: Exception) -> str:
  """The error's type and the first line of its message, at most 200 characters of it."""
  line = next(iter(str(error).splitlines()), "")[:_MAX_REASON_CHARS]
  return f"{type(error).__name__}: {line}" if line else type(error).__name__
