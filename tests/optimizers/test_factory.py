"""Making an optimizer from its config, and tensorflow-addons' LAMB where tensorflow-addons is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.adamw import AdamW
from albert.optimizers.factory import make_optimizer
from albert.optimizers.lamb import LAMB
from albert.optimizers.schedules import WarmupPolynomialDecay


def has_addons() -> bool:
  if importlib.util.find_spec("tensorflow_addons") is None:
    return False
  try:
    import tensorflow_addons  # noqa: F401
  except ImportError:
    return False
  return True


def train(optimizer, steps: int = 6) -> list[np.ndarray]:
  """Returns a kernel, a bias, a LayerNorm weight and a weight of zeros after updates with the same random gradients."""
  rng = np.random.default_rng(11)
  initial_weights = {
    "kernel": rng.normal(size=[5, 3]),
    "bias": rng.normal(size=[3]),
    "LayerNorm/gamma": rng.normal(size=[4]),
    "zero": np.zeros([2]),
  }
  variables = [tf.Variable(array.astype(np.float32), name=name) for name, array in initial_weights.items()]
  optimizer.build(variables)
  for _ in range(steps):
    gradients = [tf.constant(rng.normal(size=variable.shape).astype(np.float32)) for variable in variables]
    optimizer.apply_gradients(zip(gradients, variables, strict=True), experimental_aggregate_gradients=False)
  assert all(set(optimizer.slots(variable)) == {"adam_m", "adam_v"} for variable in variables)
  return [variable.numpy() for variable in variables]


@pytest.mark.parametrize(("name", "optimizer_class"), [("lamb", LAMB), ("adamw", AdamW)])
def test_the_optimizer_has_every_number_of_its_config(name, optimizer_class):
  config = OptimizerConfig(
    optimizer=name, weight_decay=0.25, beta_1=0.5, beta_2=0.75, epsilon=1e-3, bias_correction=True
  )
  optimizer = make_optimizer(config, 0.125)
  assert type(optimizer) is optimizer_class
  expected = optimizer_class(0.125, weight_decay_rate=0.25, beta_1=0.5, beta_2=0.75, epsilon=1e-3, bias_correction=True)
  for weights, expected_weights in zip(train(optimizer), train(expected), strict=True):
    np.testing.assert_array_equal(weights, expected_weights)


@pytest.mark.skipif(has_addons(), reason="tensorflow-addons imports here")
def test_without_tensorflow_addons_the_error_names_the_profile_to_install():
  with pytest.raises(UserError, match=r"tfa_lamb needs tensorflow-addons.*constraints/tf215-tfa\.txt"):
    make_optimizer(OptimizerConfig(optimizer="tfa_lamb"), 0.1)


@pytest.mark.skipif(not has_addons(), reason="needs the tf215-tfa profile")
def test_the_lamb_of_tensorflow_addons_equals_ours_with_bias_correction():
  schedule = WarmupPolynomialDecay(0.1, 2, 20)
  addons_weights = train(make_optimizer(OptimizerConfig(optimizer="tfa_lamb"), schedule))
  own_weights = train(make_optimizer(OptimizerConfig(optimizer="lamb", bias_correction=True), schedule))
  for weight, addons_weight in zip(own_weights, addons_weights, strict=True):
    np.testing.assert_allclose(weight, addons_weight, rtol=2e-5, atol=2e-6)
