"""What all layers and models share: dense layers, LayerNorm, dropout, activations, checks of inputs, and Keras' saving.

Matrix products are computed in the dtype policy's compute dtype (float32 or bfloat16). Means, variances, softmax and
logits are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import tensorflow as tf
import tf_keras as keras

from albert.config.base import from_dict
from albert.config.model import LAYER_NORM_EPSILON, ModelConfig, named_model
from albert.errors import UserError

# Any stands for keras.mixed_precision.Policy, since tf_keras has no type information.
DType: TypeAlias = str | Any | None


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
  """Makes a new initializer. Layers must not share one: a shared instance would give them equal weights.

  Args:
    stddev: standard deviation of the normal distribution before truncation at two standard deviations.
  """
  return keras.initializers.TruncatedNormal(stddev=stddev)


def _layer_norm(
  x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]:
  """Layer normalization of x float32 [..., size]. The gradient in closed form takes fewer passes over memory."""

  def mean(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(values, axis=-1, keepdims=True)

  centered = x - mean(x)
  inverse_stddev = tf.math.rsqrt(mean(tf.square(centered)) + epsilon)
  normalized = centered * inverse_stddev

  def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    scaled = upstream * gamma
    wrt_x = inverse_stddev * (scaled - mean(scaled) - normalized * mean(scaled * normalized))
    all_axes_but_last = list(range(x.shape.rank - 1))
    wrt_gamma = tf.reduce_sum(upstream * normalized, axis=all_axes_but_last)
    wrt_beta = tf.reduce_sum(upstream, axis=all_axes_but_last)
    return wrt_x, wrt_gamma, wrt_beta

  return normalized * gamma + beta, gradient


def dense(
  units: int, stddev: float, name: str, dtype: DType = None, activation: str | None = None
) -> keras.layers.Dense:
  """Makes a dense layer.

  Args:
    units: size of the output's last axis.
    stddev: standard deviation of the initial kernel [in, units] (truncated normal); the bias [units] starts at 0.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
    activation: Keras' name of the activation; None for none.
  """
  initializer = truncated_normal(stddev)
  return keras.layers.Dense(units, activation, kernel_initializer=initializer, name=name, dtype=dtype)


def new_seed() -> tf.Tensor:
  """Draws a dropout seed, int32 [2], from TensorFlow's global generator.

  Inside a tf.function, each execution of the function draws another seed. tf.random.set_seed makes the seeds
  reproducible, except in functions that XLA compiles: there TensorFlow ignores it.
  """
  return tf.random.uniform([2], minval=tf.int32.min, maxval=tf.int32.max, dtype=tf.int32)


def fold_in(seed: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
  """Derives a seed, int64 [2], from a seed, int32 or int64 [2], and an integer.

  It is tf.random.experimental.stateless_fold_in, except that the result does not depend on XLA, which reads only the
  lower 32 bits of each number of a seed.
  """

  def lower_bits(numbers: tf.Tensor) -> tf.Tensor:
    return tf.bitwise.bitwise_and(tf.cast(numbers, tf.int64), 2**32 - 1)

  return lower_bits(tf.random.experimental.stateless_fold_in(lower_bits(seed), number))


def dropout(
  x: tf.Tensor, rate: float, *, dropout_index: int, training: bool | None, seed: tf.Tensor | None
) -> tf.Tensor:
  """Applies dropout. The mask is a pure function of the seed, so a resumed run draws the same masks.

  With and without XLA, CPUs and GPUs draw the same masks. A TPU has another random generator.

  Args:
    x: floating-point tensor of any shape.
    rate: fraction of the elements that is set to 0; the others are scaled by 1 / (1 - rate).
    dropout_index: index of this dropout among those that share the seed. Each index gives another mask.
    training: whether dropout is applied; None counts as False.
    seed: int32 or int64 [2]; None draws a new seed (see `new_seed`).

  Returns:
    A tensor of the shape and dtype of x; x itself without dropout.
  """
  if not training or rate == 0.0:
    return x
  seed = new_seed() if seed is None else seed
  # TensorFlow and XLA convert other bits of a number to a float, so bits are compared: the 23 that XLA converts.
  bits = tf.random.stateless_uniform(tf.shape(x), fold_in(seed, dropout_index), None, None, dtype=tf.uint32)
  is_kept = bits > (math.ceil(rate * 2**23) << 9) - 1
  return tf.cast(tf.where(is_kept, tf.cast(x, tf.float32) / (1.0 - rate), 0.0), x.dtype)


class LayerNorm(keras.layers.Layer):
  """Layer normalization over the last axis, computed in float32.

  Args:
    epsilon: what is added to the variance.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, epsilon: float = LAYER_NORM_EPSILON, name: str = "LayerNorm", dtype: DType = None):
    super().__init__(name=name, dtype=dtype)
    self._normalize = tf.custom_gradient(lambda x, gamma, beta: _layer_norm(x, gamma, beta, epsilon))

  def build(self, input_shape: tf.TensorShape) -> None:
    size = input_shape[-1]
    self.gamma = self.add_weight(name="gamma", shape=[size], initializer="ones", experimental_autocast=False)
    self.beta = self.add_weight(name="beta", shape=[size], initializer="zeros", experimental_autocast=False)
    super().build(input_shape)

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """x [..., size] -> the same shape and dtype."""
    gamma, beta = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
    return tf.cast(self._normalize(tf.cast(x, tf.float32), gamma, beta), x.dtype)


