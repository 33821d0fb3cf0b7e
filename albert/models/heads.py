"""The base class of the task models, the masked-LM head, the linear head, and the pretraining model.

Logits are computed in float32 for every compute dtype: bfloat16 has 8 significant bits, and many tokens would get equal
logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.io.files import AnyPath
from albert.models import layers
from albert.models.encoder import Encoder
from albert.weights.initial_weights import POOLER_NEEDED, POOLER_NEW, Pretrained, load_pretrained, open_pretrained

ModelType = TypeVar("ModelType", bound="EncoderModel")


class EncoderModel(layers.BuiltFromConfig, keras.Model):
  """The base class of the task models: an encoder with one or several heads.

  Args:
    config: the encoder's config, or its name, such as "albert_base".
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Attributes:
    config: the encoder's config.
    encoder: the Encoder.
  """

  # The heads, by their names in albert.weights.names.heads.
  head_names: ClassVar[Sequence[str]] = ()
  # What `from_pretrained` does if the weights have no pooler, see albert.weights.initial_weights.
  on_missing_pooler: ClassVar[str] = POOLER_NEEDED
  built: bool  # of Keras: whether the weights exist
  head: Any  # the only head; a model with several overrides `heads`

  def __init__(self, config: layers.AnyConfig, name: str, **kwargs: Any):
    super().__init__(name=name, **{"autocast": False, **kwargs})
    self.config = layers.as_config(config)
    self.encoder = Encoder(self.config, dtype=self.dtype_policy)

  @classmethod
  def from_pretrained(
    cls: type[ModelType], path: AnyPath, *, config: ModelConfig | None = None, new_heads: bool = False, **kwargs: Any
  ) -> ModelType:
    """Makes the model with pretrained weights.

    A head that the weights lack is newly initialized, and a line is logged. Weights of other heads are ignored.

    Args:
      path: a directory from Google or Hugging Face, the output_dir of a run, one of its step-N directories, the prefix
        of a TensorFlow checkpoint, or a .safetensors file.
      config: the encoder's config; None for the one beside the weights. Dropout rates may differ from those of the
        weights: dataclasses.replace(config, hidden_dropout_prob=0.1).
      new_heads: whether the heads are newly initialized although the weights have them.
      **kwargs: further arguments of the constructor.

    Returns:
      The model with its weights.

    Raises:
      UserError: `path` has no weights, they are damaged, or some do not match the model. The message names the file or
        these weights.
    """
    pretrained = open_pretrained(path, config)
    model = cls(pretrained.config, **cls.pretrained_arguments(pretrained, kwargs, new_heads=new_heads))
    weights = model.named_weights()
    load_pretrained(
      pretrained, weights, head_names=cls.head_names, new_heads=new_heads, on_missing_pooler=cls.on_missing_pooler
    )
    return model

  @classmethod
  def pretrained_arguments(
    cls, pretrained: Pretrained, arguments: dict[str, Any], *, new_heads: bool
  ) -> dict[str, Any]:
    """Returns the arguments of the constructor, with those that the weights decide, such as the number of classes.

    By default the weights decide none.
    """
    del pretrained, new_heads
    return arguments

  @property
  def heads(self) -> Sequence[Any]:
    """The heads: layers that read the encoder's output and have a method `named_weights`."""
    return (self.head,)

  def build(self, input_shape: Any = None) -> None:
    """Makes all weights. Their shapes depend on the config only.

    Args:
      input_shape: not used.
    """
    del input_shape
    if not self.built:
      layers.build_in_scope(self.encoder, ())
      for head in self.heads:
        layers.build_in_scope(head, [None, self.config.hidden_size])
      self.built = True

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """See keras.Model.compile.

    Raises:
      UserError: an optimizer, a loss or a metric is of Keras 3.
    """
    layers.refuse_other_keras((args, kwargs), type(self).__name__)
    super().compile(*args, **kwargs)

  def compile_from_config(self, config: dict[str, Any]) -> None:
    """Compiles the model as it was when it was saved. Keras' own method does nothing, because `compile` is overridden.

    Args:
      config: what `get_compile_config` returns.
    """
    self.compile(**keras.saving.deserialize_keras_object(config))
    if isinstance(self.optimizer, keras.optimizers.Optimizer):  # a legacy optimizer has no such method
      self.optimizer.build(self.trainable_variables)

  def _set_save_spec(self, inputs: Any, args: Any = None, kwargs: Any = None) -> None:
    """Makes Keras save and export the model for batches of any size and length, not for those of the first call."""
    specs = tf.nest.map_structure(lambda value: tf.TensorSpec([None] * len(value.shape), value.dtype), inputs)
    super()._set_save_spec(specs, args, kwargs)

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables. Makes the variables if needed."""
    layers.build_in_scope(self, ())
    weights = self.encoder.named_weights()
    for head in self.heads:
      weights |= head.named_weights()
    return weights


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
    self.activation = layers.ACTIVATIONS[config.hidden_act].training
    self.layer_norm = layers.LayerNorm(config.layer_norm_eps, dtype=self.dtype_policy)

  def build(self, input_shape: tf.TensorShape) -> None:
    self.output_bias = self.add_weight(
      name="output_bias", shape=[self.config.vocab_size], initializer="zeros", experimental_autocast=False
    )
    layers.build_in_scope(self.transform, [None, None, self.config.hidden_size])
    layers.build_in_scope(self.layer_norm, [None, None, self.config.embedding_size])
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

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables."""
    return {
      "cls/predictions/output_bias": self.output_bias,
      **layers.layer_norm_weights(self.layer_norm, "cls/predictions/transform/LayerNorm"),
      **layers.dense_weights(self.transform, "cls/predictions/transform/dense"),
    }


