"""The processes that train one model together: one on each machine, or a single one.

All processes run the same program. Every process must call each collective operation, such as a sum over all devices,
or the others wait forever. So all processes must make the same decisions. If a decision depends on something that only
one process knows (a signal, the time, a file), the methods of Cluster tell it to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from albert.config.tf_config import process_addresses
from albert.errors import RunError
from albert.io.parallel.lost_processes import describe_error, is_lost_process


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