def dense_weights(layer: keras.layers.Dense, prefix: str) -> dict[str, tf.Variable]:
  """Maps the names of a dense layer's variables in the original's checkpoints to the variables."""
  return {f"{prefix}/kernel": layer.kernel, f"{prefix}/bias": layer.bias}


def layer_norm_weights(layer: LayerNorm, prefix: str) -> dict[str, tf.Variable]:
  """Maps the names of a LayerNorm's variables in the original's checkpoints to the variables."""
  return {f"{prefix}/beta": layer.beta, f"{prefix}/gamma": layer.gamma}


Function = Callable[[tf.Tensor], tf.Tensor]

# The tanh approximation of GELU is x / 2 (1 + tanh(u)) = x sigmoid(2 u), where
# 2 u = _LINEAR_COEFFICIENT x + _CUBIC_COEFFICIENT x^3.
_LINEAR_COEFFICIENT = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC_COEFFICIENT = 0.044715 * _LINEAR_COEFFICIENT
# For |x| above this, the sigmoid is 0 or 1 in every dtype. The square of this number is below the largest float16.
_SATURATED = 100.0


class Activation(NamedTuple):
  """One activation function in two forms, which compute the same numbers.

  Attributes:
    training: the form for training, which may define its own gradient to be faster.
    inference: the form for exported models. It uses plain TensorFlow operations, which every export format can convert.
  """

  training: Function
  inference: Function


def _gelu_gate(x: tf.Tensor) -> tf.Tensor:
  return tf.sigmoid(x * (_LINEAR_COEFFICIENT + _CUBIC_COEFFICIENT * tf.square(x)))


def _gelu(x: tf.Tensor) -> tf.Tensor:
  """tf.nn.gelu(x, approximate=True) with fewer passes over memory."""
  return x * _gelu_gate(x)


@tf.custom_gradient
def _gelu_with_gradient(x: tf.Tensor) -> tuple[tf.Tensor, Function]:
  """_gelu with its gradient in closed form.

  On a CPU it is a quarter faster than tf.nn.gelu, and it stores two tensors for the backward pass instead of five.
  """
  gate = _gelu_gate(x)

  def gradient(upstream: tf.Tensor) -> tf.Tensor:
    # Where the square overflows float16, the other factor is 0.
    bounded = tf.clip_by_value(x, -_SATURATED, _SATURATED) if x.dtype == tf.float16 else x
    slope = _LINEAR_COEFFICIENT + 3.0 * _CUBIC_COEFFICIENT * tf.square(bounded)  # d(2 u) / dx
    # The derivative of x gate(x) is gate + x gate (1 - gate) slope, and SigmoidGrad computes x gate (1 - gate).
    return upstream * (gate + tf.raw_ops.SigmoidGrad(y=gate, dy=x) * slope)

  return x * gate, gradient


def _gelu_erf(x: tf.Tensor) -> tf.Tensor:
  return tf.nn.gelu(x, approximate=False)


# hidden_act of ModelConfig -> its functions.
ACTIVATIONS = {
  "gelu": Activation(_gelu_with_gradient, _gelu),
  "gelu_erf": Activation(_gelu_erf, _gelu_erf),
  "relu": Activation(tf.nn.relu, tf.nn.relu),
  "silu": Activation(tf.nn.silu, tf.nn.silu),
}


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
    return named_model(config, "config")
  if not isinstance(config, Mapping):
    raise UserError(
      f"config is {config!r}: give a ModelConfig, a name such as 'albert_base', or a dictionary of fields"
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


def check_inputs(inputs: Any, required_keys: Sequence[str], layer_name: str, advice: str) -> None:
  """Checks the inputs of a layer or model before Keras sees them.

  Args:
    inputs: the argument that the layer or model was called with.
    required_keys: the keys that the inputs must have.
    layer_name: name of the layer or model, for the error.
    advice: how to make the inputs, for the error.

  Raises:
    UserError: the inputs are objects of Keras 3, they are not a dictionary, a key is missing, or a tensor is ragged.
  """
  refuse_other_keras(inputs, layer_name)
  if isinstance(inputs, Mapping):
    missing_keys = [key for key in required_keys if key not in inputs]
    ragged_keys = [key for key in required_keys if isinstance(inputs.get(key), tf.RaggedTensor)]
    problem = f"a dictionary without {', '.join(missing_keys)}" if missing_keys else ""
    problem = problem or (f"a ragged tensor as {', '.join(ragged_keys)}" if ragged_keys else "")
  else:
    problem = type(inputs).__name__
  if problem:
    raise UserError(f"{layer_name} got {problem}: give a dictionary with {', '.join(required_keys)}, {advice}")


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
  """What Encoder and the task models share: the check of their inputs, and the methods with which Keras saves them.

  These layers make their weights without knowing the shape of an input.

  Attributes:
    config: the encoder's config.
    input_keys: the keys of the inputs.
    input_advice: how to make the inputs, for errors.
  """

  config: ModelConfig
  input_keys: ClassVar[Sequence[str]] = TOKEN_INPUTS
  input_advice: ClassVar[str] = "padded arrays as albert.Tokenizer returns them"

  def __call__(self, inputs: Mapping[str, tf.Tensor], *args: Any, **kwargs: Any) -> Any:
    check_inputs(inputs, self.input_keys, type(self).__name__, self.input_advice)
    return super().__call__(inputs, *args, **kwargs)  # type: ignore[misc]

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
