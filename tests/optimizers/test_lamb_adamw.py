"""LAMB and AdamW compared with the NumPy float64 reference."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models.heads import LinearHead
from albert.optimizers.adamw import EXCLUDED, AdamW
from albert.optimizers.lamb import LAMB
from albert.optimizers.schedules import WarmupPolynomialDecay
from tests.models.built import pretraining_model
from tests.reference.optimizers import Optimizer

SHAPES = {
  "dense/kernel": (5, 3),
  "dense/bias": (3,),
  "LayerNorm/gamma": (4,),
  "LayerNorm/beta": (4,),
  "output_bias": (6,),
  "zero/kernel": (2, 3),
  "idle/kernel": (3, 2),
}


def initial() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(1)
  weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
  weights["zero/kernel"][:] = 0  # its norm is 0, so there is no trust ratio
  return weights


def gradients(step: int) -> dict[str, np.ndarray]:
  rng = np.random.default_rng([2, step])
  values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
  values["idle/kernel"][:] = 0  # without weight decay its update is 0, so there is no trust ratio
  values["dense/kernel"] *= 1e-5  # small enough for epsilon to matter
  return values


def train(optimizer: keras.optimizers.Optimizer, steps: int) -> dict[str, np.ndarray]:
  variables = {name: tf.Variable(value, name=name) for name, value in initial().items()}
  optimizer.build(list(variables.values()))
  for step in range(steps):
    pairs = [(tf.constant(g), variables[name]) for name, g in gradients(step).items()]
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
  return {name: variable.numpy() for name, variable in variables.items()}


def reference(rate: Callable[[int], float], steps: int, *, rescale: bool, **options) -> dict[str, np.ndarray]:
  optimizer = Optimizer(initial(), rescale=rescale, **options)
  for step in range(steps):
    optimizer.step({name: g.astype(np.float64) for name, g in gradients(step).items()}, rate(step))
  return optimizer.weights


def assert_close(actual: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> None:
  for name, value in truth.items():
    np.testing.assert_allclose(actual[name], value, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize(("cls", "rescale"), [(LAMB, True), (AdamW, False)])
def test_updates(cls, rescale, bias_correction, decay):
  options = {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-4, "bias_correction": bias_correction}
  weights = train(cls(0.02, weight_decay_rate=decay, **options), 7)
  assert_close(weights, reference(lambda _: 0.02, 7, rescale=rescale, decay=decay, **options))
  moved = {name for name, value in initial().items() if not np.array_equal(value, weights[name])}
  assert moved == (set(SHAPES) if decay else set(SHAPES) - {"idle/kernel"})


@pytest.mark.parametrize(("cls", "rescale"), [(LAMB, True), (AdamW, False)])
def test_a_schedule_gets_the_number_of_updates_done(cls, rescale):
  weights = train(cls(WarmupPolynomialDecay(0.04, 3, 12)), 6)

  def rate(t: int) -> float:
    return 0.04 * t / 3 if t < 3 else 0.04 * (1 - t / 12)

  assert_close(weights, reference(rate, 6, rescale=rescale))


def test_other_exclusions():
  weights = train(LAMB(0.02, weight_decay_rate=0.1, exclude=["zero", "^LayerNorm"]), 5)
  assert_close(weights, reference(lambda _: 0.02, 5, rescale=True, decay=0.1, exclude=("zero", "^LayerNorm")))
  default = train(LAMB(0.02, weight_decay_rate=0.1), 5)
  assert np.abs(weights["dense/bias"] - default["dense/bias"]).max() > 1e-4


def test_sparse_gradients_decay_the_moments_of_every_row():
  table = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
  results = []
  for sparse in (True, False):
    variable, optimizer = tf.Variable(table, name="table"), LAMB(0.1)
    optimizer.build([variable])
    for rows in ([1, 1, 3], [0, 1, 0]):
      gradient = tf.IndexedSlices(tf.ones([3, 3]), tf.constant(rows), tf.constant([4, 3]))
      dense = tf.convert_to_tensor(gradient)
      optimizer.apply_gradients([(gradient if sparse else dense, variable)], experimental_aggregate_gradients=False)
    results.append(variable.numpy())
  np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("cls", [LAMB, AdamW])
def test_serialization_keeps_every_setting(cls):
  made = cls(
    WarmupPolynomialDecay(0.04, 3, 12),
    weight_decay_rate=0.2,
    beta_1=0.7,
    beta_2=0.9,
    epsilon=1e-4,
    bias_correction=True,
    exclude=["zero", "bias"],
  )
  config = keras.optimizers.serialize(made)
  objects = {"LAMB": LAMB, "AdamW": AdamW, "WarmupPolynomialDecay": WarmupPolynomialDecay}
  again = keras.optimizers.deserialize(config, custom_objects=objects)
  assert type(again) is cls
  assert again.exclude == ("zero", "bias")
  expected = train(cls.from_config(made.get_config(), custom_objects=objects), 5)
  for optimizer in (made, again):
    for name, value in train(optimizer, 5).items():
      np.testing.assert_array_equal(value, expected[name])


CONFIG = ModelConfig(
  vocab_size=11,
  embedding_size=4,
  hidden_size=6,
  num_hidden_layers=2,
  num_attention_heads=2,
  intermediate_size=8,
  max_position_embeddings=5,
)


@pytest.mark.parametrize("sharing", ["all", "none"])
@pytest.mark.parametrize("cls", [LAMB, AdamW])
def test_exclusion_agrees_with_the_originals_names(cls, sharing):
  """The optimizer goes by variable.name; the original's lists are meant for the names of its checkpoints."""
  model = pretraining_model(dataclasses.replace(CONFIG, sharing=sharing))
  optimizer = cls()
  verdicts = {name: optimizer.is_excluded(variable) for name, variable in model.named_weights().items()}
  by_name = {name: any(re.search(pattern, name) for pattern in EXCLUDED) for name in verdicts}
  assert verdicts == by_name
  kept = {name for name, excluded in verdicts.items() if not excluded}
  assert all(name.endswith(("kernel", "_embeddings", "output_weights")) for name in kept)
  assert {name.rsplit("/", 1)[1] for name in set(verdicts) - kept} == {"bias", "beta", "gamma", "output_bias"}


