"""Examples of several sequences: the model for multiple choice (RACE), and the pooling of the windows of a long text.

In multiple choice, each option is a sequence of its own, and the head gives it one logit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.models.classifier import ClassifierModel
from albert.models.heads import EncoderModel
from albert.models.layers import PACKAGE, TOKEN_INPUTS, AnyConfig

# B batch, K options, S sequence.

# The logit of padding: questions of one batch may have different numbers of options, and texts of windows.
_PADDING_LOGIT = -1e9


@keras.saving.register_keras_serializable(PACKAGE)
class MultipleChoiceModel(ClassifierModel):
  """A ClassifierModel with one logit for each option. The softmax over a question's logits gives the probabilities.

  Args:
    config: the encoder's config or its name, see ClassifierModel.
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Raises:
    UserError: there is no model of this name.

  Example:
    >>> import albert
    >>> import numpy as np
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> model = albert.MultipleChoiceModel.from_pretrained("downloads/albert_base")
    >>> batch = tokenizer(["They drank the pub dry."] * 2, ["Who drank? They", "Who drank? Nobody"])
    >>> question = {name: values[np.newaxis] for name, values in batch.items()}  # [1, 2, S]
    >>> model({**question, "option_mask": np.ones([1, 2], np.float32)}).shape.as_list()
    [1, 2]
  """

  input_keys = (*TOKEN_INPUTS, "option_mask")
  input_advice = (
    "the ids as int [B, K, S] for K options of B questions, and option_mask as float32 [B, K], 1 for options"
  )
  pretrained_arguments = EncoderModel.pretrained_arguments  # the weights decide none: the head always has one logit

  def __init__(self, config: AnyConfig, name: str = "albert_multiple_choice", **kwargs: Any):
    super().__init__(config, 1, name=name, **kwargs)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Computes the logits of a batch.

    Args:
      inputs: input_ids, input_mask, segment_ids int [B, K, S]; option_mask float32 [B, K], 1 for real options and 0
        for padding.
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      Logits float32 [B, K]; -1e9 for padding options.
    """
    mask = inputs["option_mask"]
    length = tf.shape(inputs["input_ids"])[2]
    sequences = {name: tf.reshape(inputs[name], [-1, length]) for name in ("input_ids", "input_mask", "segment_ids")}
    logits = tf.reshape(super().call(sequences, training=training, seed=seed), tf.shape(mask))
    return tf.where(mask > 0, logits, _PADDING_LOGIT)

  def get_config(self) -> dict[str, Any]:
    """Returns the arguments of the constructor, for Keras' serialization."""
    config = super().get_config()
    del config["num_classes"]  # it is always 1
    return config


def pool_windows(logits: tf.Tensor, is_window: tf.Tensor, pooling: str) -> tf.Tensor:
  """Computes the mean or the maximum of each logit over the windows of a text.

  Args:
    logits: the logits of the windows, float32 [B, K, C] for B texts of up to K windows.
    is_window: bool [B, K], False for padding. Each text has at least one window.
    pooling: "mean" or "max".
  Returns: float32 [B, C].
  """
  is_window = tf.expand_dims(is_window, 2)  # TFLite cannot slice bool with a new axis
  if pooling == "max":
    return tf.reduce_max(tf.where(is_window, logits, _PADDING_LOGIT), axis=1)
  counts = tf.reduce_sum(tf.cast(is_window, logits.dtype), axis=1)
  return tf.reduce_sum(tf.where(is_window, logits, 0.0), axis=1) / counts
