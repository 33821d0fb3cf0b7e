"""The base class of the task models: Keras models that consist of an encoder and heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.io.files import AnyPath
from albert.models.base import (
  TOKEN_INPUTS,
  AnyConfig,
  BuiltFromConfig,
  as_config,
  build_in_scope,
  check_inputs,
  refuse_other_keras,
)
from albert.models.encoder import Encoder
from albert.weights.initial_weights import POOLER_NEEDED, Pretrained, load_pretrained, open_pretrained

ModelType = TypeVar("ModelType", bound="EncoderModel")


class EncoderModel(BuiltFromConfig, keras.Model):
  """The base class of the task models: an encoder with one or several heads.

  Args:
    config: the encoder's config, or its name, such as "albert_base".
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Attributes:
    config: the encoder's config.
    encoder: the Encoder.
  """

  # The keys of the inputs.
  input_keys: ClassVar[Sequence[str]] = TOKEN_INPUTS
  # The heads, by their names in albert.weights.names.heads.
  head_names: ClassVar[Sequence[str]] = ()
  # What `from_pretrained` does if the weights have no pooler, see albert.weights.initial_weights.
  on_missing_pooler: ClassVar[str] = POOLER_NEEDED
  built: bool  # of Keras: whether the weights exist

  def __init__(self, config: AnyConfig, name: str, **kwargs: Any):
    super().__init__(name=name, **{"autocast": False, **kwargs})
    self.config = as_config(config)
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
    load_pretrained(
      pretrained,
      model.named_weights(),
      head_names=cls.head_names,
      new_heads=new_heads,
      on_missing_pooler=cls.on_missing_pooler,
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

  def build_heads(self) -> None:
    """Makes the weights of the heads."""
    raise NotImplementedError

  def named_head_weights(self) -> dict[str, tf.Variable]:
    """Maps the names of the heads' variables in the original's checkpoints to the variables."""
    raise NotImplementedError

  def build(self, input_shape: Any = None) -> None:
    """Makes all weights. Their shapes depend on the config only.

    Args:
      input_shape: not used.
    """
    del input_shape
    if not self.built:
      build_in_scope(self.encoder, ())
      self.build_heads()
      self.built = True

  def __call__(self, inputs: Mapping[str, tf.Tensor], *args: Any, **kwargs: Any) -> Any:
    check_inputs(inputs, self.input_keys, type(self).__name__)
    return super().__call__(inputs, *args, **kwargs)

  def compile(self, *args: Any, **kwargs: Any) -> None:
    """See keras.Model.compile.

    Raises:
      UserError: an optimizer, a loss or a metric is of Keras 3.
    """
    refuse_other_keras((args, kwargs), type(self).__name__)
    super().compile(*args, **kwargs)

  def compile_from_config(self, config: dict[str, Any]) -> None:
    """Compiles the model as it was when it was saved. Keras' own method does nothing, because `compile` is overridden.

    Args:
      config: what `get_compile_config` returns.
    """
    self.compile(**keras.saving.deserialize_keras_object(config))
    if isinstance(self.optimizer, keras.optimizers.Optimizer):  # a legacy optimizer has no such method
      self.optimizer.build(self.trainable_variables)

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables. Makes the variables if needed."""
    build_in_scope(self, ())
    return {**self.encoder.named_weights(), **self.named_head_weights()}

  @classmethod
  def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> EncoderModel:
    """Makes the model with newly initialized weights.

    Args:
      config: what `get_config` returns.
      custom_objects: not used.
    """
    del custom_objects
    return cls(**config)
