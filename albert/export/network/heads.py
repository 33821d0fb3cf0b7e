"""The heads of served models for classification and masked tokens. They compute the same as `albert.models.heads`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.export.network.encoder import Dense, LayerNorm, make_constant
from albert.models.activations import ACTIVATIONS

# B batch, M positions of a sequence, H hidden size, V vocabulary size.


class LinearHead(tf.Module):
  """A dense layer: float32 [..., H] -> logits [..., classes].

  Args:
    weights: weights by their names in the original code.
    prefix: prefix of the head's weights; "" for a classifier.
  """

  def __init__(self, weights: Mapping[str, np.ndarray], prefix: str = ""):
    super().__init__(name="head")
    self.output_weights = make_constant(weights[f"{prefix}output_weights"], "output_weights")
    self.output_bias = make_constant(weights[f"{prefix}output_bias"], "output_bias")

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(x, self.output_weights, transpose_b=True), self.output_bias)


class MaskedLMHead(tf.Module):
  """The masked language model: float32 [B, M, H] -> logits over the vocabulary, [B, M, V].

  Args:
    config: the model's config.
    weights: weights by their names in the original code.
    word_embeddings: the embedding table [V, E], which is also the output matrix.
  """

  def __init__(self, config: ModelConfig, weights: Mapping[str, np.ndarray], word_embeddings: tf.Variable):
    super().__init__(name="predictions")
    self._config = config
    self._activation = ACTIVATIONS[config.hidden_act].inference
    self.transform = Dense.load(weights, "cls/predictions/transform/dense")
    self.layer_norm = LayerNorm(weights, "cls/predictions/transform/LayerNorm")
    self.output_bias = make_constant(weights["cls/predictions/output_bias"], "output_bias")
    self.word_embeddings = word_embeddings

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(x, [-1, self._config.hidden_size])
    flat = self.layer_norm(self._activation(self.transform(flat)))
    logits = tf.nn.bias_add(tf.matmul(flat, self.word_embeddings, transpose_b=True), self.output_bias)
    return tf.reshape(logits, [tf.shape(x)[0], tf.shape(x)[1], self._config.vocab_size])
