"""Heads on the encoder, and the models they make. Each model names its variables as the original does.

Logits are multiplied in float32 whatever the compute dtype is: bfloat16 keeps 8 bits, so that tokens would tie.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.activations import ACTIVATIONS
from albert.models.encoder import Encoder

# B batch, S sequence, P predictions, E embedding, H hidden, V vocabulary.


class MaskedLMHead(keras.layers.Layer):
  """Hidden states of masked tokens -> logits over the vocabulary, tied to the word embeddings."""

  def __init__(self, config: ModelConfig, name: str = "predictions"):
    super().__init__(name=name)
    self.config = config
    self.transform = layers.dense(config.embedding_size, config.initializer_range, "dense")
    self.activation = ACTIVATIONS[config.hidden_act].training
    self.layer_norm = layers.LayerNorm()

  def build(self, input_shape: tf.TensorShape) -> None:
    self.output_bias = self.add_weight(
      name="output_bias", shape=[self.config.vocab_size], initializer="zeros", experimental_autocast=False
    )
    super().build(input_shape)

  def call(self, hidden: tf.Tensor, word_embeddings: tf.Tensor) -> tf.Tensor:
    """hidden [B, P, H], word_embeddings float32 [V, E] -> logits float32 [B, P, V]."""
    shape = tf.shape(hidden)
    hidden = self.layer_norm(self.activation(self.transform(hidden)))
    flat = tf.cast(tf.reshape(hidden, [-1, self.config.embedding_size]), tf.float32)
    logits = tf.matmul(flat, word_embeddings, transpose_b=True) + self.output_bias
    return tf.reshape(logits, [shape[0], shape[1], self.config.vocab_size])

  def named_weights(self, prefix: str = "cls/predictions") -> dict[str, tf.Variable]:
    """The variables under the original's names."""
    return {
      f"{prefix}/output_bias": self.output_bias,
      **layers.layer_norm_weights(self.layer_norm, f"{prefix}/transform/LayerNorm"),
      **layers.dense_weights(self.transform, f"{prefix}/transform/dense"),
    }


class LinearHead(keras.layers.Layer):
  """x [..., H] -> logits float32 [..., classes]. The weight is [classes, H], as in the original."""

  def __init__(self, num_classes: int, stddev: float, name: str):
    super().__init__(name=name, dtype="float32")
    self.num_classes = num_classes
    self.stddev = stddev

  def build(self, input_shape: tf.TensorShape) -> None:
    self.output_weights = self.add_weight(
      name="output_weights",
      shape=[self.num_classes, input_shape[-1]],
      initializer=layers.truncated_normal(self.stddev),
    )
    self.output_bias = self.add_weight(name="output_bias", shape=[self.num_classes], initializer="zeros")
    super().build(input_shape)

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """x [..., H] -> float32 [..., classes]."""
    return tf.matmul(x, self.output_weights, transpose_b=True) + self.output_bias

  def named_weights(self, prefix: str) -> dict[str, tf.Variable]:
    """The variables under the original's names; the head of a classifier has no prefix there."""
    start = f"{prefix}/" if prefix else ""
    return {f"{start}output_weights": self.output_weights, f"{start}output_bias": self.output_bias}


class PretrainingOutput(NamedTuple):
  """masked_lm_logits float32 [B, P, V]; sentence_logits float32 [B, 2]."""

  masked_lm_logits: tf.Tensor
  sentence_logits: tf.Tensor


class PretrainingModel(keras.Model):
  """Encoder, masked-LM head and sentence head (sentence order, or next sentence: the weights are the same)."""

  def __init__(self, config: ModelConfig, name: str = "albert_pretraining"):
    super().__init__(name=name)
    self.config = config
    self.encoder = Encoder(config)
    self.masked_lm = MaskedLMHead(config)
    self.sentence = LinearHead(2, config.initializer_range, name="seq_relationship")

  def call(
    self, inputs: dict[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> PretrainingOutput:
    """inputs: input_ids, input_mask, segment_ids int [B, S], masked_lm_positions int [B, P]; seed of dropout."""
    encoded = self.encoder(inputs, training=training, seed=seed, positions=inputs["masked_lm_positions"])
    return PretrainingOutput(
      self.masked_lm(encoded.sequence_output, self.encoder.embeddings.word_embeddings),
      self.sentence(encoded.pooled_output),
    )

  def named_weights(self) -> dict[str, tf.Variable]:
    """Every variable under the original's name."""
    return {
      **self.encoder.named_weights(),
      **self.masked_lm.named_weights(),
      **self.sentence.named_weights("cls/seq_relationship"),
    }
