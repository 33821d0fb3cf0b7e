"""Pools the logits of the windows of a long text to the logits of the text."""

from __future__ import annotations

import tensorflow as tf

# The logit of padding before the maximum is taken: texts of one batch may have different numbers of windows.
_PADDING_LOGIT = -1e9


def pool_windows(logits: tf.Tensor, is_window: tf.Tensor, pooling: str) -> tf.Tensor:
  """Computes the mean or the maximum of each logit over the windows of a text.

  Args:
    logits: the logits of the windows, float32 [B, K, C] for B texts of up to K windows.
    is_window: bool [B, K], False for padding. Each text has at least one window.
    pooling: "mean" or "max".
  Returns: float32 [B, C].
  """
  is_window = is_window[:, :, tf.newaxis]
  if pooling == "max":
    return tf.reduce_max(tf.where(is_window, logits, _PADDING_LOGIT), axis=1)
  counts = tf.reduce_sum(tf.cast(is_window, logits.dtype), axis=1)
  return tf.reduce_sum(tf.where(is_window, logits, 0.0), axis=1) / counts
