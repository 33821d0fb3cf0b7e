"""The model of sentence and pair classification: the encoder, dropout, and a linear head on [CLS]."""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.encoder import Encoder
from albert.models.heads import LinearHead

# B batch, S sequence, H hidden, C classes.

# Of the dropout in front of a task head; blocks of the encoder count their own from their own seeds.
HEAD_DROPOUT_SITE = 101


class ClassifierModel(keras.Model):
  """Encoder and head. Regression is one class whose logit is the value.

  Args:
    config: of the encoder; classifier_dropout_prob is the dropout in front of the head, 0.1 in the original
      whatever the dropout of the encoder.
    num_classes: C.
  """

  def __init__(self, config: ModelConfig, num_classes: int, name: str = "albert_classifier"):
    super().__init__(name=name)
    self.config = config
    self.encoder = Encoder(config)
    self.head = LinearHead(num_classes, config.initializer_range, name="classifier")

  def call(
    self, inputs: dict[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    """inputs: input_ids, input_mask, segment_ids int [B, S]; seed of dropout -> logits float32 [B, C]."""
    no_positions = inputs["input_ids"][:, :0]  # the pooled output needs [CLS] only
    encoded = self.encoder(inputs, training=training, seed=seed, positions=no_positions)
    rate = self.config.classifier_dropout_prob
    pooled = layers.dropout(encoded.pooled_output, rate, site=HEAD_DROPOUT_SITE, training=training, seed=seed)
    return self.head(pooled)

  def named_weights(self) -> dict[str, tf.Variable]:
    """Every variable under the original's name."""
    return {**self.encoder.named_weights(), **self.head.named_weights("")}
