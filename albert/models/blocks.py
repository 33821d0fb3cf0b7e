"""The parts of the encoder: the factorized embeddings, self-attention and the feed-forward network.

The last two add their input to their result and normalize the sum (post-LN, as in BERT).
"""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.layers import ACTIVATIONS, build_in_scope

# B batch, S sequence, E embedding, V vocabulary.


class Embeddings(keras.layers.Layer):
  """Sums word, segment and position embeddings, then applies LayerNorm and dropout.

  The projection from E to H is part of the encoder.

  Args:
    config: sizes, initializer and dropout rate.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, config: ModelConfig, name: str = "embeddings", dtype: layers.DType = None):
    super().__init__(name=name, dtype=dtype)
    self.config = config
    self.layer_norm = layers.LayerNorm(config.layer_norm_eps, dtype=self.dtype_policy)

  def build(self, input_shape: tf.TensorShape) -> None:
    config = self.config

    def table(name: str, rows: int) -> tf.Variable:
      return self.add_weight(
        name=name,
        shape=[rows, config.embedding_size],
        initializer=layers.truncated_normal(config.initializer_range),
        experimental_autocast=False,  # the looked-up rows are cast, not the whole table
      )

    self.word_embeddings = table("word_embeddings", config.vocab_size)
    self.token_type_embeddings = table("token_type_embeddings", config.type_vocab_size)
    self.position_embeddings = table("position_embeddings", config.max_position_embeddings)
    build_in_scope(self.layer_norm, [None, None, config.embedding_size])
    super().build(input_shape)

  def call(
    self, input_ids: tf.Tensor, segment_ids: tf.Tensor, training: bool | None = False, seed: tf.Tensor | None = None
  ) -> tf.Tensor:
    """Embeds a batch.

    Args:
      input_ids: int [B, S].
      segment_ids: int [B, S].
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      [B, S, E] in the compute dtype.
    """
    # Words and segments are looked up with tf.gather, as in the original: its gradient norm sums the squares of the
    # gathered rows (see albert/optimizers/gradients.py).
    words = tf.gather(self.word_embeddings, input_ids)
    segments = tf.gather(self.token_type_embeddings, segment_ids)
    positions = self.position_embeddings[: tf.shape(input_ids)[1]]
    x = tf.cast(self.layer_norm(words + segments + positions), self.compute_dtype)
    return layers.dropout(x, self.config.hidden_dropout_prob, dropout_index=0, training=training, seed=seed)

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables."""
    return {
      "bert/embeddings/word_embeddings": self.word_embeddings,
      "bert/embeddings/token_type_embeddings": self.token_type_embeddings,
      "bert/embeddings/position_embeddings": self.position_embeddings,
      **layers.layer_norm_weights(self.layer_norm, "bert/embeddings/LayerNorm"),
    }


# B batch, S sequence, M selected positions, H hidden, N heads, D = H / N head size.

# Added to the attention scores of padding tokens, as in the original.
MASKED_SCORE = -10000.0


def attention_bias(input_mask: tf.Tensor) -> tf.Tensor:
  """Makes the bias that keeps tokens from attending to padding.

  Args:
    input_mask: int [B, S], 1 for real tokens and 0 for padding.

  Returns:
    float32 [B, 1, 1, S]: 0 for real tokens and -10000 for padding, to be added to the attention scores.
  """
  return (1.0 - tf.cast(input_mask, tf.float32))[:, None, None, :] * MASKED_SCORE


