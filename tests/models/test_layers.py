"""Dropout, layer normalization and the activations, one by one."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.activations import ACTIVATIONS
from albert.models.attention import FeedForward, SelfAttention, attention_bias
from tests.golden.make_tiny_albert import batch, random_weights
from tests.models.built import encoder
from tests.reference.albert import ACTIVATIONS as REFERENCE_ACTIVATIONS
from tests.reference.albert import Reference

SEED = tf.constant([3, 4])


def drop(x: tf.Tensor, rate: float, seed: tf.Tensor | None = SEED, site: int = 0) -> tf.Tensor:
  """Applies dropout as in training. `site` is the number of this dropout in the model (see layers.dropout)."""
  return layers.dropout(x, rate, site=site, training=True, seed=seed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("seed", [SEED, None])
def test_dropouts_rate_mean_and_variance(rate, dtype, seed):
  y = drop(tf.fill([400, 1000], tf.constant(2.0, dtype)), rate, seed)
  assert y.dtype.name == dtype
  y = tf.cast(y, tf.float32).numpy().astype(np.float64)
  kept = y != 0
  # Each element is 2 / (1 - rate) with probability 1 - rate, and else 0: mean 2, variance 4 rate / (1 - rate).
  deviation = 2 * np.sqrt(rate / (1 - rate))
  scale_error = 0.0 if dtype == "float32" else 4e-3  # bfloat16 rounds 2 / (1 - rate)
  assert kept.mean() == pytest.approx(1 - rate, abs=4 * np.sqrt(rate * (1 - rate) / y.size))
  np.testing.assert_allclose(y[kept], 2.0 / (1 - rate), rtol=max(scale_error, 1e-6))
  assert y.mean() == pytest.approx(2, rel=scale_error, abs=4 * deviation / np.sqrt(y.size))
  assert y.var() == pytest.approx(deviation**2, rel=0.02)


def test_dropouts_gradient_has_the_same_mask():
  x = tf.ones([50, 40])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = drop(x, 0.3)
  np.testing.assert_array_equal(tape.gradient(y, x), y)


def test_dropout_depends_on_seed_and_site_alone():
  x = tf.ones([64, 64])

  def mask(seed: list[int], site: int) -> bytes:
    return drop(x, 0.5, tf.constant(seed), site).numpy().tobytes()

  assert mask([3, 4], 0) == mask([3, 4], 0)
  assert len({mask([3, 4], 0), mask([3, 4], 1), mask([3, 5], 0), mask([4, 4], 0)}) == 4


def test_dropout_draws_the_numbers_of_its_seed():
  kept = drop(tf.ones([2, 5]), 0.5).numpy() != 0
  uniform = tf.random.stateless_uniform([2, 5], tf.random.experimental.stateless_fold_in(SEED, 0))
  np.testing.assert_array_equal(kept, uniform.numpy() >= 0.5)


@pytest.mark.parametrize("training", [False, None])
def test_without_training_or_with_rate_0_there_is_no_dropout(training):
  x = tf.ones([3, 5])
  assert layers.dropout(x, 0.5, site=0, training=training, seed=SEED) is x
  assert layers.dropout(x, 0.5, site=0, training=training, seed=None) is x
  assert drop(x, 0.0) is x


@pytest.mark.parametrize(
  ("wrap", "follows_set_seed"),
  [(lambda f: f, True), (tf.function, True), (lambda f: tf.function(f, jit_compile=True), False)],
  ids=["eager", "function", "xla"],
)
def test_without_a_seed_every_call_draws_another_mask_and_set_seed_repeats_them(wrap, follows_set_seed):
  x = tf.ones([64, 64])

  def masks() -> list[bytes]:
    tf.random.set_seed(7)
    step = wrap(lambda: drop(x, 0.5, None))
    return [step().numpy().tobytes() for _ in range(3)]

  first = masks()
  assert len(set(first)) == 3
  if follows_set_seed:
    assert masks() == first


def make_config(hidden_dropout: float = 0.0, attention_dropout: float = 0.0) -> ModelConfig:
  return ModelConfig(
    vocab_size=41,
    embedding_size=6,
    hidden_size=20,
    num_hidden_layers=3,
    num_attention_heads=5,
    intermediate_size=28,
    max_position_embeddings=14,
    hidden_dropout_prob=hidden_dropout,
    attention_probs_dropout_prob=attention_dropout,
  )


class DropoutCall(NamedTuple):
  """The shape of a dropout's input, and the seed of its mask."""

  shape: tuple[int, ...]
  mask_seed: tuple[int, ...]


def record_dropouts(monkeypatch: pytest.MonkeyPatch) -> list[DropoutCall]:
  """Replaces dropout by a function that changes nothing and appends to the returned list."""
  calls: list[DropoutCall] = []

  def record(x: tf.Tensor, rate: float, *, site: int, training: bool, seed: tf.Tensor) -> tf.Tensor:
    if rate and training:
      mask_seed = tf.random.experimental.stateless_fold_in(seed, site).numpy()
      calls.append(DropoutCall(tuple(x.shape), tuple(mask_seed.tolist())))
    return x

  monkeypatch.setattr(layers, "dropout", record)
  return calls


