"""Dynamic loss scaling for training in float16 (Micikevicius et al. 2018, Mixed Precision Training, section 3.2).

The smallest positive number of float16 is 6e-8, so small gradients would become 0. Therefore the loss is multiplied by
a scale before the backward pass, and the gradients are divided by it. If a gradient overflows, the step is skipped and
the scale is halved. After 2,000 steps in a row without an overflow it is doubled. These are the rules and the numbers
of Keras' LossScaleOptimizer.
"""

from __future__ import annotations

import tensorflow as tf

from albert.optimizers.sharding import make_replica_variable

INITIAL_SCALE = 2.0**15
# Steps without an overflow after which the scale is doubled.
GROWTH_STEPS = 2000
# An overflow at this scale is no consequence of the scale.
SMALLEST_SCALE = 1.0

# Names of the variables in checkpoints.
_SCALE, _GOOD_STEPS, _SKIPPED_STEPS = "loss_scale", "loss_scale_good_steps", "loss_scale_skipped_steps"


class LossScale:
  """The scale of the loss and the number of skipped steps. Make it in the strategy's scope.

  Args:
    growth_steps: number of steps in a row without an overflow after which the scale is doubled.
  """

  def __init__(self, growth_steps: int = GROWTH_STEPS):
    self._growth_steps = growth_steps
    self._scale = make_replica_variable(INITIAL_SCALE, tf.float32, _SCALE)
    self._good_steps = make_replica_variable(0, tf.int64, _GOOD_STEPS)
    self._skipped_steps = make_replica_variable(0, tf.int64, _SKIPPED_STEPS)

  def state(self) -> dict[str, tf.Variable]:
    """Returns the variables that a checkpoint holds, by name."""
    return {_SCALE: self._scale, _GOOD_STEPS: self._good_steps, _SKIPPED_STEPS: self._skipped_steps}

  def scale(self, loss: tf.Tensor) -> tf.Tensor:
    """Multiplies a loss, float32 scalar, by the scale. Call it in the replica's step."""
    return loss * tf.convert_to_tensor(self._scale)

  def unscale(self, gradients: list[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor | tf.IndexedSlices]:
    """Divides float32 gradients by the scale, without rounding, since it is a power of 2."""
    factor = 1.0 / tf.convert_to_tensor(self._scale)
    return [
      tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
      if isinstance(gradient, tf.IndexedSlices)
      else gradient * factor
      for gradient in gradients
    ]

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
    grows = tf.logical_and(tf.logical_not(is_skipped), good_steps >= self._growth_steps)
    larger = tf.where(tf.math.is_finite(2.0 * scale), 2.0 * scale, scale)
    smaller = tf.maximum(0.5 * scale, SMALLEST_SCALE)
    self._scale.assign(tf.where(is_skipped, smaller, tf.where(grows, larger, scale)))
    self._good_steps.assign(tf.where(tf.logical_or(is_skipped, grows), tf.zeros_like(good_steps), good_steps))
    self._skipped_steps.assign_add(tf.cast(is_skipped, tf.int64))
    return is_hopeless

  def metrics(self) -> dict[str, float]:
    """Returns the scale and the number of skipped steps of the run, for the log. Call it on the host."""
    return {"loss_scale": float(self._scale.read_value()), "skipped_steps": float(self._skipped_steps.read_value())}
