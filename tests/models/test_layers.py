"""Tests of each layer alone: dropout, layer normalization, the activations, attention and the feed-forward network."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.layers import ACTIVATIONS
from tests.golden.make_tiny_albert import random_batch
from tests.models.build_models import SMALL_MODEL, build_encoder
from tests.reference.albert import ACTIVATIONS as REFERENCE_ACTIVATIONS

SEED = tf.constant([3, 4])


def drop(x: tf.Tensor, rate: float, seed: tf.Tensor | None = SEED, dropout_index: int = 0) -> tf.Tensor:
  """Applies dropout as in training. `dropout_index` is the number of this dropout in the model (see layers.dropout)."""
  return layers.dropout(x, rate, dropout_index=dropout_index, training=True, seed=seed)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("seed", [SEED, None])
def test_dropout_has_the_expected_share_of_zeros_mean_and_variance(rate, dtype, seed):
  dropped = drop(tf.fill([400, 1000], tf.constant(2.0, dtype)), rate, seed)
  assert dropped.dtype.name == dtype
  y = tf.cast(dropped, tf.float32).numpy().astype(np.float64)
  is_kept = y != 0
  # Each element is 2 / (1 - rate) with probability 1 - rate, and else 0: mean 2, variance 4 rate / (1 - rate).
  deviation = 2 * np.sqrt(rate / (1 - rate))
  scale_error = 0.0 if dtype == "float32" else 4e-3  # bfloat16 rounds 2 / (1 - rate)
  # The share of zeros and the mean may be wrong by four standard errors.
  assert is_kept.mean() == pytest.approx(1 - rate, abs=4 * np.sqrt(rate * (1 - rate) / y.size))
  np.testing.assert_allclose(y[is_kept], 2.0 / (1 - rate), rtol=max(scale_error, 1e-6))
  assert y.mean() == pytest.approx(2, rel=scale_error, abs=4 * deviation / np.sqrt(y.size))
  assert y.var() == pytest.approx(deviation**2, rel=0.02)


def test_the_gradient_of_dropout_has_the_same_mask():
  x = tf.ones([50, 40])
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = drop(x, 0.3)
  np.testing.assert_array_equal(tape.gradient(y, x), y)


def test_dropout_depends_on_seed_and_dropout_index_alone():
  x = tf.ones([64, 64])

  def mask(seed: list[int], dropout_index: int) -> bytes:
    return drop(x, 0.5, tf.constant(seed), dropout_index).numpy().tobytes()

  assert mask([3, 4], 0) == mask([3, 4], 0)
  assert len({mask([3, 4], 0), mask([3, 4], 1), mask([3, 5], 0), mask([4, 4], 0)}) == 4


@pytest.mark.parametrize("seed", [[3, 4], [-5, 2**40 + 1]])
@pytest.mark.parametrize(("rate", "dtype"), [(0.1, "bfloat16"), (0.9999999, "float32")])
def test_with_and_without_xla_dropout_draws_the_same_mask(rate, dtype, seed):
  """So --jit_compile may change when a run is resumed. The mask is that of the uniform numbers which XLA draws."""
  x, seeds = tf.ones([50, 40], dtype), tf.constant(seed, tf.int64)
  fold_in = tf.random.experimental.stateless_fold_in
  draw = tf.function(lambda: tf.random.stateless_uniform(x.shape, fold_in(fold_in(seeds, 8), 7)), jit_compile=True)
  expected_mask = draw().numpy() >= rate
  for options in ({}, {"jit_compile": True}):
    dropped = tf.function(lambda: drop(x, rate, layers.fold_in(seeds, 8), dropout_index=7), **options)()
    np.testing.assert_array_equal(dropped.numpy() != 0, expected_mask)


@pytest.mark.parametrize("training", [False, None])
def test_without_training_or_with_rate_0_there_is_no_dropout(training):
  x = tf.ones([3, 5])
  assert layers.dropout(x, 0.5, dropout_index=0, training=training, seed=SEED) is x
  assert layers.dropout(x, 0.5, dropout_index=0, training=training, seed=None) is x
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

  three_masks = masks()
  assert len(set(three_masks)) == 3
  if follows_set_seed:
    assert masks() == three_masks


def make_config(hidden_dropout: float = 0.0, attention_dropout: float = 0.0) -> ModelConfig:
  return dataclasses.replace(
    SMALL_MODEL, hidden_dropout_prob=hidden_dropout, attention_probs_dropout_prob=attention_dropout
  )


class DropoutCall(NamedTuple):
  """The shape of a dropout's input, and the seed of its mask."""

  shape: tuple[int, ...]
  mask_seed: tuple[int, ...]


def record_dropouts(monkeypatch: pytest.MonkeyPatch) -> list[DropoutCall]:
  """Replaces dropout by a function that changes nothing and appends to the returned list."""
  calls: list[DropoutCall] = []

  def record(x: tf.Tensor, rate: float, *, dropout_index: int, training: bool, seed: tf.Tensor) -> tf.Tensor:
    if rate and training:
      mask_seed = tf.random.experimental.stateless_fold_in(seed, dropout_index).numpy()
      calls.append(DropoutCall(tuple(x.shape), tuple(mask_seed.tolist())))
    return x

  monkeypatch.setattr(layers, "dropout", record)
  return calls


