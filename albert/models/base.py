"""Code that all layers and models of this package share: checks of their arguments, and Keras' building and saving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.base import from_dict
from albert.config.model import MODELS, ModelConfig
from albert.errors import UserError

# The package under which Keras registers the classes: "albert>Encoder".
PACKAGE = "albert"
TOKEN_INPUTS = ("input_ids", "input_mask", "segment_ids")

# A config, its name, such as "albert_base", or its fields as a dictionary.
AnyConfig = ModelConfig | str | Mapping[str, Any]


def as_config(config: AnyConfig) -> ModelConfig:
  """Converts the argument `config` of a model's constructor to a ModelConfig.

  Args:
    config: a ModelConfig, a name such as "albert_base", or a dictionary of the fields of a ModelConfig.

  Raises:
    UserError: there is no model of this name, or a field is unknown, of another type or out of range.
  """
  if isinstance(config, ModelConfig):
    return config
  if isinstance(config, str):
    if config not in MODELS:
      raise UserError(
        f"there is no model {config!r}: give one of {', '.join(MODELS)}; or read weights by from_pretrained"
      )
    return MODELS[config]
  if not isinstance(config, Mapping):
    raise UserError(
      f"config is {config!r}: give a ModelConfig, a name such as 'albert_base', or a dictionary of the fields"
    )
  return from_dict(ModelConfig, dict(config), source="the config of the model")


def refuse_other_keras(values: Any, name: str) -> None:
  """Refuses objects of Keras 3, which the layers of tf_keras cannot compute with.

  Args:
    values: tensors, optimizers or losses, in any nested structure.
    name: name of the layer or model that they were given to, for the error.

  Raises:
    UserError: the class of a value, or a class that it inherits from, is one of the package `keras`, which is Keras 3.
      With TensorFlow 2.16 and later, tf.keras is usually Keras 3, too.
  """
  for value in tf.nest.flatten(values):
    if any(base.__module__.partition(".")[0] == "keras" for base in type(value).__mro__):
      raise UserError(
        f"{name} is a tf_keras object and got a {type(value).__name__} of another Keras (tf.keras or keras): make all "
        "layers, inputs and optimizers with tf_keras (import tf_keras as keras)"
      )


def check_inputs(inputs: Any, required_keys: Sequence[str], layer_name: str) -> None:
  """Checks the inputs of a layer or model before Keras sees them.

  Args:
    inputs: the argument that the layer or model was called with.
    required_keys: the keys that the inputs must have.
    layer_name: name of the layer or model, for the error.

  Raises:
    UserError: the inputs are objects of Keras 3, they are not a dictionary, or a key is missing.
  """
  refuse_other_keras(inputs, layer_name)
  if isinstance(inputs, Mapping):
    missing_keys = [key for key in required_keys if key not in inputs]
    problem = f"a dictionary without {', '.join(missing_keys)}" if missing_keys else ""
  else:
    problem = type(inputs).__name__
  if problem:
    keys = ", ".join(required_keys)
    raise UserError(f"{layer_name} got {problem}: give a dictionary with {keys}, as albert.Tokenizer returns it")


def build_in_scope(layer: keras.layers.Layer, shape: Iterable[int | None]) -> None:
  """Makes the weights of a layer, whose names then begin with the layer's name. Does nothing if they exist.

  Args:
    layer: the layer. Its weights get the names that they would get by a call.
    shape: the shape of its (first) input.
  """
  if not layer.built:
    with tf.name_scope(layer.name):
      layer.build(tf.TensorShape(shape))


class BuiltFromConfig:
  """The methods with which Keras saves and loads Encoder and the task models.

  Their weights can be made without the shape of an input.

  Attributes:
    config: the encoder's config.
  """

  config: ModelConfig

  def get_config(self: Any) -> dict[str, Any]:
    """Returns the arguments of the constructor, for Keras' serialization."""
    return {
      "config": self.config.to_dict(),
      "name": self.name,
      "trainable": self.trainable,
      "dtype": self.dtype_policy.name,
    }

  def get_build_config(self) -> dict[str, Any]:
    """Returns the argument of `build_from_config`, for Keras' serialization. It holds no information."""
    return {"input_shape": None}

  def build_from_config(self, config: dict[str, Any]) -> None:
    """Makes all weights.

    Args:
      config: not used.
    """
    del config
    build_in_scope(self, [None, None])
