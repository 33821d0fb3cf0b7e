"""LAMB and AdamW compared with the NumPy float64 reference."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.errors import UserError
from albert.optimizers.adamw import EXCLUDED_PATTERNS, AdamW
from albert.optimizers.lamb import LAMB
from albert.optimizers.schedules import WarmupPolynomialDecay
from tests.models.build_models import build_pretraining_model
from tests.reference.optimizers import Optimizer
from tests.synthetic import TINY_MODEL

SHAPES = {
  "dense/kernel": (5, 3),
  "dense/bias": (3,),
  "LayerNorm/gamma": (4,),
  "LayerNorm/beta": (4,),
  "output_bias": (6,),
  "zero/kernel": (2, 3),
  "idle/kernel": (3, 2),
}


def initial_weights() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(1)
  weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
  weights["zero/kernel"][:] = 0  # its norm is 0, so there is no trust ratio
  return weights


def make_gradients(step: int) -> dict[str, np.ndarray]:
  rng = np.random.default_rng([2, step])
  gradients = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
  gradients["idle/kernel"][:] = 0  # without weight decay its update is 0, so there is no trust ratio
  gradients["dense/kernel"] *= 1e-5  # small enough for epsilon to matter
  return gradients


def train(optimizer: keras.optimizers.Optimizer, steps: int) -> dict[str, np.ndarray]:
  """Applies make_gradients to initial_weights. Returns the weights after the last step."""
  variables = {name: tf.Variable(array, name=name) for name, array in initial_weights().items()}
  optimizer.build(list(variables.values()))
  for step in range(steps):
    pairs = [(tf.constant(gradient), variables[name]) for name, gradient in make_gradients(step).items()]
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
  return {name: variable.numpy() for name, variable in variables.items()}


def train_reference(rate: Callable[[int], float], steps: int, *, rescale: bool, **options) -> dict[str, np.ndarray]:
  """Does the same as train with the optimizer in NumPy. With `rescale` the optimizer is LAMB, else AdamW."""
  optimizer = Optimizer(initial_weights(), rescale=rescale, **options)
  for step in range(steps):
    optimizer.step({name: gradient.astype(np.float64) for name, gradient in make_gradients(step).items()}, rate(step))
  return optimizer.weights


def assert_close(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
  for name, array in expected.items():
    np.testing.assert_allclose(actual[name], array, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(("optimizer_class", "rescale"), [(LAMB, True), (AdamW, False)])
def test_updates_equal_the_reference(optimizer_class, rescale, bias_correction, decay):
  options = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "bias_correction": bias_correction}
  weights = train(optimizer_class(0.02, weight_decay_rate=decay, **options), 7)
  assert_close(weights, train_reference(lambda _: 0.02, 7, rescale=rescale, decay=decay, **options))
  changed = {name for name, array in initial_weights().items() if not np.array_equal(array, weights[name])}
  assert changed == (set(SHAPES) if decay else set(SHAPES) - {"idle/kernel"})


@pytest.mark.parametrize(("optimizer_class", "rescale"), [(LAMB, True), (AdamW, False)])
def test_a_schedule_is_called_with_the_number_of_earlier_updates(optimizer_class, rescale):
  weights = train(optimizer_class(WarmupPolynomialDecay(0.04, 3, 12)), 6)

  def rate(step: int) -> float:
    return 0.04 * step / 3 if step < 3 else 0.04 * (1 - step / 12)

  assert_close(weights, train_reference(rate, 6, rescale=rescale))


def test_weights_may_be_excluded_by_other_names():
  weights = train(LAMB(0.02, weight_decay_rate=0.1, exclude=["zero", "^LayerNorm"]), 5)
  expected = train_reference(lambda _: 0.02, 5, rescale=True, decay=0.1, exclude=("zero", "^LayerNorm"))
  assert_close(weights, expected)
  weights_by_default = train(LAMB(0.02, weight_decay_rate=0.1), 5)
  assert np.abs(weights["dense/bias"] - weights_by_default["dense/bias"]).max() > 1e-4


def test_the_weight_decay_of_keras_is_refused():
  with pytest.raises(UserError, match=r"weight_decay=0.1: give weight_decay_rate"):
    LAMB(weight_decay=0.1)


def test_the_layer_normalization_of_keras_is_excluded_as_in_the_original():
  layer = keras.layers.LayerNormalization()
  layer(tf.zeros([1, 3]))
  assert [LAMB().is_excluded(variable) for variable in layer.variables] == [True, True]


def test_sparse_gradients_decay_the_moments_of_every_row():
  table = np.arange(12, dtype=np.float32).reshape(4, 3) / 10

  def train_table(is_sparse: bool) -> np.ndarray:
    variable, optimizer = tf.Variable(table, name="table"), LAMB(0.1)
    optimizer.build([variable])
    for rows in ([1, 1, 3], [0, 1, 0]):
      gradient = tf.IndexedSlices(tf.ones([3, 3]), tf.constant(rows), tf.constant([4, 3]))
      if not is_sparse:
        gradient = tf.convert_to_tensor(gradient)
      optimizer.apply_gradients([(gradient, variable)], experimental_aggregate_gradients=False)
    return variable.numpy()

  np.testing.assert_array_equal(train_table(is_sparse=True), train_table(is_sparse=False))


@pytest.mark.parametrize("optimizer_class", [LAMB, AdamW])
def test_serialization_keeps_every_setting(optimizer_class):
  optimizer = optimizer_class(
    WarmupPolynomialDecay(0.04, 3, 12),
    weight_decay_rate=0.2,
    beta_1=0.7,
    beta_2=0.9,
    epsilon=1e-4,
    bias_correction=True,
    exclude=["zero", "bias"],
  )
  # Without custom_objects, since the classes are registered.
  deserialized = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
  assert type(deserialized) is optimizer_class
  assert deserialized.exclude == ("zero", "bias")
  from_config = optimizer_class.from_config(optimizer.get_config())
  weights = train(optimizer, 5)
  for copy in (deserialized, from_config):
    for name, array in train(copy, 5).items():
      np.testing.assert_array_equal(array, weights[name])


@pytest.mark.parametrize("sharing", ["all", "none"])
@pytest.mark.parametrize("optimizer_class", [LAMB, AdamW])
def test_the_same_weights_are_excluded_as_by_the_names_in_the_originals_checkpoints(optimizer_class, sharing):
  """The optimizer excludes weights by variable.name. The original's patterns are for the names in its checkpoints."""
  model = build_pretraining_model(dataclasses.replace(TINY_MODEL, sharing=sharing))
  optimizer = optimizer_class()
  is_excluded = {name: optimizer.is_excluded(variable) for name, variable in model.named_weights().items()}
  assert is_excluded == {name: any(re.search(pattern, name) for pattern in EXCLUDED_PATTERNS) for name in is_excluded}
  excluded = {name for name in is_excluded if is_excluded[name]}
  assert {name.rsplit("/", 1)[1] for name in excluded} == {"bias", "beta", "gamma", "output_bias"}
  others = set(is_excluded) - excluded
  assert all(name.endswith(("kernel", "_embeddings", "output_weights")) for name in others)


