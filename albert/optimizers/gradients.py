"""Gradients and moments: clipping, their division among the replicas, and loss scaling for float16.

The division is that of ZeRO (Rajbhandari et al. 2020, sections 5.1 and 5.2). Each replica holds the moments of a part
of each variable. It receives the sum over all replicas of this part of the gradient, and computes the change of this
part. Then the changes are summed over the replicas, each of which adds zeros for the parts of the others, and every
replica applies all of them. The weights are the same as without sharding, except for the rounding of the norms, by
which gradients are clipped and LAMB scales its updates.

A part has some of the variable's rows, which are its slices along the first axis. The rows are padded with zeros to R
parts of equal size, where R is the number of replicas. Padding stays 0 in the gradients, the moments and the changes.
Parts of a flattened variable would waste less padding, but a TPU stores matrices in tiles, so flattening moves all
elements, and libtpu takes more than twice as long to compile the step.

Loss scaling is dynamic (Micikevicius et al. 2018, Mixed Precision Training, section 3.2). The smallest positive number
of float16 is 6e-8, so small gradients would become 0. Therefore the loss is multiplied by a scale before the backward
pass, and the gradients are divided by it. If a gradient overflows, the step is skipped and the scale is halved. After
2,000 steps in a row without an overflow it is doubled. These are the rules and the numbers of Keras'
LossScaleOptimizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf


def make_replica_variable(
  value: float | tf.Tensor,
  dtype: tf.DType,
  name: str | None = None,
  aggregation: tf.VariableAggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA,
) -> tf.Variable:
  """Makes a variable of which each replica has a copy. Call it in the strategy's scope.

  A checkpoint has the copy of the first replica. So the copies of a variable that is saved must stay equal: either all
  replicas assign the same values to theirs, or the host assigns a value to all.

  Args:
    value: the first value, a number or a tensor.
    dtype: type of the variable.
    name: name of the variable.
    aggregation: what the host reads: the copy of the first replica, or the sum of all copies.
  """
  return tf.Variable(
    tf.convert_to_tensor(value, dtype),
    trainable=False,
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=aggregation,
    name=name,
  )


class Gradient(NamedTuple):
  """The gradient of one weight. Gradients of several micro-batches or replicas may be added field by field.

  Attributes:
    value: dense tensor with the weight's shape.
    row_squares: for an embedding table, whose gradient is a row for each token, a tuple with one float32 scalar: the
      sum of the squares of these rows, before rows of the same token are summed. () for other weights. It is a tuple
      because the fields of two micro-batches are added with tf.nest.map_structure, which cannot add None and None.
  """

  value: tf.Tensor
  row_squares: tuple[tf.Tensor, ...]


def densify(gradient: tf.Tensor | tf.IndexedSlices) -> Gradient:
  """Converts a gradient of a tf.GradientTape to a `Gradient`."""
  has_rows = isinstance(gradient, tf.IndexedSlices)
  row_squares = (tf.reduce_sum(tf.square(gradient.values)),) if has_rows else ()
  return Gradient(tf.convert_to_tensor(gradient), row_squares)


def clip_by_global_norm(
  gradients: Mapping[Any, Gradient], limit: float, sum_over_replicas: Callable[[tf.Tensor], tf.Tensor] | None = None
) -> tuple[dict[Any, tf.Tensor], tf.Tensor]:
  """Scales all gradients by one factor, so that their global norm is at most `limit`.

  For an embedding table, the norm is computed from the gradient's rows before rows of the same token are summed
  (`Gradient.row_squares`). tf.clip_by_global_norm, which the original calls, does the same. After eight steps from the
  original's checkpoint, weights differ by at most 2e-6 from those of the original code. With the norm of the summed
  rows they would differ by 6e-4.

  Args:
    gradients: name of a weight -> its gradient.
    limit: the largest allowed norm; 0 for no clipping.
    sum_over_replicas: sums a scalar over the replicas, if each of them has a part of the gradients, and the row_squares
      of its own examples. None if the gradients are whole.

  Returns:
    The scaled gradients by name, and the global norm before scaling, a float32 scalar.
  """
  squares = [g.row_squares[0] if g.row_squares else tf.reduce_sum(tf.square(g.value)) for g in gradients.values()]
  sum_of_squares = tf.add_n(squares)
  norm = tf.sqrt(sum_of_squares if sum_over_replicas is None else sum_over_replicas(sum_of_squares))
  if not limit:
    return {name: g.value for name, g in gradients.items()}, norm
  scale = limit / tf.maximum(norm, limit)
  return {name: g.value * scale for name, g in gradients.items()}, norm


@dataclasses.dataclass(frozen=True)
class Partition:
  """The parts of a variable.

  Attributes:
    shape: the shape of the variable, which has at least one dimension.
    num_parts: R, the number of replicas.
  """

  shape: tuple[int, ...]
  num_parts: int

  @property
  def part_shape(self) -> list[int]:
    """The shape of a part, [rows of a part, ...]."""
    return [-(-self.shape[0] // self.num_parts), *self.shape[1:]]

  def pad(self, tensor: tf.Tensor) -> tf.Tensor:
    """Pads a tensor with the variable's shape to R parts, [R * rows of a part, ...]."""
    rows = tf.reshape(tensor, self.shape)
    padding = self.num_parts * self.part_shape[0] - self.shape[0]
    return tf.pad(rows, [[0, padding], *[[0, 0]] * (len(self.shape) - 1)]) if padding else rows

  def part_of(self, tensor: tf.Tensor, replica_id: tf.Tensor) -> tf.Tensor:
    """Returns a replica's part of a tensor with the variable's shape."""
    begin = [replica_id * self.part_shape[0], *[0] * (len(self.shape) - 1)]
    return tf.slice(self.pad(tensor), begin, self.part_shape)

  def with_zeros(self, part: tf.Tensor, replica_id: tf.Tensor) -> tf.Tensor:
    """Returns a tensor with the variable's shape that has a replica's part, and zeros instead of the other parts."""
    is_own = tf.equal(tf.range(self.num_parts), replica_id)
    is_own = tf.reshape(is_own, [self.num_parts, *[1] * len(self.shape)])
    parts = tf.where(is_own, part[None], tf.zeros([], part.dtype))
    return tf.reshape(parts, [-1, *self.shape[1:]])[: self.shape[0]]


