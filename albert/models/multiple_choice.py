"""The model for multiple choice (RACE): each option is a sequence of its own, and the head gives it one logit."""

from __future__ import annotations

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models.classifier import ClassifierModel

# B batch, K options, S sequence.

# The logit of a padding option: questions of one batch may have different numbers of options.
_PADDING_LOGIT = -1e9


class MultipleChoiceModel(ClassifierModel):
  """A ClassifierModel with one logit for each sequence. The options of a question compete by a softmax over them.

  Args:
    config: the encoder's config, see ClassifierModel.
    name: Keras' name of the model.
  """

  def __init__(self, config: ModelConfig, name: str = "albert_multiple_choice"):
    super().__init__(config, 1, name=name)

  def call(
    self, inputs: dict[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
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
    flat = {name: tf.reshape(inputs[name], [-1, length]) for name in ("input_ids", "input_mask", "segment_ids")}
    logits = tf.reshape(super().call(flat, training=training, seed=seed), tf.shape(mask))
    return tf.where(mask > 0, logits, _PADDING_LOGIT)
