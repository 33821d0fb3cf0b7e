"""Sums of metrics over steps. Each step adds to them on the device, and the host reads the means."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from albert.tasks.base import WeightedSum


class Accumulator:
  """Adds up metrics over steps and replicas. It must be made in the strategy's scope.

  Args:
    names: names of the metrics.
  """

  def __init__(self, names: Iterable[str]):
    # In this dict, the total and the weight of a WeightedSum are variables.
    self._sums = {name: WeightedSum(_make_sum(f"{name}_total"), _make_sum(f"{name}_weight")) for name in names}

  def add(self, sums: dict[str, WeightedSum]) -> None:
    """Adds the sums of this replica. Call it in the replica's step.

    Args:
      sums: metric -> its sum and weight, for each name given to the constructor.
    Raises:
      ValueError: a name is missing or unknown.
    """
    if set(sums) != set(self._sums):
      raise ValueError(f"expected {sorted(self._sums)}, got {sorted(sums)}")
    for name, (total, weight) in sums.items():
      self._sums[name].total.assign_add(tf.cast(total, tf.float32))
      self._sums[name].weight.assign_add(tf.cast(weight, tf.float32))

  def reset(self) -> None:
    """Sets all sums to 0. Call it on the host."""
    for total, weight in self._sums.values():
      total.assign(0.0)
      weight.assign(0.0)

  def result_and_reset(self) -> dict[str, float]:
    """Returns the mean of each metric since the last reset; 0 if nothing was added. Call it on the host."""
    means = {}
    for name, (total, weight) in self._sums.items():
      total_value, weight_value = float(total.read_value()), float(weight.read_value())
      means[name] = total_value / weight_value if weight_value else 0.0
    self.reset()
    return means


def _make_sum(name: str) -> tf.Variable:
  """Makes a variable to which each replica adds its own values. Reading it on the host gives the sum over replicas."""
  return tf.Variable(
    0.0,
    trainable=False,
    synchronization=tf.VariableSynchronization.ON_READ,
    aggregation=tf.VariableAggregation.SUM,
    name=name,
  )


def zero_if(condition: tf.Tensor, sums: dict[str, WeightedSum]) -> dict[str, WeightedSum]:
  """Returns the sums, in float32, or sums and weights of 0 if the condition, bool scalar, is true."""

  def zero(value: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, 0.0, tf.cast(value, tf.float32))

  return {name: WeightedSum(zero(total), zero(weight)) for name, (total, weight) in sums.items()}
