"""The model for classification and regression of texts and text pairs: encoder, dropout, linear head on [CLS]."""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.encoder import Encoder
from albert.models.heads import LinearHead

# B batch, S sequence, H hidden, C classes.

# `site` of the dropout in front of a task head (see layers.dropout). The embeddings use site 0 of the same seed; each
# block of the encoder has a seed of its own.
HEAD_DROPOUT_SITE = 101


class ClassifierModel(keras.Model):
  """The encoder and a linear layer on its pooled output.

  Args:
    config: the encoder's config; its classifier_dropout_prob is the dropout rate in front of the head. The original
      uses 0.1 there, also where the encoder has no dropout.
    num_classes: number of logits C; 1 for a regression, whose logit is the predicted number.
    name: Keras' name of the model.
  """

  def __init__(self, config: ModelConfig, num_classes: int, name: str = "albert_classifier"):
    super().__init__(name=name)
    self.config = config
    self.encoder = Encoder(config)
    self.head = LinearHead(num_classes, config.initializer_range, name="classifier")

  def call(
    self, inputs: dict[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Computes the logits of a batch.

    Args:
      inputs: input_ids, input_mask, segment_ids int [B, S].
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      Logits float32 [B, C].
    """
    no_positions = inputs["input_ids"][:, :0]  # the pooled output needs [CLS] only
    encoded = self.encoder(inputs, training=training, seed=seed, positions=no_positions)
    rate = self.config.classifier_dropout_prob
    pooled = layers.dropout(encoded.pooled_output, rate, site=HEAD_DROPOUT_SITE, training=training, seed=seed)
    return self.head(pooled)

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables."""
    return {**self.encoder.named_weights(), **self.head.named_weights("")}
