"""The encoder as it is served: that of `albert.models`, without dropout and without work whose result nobody sees.

Three things make it faster, and change no number but for the rounding of float32. Dense layers see the real tokens of
a batch only, end to end without padding. Query, key and value are one matrix. The last layer is computed for the
tokens that the head reads, which for most heads is [CLS] alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.export.network.token_layout import PaddedLayout, TokenBatch, TokenLayout
from albert.models.activations import ACTIVATIONS
from albert.models.layers import LAYER_NORM_EPSILON
from albert.weights.names import POOLER

# B batch, S sequence, T tokens that are computed, M tokens of a sequence that are asked for, E embedding, H hidden,
# I intermediate, N heads, D = H / N head size.

Weights = Mapping[str, np.ndarray]


def constant(value: np.ndarray, name: str, dtype: tf.DType = tf.float32) -> tf.Variable:
  """A weight: a variable that no one trains."""
  return tf.Variable(tf.cast(value, dtype), trainable=False, name=name)


class Dense(tf.Module):
  """x [..., in] -> float32 [..., units]. The product is taken in the dtype of the kernel."""

  def __init__(self, kernel: np.ndarray, bias: np.ndarray, dtype: tf.DType = tf.float32, name: str = "dense"):
    super().__init__(name=name)
    self.kernel = constant(kernel, "kernel", dtype)
    self.bias = constant(bias, "bias")

  @classmethod
  def load(cls, weights: Weights, name: str, dtype: tf.DType = tf.float32) -> Dense:
    """The layer of that name in the original."""
    return cls(weights[f"{name}/kernel"], weights[f"{name}/bias"], dtype, name=name.rpartition("/")[2])

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return self.columns(x, slice(None))

  def columns(self, x: tf.Tensor, units: slice) -> tf.Tensor:
    """Some of the units."""
    whole = units == slice(None)
    kernel = self.kernel if whole else self.kernel[:, units]
    product = tf.matmul(tf.cast(x, self.kernel.dtype), kernel)
    return tf.nn.bias_add(tf.cast(product, tf.float32), self.bias if whole else self.bias[units])


class LayerNorm(tf.Module):
  """float32 [..., size] -> the same."""

  def __init__(self, weights: Weights, name: str):
    super().__init__(name="LayerNorm")
    self.gamma = constant(weights[f"{name}/gamma"], "gamma")
    self.beta = constant(weights[f"{name}/beta"], "beta")

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    return centred * (tf.math.rsqrt(variance + LAYER_NORM_EPSILON) * self.gamma) + self.beta


class _Attention(tf.Module):
  """x -> LayerNorm(x + attention(x)); see `albert.models.attention.SelfAttention`."""

  def __init__(self, config: ModelConfig, weights: Weights, block: str, dtype: tf.DType):
    super().__init__(name="attention")
    self._size = config.hidden_size
    self._dtype = dtype
    parts = [f"{block}/attention_1/self/{part}" for part in ("query", "key", "value")]
    kernel = np.concatenate([weights[f"{part}/kernel"] for part in parts], axis=1)
    bias = np.concatenate([weights[f"{part}/bias"] for part in parts])
    scale = np.ones(3 * self._size, np.float32)
    scale[: self._size] = (self._size // config.num_attention_heads) ** -0.5  # of the scores, done to the queries
    self.query_key_value = Dense(kernel * scale, bias * scale, dtype, name="query_key_value")
    self.output_dense = Dense.load(weights, f"{block}/attention_1/output/dense", dtype)
    self.layer_norm = LayerNorm(weights, f"{block}/LayerNorm")

  def __call__(self, x: tf.Tensor, layout: TokenLayout) -> tf.Tensor:
    """x [T, H] -> [T, H]."""
    query, key, value = layout.split_heads(self.query_key_value(x), 3)
    return self._finish(x, layout.join_heads(self._context(query, key, value, layout)))

  def at(self, x: tf.Tensor, positions: tf.Tensor, layout: TokenLayout) -> tf.Tensor:
    """x [T, H], positions int32 [B, M] -> [B * M, H], at these tokens."""
    asked = layout.at(x, positions)
    query = layout.split_asked(self.query_key_value.columns(asked, slice(0, self._size)), positions)
    key, value = layout.split_heads(self.query_key_value.columns(x, slice(self._size, None)), 2)
    context = self._context(query, key, value, layout)  # [B, N, M, D]
    return self._finish(asked, tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, self._size]))

  def _context(self, query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, layout: TokenLayout) -> tf.Tensor:
    """[B, N, M, D], and [B, N, S, D] twice -> [B, N, M, D]."""
    query, key, value = (tf.cast(part, self._dtype) for part in (query, key, value))
    scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
    probabilities = tf.cast(tf.nn.softmax(scores + layout.bias), self._dtype)
    return tf.cast(tf.matmul(probabilities, value), tf.float32)

  def _finish(self, x: tf.Tensor, context: tf.Tensor) -> tf.Tensor:
    return self.layer_norm(x + self.output_dense(context))


class _FeedForward(tf.Module):
  """x -> LayerNorm(x + W2 activation(W1 x))."""

  def __init__(self, config: ModelConfig, weights: Weights, block: str, dtype: tf.DType):
    super().__init__(name="ffn")
    self._activation = ACTIVATIONS[config.hidden_act].inference
    self.intermediate = Dense.load(weights, f"{block}/ffn_1/intermediate/dense", dtype)
    self.output_dense = Dense.load(weights, f"{block}/ffn_1/intermediate/output/dense", dtype)
    self.layer_norm = LayerNorm(weights, f"{block}/LayerNorm_1")

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return self.layer_norm(x + self.output_dense(self._activation(self.intermediate(x))))


class ServedEncoder(tf.Module):
  """The encoder with its weights.

  Args:
    config: of the model.
    weights: by the original's names; those of the encoder, and of the pooler if it has one.
    dtype: that matrices are kept and multiplied in, float32 or bfloat16. All else is float32.
  """

  def __init__(self, config: ModelConfig, weights: Weights, dtype: tf.DType = tf.float32):
    super().__init__(name="bert")
    self.config = config
    for name in ("word_embeddings", "token_type_embeddings", "position_embeddings"):
      setattr(self, name, constant(weights[f"bert/embeddings/{name}"], name))
    self.layer_norm = LayerNorm(weights, "bert/embeddings/LayerNorm")
    self.projection = None
    if config.embedding_size != config.hidden_size:
      self.projection = Dense.load(weights, "bert/encoder/embedding_hidden_mapping_in", dtype)

    def block(group: int, inner: int) -> str:
      return f"bert/encoder/transformer/group_{group}/inner_group_{inner}"

    inner = range(config.inner_group_num)
    self.attention = [
      [_Attention(config, weights, block(g, i), dtype) for i in inner] for g in range(config.num_attention_groups)
    ]
    self.feed_forward = [
      [_FeedForward(config, weights, block(g, i), dtype) for i in inner] for g in range(config.num_ffn_groups)
    ]
    self.pooler = Dense.load(weights, "bert/pooler/dense", dtype) if POOLER[0] in weights else None

  def sequence(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> tf.Tensor:
    """The last layer, [B, S, H]; zeros at padding."""
    layout = layout or PaddedLayout(tokens, self.config)
    x = self._embed(tokens, layout)
    for attention, feed_forward in self._halves():
      x = feed_forward(attention(x, layout))
    return layout.spread(x)

  def at(self, tokens: TokenBatch, positions: tf.Tensor, layout: TokenLayout | None = None) -> tf.Tensor:
    """The last layer at positions int32 [B, M] alone, [B, M, H]."""
    layout = layout or PaddedLayout(tokens, self.config)
    x = self._embed(tokens, layout)
    *first, (attention, feed_forward) = self._halves()
    for other_attention, other_feed_forward in first:
      x = other_feed_forward(other_attention(x, layout))
    x = feed_forward(attention.at(x, positions, layout))
    shape = tf.shape(positions)
    return tf.reshape(x, [shape[0], shape[1], self.config.hidden_size])

  def pooled(self, tokens: TokenBatch, layout: TokenLayout | None = None) -> tf.Tensor:
    """[B, H]: tanh of a dense layer on [CLS]."""
    return self.pool(self.at(tokens, tf.zeros_like(tokens.input_ids[:, :1]), layout)[:, 0])

  def pool(self, first: tf.Tensor) -> tf.Tensor:
    """The last layer at [CLS], [B, H], -> [B, H]."""
    assert self.pooler is not None, "ServedModel.uses_pooler is checked first"
    return tf.tanh(self.pooler(first))

  def _halves(self) -> list[tuple[_Attention, _FeedForward]]:
    """The two halves of each block, in the order in which they are applied."""
    config = self.config
    halves: list[tuple[_Attention, _FeedForward]] = []
    for layer in range(config.num_hidden_layers):
      attention = self.attention[layer * config.num_attention_groups // config.num_hidden_layers]
      feed_forward = self.feed_forward[layer * config.num_ffn_groups // config.num_hidden_layers]
      halves += zip(attention, feed_forward, strict=True)
    return halves

  def _embed(self, tokens: TokenBatch, layout: TokenLayout) -> tf.Tensor:
    """[T, H]."""
    words = tf.gather(self.word_embeddings, layout.collect(tokens.input_ids))
    segments = tf.gather(self.token_type_embeddings, layout.collect(tokens.segment_ids))
    positions = tf.gather(self.position_embeddings, layout.columns)
    x = self.layer_norm(words + segments + positions)
    return x if self.projection is None else self.projection(x)
