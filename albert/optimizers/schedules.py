"""The learning-rate schedule: linear warm-up, then polynomial decay."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.ranges import as_float32
from albert.config.run import OptimizerConfig
from albert.errors import UserError

# The batch size of the paper's learning rate 0.00176 (ALBERT, section 4.1).
REFERENCE_BATCH_SIZE = 4096


@keras.saving.register_keras_serializable("albert")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
  """A learning-rate schedule with linear warm-up and polynomial decay.

  Before update t, counted from 0, the rate is

      peak * t / warmup_steps                               if t < warmup_steps
      end + (peak - end) * (1 - t / total_steps) ** power   otherwise

  The decay starts at step 0, as in the original. The rate therefore drops at the end of the warm-up. With end = 0 and
  power = 1, it drops from nearly peak to peak * (1 - warmup_steps / total_steps).

  Args:
    peak: the highest rate.
    warmup_steps: updates with a rising rate; 0 for no warm-up.
    total_steps: updates after which the rate is `end`; at least 1.
    end: the last rate.
    power: exponent of the decay; 1 for a linear one.

  Raises:
    UserError: total_steps is less than 1, or warmup_steps is greater than total_steps.

  Example:
    >>> import albert
    >>> schedule = albert.optimizers.WarmupPolynomialDecay(peak=0.5, warmup_steps=10, total_steps=100)
    >>> [float(schedule(step)) for step in (0, 5, 50, 100)]
    [0.0, 0.25, 0.25, 0.0]
  """

  def __init__(self, peak: float, warmup_steps: int, total_steps: int, end: float = 0.0, power: float = 1.0):
    super().__init__()
    if total_steps < 1:
      raise UserError(f"num_train_steps ({total_steps}) must be at least 1: give the number of updates")
    if warmup_steps > total_steps:
      raise UserError(
        f"num_warmup_steps ({warmup_steps}) must not exceed num_train_steps ({total_steps}): give fewer, or "
        "warmup_proportion=0.1 for a tenth of the steps"
      )
    self.peak = peak
    self.warmup_steps = warmup_steps
    self.total_steps = total_steps
    self.end = end
    self.power = power

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    """Returns the rate, a float32 scalar, of the update that follows `step` (a scalar) updates."""
    t = tf.cast(step, tf.float32)
    remaining = 1.0 - tf.minimum(t / self.decay_steps(), 1.0)
    decayed = self.end + (self.peak - self.end) * tf.pow(remaining, self.power)
    if self.warmup_steps == 0:
      return decayed
    return tf.where(t < self.warmup_steps, self.peak * t / self.warmup_steps, decayed)

  def decay_steps(self) -> int | tf.Tensor:
    """Returns the number of updates after which the rate is `end`. A subclass may return a float32 scalar."""
    return self.total_steps

  def get_config(self) -> dict[str, Any]:
    """Returns the constructor's arguments, for Keras' serialization."""
    return {
      "peak": self.peak,
      "warmup_steps": self.warmup_steps,
      "total_steps": self.total_steps,
      "end": self.end,
      "power": self.power,
    }


def make_schedule(config: OptimizerConfig, num_train_steps: int, train_batch_size: int) -> WarmupPolynomialDecay:
  """Makes the schedule of a run.

  Args:
    config: learning rate, warm-up and decay. With scale_learning_rate, the learning rate is multiplied by
      sqrt(train_batch_size / 4096).
    num_train_steps: updates of the run.
    train_batch_size: examples of an update, over all replicas.

  Raises:
    UserError: the scaled learning rate overflows float32, or the warm-up is longer than the run.
  """
  peak = config.learning_rate
  if config.scale_learning_rate:
    peak *= math.sqrt(train_batch_size / REFERENCE_BATCH_SIZE)
    if math.isinf(as_float32(peak)):
      raise UserError(
        f"--learning_rate={config.learning_rate:g} with --scale_learning_rate and a batch of {train_batch_size}: the "
        f"product {peak:g} overflows float32"
      )
  warmup_steps = config.num_warmup_steps
  if config.warmup_proportion:
    warmup_steps = round(config.warmup_proportion * num_train_steps)
  return WarmupPolynomialDecay(
    peak, warmup_steps, num_train_steps, end=config.end_learning_rate, power=config.decay_power
  )
