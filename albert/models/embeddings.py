"""The factorized embeddings: word, position and segment vectors of width E (ALBERT, section 3.1)."""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.base import build_in_scope

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
    self.layer_norm = layers.LayerNorm(dtype=self.dtype_policy)

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
    self,
    input_ids: tf.Tensor,
    segment_ids: tf.Tensor,
    training: bool | None = False,
    seed: tf.Tensor | None = None,
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
    # gathered rows (see albert/optimizers/sharding.py).
    words = tf.gather(self.word_embeddings, input_ids)
    segments = tf.gather(self.token_type_embeddings, segment_ids)
    positions = self.position_embeddings[: tf.shape(input_ids)[1]]
    x = tf.cast(self.layer_norm(words + segments + positions), self.compute_dtype)
    return layers.dropout(x, self.config.hidden_dropout_prob, dropout_index=0, training=training, seed=seed)

  def named_weights(self, prefix: str) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables.

    Args:
      prefix: the embeddings' name there, "bert/embeddings".
    """
    return {
      f"{prefix}/word_embeddings": self.word_embeddings,
      f"{prefix}/token_type_embeddings": self.token_type_embeddings,
      f"{prefix}/position_embeddings": self.position_embeddings,
      **layers.layer_norm_weights(self.layer_norm, f"{prefix}/LayerNorm"),
    }
