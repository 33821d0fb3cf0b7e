"""Data preparation on a Ray cluster: a pool of processes of several machines, for `data_prep.prepare`.

The machines share the files of a job: the input, the vocabulary and the output directory are on a shared file system,
or at gs://. Each task reads some of these files and writes another one, and returns a few numbers. A task whose process
or node dies is run again by Ray. If the command itself is killed, the next one continues with the finished files.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import math
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, TypeVar

import ray

from albert import startup
from albert.errors import Interrupted, RunError, UserError
from albert.io import files
from albert.io.progress import log
from albert.io.workers import describe_error, submit_ahead
from data_prep.job import Job, OpenPool

_SECONDS_FOR_AN_ANSWER = 10.0
# Bytes of the shared memory of a cluster that this command starts. Tasks and results are small and don't use it.
_OBJECT_STORE_BYTES = 100 << 20

# The text of a worker's exception if it cannot import a module.
_MISSING_MODULE = re.compile(r"No module named '([^']+)'")

WorkItem = TypeVar("WorkItem")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class RayOptions:
  """How tasks run on a Ray cluster.

  `address` is that of the head node, "auto" for the cluster of this machine, or None for the cluster that RAY_ADDRESS
  names; if there is none, a cluster of this machine alone ends with the command. A task reserves `num_cpus`, and Ray
  runs it again up to `max_retries` times if its process or node has died.
  """

  address: str | None = None
  num_cpus: float = 1.0
  max_retries: int = 4


class _FlagParser(argparse.ArgumentParser):
  """A parser whose errors are UserErrors."""

  def error(self, message: str) -> NoReturn:
    names = ", ".join(f"--{field.name}" for field in dataclasses.fields(RayOptions))
    raise UserError(f"flags of Ray after --: {message} (there are {names})")


def parse_flags(words: Sequence[str]) -> RayOptions:
  """Parses the words after --, such as "--address=10.0.0.1:6379". Raises a UserError if one is wrong."""
  parser = _FlagParser(add_help=False, allow_abbrev=False)
  parser.add_argument("--address")
  parser.add_argument("--num_cpus", type=float, default=RayOptions.num_cpus)
  parser.add_argument("--max_retries", type=int, default=RayOptions.max_retries)
  options = RayOptions(**vars(parser.parse_args(list(words))))
  if not 0 < options.num_cpus < math.inf:
    parser.error(f"--num_cpus={options.num_cpus:g} is not a number above 0")
  if options.max_retries < 0:
    parser.error(f"--max_retries={options.max_retries} is below 0")
  return options


def make_runner(words: Sequence[str] = ()) -> OpenPool:
  """Returns the function that opens a pool on a Ray cluster, see `OpenPool`. `words` are the flags after --."""
  options = parse_flags(words)

  def open_pool(job: Job, initializer: Callable[..., None], arguments: tuple[Any, ...]) -> RayPool:
    paths = {"output_dir": job.output_dir, "spm_model_file": job.spm_model_file}
    return RayPool(options, job.num_processes, _start_worker, (paths, initializer, arguments))

  return open_pool


def _start_worker(paths: dict[str, str], initializer: Callable[..., None], arguments: tuple[Any, ...]) -> None:
  """Prepares a worker process. It is a UserError if its machine lacks a file that a flag in `paths` names."""
  for flag, path in paths.items():
    if not files.exists(path):
      raise UserError(
        f"--{flag}={path} does not exist on {socket.gethostname()}, a node of the Ray cluster: all nodes need the same "
        "files, on a shared file system or at gs://"
      )
  initializer(*arguments)


class _Outcome(NamedTuple):
  """What a task returns: the result or the error of the function, and the peak memory of the process."""

  result: Any
  error: Exception | None
  peak_bytes: int


# The initializer that was called in this process, and its arguments.
_initialized: tuple[Any, ...] | None = None


def _run_task(
  function: Callable[[Any], Any], item: Any, initializer: Callable[..., None], arguments: tuple[Any, ...]
) -> _Outcome:
  """Calls a function in a worker process of Ray. Before the first call it calls the initializer."""
  global _initialized  # noqa: PLW0603
  result, error = None, None
  try:
    if _initialized != (initializer, arguments):
      initializer(*arguments)
      _initialized = (initializer, arguments)
    result = function(item)
  except (UserError, RunError, OSError) as caught:
    error = caught
  # ru_maxrss is in KiB, on macOS in bytes.
  peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (0 if sys.platform == "darwin" else 10)
  return _Outcome(result, error, peak_bytes)


class RayPool:
  """Runs functions in the worker processes of a Ray cluster; a context manager.

  A cluster that is started on this machine has `num_processes` CPUs. The initializer, a function of a module, is called
  once in each worker process.
  """

  def __init__(
    self, options: RayOptions, num_processes: int, initializer: Callable[..., None], arguments: tuple[Any, ...] = ()
  ):
    self._options = options
    self._num_processes = num_processes
    self._initializer = initializer
    self._arguments = arguments
    self._is_connected = False  # by this object
    self._num_tasks = self._peak_bytes = 0

  def __enter__(self) -> RayPool:
    if not ray.is_initialized():
      _connect(self._options, self._num_processes)
      self._is_connected = True
    num_cpus = self._options.num_cpus
    if not any(node["Alive"] and node["Resources"].get("CPU", 0) >= num_cpus for node in ray.nodes()):
      log(f"warning: no node of the Ray cluster has {num_cpus:g} CPUs: Ray waits for one; give fewer: -- --num_cpus=1")
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    if self._is_connected:
      ray.shutdown()  # ends the worker processes
      self._is_connected = False
    if kind is None and self._num_tasks:
      print(f"Ray: {self._num_tasks} tasks; peak memory of a process: {self._peak_bytes / 1e6:.0f} MB")

  def map(self, function: Callable[[WorkItem], Result], items: Iterable[WorkItem]) -> Iterator[tuple[WorkItem, Result]]:
    """Calls a function for each item, see `WorkerPool`. Ray runs a task again if its process or node dies.

    The next item is taken from `items` only when few submitted items have no result yet.

    Raises:
      UserError: the workers cannot import the function.
      RunError: a task's process died again and again, or the cluster is gone.
    """
    options = self._options
    task = ray.remote(_run_task).options(num_cpus=options.num_cpus, max_retries=options.max_retries)
    unfinished: set[Any] = set()

    def submit(item: WorkItem) -> Any:
      reference = task.remote(function, item, self._initializer, self._arguments)
      unfinished.add(reference)
      return reference

    def can_submit_more(num_submitted: int) -> bool:
      # Some tasks wait beside those that run. A cluster that can grow adds nodes for them.
      num_running = ray.cluster_resources().get("CPU", 0) / options.num_cpus
      return bool(num_submitted < 2 * num_running + 2)

    calls = submit_ahead(
      items,
      submit=submit,
      wait=lambda submitted: ray.wait(list(submitted), num_returns=1)[0],
      can_submit_more=can_submit_more,
    )
    try:
      for item, reference in calls:
        unfinished.discard(reference)
        outcome = ray.get(reference)
        self._num_tasks += 1
        self._peak_bytes = max(self._peak_bytes, outcome.peak_bytes)
        if outcome.error is not None:
          raise outcome.error
        yield item, outcome.result
    except KeyboardInterrupt as stop:  # Ray replaces the Interrupted that a signal raised
      raise Interrupted(startup.interrupting_signal() or signal.SIGINT) from stop
    except ray.exceptions.RayTaskError as error:
      missing = _MISSING_MODULE.search(str(error))
      if missing is None:
        raise  # a fault of this program: its traceback is useful
      raise UserError(
        f"--runner=ray: nodes of the Ray cluster lack the module {missing[1]!r}: install this project and its packages "
        "on all nodes, in the versions of this machine"
      ) from error
    except (ray.exceptions.RayError, ConnectionError) as error:
      raise RunError(
        f"a task failed on the Ray cluster ({describe_error(error)}): run the same command again; finished "
        "work is kept. If memory ran out, run fewer tasks on a node: -- --num_cpus=2 reserves two CPUs for each"
      ) from error
    finally:
      for reference in unfinished:
        with contextlib.suppress(Exception):  # the cluster may be gone
          ray.cancel(reference, force=True)


def _connect(options: RayOptions, num_processes: int) -> None:
  """Connects this process to a Ray cluster, or starts one on this machine."""
  address = options.address or os.environ.get("RAY_ADDRESS")
  settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
  if address is None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would send statistics to its makers
    settings |= {"num_cpus": num_processes, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
  handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
  try:
    if address not in (None, "auto", "local"):  # if nothing listens there, Ray would try again for minutes
      host, _, port = address.removeprefix("ray://").rpartition(":")
      socket.create_connection((host.strip("[]"), int(port)), _SECONDS_FOR_AN_ANSWER).close()
    ray.init(address=address or "local", **settings)
  except Exception as error:  # Ray also raises plain Exceptions, for example if a busy machine starts it too slowly
    reason = " ".join(str(error).split())
    if address is None:
      raise RunError(f"--runner=ray: Ray does not start on this machine ({reason})") from error
    raise UserError(
      f"--runner=ray: no Ray cluster can be used at {address} ({reason}): start one with `ray start --head`, or give "
      "its -- --address=HOST:6379"
    ) from error
  finally:
    for number, handler in handlers.items():  # Ray replaces them
      signal.signal(number, handler)
