"""The processes that train one model together: one on each machine, or a single one.

All processes run the same program. Every process must call each collective operation, such as a sum over all devices,
or the others wait forever. So all processes must make the same decisions. If a decision depends on something that only
one process knows (a signal, the time, a file), the methods of Cluster tell it to the others.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from albert.config.tf_config import process_addresses
from albert.errors import RunError
from albert.io.workers import describe_error, is_lost_process

_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_FOR_AN_ANSWER = 10.0
_GO = b"go"


class Cluster:
  """The processes of a strategy. Make it after the strategy, in every process.

  Args:
    strategy: the strategy of the run.

  Attributes:
    num_processes: number of processes that train together.
    is_chief: whether this process is the one that writes the checkpoints and the results.
  """

  def __init__(self, strategy: tf.distribute.Strategy):
    self._strategy = strategy
    self.num_processes = 1
    self.is_chief = True
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
      resolver = strategy.cluster_resolver
      self.num_processes = max(1, len(process_addresses()))
      has_chief = "chief" in resolver.cluster_spec().as_dict()
      self.is_chief = resolver.task_type == "chief" or (not has_chief and resolver.task_id == 0)

  def sum(self, *values: float) -> list[float]:
    """Returns the sum of each value over all processes. Every process must call it with the same number of values."""
    if self.num_processes == 1:
      return list(values)
    # The sum is taken over all replicas, so each replica of a process adds an equal share of the value.
    replicas_per_process = self._strategy.num_replicas_in_sync // self.num_processes
    sums = self._sum_over_replicas(tf.constant(values, tf.float64) / replicas_per_process)
    return [float(value) for value in self._strategy.experimental_local_results(sums)[0]]

  @tf.function(autograph=False)
  def _sum_over_replicas(self, values: tf.Tensor) -> Any:
    def all_reduce(values: tf.Tensor) -> tf.Tensor:
      replica_values = tf.identity(values)  # copies them to the replica's device, where all_reduce expects them
      return tf.distribute.get_replica_context().all_reduce("SUM", replica_values)

    return self._strategy.run(all_reduce, args=(values,))

  def any(self, condition: bool) -> bool:
    """Whether the condition is true in at least one process. Every process must call it."""
    return self.sum(float(condition))[0] > 0

  def is_true_in_chief(self, condition: bool) -> bool:
    """Whether the condition is true in the chief. Every process must call it, and gets the same result."""
    return self.any(condition and self.is_chief)

  @contextmanager
  def report_lost_processes(self, make_advice: Callable[[], str]) -> Iterator[None]:
    """Within this context, TensorFlow's errors about a lost process or TPU become a RunError.

    Args:
      make_advice: returns the end of the message, which says how to continue.
    Raises:
      RunError: another process, the TPU or a remote service does not answer any more.
    """
    try:
      yield
    except tf.errors.OpError as error:
      if not is_lost_process(error):
        raise
      if self.num_processes > 1:
        problem = f"another of the {self.num_processes} processes is gone ({type(error).__name__}), so this one stops"
      elif isinstance(self._strategy, tf.distribute.TPUStrategy):
        problem = f"the TPU was preempted or restarted, or the connection to it is lost ({describe_error(error)})"
      else:
        problem = f"a service that this run uses does not answer ({describe_error(error)})"
      raise RunError(f"{problem}; {make_advice()}") from error


@functools.cache
def wait_for_processes(addresses: tuple[str, ...], index: int) -> None:
  """Returns when every process has called this function, before TensorFlow connects them.

  TensorFlow waits for the processes, too, but it keeps Python's lock and has its own handler of SIGTERM, so no signal
  ends its wait. Therefore they meet here first: on the chief's port, which TensorFlow uses afterwards. Only the first
  call of a process waits.

  Args:
    addresses: the "host:port" address of each process, the chief first.
    index: the index of this process in `addresses`.

  Raises:
    RunError: the chief cannot listen on its port.
  """
  host, _, port = addresses[0].rpartition(":")
  if index:
    while not _report_to_chief(host.strip("[]"), int(port), index):
      time.sleep(_SECONDS_BETWEEN_TRIES)
    return
  has_ipv6 = socket.has_dualstack_ipv6()
  family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
  try:
    server = socket.create_server(("", int(port)), family=family, dualstack_ipv6=has_ipv6)
  except (OSError, OverflowError) as error:
    raise RunError(f"TF_CONFIG: cannot listen on {addresses[0]} ({error}): give this process a free port") from error
  with server:
    connections: dict[int, socket.socket] = {}
    while len(connections) < len(addresses) - 1:
      connection = server.accept()[0]
      connection.settimeout(_SECONDS_FOR_AN_ANSWER)
      sender = _read_index(connection)
      if 0 < sender < len(addresses):  # a process that was started again replaces its first connection
        connections[sender] = connection
  for connection in connections.values():
    connection.sendall(_GO)
  for connection in connections.values():
    connection.recv(1)  # the other end closes first; otherwise the system would keep the port for a while
    connection.close()


def _read_index(connection: socket.socket) -> int:
  """Reads the index of the process that has connected; 0 if it is none of the processes."""
  try:
    return int(connection.recv(16))
  except (OSError, ValueError):
    return 0


def _report_to_chief(host: str, port: int, index: int) -> bool:
  """Tells the chief that this process has started. Returns whether the chief has answered that all have."""
  try:
    with socket.create_connection((host, port), _SECONDS_FOR_AN_ANSWER) as connection:
      connection.sendall(str(index).encode())
      connection.settimeout(None)
      return connection.recv(len(_GO)) == _GO
  except OSError:
    return False
