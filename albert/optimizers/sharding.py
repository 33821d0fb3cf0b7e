"""The moments of an optimizer, divided among the replicas (ZeRO-1; Rajbhandari et al. 2020, ZeRO, section 5.1).

Each replica holds the moments of a part of each variable, and computes the change of this part. Then the changes are
summed over the replicas, each of which adds zeros for the parts of the others, and every replica applies all of them.
The weights are the same as without sharding, except for the rounding of the norms in LAMB.

A part has some of the variable's rows, which are its slices along the first axis. The rows are padded with zeros to R
parts of equal size, where R is the number of replicas. Padding stays 0 in the moments and in the changes. Parts of a
flattened variable would waste less padding, but a TPU stores matrices in tiles, so flattening moves all elements, and
libtpu takes more than twice as long to compile the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from albert.optimizers.replica_variables import make_replica_variable


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
    part: the part of this replica, a variable [rows of a part, ...]. Use it in the replica's step.
  """

  def __init__(self, variable: tf.Variable, name: str, num_parts: int):
    self.shape = variable.shape
    self.dtype = tf.float32
    self._num_parts = num_parts
    self._num_rows, *self._row_shape = tuple(variable.shape) or (1,)  # a scalar is a row
    self._part_rows = -(-self._num_rows // num_parts)
    self._strategy = tf.distribute.get_strategy()
    self.part = make_replica_variable(tf.zeros([self._part_rows, *self._row_shape]), self.dtype, name)

  def assign(self, value: tf.Tensor) -> None:
    """Changes the parts of all replicas. Call it on the host.

    Args:
      value: the whole moment, with the variable's shape.
    """
    parts = tf.split(self._pad(tf.convert_to_tensor(value)), self._num_parts)
    for part, part_value in zip(self._strategy.experimental_local_results(self.part), parts, strict=True):
      part.assign(part_value)

  def to_tensor(self) -> tf.Tensor:
    """Returns the whole moment. Call it on the host."""
    parts = [part.read_value() for part in self._strategy.experimental_local_results(self.part)]
    return self._join(tf.concat(parts, axis=0))

  def part_of(self, tensor: tf.Tensor, replica_id: tf.Tensor) -> tf.Tensor:
    """Returns a replica's part of a tensor with the variable's shape, [rows of a part, ...]."""
    begin = [replica_id * self._part_rows, *[0] * len(self._row_shape)]
    return tf.slice(self._pad(tensor), begin, [self._part_rows, *self._row_shape])

  def with_zeros(self, part: tf.Tensor, replica_id: tf.Tensor) -> tf.Tensor:
    """Returns a tensor with the variable's shape that has a replica's part, and zeros instead of the other parts."""
    is_own = tf.equal(tf.range(self._num_parts), replica_id)
    is_own = tf.reshape(is_own, [self._num_parts, 1, *[1] * len(self._row_shape)])
    parts = tf.where(is_own, part[None], tf.zeros([], part.dtype))
    return self._join(tf.reshape(parts, [-1, *self._row_shape]))

  def _pad(self, tensor: tf.Tensor) -> tf.Tensor:
    """Pads a tensor with the variable's shape to R parts, [R * rows of a part, ...]."""
    rows = tf.reshape(tensor, [self._num_rows, *self._row_shape])
    padding = self._num_parts * self._part_rows - self._num_rows
    return tf.pad(rows, [[0, padding], *[[0, 0]] * len(self._row_shape)]) if padding else rows

  def _join(self, padded: tf.Tensor) -> tf.Tensor:
    """The inverse of `_pad`."""
    return tf.reshape(padded[: self._num_rows], self.shape)


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