@dataclasses.dataclass(frozen=True)
class Sharding:
  """The division of moments and gradients among the replicas.

  Attributes:
    num_parts: R, the number of replicas.
    reduce_scatter: whether gradients are summed by XLA's reduce-scatter, which gives each replica its part of the sum.
      So the gradient of a layer can be freed as soon as it is summed, also that of a micro-batch. XLA must compile the
      step for all replicas together, as it does for TPUs. Otherwise gradients are summed as without sharding, once per
      update, and then each replica keeps its part of the sum.
  """

  num_parts: int
  reduce_scatter: bool

  @classmethod
  def of_strategy(cls, strategy: tf.distribute.Strategy) -> Sharding:
    """Returns the sharding for the replicas of a strategy."""
    return cls(strategy.num_replicas_in_sync, isinstance(strategy, tf.distribute.TPUStrategy))

  def partition(self, variable: tf.Variable) -> Partition:
    """Returns the parts of a variable."""
    return Partition(tuple(variable.shape), self.num_parts)

  def sum_gradients(
    self, gradients: Mapping[str, Gradient], variables: Mapping[str, tf.Variable]
  ) -> dict[str, Gradient]:
    """Sums gradients over the replicas. Every replica must call it.

    Args:
      gradients: name of a variable -> this replica's gradient, with the variable's shape.
      variables: name -> variable, for these names and possibly others.

    Returns:
      Name -> this replica's part of the sum, [rows of a part, ...], with the row_squares of this replica.
    """
    values = [gradient.value for gradient in gradients.values()]
    partitions = [self.partition(variables[name]) for name in gradients]
    if self.reduce_scatter:
      parts = [self._reduce_scatter(partition.pad(value)) for partition, value in zip(partitions, values, strict=True)]
    else:
      replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
      sums = sum_over_replicas(values)
      parts = [partition.part_of(value, replica_id) for partition, value in zip(partitions, sums, strict=True)]
    return {name: Gradient(part, gradients[name].row_squares) for name, part in zip(gradients, parts, strict=True)}

  def _reduce_scatter(self, rows: tf.Tensor) -> tf.Tensor:
    """Sums rows, [R * rows of a part, ...], over the replicas, and returns this replica's part of the sum."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops  # TensorFlow has no public name for this operation

    group = tf.constant([list(range(self.num_parts))])
    return gen_xla_ops.xla_reduce_scatter(rows, group, scatter_dimension=0, reduce_op="Add")


class ShardedMoment:
  """A moment whose elements are divided among the replicas. Make it in the strategy's scope.

  On the host it is used like a variable with the shape of the whole moment: tf.convert_to_tensor reads it, and `assign`
  changes it. So checkpoints hold whole moments, and any number of replicas can read them.

  Args:
    partition: the parts of the variable that is trained.
    name: the name of the moment.

  Attributes:
    shape: the shape of the variable.
    dtype: float32.
    partition: the parts.
    part: the part of this replica, a variable [rows of a part, ...]. Use it in the replica's step.
  """

  def __init__(self, partition: Partition, name: str):
    self.shape = tf.TensorShape(partition.shape)
    self.dtype = tf.float32
    self.partition = partition
    self._strategy = tf.distribute.get_strategy()
    self.part = make_replica_variable(tf.zeros(partition.part_shape), self.dtype, name)

  def assign(self, value: tf.Tensor) -> None:
    """Changes the parts of all replicas. Call it on the host.

    Args:
      value: the whole moment, with the variable's shape.
    """
    parts = tf.split(self.partition.pad(tf.convert_to_tensor(value)), self.partition.num_parts)
    for part, part_value in zip(self._strategy.experimental_local_results(self.part), parts, strict=True):
      part.assign(part_value)


def _convert(moment: ShardedMoment, dtype: tf.DType | None = None, *unused: Any, **options: Any) -> Any:
  """Returns the whole moment. TensorFlow calls it on the host, in tf.convert_to_tensor."""
  del unused, options
  if dtype not in (None, moment.dtype):
    return NotImplemented
  parts = [part.read_value() for part in moment._strategy.experimental_local_results(moment.part)]
  return tf.concat(parts, axis=0)[: moment.shape[0]]


tf.register_tensor_conversion_function(ShardedMoment, _convert)


def sum_over_replicas(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  """Sums each tensor over the replicas. Every replica must call it."""
  return list(tf.distribute.get_replica_context().all_reduce("SUM", list(tensors)))


def are_finite(values: Sequence[tf.Tensor | tf.Variable | ShardedMoment]) -> tf.Tensor:
  """Returns for each tensor, variable or moment whether all of its elements are finite in all replicas, bool [values].

  Every replica must call it.
  """
  parts = [tf.convert_to_tensor(value.part if isinstance(value, ShardedMoment) else value) for value in values]
  are_bad = [tf.logical_not(tf.reduce_all(tf.math.is_finite(part))) for part in parts]
  return tf.equal(sum_over_replicas([tf.cast(tf.stack(are_bad), tf.float32)])[0], 0)


INITIAL_SCALE = 2.0**15
# Steps in a row without an overflow after which the scale is doubled.
GROWTH_STEPS = 2000
# An overflow at this scale is no consequence of the scale.
SMALLEST_SCALE = 1.0

# Names of the variables in checkpoints.
_SCALE, _GOOD_STEPS, _SKIPPED_STEPS = "loss_scale", "loss_scale_good_steps", "loss_scale_skipped_steps"


class LossScale:
  """The scale of the loss and the number of skipped steps. Make it in the strategy's scope."""

  def __init__(self) -> None:
    self._scale = make_replica_variable(INITIAL_SCALE, tf.float32, _SCALE)
    self._good_steps = make_replica_variable(0, tf.int64, _GOOD_STEPS)
    self._skipped_steps = make_replica_variable(0, tf.int64, _SKIPPED_STEPS)

  def state(self) -> dict[str, tf.Variable]:
    """Returns the variables that a checkpoint holds, by name."""
    return {_SCALE: self._scale, _GOOD_STEPS: self._good_steps, _SKIPPED_STEPS: self._skipped_steps}

  def scale(self, loss: tf.Tensor) -> tf.Tensor:
    """Multiplies a loss, float32 scalar, by the scale. Call it in the replica's step."""
    return loss * tf.convert_to_tensor(self._scale)

  def unscale(self, gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor | tf.IndexedSlices:
    """Divides a float32 gradient by the scale, without rounding, since it is a power of 2."""
    factor = 1.0 / tf.convert_to_tensor(self._scale)
    if isinstance(gradient, tf.IndexedSlices):
      return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor

  def update(self, is_skipped: tf.Tensor) -> tf.Tensor:
    """Changes the scale after a step. Every replica must call it with the same value.

    Args:
      is_skipped: bool scalar, whether the loss or a gradient of the step was not finite.

    Returns:
      bool scalar, whether the step was skipped although the scale had its smallest value: the overflow has another
      cause then, and further steps would overflow, too.
    """
    scale, good_steps = tf.convert_to_tensor(self._scale), tf.convert_to_tensor(self._good_steps) + 1
    is_hopeless = tf.logical_and(is_skipped, scale <= SMALLEST_SCALE)
    grows = tf.logical_and(tf.logical_not(is_skipped), good_steps >= GROWTH_STEPS)
    larger = tf.where(tf.math.is_finite(2.0 * scale), 2.0 * scale, scale)
    smaller = tf.maximum(0.5 * scale, SMALLEST_SCALE)
    self._scale.assign(tf.where(is_skipped, smaller, tf.where(grows, larger, scale)))
    self._good_steps.assign(tf.where(tf.logical_or(is_skipped, grows), tf.zeros_like(good_steps), good_steps))
    self._skipped_steps.assign_add(tf.cast(is_skipped, tf.int64))
    return is_hopeless

  def metrics(self) -> dict[str, float]:
    """Returns the scale and the number of skipped steps of the run, for the log. Call it on the host."""
    return {"loss_scale": float(self._scale.read_value()), "skipped_steps": float(self._skipped_steps.read_value())}