def test_task_heads_are_excluded_by_their_bias_alone():
  head = LinearHead(3, 0.02, name="classifier")
  head(tf.zeros([2, 5]))
  verdicts = {name: LAMB().is_excluded(variable) for name, variable in head.named_weights("x").items()}
  assert verdicts == {"x/output_weights": False, "x/output_bias": True}


@pytest.mark.parametrize(("cls", "rescale"), [(LAMB, True), pytest.param(AdamW, False, marks=pytest.mark.thorough)])
def test_compile_and_fit_of_any_model_do_the_updates_of_the_training_loop(cls, rescale, tmp_path):
  rng = np.random.default_rng(4)
  x, y = rng.standard_normal((6, 5)).astype(np.float32), rng.standard_normal((6, 3)).astype(np.float32)
  kernel, bias = rng.standard_normal((5, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
  model = keras.Sequential([keras.Input([5]), keras.layers.Dense(3)])
  model.set_weights([kernel, bias])
  options = {"weight_decay_rate": 0.1, "beta_2": 0.95}
  model.compile(optimizer=cls(WarmupPolynomialDecay(0.04, 2, 12), **options), loss="mse")
  model.fit(x, y, batch_size=6, epochs=4, verbose=0)

  # The reference in float64, and our own optimizer as the training loop calls it.
  truth = Optimizer({"kernel": kernel, "bias": bias}, rescale=rescale, decay=0.1, beta_2=0.95)
  variables = [tf.Variable(kernel, name="dense/kernel"), tf.Variable(bias, name="dense/bias")]
  loop = cls(WarmupPolynomialDecay(0.04, 2, 12), **options)
  loop.build(variables)
  for step in range(4):
    rate = 0.04 * step / 2 if step < 2 else 0.04 * (1 - step / 12)
    error = 2 * (x @ truth.weights["kernel"] + truth.weights["bias"] - y) / y.size
    truth.step({"kernel": x.T.astype(np.float64) @ error, "bias": error.sum(axis=0)}, rate)
    with tf.GradientTape() as tape:
      loss = tf.reduce_mean(tf.square(tf.matmul(x, variables[0]) + variables[1] - y))
    pairs = zip(tape.gradient(loss, variables), variables, strict=True)
    loop.apply_gradients(pairs, experimental_aggregate_gradients=False)
  for keras_weight, variable, name in zip(model.get_weights(), variables, ("kernel", "bias"), strict=True):
    np.testing.assert_allclose(keras_weight, truth.weights[name], rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(keras_weight, variable, rtol=1e-5, atol=1e-6)
  assert np.abs(model.get_weights()[0] - kernel).max() > 1e-2

  model.save(tmp_path / "model.keras")  # no custom_objects: the classes are registered
  loaded = keras.models.load_model(tmp_path / "model.keras")
  assert type(loaded.optimizer) is cls
  assert loaded.optimizer.get_config() == model.optimizer.get_config()
  for one in (model, loaded):
    one.fit(x, y, batch_size=6, verbose=0)
  for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)
