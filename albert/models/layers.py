"""Building blocks of all layers: dense layers, layer normalization, dropout.

Matrix products are computed in the dtype policy's compute dtype (float32 or bfloat16). Means, variances, softmax and
logits are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf
import tf_keras as keras

LAYER_NORM_EPSILON = 1e-12

# Any stands for keras.mixed_precision.Policy, since tf_keras has no type information.
DType: TypeAlias = str | Any | None


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
  """Makes a new initializer. Layers must not share one: a shared instance would give them equal weights.

  Args:
    stddev: standard deviation of the normal distribution before truncation at two standard deviations.
  """
  return keras.initializers.TruncatedNormal(stddev=stddev)


@tf.custom_gradient
def _layer_norm(
  x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]:
  """Layer normalization of x float32 [..., size]. The gradient in closed form takes fewer passes over memory."""

  def mean(values: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(values, axis=-1, keepdims=True)

  centered = x - mean(x)
  inverse_stddev = tf.math.rsqrt(mean(tf.square(centered)) + LAYER_NORM_EPSILON)
  normalized = centered * inverse_stddev

  def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    scaled = upstream * gamma
    wrt_x = inverse_stddev * (scaled - mean(scaled) - normalized * mean(scaled * normalized))
    all_axes_but_last = list(range(x.shape.rank - 1))
    wrt_gamma = tf.reduce_sum(upstream * normalized, axis=all_axes_but_last)
    wrt_beta = tf.reduce_sum(upstream, axis=all_axes_but_last)
    return wrt_x, wrt_gamma, wrt_beta

  return normalized * gamma + beta, gradient


def dense(units: int, stddev: float, name: str, dtype: DType = None) -> keras.layers.Dense:
  """Makes a dense layer without activation.

  Args:
    units: size of the output's last axis.
    stddev: standard deviation of the initial kernel [in, units] (truncated normal); the bias [units] starts at 0.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """
  return keras.layers.Dense(units, kernel_initializer=truncated_normal(stddev), name=name, dtype=dtype)


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
  """Layer normalization over the last axis, computed in float32, with epsilon 1e-12 as in the original.

  Args:
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, name: str = "LayerNorm", dtype: DType = None):
    super().__init__(name=name, dtype=dtype)

  def build(self, input_shape: tf.TensorShape) -> None:
    size = input_shape[-1]
    self.gamma = self.add_weight(name="gamma", shape=[size], initializer="ones", experimental_autocast=False)
    self.beta = self.add_weight(name="beta", shape=[size], initializer="zeros", experimental_autocast=False)
    super().build(input_shape)

  def call(self, x: tf.Tensor) -> tf.Tensor:
    """x [..., size] -> the same shape and dtype."""
    gamma, beta = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
    return tf.cast(_layer_norm(tf.cast(x, tf.float32), gamma, beta), x.dtype)


def dense_weights(layer: keras.layers.Dense, prefix: str) -> dict[str, tf.Variable]:
  """Maps the names of a dense layer's variables in the original's checkpoints to the variables."""
  return {f"{prefix}/kernel": layer.kernel, f"{prefix}/bias": layer.bias}


def layer_norm_weights(layer: LayerNorm, prefix: str) -> dict[str, tf.Variable]:
  """Maps the names of a LayerNorm's variables in the original's checkpoints to the variables."""
  return {f"{prefix}/beta": layer.beta, f"{prefix}/gamma": layer.gamma}