@pytest.mark.parametrize(("hidden", "attention", "sites_per_block"), [(0.3, 0, 2), (0, 0.3, 1), (0.3, 0.3, 3)])
def test_dropout_sits_where_the_original_has_it_and_every_site_draws_its_own_mask(
  monkeypatch, hidden, attention, sites_per_block
):
  calls = record_dropouts(monkeypatch)
  config, features = make_config(hidden, attention), batch(make_config(), 5)
  model = encoder(config)
  calls.clear()  # of calls while the model was built
  model(features, training=True, seed=SEED)
  assert len(calls) == config.num_hidden_layers * sites_per_block + (1 if hidden else 0)
  assert len({call.mask_seed for call in calls}) == len(calls)
  batch_size, length = features["input_ids"].shape
  embeddings = [(batch_size, length, 6)] if hidden else []
  attention_probs = [(batch_size, 5, length, length)] if attention else []
  halves_of_block = [(batch_size, length, 20)] * 2 if hidden else []  # the outputs of attention and feed-forward
  assert [call.shape for call in calls] == embeddings + (attention_probs + halves_of_block) * 3


def test_a_models_dropout_is_a_function_of_its_seed():
  features, model = batch(make_config(), 5), encoder(make_config(0.2, 0.2))

  def states(seed: tf.Tensor | None, training: bool | None = True) -> np.ndarray:
    return model(features, training=training, seed=seed).sequence_output.numpy()

  np.testing.assert_array_equal(states(SEED), states(SEED))
  assert np.abs(states(SEED) - states(tf.constant([3, 5]))).max() > 0.1
  model_without_dropout = encoder(make_config(), {n: v.numpy() for n, v in model.named_weights().items()})
  expected = model_without_dropout(features, training=True, seed=SEED).sequence_output.numpy()
  for training in (False, None):
    for seed in (SEED, None):
      np.testing.assert_array_equal(states(seed, training), expected)


def test_layer_norm_of_values_far_from_zero():
  rng = np.random.default_rng(0)
  x = (1000 + rng.standard_normal((6, 50))).astype(np.float32)
  layer = layers.LayerNorm()
  normalized = layer(tf.constant(x)).numpy()
  x64 = x.astype(np.float64)
  truth = (x64 - x64.mean(-1, keepdims=True)) / np.sqrt(x64.var(-1, keepdims=True) + 1e-12)
  np.testing.assert_allclose(normalized, truth, atol=1e-3)  # 1000 in float32 has steps of 6e-5
  assert np.isfinite(layer(tf.zeros([2, 50])).numpy()).all()


def test_layer_norms_gradient_against_differences():
  rng = np.random.default_rng(1)
  x, upstream = rng.standard_normal((2, 2, 3, 7))
  gamma, beta = 1 + 0.3 * rng.standard_normal((2, 7))
  layer = layers.LayerNorm()
  tensor = tf.constant(x, tf.float32)
  layer(tensor)
  layer.gamma.assign(gamma)
  layer.beta.assign(beta)
  with tf.GradientTape() as tape:
    tape.watch(tensor)
    y = layer(tensor)
  gradients = tape.gradient(y, [tensor, layer.gamma, layer.beta], output_gradients=tf.constant(upstream, tf.float32))

  def loss(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> float:
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
    return float(np.sum((normal * gamma + beta) * upstream))

  arguments = [x, gamma, beta]
  for number, gradient in enumerate(gradients):
    for index in np.ndindex(arguments[number].shape):
      sides = []
      for step in (1e-6, -1e-6):
        moved = [array.copy() for array in arguments]
        moved[number][index] += step
        sides.append(loss(*moved))
      assert gradient.numpy()[index] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=2e-5)


@pytest.mark.parametrize("name", list(REFERENCE_ACTIVATIONS))
def test_activations_and_their_slopes(name):
  x = np.linspace(-5, 5, 200).astype(np.float32)
  tensor = tf.constant(x)
  with tf.GradientTape() as tape:
    tape.watch(tensor)
    y = ACTIVATIONS[name].training(tensor)
  value, slope = REFERENCE_ACTIVATIONS[name](x.astype(np.float64))
  np.testing.assert_allclose(y, value, atol=1e-6)
  np.testing.assert_allclose(tape.gradient(y, tensor), slope, atol=1e-5)  # tanh of float32 saturates early
  np.testing.assert_array_equal(ACTIVATIONS[name].inference(tensor), y)


def test_every_activation_of_the_config_has_a_function():
  choices = {field.name: field.metadata["choices"] for field in dataclasses.fields(ModelConfig)}["hidden_act"]
  assert list(ACTIVATIONS) == list(choices) == list(REFERENCE_ACTIVATIONS)


def test_each_half_of_a_block_against_the_reference():
  config = dataclasses.replace(make_config(), num_attention_heads=4)
  weights = random_weights(config, 4, with_heads=())
  reference = Reference(config, weights)
  rng = np.random.default_rng(6)
  x = rng.standard_normal((2, 7, 20)).astype(np.float32)
  mask = np.array([[1] * 7, [1] * 4 + [0] * 3])
  prefix = "bert/encoder/transformer/group_0/inner_group_0"
  attention, ffn = SelfAttention(config), FeedForward(config)
  attention(tf.constant(x), attention_bias(tf.constant(mask)))
  ffn(tf.constant(x))
  for half in (attention, ffn):
    for name, variable in half.named_weights(prefix).items():
      variable.assign(weights[name])
  truth, _ = reference.attention(x.astype(np.float64), mask, prefix)
  np.testing.assert_allclose(attention(tf.constant(x), attention_bias(tf.constant(mask))), truth, atol=5e-6)
  truth, _ = reference.feed_forward(x.astype(np.float64), prefix)
  np.testing.assert_allclose(ffn(tf.constant(x)), truth, atol=5e-6)
