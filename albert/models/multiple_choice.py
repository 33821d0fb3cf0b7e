"""The model of multiple choice (RACE): every option is a sequence of its own, and the head gives it one logit."""

from __future__ import annotations

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models.classifier import ClassifierModel

# B batch, K options, S sequence.

# The logit of an option that is not there.
_ABSENT = -1e9


class MultipleChoiceModel(ClassifierModel):
  """A classifier of one class, whose logits are compared between the options of a question."""

  def __init__(self, config: ModelConfig, name: str = "albert_multiple_choice"):
    super().__init__(config, 1, name=name)

  def call(
    self, inputs: dict[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Scores options.

    Args:
      inputs: input_ids, input_mask, segment_ids int [B, K, S]; option_mask float32 [B, K], 1 for options that are
        there.
      seed: of dropout.
    Returns: logits float32 [B, K], -1e9 for options that are not there.
    """
    mask = inputs["option_mask"]
    length = tf.shape(inputs["input_ids"])[2]
    flat = {name: tf.reshape(inputs[name], [-1, length]) for name in ("input_ids", "input_mask", "segment_ids")}
    logits = tf.reshape(super().call(flat, training=training, seed=seed), tf.shape(mask))
    return tf.where(mask > 0, logits, _ABSENT)
