"""LAMB (You et al. 2020) as in ALBERT's original code."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from albert.optimizers.adamw import AdamW


class LAMB(AdamW):
  """LAMB (You et al. 2020, algorithm 2): AdamW with a trust ratio for each variable, a Keras optimizer.

  For each variable w with AdamW's update u = m / (sqrt(v) + epsilon) + weight_decay_rate w:

      w = w - learning_rate (|w| / |u|) u

  Variables that match `exclude` have neither weight decay nor the trust ratio |w| / |u|. There is no bias correction
  by default, as in the original; with `bias_correction=True` the updates are those of tensorflow-addons' LAMB.

  Example:
    >>> import tf_keras as keras
    >>> from albert.optimizers.lamb import LAMB
    >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    >>> model.compile(optimizer=LAMB(learning_rate=0.02, bias_correction=True), loss="mse")
    >>> history = model.fit([[1.0], [2.0]], [[3.0], [6.0]], epochs=100, verbose=0)
    >>> history.history["loss"][-1] < 0.1
    True

  Args:
    *args: see AdamW.
    **kwargs: see AdamW; `exclude` also names the variables without trust ratio.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **{"name": "LAMB", **kwargs})

  def scale_update(self, update: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    """Multiplies the update by the trust ratio |variable| / |update|, which is 1 if one of the norms is 0.

    Args:
      update: the variable's shape, including weight decay.
      variable: the variable to be updated.
    """
    weight_norm = tf.norm(variable, ord=2)
    update_norm = tf.norm(update, ord=2)
    are_positive = tf.logical_and(weight_norm > 0.0, update_norm > 0.0)
    ratio = tf.where(are_positive, tf.math.divide_no_nan(weight_norm, update_norm), 1.0)
    return ratio * update
