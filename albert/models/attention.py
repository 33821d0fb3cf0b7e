"""The two halves of a block: self-attention and the feed-forward network, each with its residual and LayerNorm."""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.activations import ACTIVATIONS

# B batch, S sequence, M tokens that are asked for, H hidden, N heads, D = H / N head size.

MASKED_SCORE = -10000.0


def attention_bias(input_mask: tf.Tensor) -> tf.Tensor:
  """input_mask int [B, S], 1 for real tokens -> float32 [B, 1, 1, S], 0 or -10000, added to the scores."""
  return (1.0 - tf.cast(input_mask, tf.float32))[:, None, None, :] * MASKED_SCORE


class SelfAttention(keras.layers.Layer):
  """x -> LayerNorm(x + attention(x)) (Vaswani et al. 2017; post-LN as in BERT)."""

  def __init__(self, config: ModelConfig, name: str = "attention"):
    super().__init__(name=name)
    self.config = config
    stddev = config.initializer_range
    self.query = layers.dense(config.hidden_size, stddev, "query")
    self.key = layers.dense(config.hidden_size, stddev, "key")
    self.value = layers.dense(config.hidden_size, stddev, "value")
    self.output_dense = layers.dense(config.hidden_size, stddev, "dense")
    self.layer_norm = layers.LayerNorm()

  def call(
    self,
    x: tf.Tensor,
    bias: tf.Tensor,
    training: bool | None = False,
    seed: tf.Tensor | None = None,
    positions: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """x [B, S, H], bias float32 [B, 1, 1, S] -> [B, S, H]; with positions int [B, M] what it has there, [B, M, H]."""
    config = self.config
    head_size = config.hidden_size // config.num_attention_heads

    def heads(projected: tf.Tensor) -> tf.Tensor:  # [B, S, H] -> [B, N, S, D]
      batch, length = tf.shape(projected)[0], tf.shape(projected)[1]
      split = tf.reshape(projected, [batch, length, config.num_attention_heads, head_size])
      return tf.transpose(split, [0, 2, 1, 3])

    asked = x if positions is None else tf.gather(x, positions, batch_dims=1)
    query, key, value = heads(self.query(asked)), heads(self.key(x)), heads(self.value(x))
    query = query * tf.cast(head_size**-0.5, x.dtype)
    scores = tf.matmul(query, key, transpose_b=True)  # [B, N, S or M, S]
    probs = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + bias), x.dtype)
    probs = layers.dropout(probs, config.attention_probs_dropout_prob, site=0, training=training, seed=seed)
    context = tf.transpose(tf.matmul(probs, value), [0, 2, 1, 3])
    context = self.output_dense(tf.reshape(context, tf.shape(asked)))
    context = layers.dropout(context, config.hidden_dropout_prob, site=1, training=training, seed=seed)
    return self.layer_norm(asked + context)

  def named_weights(self, prefix: str) -> dict[str, tf.Variable]:
    """The variables under the original's names; `prefix` is that of the block."""
    attention = f"{prefix}/attention_1"
    return {
      **layers.layer_norm_weights(self.layer_norm, f"{prefix}/LayerNorm"),
      **layers.dense_weights(self.output_dense, f"{attention}/output/dense"),
      **layers.dense_weights(self.query, f"{attention}/self/query"),
      **layers.dense_weights(self.key, f"{attention}/self/key"),
      **layers.dense_weights(self.value, f"{attention}/self/value"),
    }


class FeedForward(keras.layers.Layer):
  """x -> LayerNorm(x + W2 activation(W1 x))."""

  def __init__(self, config: ModelConfig, name: str = "ffn"):
    super().__init__(name=name)
    self.config = config
    self.intermediate = layers.dense(config.intermediate_size, config.initializer_range, "intermediate")
    self.output_dense = layers.dense(config.hidden_size, config.initializer_range, "dense")
    self.activation = ACTIVATIONS[config.hidden_act].training
    self.layer_norm = layers.LayerNorm()

  def call(self, x: tf.Tensor, training: bool | None = False, seed: tf.Tensor | None = None) -> tf.Tensor:
    """x [B, S, H] -> [B, S, H]."""
    y = self.output_dense(self.activation(self.intermediate(x)))
    y = layers.dropout(y, self.config.hidden_dropout_prob, site=2, training=training, seed=seed)
    return self.layer_norm(x + y)

  def named_weights(self, prefix: str) -> dict[str, tf.Variable]:
    """The variables under the original's names; `prefix` is that of the block."""
    return {
      **layers.layer_norm_weights(self.layer_norm, f"{prefix}/LayerNorm_1"),
      **layers.dense_weights(self.intermediate, f"{prefix}/ffn_1/intermediate/dense"),
      **layers.dense_weights(self.output_dense, f"{prefix}/ffn_1/intermediate/output/dense"),
    }
