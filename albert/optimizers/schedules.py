"""Learning rate over the steps: linear warm-up, then polynomial decay counted from step 0."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.ranges import as_float32
from albert.config.run import OptimizerConfig
from albert.errors import UserError

# The batch that the paper's learning rate belongs to (ALBERT, section 4.1).
REFERENCE_BATCH_SIZE = 4096


class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
  """rate(t) = peak * t / warmup for t < warmup, else end + (peak - end) * (1 - t / total) ** power.

  The decay is counted from step 0, as in the original, so the rate drops from peak * 1 to
  peak * (1 - warmup / total) where warm-up ends.
  """

  def __init__(self, peak: float, warmup_steps: int, total_steps: int, end: float = 0.0, power: float = 1.0):
    super().__init__()
    if warmup_steps > total_steps:
      raise UserError(f"num_warmup_steps ({warmup_steps}) must not exceed num_train_steps ({total_steps})")
    self.peak = peak
    self.warmup_steps = warmup_steps
    self.total_steps = total_steps
    self.end = end
    self.power = power

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    """step: scalar, updates done so far -> float32 rate of the next update."""
    t = tf.cast(step, tf.float32)
    left = 1.0 - tf.minimum(t / self.total_steps, 1.0)
    decayed = self.end + (self.peak - self.end) * tf.pow(left, self.power)
    if self.warmup_steps == 0:
      return decayed
    return tf.where(t < self.warmup_steps, self.peak * t / self.warmup_steps, decayed)

  def get_config(self) -> dict[str, Any]:
    """For Keras serialization."""
    return {
      "peak": self.peak,
      "warmup_steps": self.warmup_steps,
      "total_steps": self.total_steps,
      "end": self.end,
      "power": self.power,
    }


def make_schedule(config: OptimizerConfig, num_train_steps: int, train_batch_size: int) -> WarmupPolynomialDecay:
  """The schedule of a run; with scale_learning_rate the peak is multiplied by sqrt(batch / 4096)."""
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
