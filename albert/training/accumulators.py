"""Sums that steps add to on the device and the host reads now and then."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from albert.tasks.base import Sum


class Accumulator:
  """One running Sum per name, summed over steps and replicas. Make it in the strategy's scope."""

  def __init__(self, names: Iterable[str]):
    def variable(name: str) -> tf.Variable:
      return tf.Variable(
        0.0,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name=name,
      )

    self._sums = {name: Sum(variable(f"{name}_total"), variable(f"{name}_weight")) for name in names}

  def add(self, sums: dict[str, Sum]) -> None:
    """Adds this replica's sums; called in the step. The names must be those given when it was made."""
    if set(sums) != set(self._sums):
      raise ValueError(f"expected {sorted(self._sums)}, got {sorted(sums)}")
    for name, value in sums.items():
      self._sums[name].total.assign_add(tf.cast(value.total, tf.float32))
      self._sums[name].weight.assign_add(tf.cast(value.weight, tf.float32))

  def result_and_reset(self) -> dict[str, float]:
    """total / weight of each name since the last call (0 where nothing was added); called on the host."""
    result = {}
    for name, (total, weight) in self._sums.items():
      summed, count = float(total.read_value()), float(weight.read_value())
      result[name] = summed / count if count else 0.0
      total.assign(0.0)
      weight.assign(0.0)
    return result
