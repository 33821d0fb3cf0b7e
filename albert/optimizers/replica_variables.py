"""Variables of which each replica has a copy, such as the state of a time limit or of the loss scale."""

from __future__ import annotations

import tensorflow as tf


def make_replica_variable(value: float, dtype: tf.DType, name: str | None = None) -> tf.Variable:
  """Makes a scalar variable of which each replica has a copy. Call it in the strategy's scope.

  The copies must stay equal: either all replicas assign the same values to theirs, or the host assigns a value to all.
  A checkpoint has the copy of the first replica.

  Args:
    value: the first value.
    dtype: type of the variable.
    name: name of the variable.
  """
  return tf.Variable(
    tf.constant(value, dtype),
    trainable=False,
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    name=name,
  )
