"""LAMB (You et al. 2020) as in ALBERT's original code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.optimizers.adamw import EXCLUDED_PATTERNS, AdamW


@keras.saving.register_keras_serializable("albert")
class LAMB(AdamW):
  """LAMB (You et al. 2020, algorithm 2): AdamW with a trust ratio for each variable, a Keras optimizer.

  For each variable w with AdamW's update u = m / (sqrt(v) + epsilon) + weight_decay_rate w:

      w = w - learning_rate (|w| / |u|) u

  Variables that match `exclude` have neither weight decay nor the trust ratio |w| / |u|. There is no bias correction
  by default, as in the original; with `bias_correction=True` the updates are those of tensorflow-addons' LAMB.

  Example:
    >>> import albert
    >>> import tf_keras as keras
    >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    >>> model.compile(optimizer=albert.optimizers.LAMB(learning_rate=0.02, bias_correction=True), loss="mse")
    >>> history = model.fit([[1.0], [2.0]], [[3.0], [6.0]], epochs=100, verbose=0)
    >>> history.history["loss"][-1] < 0.1
    True

  Args:
    learning_rate: a number, or a schedule that maps the number of updates done to the rate.
    weight_decay_rate: factor of the weight in its update; 0 for no weight decay.
    beta_1: decay rate of the first moment m.
    beta_2: decay rate of the second moment v.
    epsilon: added to sqrt(v).
    bias_correction: whether m is divided by 1 - beta_1^t and v by 1 - beta_2^t in update t, counted from 1. The
      original has no bias correction.
    exclude: regular expressions; variables whose name matches one of them get neither weight decay nor the trust
      ratio. The default matches the biases of all layers, the LayerNorm of this package, and
      keras.layers.LayerNormalization under the name that Keras gives it.
    name: Keras' name of the optimizer.
    **kwargs: further arguments of keras.optimizers.Optimizer.
  """

  def __init__(
    self,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    weight_decay_rate: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    bias_correction: bool = False,
    exclude: Sequence[str] = EXCLUDED_PATTERNS,
    name: str = "LAMB",
    **kwargs: Any,
  ):
    super().__init__(
      learning_rate,
      weight_decay_rate=weight_decay_rate,
      beta_1=beta_1,
      beta_2=beta_2,
      epsilon=epsilon,
      bias_correction=bias_correction,
      exclude=exclude,
      name=name,
      **kwargs,
    )

  def scale_update(self, update: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    """Multiplies the update by the trust ratio |variable| / |update|, which is 1 if one of the norms is 0.

    Args:
      update: the variable's shape, including weight decay.
      variable: the variable to be updated.
    """
    return self.trust_ratio(tf.norm(variable, ord=2), tf.norm(update, ord=2)) * update

  def trust_ratio(self, weight_norm: tf.Tensor, update_norm: tf.Tensor) -> tf.Tensor:
    """Returns weight_norm / update_norm; 1 if one of the norms, float32 scalars, is 0."""
    are_positive = tf.logical_and(weight_norm > 0.0, update_norm > 0.0)
    return tf.where(are_positive, tf.math.divide_no_nan(weight_norm, update_norm), 1.0)