class SelfAttention(keras.layers.Layer):
  """Multi-head self-attention: LayerNorm(x + attention(x)) (Vaswani et al. 2017, section 3.2).

  Args:
    config: sizes, number of heads and dropout rates.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, config: ModelConfig, name: str = "attention", dtype: layers.DType = None):
    super().__init__(name=name, dtype=dtype)
    policy = self.dtype_policy
    self.config = config
    stddev = config.initializer_range
    self.query = layers.dense(config.hidden_size, stddev, "query", policy)
    self.key = layers.dense(config.hidden_size, stddev, "key", policy)
    self.value = layers.dense(config.hidden_size, stddev, "value", policy)
    self.output_dense = layers.dense(config.hidden_size, stddev, "dense", policy)
    self.layer_norm = layers.LayerNorm(config.layer_norm_eps, dtype=policy)

  def build(self, input_shape: tf.TensorShape) -> None:
    for layer in (self.query, self.key, self.value, self.output_dense, self.layer_norm):
      build_in_scope(layer, [None, None, self.config.hidden_size])
    super().build(input_shape)

  def call(
    self,
    x: tf.Tensor,
    bias: tf.Tensor,
    training: bool | None = False,
    seed: tf.Tensor | None = None,
    positions: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """Computes the attention of all tokens, or of some tokens to all tokens.

    Args:
      x: hidden states [B, S, H].
      bias: float32 [B, 1, 1, S], see `attention_bias`.
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.
      positions: int [B, M], the tokens to compute; None for all tokens.

    Returns:
      Hidden states [B, S, H], or [B, M, H] with `positions`, in the dtype of x.
    """
    config = self.config
    query_states = x if positions is None else tf.gather(x, positions, batch_dims=1)  # [B, S or M, H]
    query = self._split_heads(self.query(query_states))  # [B, N, S or M, D]
    key, value = self._split_heads(self.key(x)), self._split_heads(self.value(x))  # [B, N, S, D]
    head_size = config.hidden_size // config.num_attention_heads
    query = query * tf.cast(head_size**-0.5, x.dtype)
    scores = tf.matmul(query, key, transpose_b=True)  # [B, N, S or M, S]
    probs = tf.cast(tf.nn.softmax(tf.cast(scores, tf.float32) + bias), x.dtype)
    probs = layers.dropout(probs, config.attention_probs_dropout_prob, dropout_index=0, training=training, seed=seed)
    context = tf.transpose(tf.matmul(probs, value), [0, 2, 1, 3])
    context = self.output_dense(tf.reshape(context, tf.shape(query_states)))
    context = layers.dropout(context, config.hidden_dropout_prob, dropout_index=1, training=training, seed=seed)
    return self.layer_norm(query_states + context)

  def _split_heads(self, states: tf.Tensor) -> tf.Tensor:
    """[B, S, H] -> [B, N, S, D]."""
    batch, length = tf.shape(states)[0], tf.shape(states)[1]
    num_heads, head_size = self.config.num_attention_heads, self.config.hidden_size // self.config.num_attention_heads
    return tf.transpose(tf.reshape(states, [batch, length, num_heads, head_size]), [0, 2, 1, 3])

  def named_weights(self, prefix: str) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables.

    Args:
      prefix: the block's name there, such as "bert/encoder/transformer/group_0/inner_group_0".
    """
    attention = f"{prefix}/attention_1"
    return {
      **layers.layer_norm_weights(self.layer_norm, f"{prefix}/LayerNorm"),
      **layers.dense_weights(self.output_dense, f"{attention}/output/dense"),
      **layers.dense_weights(self.query, f"{attention}/self/query"),
      **layers.dense_weights(self.key, f"{attention}/self/key"),
      **layers.dense_weights(self.value, f"{attention}/self/value"),
    }


class FeedForward(keras.layers.Layer):
  """The feed-forward network: LayerNorm(x + W2 activation(W1 x)) (Vaswani et al. 2017, section 3.3).

  Args:
    config: sizes, activation and dropout rate.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, config: ModelConfig, name: str = "ffn", dtype: layers.DType = None):
    super().__init__(name=name, dtype=dtype)
    policy = self.dtype_policy
    self.config = config
    self.intermediate = layers.dense(config.intermediate_size, config.initializer_range, "intermediate", policy)
    self.output_dense = layers.dense(config.hidden_size, config.initializer_range, "dense", policy)
    self.activation = ACTIVATIONS[config.hidden_act].training
    self.layer_norm = layers.LayerNorm(config.layer_norm_eps, dtype=policy)

  def build(self, input_shape: tf.TensorShape) -> None:
    build_in_scope(self.intermediate, [None, None, self.config.hidden_size])
    build_in_scope(self.output_dense, [None, None, self.config.intermediate_size])
    build_in_scope(self.layer_norm, [None, None, self.config.hidden_size])
    super().build(input_shape)

  def call(self, x: tf.Tensor, training: bool | None = False, seed: tf.Tensor | None = None) -> tf.Tensor:
    """Applies the network to each token.

    Args:
      x: hidden states [B, S, H].
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      Hidden states [B, S, H] in the dtype of x.
    """
    output = self.output_dense(self.activation(self.intermediate(x)))
    output = layers.dropout(output, self.config.hidden_dropout_prob, dropout_index=2, training=training, seed=seed)
    return self.layer_norm(x + output)

  def named_weights(self, prefix: str) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables.

    Args:
      prefix: the block's name there, such as "bert/encoder/transformer/group_0/inner_group_0".
    """
    return {
      **layers.layer_norm_weights(self.layer_norm, f"{prefix}/LayerNorm_1"),
      **layers.dense_weights(self.intermediate, f"{prefix}/ffn_1/intermediate/dense"),
      **layers.dense_weights(self.output_dense, f"{prefix}/ffn_1/intermediate/output/dense"),
    }
