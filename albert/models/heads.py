"""The masked-LM head, the linear head, and the pretraining model.

Logits are computed in float32 for every compute dtype: bfloat16 has 8 significant bits, and many tokens would get equal
logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.activations import ACTIVATIONS
from albert.models.base import PACKAGE, TOKEN_INPUTS, AnyConfig, build_in_scope
from albert.models.encoder_model import EncoderModel
from albert.weights.initial_weights import POOLER_NEW

# B batch, S sequence, P masked tokens, E embedding, H hidden, V vocabulary, C classes.


class MaskedLMHead(keras.layers.Layer):
  """The masked-LM head: dense layer, activation, LayerNorm, and a product with the word embeddings.

  Args:
    config: sizes, activation and initializer.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, config: ModelConfig, name: str = "predictions", dtype: layers.DType = None):
    super().__init__(name=name, dtype=dtype)
    self.config = config
    self.transform = layers.dense(config.embedding_size, config.initializer_range, "dense", self.dtype_policy)
    self.activation = ACTIVATIONS[config.hidden_act].training
    self.layer_norm = layers.LayerNorm(dtype=self.dtype_policy)

  def build(self, input_shape: tf.TensorShape) -> None:
    self.output_bias = self.add_weight(
      name="output_bias", shape=[self.config.vocab_size], initializer="zeros", experimental_autocast=False
    )
    build_in_scope(self.transform, [None, None, self.config.hidden_size])
    build_in_scope(self.layer_norm, [None, None, self.config.embedding_size])
    super().build(input_shape)

  def call(self, hidden: tf.Tensor, word_embeddings: tf.Tensor) -> tf.Tensor:
    """Computes logits over the vocabulary.

    Args:
      hidden: hidden states of the masked tokens, [B, P, H].
      word_embeddings: the encoder's table, float32 [V, E]; the head shares it.

    Returns:
      Logits float32 [B, P, V].
    """
    shape = tf.shape(hidden)
    hidden = self.layer_norm(self.activation(self.transform(hidden)))
    flat_hidden = tf.cast(tf.reshape(hidden, [-1, self.config.embedding_size]), tf.float32)
    logits = tf.matmul(flat_hidden, word_embeddings, transpose_b=True) + self.output_bias
    return tf.reshape(logits, [shape[0], shape[1], self.config.vocab_size])

  def named_weights(self, prefix: str = "cls/predictions") -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables.

    Args:
      prefix: the head's name there.
    """
    return {
      f"{prefix}/output_bias": self.output_bias,
      **layers.layer_norm_weights(self.layer_norm, f"{prefix}/transform/LayerNorm"),
      **layers.dense_weights(self.transform, f"{prefix}/transform/dense"),
    }


class LinearHead(keras.layers.Layer):
  """A linear layer in float32. Its weight is [C, H], as in the original.

  Args:
    num_classes: number of logits C.
    stddev: standard deviation of the initial weights (truncated normal).
    name: Keras' name of the layer.
  """

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
    """x [..., H] -> logits float32 [..., C]."""
    return tf.matmul(x, self.output_weights, transpose_b=True) + self.output_bias

  def named_weights(self, prefix: str) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables.

    Args:
      prefix: the head's name there; "" for the head of a classifier.
    """
    start = f"{prefix}/" if prefix else ""
    return {f"{start}output_weights": self.output_weights, f"{start}output_bias": self.output_bias}


class PretrainingOutput(NamedTuple):
  """The logits of pretraining.

  Attributes:
    masked_lm_logits: float32 [B, P, V].
    sentence_logits: float32 [B, 2].
  """

  masked_lm_logits: tf.Tensor
  sentence_logits: tf.Tensor


@keras.saving.register_keras_serializable(PACKAGE)
class PretrainingModel(EncoderModel):
  """The encoder with a masked-LM head and a sentence head (ALBERT, section 3.1), a Keras model.

  The sentence head is the same for sentence-order prediction and for next-sentence prediction.

  Args:
    config: the encoder's config, or its name, such as "albert_base".
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Raises:
    UserError: there is no model of this name.

  Example:
    >>> import albert
    >>> import numpy as np
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> model = albert.PretrainingModel.from_pretrained("downloads/albert_base")
    >>> batch = tokenizer(["They drank the pub dry."])
    >>> output = model({**batch, "masked_lm_positions": np.array([[1, 3]], np.int32)})
    >>> output.masked_lm_logits.shape == (1, 2, tokenizer.vocab_size)
    True
    >>> output.sentence_logits.shape.as_list()
    [1, 2]
  """

  input_keys = (*TOKEN_INPUTS, "masked_lm_positions")
  head_names = ("masked_lm", "sentence")
  on_missing_pooler = POOLER_NEW

  def __init__(self, config: AnyConfig, name: str = "albert_pretraining", **kwargs: Any):
    super().__init__(config, name, **kwargs)
    self.masked_lm = MaskedLMHead(self.config, dtype=self.dtype_policy)
    self.sentence = LinearHead(2, self.config.initializer_range, name="seq_relationship")

  def build_heads(self) -> None:
    """Makes the weights of the heads."""
    for head in (self.masked_lm, self.sentence):
      build_in_scope(head, [None, self.config.hidden_size])

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> PretrainingOutput:
    """Computes the logits of a batch.

    Args:
      inputs: input_ids, input_mask, segment_ids int [B, S]; masked_lm_positions int [B, P].
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      A PretrainingOutput.
    """
    encoded = self.encoder(inputs, training=training, seed=seed, positions=inputs["masked_lm_positions"])
    return PretrainingOutput(
      self.masked_lm(encoded.sequence_output, self.encoder.embeddings.word_embeddings),
      self.sentence(encoded.pooled_output),
    )

  def named_head_weights(self) -> dict[str, tf.Variable]:
    """Maps the names of the heads' variables in the original's checkpoints to the variables."""
    return {**self.masked_lm.named_weights(), **self.sentence.named_weights("cls/seq_relationship")}