class LinearHead(keras.layers.Layer):
  """A linear layer in float32. Its weight is [C, H], as in the original.

  Args:
    num_classes: number of logits C.
    stddev: standard deviation of the initial weights (truncated normal).
    name: Keras' name of the layer.
    prefix: start of the variables' names in the original's checkpoints, such as "cls/squad/".
  """

  def __init__(self, num_classes: int, stddev: float, name: str, prefix: str = ""):
    super().__init__(name=name, dtype="float32")
    self.num_classes = num_classes
    self.stddev = stddev
    self.prefix = prefix

  def build(self, input_shape: tf.TensorShape) -> None:
    self.output_weights = self.add_weight(
      name="output_weights", shape=[self.num_classes, input_shape[-1]], initializer=layers.truncated_normal(self.stddev)
    )
    self.output_bias = self.add_weight(name="output_bias", shape=[self.num_classes], initializer="zeros")
    super().build(input_shape)

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """x [..., H] -> logits float32 [..., C]."""
    return tf.matmul(x, self.output_weights, transpose_b=True) + self.output_bias

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables."""
    return {f"{self.prefix}output_weights": self.output_weights, f"{self.prefix}output_bias": self.output_bias}


class PretrainingOutput(NamedTuple):
  """The logits of pretraining.

  Attributes:
    masked_lm_logits: float32 [B, P, V].
    sentence_logits: float32 [B, 2].
  """

  masked_lm_logits: tf.Tensor
  sentence_logits: tf.Tensor


@keras.saving.register_keras_serializable(layers.PACKAGE)
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

  input_keys = (*layers.TOKEN_INPUTS, "masked_lm_positions")
  input_advice = 'such as {**batch, "masked_lm_positions": positions} for a batch of albert.Tokenizer and int [B, P]'
  head_names = ("masked_lm", "sentence")
  on_missing_pooler = POOLER_NEW

  def __init__(self, config: layers.AnyConfig, name: str = "albert_pretraining", **kwargs: Any):
    super().__init__(config, name, **kwargs)
    self.masked_lm = MaskedLMHead(self.config, dtype=self.dtype_policy)
    self.sentence = LinearHead(2, self.config.initializer_range, "seq_relationship", "cls/seq_relationship/")

  @property
  def heads(self) -> Sequence[Any]:
    """The masked-LM head and the sentence head."""
    return (self.masked_lm, self.sentence)

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
