"""Making an optimizer from its config, tensorflow-addons' LAMB where it is installed, and layer-wise learning rates."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.adamw import AdamW
from albert.optimizers.factory import layerwise_factors, make_optimizer
from albert.optimizers.lamb import LAMB
from albert.optimizers.schedules import WarmupPolynomialDecay
from albert.weights.names import encoder_shapes


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


LAYER = "bert/encoder/transformer/group_{}/inner_group_0/ffn_1/intermediate/dense/kernel"


def test_factors_fall_from_the_head_to_the_embeddings():
  expected_factors = {
    "bert/embeddings/word_embeddings": 0.5**4,
    "bert/encoder/embedding_hidden_mapping_in/kernel": 0.5**4,
    LAYER.format(0): 0.5**3,
    LAYER.format(1): 0.5**2,
    LAYER.format(2): 0.5,
    "bert/pooler/dense/kernel": 1.0,
    "output_weights": 1.0,
  }
  assert layerwise_factors(expected_factors.keys(), 0.5) == expected_factors


@pytest.mark.parametrize("num_groups", [1, 2, 5])
@pytest.mark.parametrize("sharing", ["all", "attention", "ffn", "none"])
def test_shared_weights_have_the_factor_of_the_uppermost_layer_that_uses_them(sharing, num_groups):
  config = ModelConfig(num_hidden_layers=5, num_hidden_groups=num_groups, sharing=sharing)
  exponents = {"bert/embeddings/": num_groups + 1 if sharing == "all" else 6, "bert/pooler/": 0}
  for layer in range(5):  # a later layer overwrites the exponent of an earlier one with the same weights
    for kind, sublayers in (("attention", ("attention_1", "LayerNorm")), ("ffn", ("ffn_1", "LayerNorm_1"))):
      group = layer * num_groups // 5 if sharing in ("all", kind) else layer
      for sublayer in sublayers:
        exponents[f"/group_{group}/inner_group_0/{sublayer}/"] = num_groups - group if sharing == "all" else 5 - layer
  factors = layerwise_factors(encoder_shapes(config), 0.5)
  for part, exponent in exponents.items():
    assert {factor for name, factor in factors.items() if part in name} == {0.5**exponent}, part


@pytest.mark.parametrize("decay", [1e30, 2.0**32, 1e300])
def test_factors_that_overflow_are_refused(decay):
  names = ["bert/embeddings/word_embeddings", LAYER.format(2)]
  with pytest.raises(UserError, match=r"--layerwise_learning_rate_decay=.* its power 4, .* overflows float32"):
    layerwise_factors(names, decay)
  largest_factor = layerwise_factors(names, 2.0**31)["bert/embeddings/word_embeddings"]  # 2^124
  assert np.isfinite(np.float32(largest_factor))


def test_updates_are_scaled_by_the_factors():
  slow, fast = tf.Variable([1.0, 2.0], name="a"), tf.Variable([1.0, 2.0], name="b")
  optimizer = AdamW(0.1)
  optimizer.build([slow, fast])
  optimizer.scale_rates([(slow, 0.25), (fast, 1.0)])
  gradient = tf.constant([0.3, -0.2])
  optimizer.apply_gradients([(gradient, slow), (gradient, fast)])
  np.testing.assert_allclose(slow.numpy() - [1.0, 2.0], 0.25 * (fast.numpy() - [1.0, 2.0]), rtol=1e-5)
  assert np.all(fast.numpy() != [1.0, 2.0])


def test_the_lamb_of_tensorflow_addons_refuses_layerwise_rates():
  with pytest.raises(UserError, match="layerwise_learning_rate_decay"):
    make_optimizer(OptimizerConfig(optimizer="tfa_lamb", layerwise_learning_rate_decay=0.9), 0.1)
