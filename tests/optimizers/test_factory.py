"""From a config to its optimizer; tensorflow-addons' LAMB where it can be had."""

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
  """Weights after some updates with gradients from a seed; a kernel, a bias, a LayerNorm and a zero weight."""
  rng = np.random.default_rng(11)
  shapes = {"kernel": [5, 3], "bias": [3], "LayerNorm/gamma": [4], "zero": [2]}
  variables = [
    tf.Variable(np.zeros(s, np.float32) if name == "zero" else rng.normal(size=s).astype(np.float32), name=name)
    for name, s in shapes.items()
  ]
  optimizer.build(variables)
  for _ in range(steps):
    gradients = [tf.constant(rng.normal(size=v.shape).astype(np.float32)) for v in variables]
    optimizer.apply_gradients(zip(gradients, variables, strict=True), experimental_aggregate_gradients=False)
  assert all(set(optimizer.slots(v)) == {"adam_m", "adam_v"} for v in variables)
  return [v.numpy() for v in variables]


@pytest.mark.parametrize(("name", "cls"), [("lamb", LAMB), ("adamw", AdamW)])
def test_every_number_reaches_the_optimizer(name, cls):
  config = OptimizerConfig(
    optimizer=name, weight_decay=0.25, beta_1=0.5, beta_2=0.75, epsilon=1e-3, bias_correction=True
  )
  made = make_optimizer(config, 0.125)
  assert type(made) is cls
  expected = cls(0.125, weight_decay_rate=0.25, beta_1=0.5, beta_2=0.75, epsilon=1e-3, bias_correction=True)
  for weights, expected_weights in zip(train(made), train(expected), strict=True):
    np.testing.assert_array_equal(weights, expected_weights)


@pytest.mark.skipif(has_addons(), reason="tensorflow-addons imports here")
def test_addons_lamb_says_what_to_install():
  with pytest.raises(UserError, match=r"tfa_lamb needs tensorflow-addons.*constraints/tf215-tfa\.txt"):
    make_optimizer(OptimizerConfig(optimizer="tfa_lamb"), 0.1)


@pytest.mark.skipif(not has_addons(), reason="needs the tf215-tfa profile")
def test_addons_lamb_equals_ours_with_bias_correction():
  schedule = WarmupPolynomialDecay(0.1, 2, 20)
  addons_weights = train(make_optimizer(OptimizerConfig(optimizer="tfa_lamb"), schedule))
  own_weights = train(make_optimizer(OptimizerConfig(optimizer="lamb", bias_correction=True), schedule))
  for a, b in zip(own_weights, addons_weights, strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
