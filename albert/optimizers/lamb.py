"""LAMB (You et al. 2020) as in ALBERT's original code.

Saved Keras models contain the name of this module, so the class must not be moved.
"""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from albert.optimizers.adamw import AdamW


@keras.saving.register_keras_serializable("albert")
class LAMB(AdamW):
  """LAMB (You et al. 2020, algorithm 2): AdamW with a trust ratio for each variable, a Keras optimizer.

  For each variable w with AdamW's update u = m / (sqrt(v) + epsilon) + weight_decay_rate w:

      w = w - learning_rate (|w| / |u|) u

  Variables that match `exclude` get neither weight decay nor the trust ratio |w| / |u|. There is no bias correction
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
    weight_decay_rate: see the formula of u above; 0 for no weight decay.
    beta_1: decay rate of the first moment m.
    beta_2: decay rate of the second moment v.
    epsilon: added to sqrt(v).
    bias_correction: whether m is divided by 1 - beta_1^t and v by 1 - beta_2^t in update t, counted from 1. The
      original has no bias correction.
    exclude: regular expressions; variables whose name matches one of them get neither weight decay nor the trust
      ratio. The default matches the biases of all layers, the LayerNorm of this package, and
      keras.layers.LayerNormalization under the name that Keras gives it.
    name: Keras' name of the optimizer; None for that of its class.
    **kwargs: further arguments of keras.optimizers.Optimizer.
  """

  def trust_ratio(self, weight_norm: tf.Tensor, update_norm: tf.Tensor) -> tf.Tensor:
    """Returns weight_norm / update_norm; 1 if one of the norms, float32 scalars, is 0."""
    are_positive = tf.logical_and(weight_norm > 0.0, update_norm > 0.0)
    return tf.where(are_positive, tf.math.divide_no_nan(weight_norm, update_norm), 1.0)
