"""Variables of which each replica has a copy, such as the state of a time limit or a part of a moment."""

from __future__ import annotations

import tensorflow as tf


def make_replica_variable(value: float | tf.Tensor, dtype: tf.DType, name: str | None = None) -> tf.Variable:
  """Makes a variable of which each replica has a copy. Call it in the strategy's scope.

  A checkpoint has the copy of the first replica. So the copies of a variable that is saved must stay equal: either all
  replicas assign the same values to theirs, or the host assigns a value to all.

  Args:
    value: the first value, a number or a tensor.
    dtype: type of the variable.
    name: name of the variable.
  """
  return tf.Variable(
    tf.convert_to_tensor(value, dtype),
    trainable=False,
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    name=name,
  )