class Regression(NamedTuple):
  """Inputs [6, 5] and targets [6, 3] of a linear regression, and its initial weights."""

  x: np.ndarray
  y: np.ndarray
  kernel: np.ndarray
  bias: np.ndarray


def make_regression() -> Regression:
  rng = np.random.default_rng(4)
  return Regression(*(rng.standard_normal(shape).astype(np.float32) for shape in ((6, 5), (6, 3), (5, 3), (3,))))


NUM_STEPS = 4


def train_with_fit(optimizer: keras.optimizers.Optimizer, regression: Regression) -> keras.Model:
  model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3)])
  model.set_weights([regression.kernel, regression.bias])
  model.compile(optimizer=optimizer, loss="mse")
  model.fit(regression.x, regression.y, batch_size=6, epochs=NUM_STEPS, verbose=0)
  return model


def train_with_apply_gradients(optimizer: keras.optimizers.Optimizer, regression: Regression) -> list[np.ndarray]:
  """Trains as the training loop does. Returns the kernel and the bias."""
  variables = [tf.Variable(regression.kernel, name="dense/kernel"), tf.Variable(regression.bias, name="dense/bias")]
  optimizer.build(variables)
  for _ in range(NUM_STEPS):
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(tf.matmul(regression.x, variables[0]) + variables[1] - regression.y))
    pairs = zip(tape.gradient(loss, variables), variables, strict=True)
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
  return [variable.numpy() for variable in variables]


@pytest.mark.parametrize("optimizer_class", [LAMB, pytest.param(AdamW, marks=pytest.mark.thorough)])
def test_fit_does_the_updates_of_the_training_loop(optimizer_class):
  def make_optimizer() -> keras.optimizers.Optimizer:
    return optimizer_class(WarmupPolynomialDecay(0.04, 2, 12), weight_decay_rate=0.1, beta_2=0.95)

  regression = make_regression()
  weights_of_loop = train_with_apply_gradients(make_optimizer(), regression)
  model = train_with_fit(make_optimizer(), regression)
  for index, weight in enumerate(model.get_weights()):
    np.testing.assert_allclose(weight, weights_of_loop[index], rtol=1e-5, atol=1e-6)
  assert np.abs(model.get_weights()[0] - regression.kernel).max() > 1e-2
