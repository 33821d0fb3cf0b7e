"""Context managers for settings that Keras and TensorFlow keep for the whole process, and for the dtype of a model.

A run needs its own dtype policy, seed and deterministic kernels. Each of these functions restores the previous value
on exit, so that a notebook can make an Estimator and go on with models of its own.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import tensorflow as tf
import tf_keras as keras
from tensorflow.python.framework import config as tf_config  # TensorFlow exports no function that disables determinism
from tf_keras.src import backend  # Keras exports no function that reads or restores its seed generator


@contextlib.contextmanager
def dtype_policy(precision: str) -> Iterator[None]:
  """Sets the compute dtype of the layers that are made in this context. Their variables are float32 in any case.

  Args:
    precision: "float32", "bfloat16" or "float16".
  """
  previous = keras.mixed_precision.global_policy()
  keras.mixed_precision.set_global_policy(_policy_name(precision))
  try:
    yield
  finally:
    keras.mixed_precision.set_global_policy(previous)


@contextlib.contextmanager
def computing_in(precision: str, model: keras.Model) -> Iterator[None]:
  """Lets the layers of a model that was made under `dtype_policy` compute in another dtype in this context.

  Functions that call the model must be traced in the context, and other functions outside it.

  Args:
    precision: "float32", "bfloat16" or "float16".
    model: the model. Its variables stay float32.
  """
  layers = [layer for layer in (model, *model.submodules) if isinstance(layer, keras.layers.Layer)]
  layers = [layer for layer in layers if layer.compute_dtype != "float32"]  # some always compute in float32
  policies = [layer.dtype_policy for layer in layers]
  try:
    for layer in layers:
      layer._set_dtype_policy(_policy_name(precision))
    yield
  finally:
    for layer, policy in zip(layers, policies, strict=True):
      layer._set_dtype_policy(policy)


def _policy_name(precision: str) -> str:
  """Returns Keras' name of the policy that computes in `precision` with float32 variables."""
  return "float32" if precision == "float32" else f"mixed_{precision}"


@contextlib.contextmanager
def initializer_seed(seed: int) -> Iterator[None]:
  """Makes the initial weights of the layers that are made in this context a function of `seed`.

  Keras has a random generator from which it takes the seeds of initializers. This context replaces it by a new one. The
  weights are the same as after keras.utils.set_random_seed(seed), but the generators of Python, NumPy and TensorFlow
  stay as they are.
  """
  has_generator = hasattr(backend._SEED_GENERATOR, "generator")
  previous = getattr(backend._SEED_GENERATOR, "generator", None)
  backend._SEED_GENERATOR.generator = random.Random(seed)
  try:
    yield
  finally:
    if has_generator:
      backend._SEED_GENERATOR.generator = previous
    else:
      del backend._SEED_GENERATOR.generator


@contextlib.contextmanager
def deterministic_ops() -> Iterator[None]:
  """Makes the operations that run in this context deterministic: equal inputs give bit-identical results.

  Without it, a resumed run would end with other weights than an uninterrupted one.
  """
  was_enabled = tf_config.is_op_determinism_enabled()
  tf.config.experimental.enable_op_determinism()
  try:
    yield
  finally:
    if not was_enabled:
      tf_config.disable_op_determinism()