@pytest.mark.parametrize(("hidden", "attention", "dropouts_per_block"), [(0.3, 0, 2), (0, 0.3, 1), (0.3, 0.3, 3)])
def test_dropout_is_applied_where_the_original_applies_it_with_a_different_mask_each_time(
  monkeypatch, hidden, attention, dropouts_per_block
):
  calls = record_dropouts(monkeypatch)
  config, features = make_config(hidden, attention), random_batch(make_config(), 5)
  model = build_encoder(config)
  calls.clear()  # the calls while the model was built
  model(features, training=True, seed=SEED)
  assert len(calls) == config.num_hidden_layers * dropouts_per_block + (1 if hidden else 0)
  assert len({call.mask_seed for call in calls}) == len(calls)
  batch_size, length = features["input_ids"].shape
  embeddings = [(batch_size, length, config.embedding_size)] if hidden else []
  attention_probs = [(batch_size, config.num_attention_heads, length, length)] if attention else []
  # The outputs of the attention and of the feed-forward network.
  halves_of_block = [(batch_size, length, config.hidden_size)] * 2 if hidden else []
  blocks = (attention_probs + halves_of_block) * config.num_hidden_layers
  assert [call.shape for call in calls] == embeddings + blocks


def test_a_models_dropout_is_a_function_of_its_seed():
  features, model = random_batch(make_config(), 5), build_encoder(make_config(0.2, 0.2))

  def states(seed: tf.Tensor | None, training: bool | None = True) -> np.ndarray:
    return model(features, training=training, seed=seed).sequence_output.numpy()

  np.testing.assert_array_equal(states(SEED), states(SEED))
  assert np.abs(states(SEED) - states(tf.constant([3, 5]))).max() > 0.1
  weights = {name: variable.numpy() for name, variable in model.named_weights().items()}
  model_without_dropout = build_encoder(make_config(), weights)
  expected = model_without_dropout(features, training=True, seed=SEED).sequence_output.numpy()
  for training in (False, None):
    for seed in (SEED, None):
      np.testing.assert_array_equal(states(seed, training), expected)


def normalize_in_float64(x: np.ndarray, epsilon: float = 1e-12) -> np.ndarray:
  x = x.astype(np.float64)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def test_layer_norm_is_accurate_far_from_zero_and_finite_for_equal_elements():
  x = (1000 + np.random.default_rng(0).standard_normal((6, 50))).astype(np.float32)
  layer = layers.LayerNorm()
  # Near 1000, float32 has steps of 6e-5.
  np.testing.assert_allclose(layer(tf.constant(x)), normalize_in_float64(x), atol=1e-3)
  assert np.isfinite(layer(tf.zeros([2, 50])).numpy()).all()


@pytest.mark.parametrize("epsilon", [1e-12, 0.3])
def test_the_gradients_of_layer_norm_equal_central_differences(epsilon):
  rng = np.random.default_rng(1)
  x, output_gradient = rng.standard_normal((2, 2, 3, 7))
  gamma, beta = 1 + 0.3 * rng.standard_normal((2, 7))
  layer = layers.LayerNorm(epsilon)
  tensor = tf.constant(x, tf.float32)
  layer(tensor)
  layer.gamma.assign(gamma)
  layer.beta.assign(beta)
  with tf.GradientTape() as tape:
    tape.watch(tensor)
    y = layer(tensor)
  gradients = tape.gradient(
    y, [tensor, layer.gamma, layer.beta], output_gradients=tf.constant(output_gradient, tf.float32)
  )

  def loss() -> float:
    """Computes the loss whose gradient with respect to the output is output_gradient."""
    return float(np.sum((normalize_in_float64(x, epsilon) * gamma + beta) * output_gradient))

  step = 1e-6
  for argument, gradient in zip((x, gamma, beta), gradients, strict=True):
    for index in np.ndindex(argument.shape):
      element = argument[index]
      argument[index] = element + step
      loss_above = loss()
      argument[index] = element - step
      loss_below = loss()
      argument[index] = element
      assert gradient.numpy()[index] == pytest.approx((loss_above - loss_below) / (2 * step), abs=2e-5)


@pytest.mark.parametrize("name", list(REFERENCE_ACTIVATIONS))
def test_activations_and_their_slopes_equal_the_reference(name):
  x = np.linspace(-5, 5, 200).astype(np.float32)
  tensor = tf.constant(x)
  with tf.GradientTape() as tape:
    tape.watch(tensor)
    y = ACTIVATIONS[name].training(tensor)
  expected, expected_slope = REFERENCE_ACTIVATIONS[name](x.astype(np.float64))
  np.testing.assert_allclose(y, expected, atol=1e-6)
  np.testing.assert_allclose(tape.gradient(y, tensor), expected_slope, atol=1e-5)  # tanh of float32 saturates early
  np.testing.assert_array_equal(ACTIVATIONS[name].inference(tensor), y)


def test_every_activation_of_the_config_has_a_function():
  choices = ModelConfig.__dataclass_fields__["hidden_act"].metadata["choices"]
  assert list(ACTIVATIONS) == list(choices) == list(REFERENCE_ACTIVATIONS)
