"""LAMB (You et al. 2020) as ALBERT used it."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from albert.optimizers.adamw import AdamW


class LAMB(AdamW):
  """AdamW whose update is rescaled to the norm of the variable: w -= rate * |w| / |update| * update.

  The update already holds the weight decay. LayerNorm and biases are left out of decay and of the
  ratio. The moments are not corrected for bias, unlike tfa.optimizers.LAMB; `bias_correction=True` does.
  """

  def __init__(self, *args: Any, **kwargs: Any):
    super().__init__(*args, **{"name": "LAMB", **kwargs})

  def scale_update(self, update: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    """update times |variable| / |update|, or times 1 where either norm is 0."""
    weight_norm = tf.norm(variable, ord=2)
    update_norm = tf.norm(update, ord=2)
    both = tf.logical_and(weight_norm > 0.0, update_norm > 0.0)
    ratio = tf.where(both, tf.math.divide_no_nan(weight_norm, update_norm), 1.0)
    return ratio * update
