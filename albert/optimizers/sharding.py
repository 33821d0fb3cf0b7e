"""The moments of an optimizer, divided among the replicas (ZeRO-1; Rajbhandari et al. 2020, ZeRO, section 5.1).

Each replica holds the moments of a part of each variable, and computes the change of this part. Then the changes are
summed over the replicas, each of which adds zeros for the parts of the others, and every replica applies all of them.
The weights are the same as without sharding, except for the rounding of the norms in LAMB.

A variable is flattened and padded with zeros to R parts of equal size, where R is the number of replicas. Padding stays
0 in the moments and in the changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


class ShardedMoment:
  """A moment whose elements are divided among the replicas. Make it in the strategy's scope.

  On the host it is used like a variable with the shape of the whole moment: tf.convert_to_tensor reads it, and `assign`
  changes it. So checkpoints hold whole moments, and any number of replicas can read them.

  Args:
    variable: the variable that is trained.
    name: the name of the moment.
    num_parts: R, the number of replicas.

  Attributes:
    shape: the shape of the variable.
    dtype: float32.
    part: the part of this replica, a variable [size of a part]. Use it in the replica's step.
  """

  def __init__(self, variable: tf.Variable, name: str, num_parts: int):
    self.shape = variable.shape
    self.dtype = tf.float32
    self._num_parts = num_parts
    self._num_elements = math.prod(variable.shape)
    self._part_size = -(-self._num_elements // num_parts)
    self._strategy = tf.distribute.get_strategy()
    self.part = tf.Variable(
      tf.zeros([self._part_size]),
      trainable=False,
      synchronization=tf.VariableSynchronization.ON_READ,
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
      name=name,
    )

  def assign(self, value: tf.Tensor) -> None:
    """Changes the parts of all replicas. Call it on the host.

    Args:
      value: the whole moment, with the variable's shape.
    """
    parts = tf.unstack(self._split(tf.convert_to_tensor(value)))
    for part, part_value in zip(self._strategy.experimental_local_results(self.part), parts, strict=True):
      part.assign(part_value)

  def to_tensor(self) -> tf.Tensor:
    """Returns the whole moment. Call it on the host."""
    return self._join(tf.stack([part.read_value() for part in self._strategy.experimental_local_results(self.part)]))

  def part_of(self, tensor: tf.Tensor, replica_id: tf.Tensor) -> tf.Tensor:
    """Returns a replica's part of a tensor with the variable's shape, [size of a part]."""
    return tf.gather(self._split(tensor), replica_id)

  def with_zeros(self, part: tf.Tensor, replica_id: tf.Tensor) -> tf.Tensor:
    """Returns a tensor with the variable's shape that has a replica's part, and zeros instead of the other parts."""
    is_own = tf.equal(tf.range(self._num_parts), replica_id)[:, None]
    return self._join(tf.where(is_own, part[None], tf.zeros([], part.dtype)))

  def _split(self, tensor: tf.Tensor) -> tf.Tensor:
    """Returns all parts of a tensor with the variable's shape, [R, size of a part]."""
    padding = self._num_parts * self._part_size - self._num_elements
    padded = tf.pad(tf.reshape(tensor, [self._num_elements]), [[0, padding]])
    return tf.reshape(padded, [self._num_parts, self._part_size])

  def _join(self, parts: tf.Tensor) -> tf.Tensor:
    """The inverse of `_split`."""
    return tf.reshape(tf.reshape(parts, [-1])[: self._num_elements], self.shape)


def _convert(moment: ShardedMoment, dtype: tf.DType | None = None, *unused: Any, **options: Any) -> Any:
  """Converts a moment to a tensor; TensorFlow calls it."""
  del unused, options
  return moment.to_tensor() if dtype in (None, moment.dtype) else NotImplemented


tf.register_tensor_conversion_function(ShardedMoment, _convert)


def sum_over_replicas(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Sums each tensor over the replicas. Every replica must call it."""
  return list(tf.distribute.get_replica_context().all_reduce("SUM", list(tensors)))


def are_finite(variables: Sequence[tf.Variable | ShardedMoment]) -> tf.Tensor:
  """Returns for each variable or moment whether all of its elements are finite in all replicas, bool [variables].

  Every replica must call it.
  """
  parts = [variable.part if isinstance(variable, ShardedMoment) else variable for variable in variables]
  are_bad = [tf.logical_not(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(part)))) for part in parts]
  return tf.equal(sum_over_replicas([tf.cast(tf.stack(are_bad), tf.float32)])[0], 0)
