"""`training` says whether dropout is on: called directly, by Keras' fit and evaluate, and in a functional model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models.classifier import ClassifierModel
from albert.models.encoder import Encoder
from albert.models.heads import PretrainingModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import SquadV1Model, SquadV2Model
from tests.thorough import thorough_except

# B examples of K options, S tokens, P masked tokens.
B, K, S, P = 3, 2, 7, 4
CONFIG = ModelConfig(
  vocab_size=31,
  embedding_size=6,
  hidden_size=20,
  num_hidden_layers=3,
  num_attention_heads=5,
  intermediate_size=28,
  max_position_embeddings=14,
  hidden_dropout_prob=0.3,
  attention_probs_dropout_prob=0.3,
  classifier_dropout_prob=0.3,
)
SHALLOW_CONFIG = dataclasses.replace(CONFIG, num_hidden_layers=1)
NAMES = ("input_ids", "input_mask", "segment_ids")


def token_features(*shape: int) -> dict[str, tf.Tensor]:
  """Random ids of one segment, without padding; int32 `shape`."""
  ids = tf.constant(np.random.default_rng(0).integers(5, CONFIG.vocab_size, shape), tf.int32)
  return {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}


def test_encoder_applies_dropout_in_training_only():
  encoder, inputs = Encoder(CONFIG), token_features(B, S)

  def states(**arguments: bool | None) -> np.ndarray:
    return encoder(inputs, **arguments).sequence_output.numpy()

  np.testing.assert_array_equal(states(), states(training=False))
  np.testing.assert_array_equal(states(), states(training=None))
  first, second = states(training=True), states(training=True)
  assert np.abs(first - states()).max() > 0.1
  assert np.abs(first - second).max() > 0.1


@pytest.mark.parametrize("recompute_grad", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_gradient_without_a_seed_is_that_of_the_masks_of_the_forward_pass(recompute_grad):
  encoder, inputs = Encoder(CONFIG), token_features(B, S)
  encoder(inputs)
  encoder.recompute_grad = recompute_grad
  bias = encoder.pooler.bias
  weight = encoder.feed_forward[0][0].intermediate.kernel

  @tf.function(autograph=False)
  def loss_and_gradient() -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
      loss = tf.reduce_sum(encoder(inputs, training=True).pooled_output * tf.range(20, dtype=tf.float32))
    return loss, tape.gradient(loss, weight)

  def repeated(value: np.ndarray) -> tuple[float, np.ndarray]:
    tf.random.set_seed(11)
    weight.assign(value)
    loss, gradient = loss_and_gradient()
    return float(loss), gradient.numpy()

  tf.random.set_seed(11)
  start = weight.numpy()
  direction = np.random.default_rng(1).standard_normal(start.shape).astype(np.float32)
  _, gradient = repeated(start)
  above, _ = repeated(start + 1e-2 * direction)
  below, _ = repeated(start - 1e-2 * direction)
  assert (above - below) / 2e-2 == pytest.approx(float(np.sum(gradient * direction)), rel=2e-2)
  assert bias.shape == (20,)


def models() -> list[tuple[keras.Model, dict[str, tf.Tensor], dict[str, tf.Tensor]]]:
  """Every model with inputs and further arguments of its call."""
  tokens = token_features(B, S)
  p_mask = {"p_mask": tf.zeros([B, S], tf.int32)}
  positions = tf.constant(np.random.default_rng(1).integers(1, S, [B, P]), tf.int32)
  return [
    (PretrainingModel(CONFIG), tokens | {"masked_lm_positions": positions}, {}),
    (ClassifierModel(CONFIG, 3), tokens, {}),
    (MultipleChoiceModel(CONFIG), token_features(B, K, S) | {"option_mask": tf.ones([B, K])}, {}),
    (SquadV1Model(CONFIG), tokens | p_mask, {}),
    (SquadV2Model(CONFIG), tokens | p_mask, {"start_positions": tf.constant([1, 2, 3])}),
  ]


@pytest.mark.parametrize(
  "index",
  thorough_except([0, 4], range(5)),
  ids=["pretraining", "classifier", "multiple_choice", "squad_v1", "squad_v2"],
)
def test_every_model_applies_dropout_in_training_only(index):
  model, inputs, arguments = models()[index]

  def outputs(**training: bool | None) -> list[np.ndarray]:
    return [value.numpy() for value in tf.nest.flatten(model(inputs, **arguments, **training)) if value is not None]

  for one, other in zip(outputs(), outputs(training=False), strict=True):
    np.testing.assert_array_equal(one, other)
  for plain, first, second in zip(outputs(), outputs(training=True), outputs(training=True), strict=True):
    assert np.any(first != plain)
    assert np.any(first != second)


def functional_model() -> keras.Model:
  inputs = {name: keras.Input([S], dtype=tf.int32, name=name) for name in NAMES}
  return keras.Model(inputs, keras.layers.Dense(2)(Encoder(SHALLOW_CONFIG)(inputs).pooled_output))


def subclassed_model() -> keras.Model:
  return ClassifierModel(SHALLOW_CONFIG, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("build", [functional_model, pytest.param(subclassed_model, marks=pytest.mark.thorough)])
def test_fit_trains_with_another_dropout_at_each_step_and_evaluate_has_none(build):
  model = build()
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  model.compile(optimizer=keras.optimizers.SGD(0.0), loss=loss)  # rate 0: losses differ by their dropout only
  inputs, labels = token_features(B, S), tf.constant([0, 1, 1])
  losses = [model.fit(inputs, labels, batch_size=B, verbose=0).history["loss"][0] for _ in range(3)]
  plain = float(loss(labels, model(inputs, training=False)))
  assert len({*losses, plain}) == 4
  assert model.evaluate(inputs, labels, verbose=0) == pytest.approx(plain, rel=1e-6)
  np.testing.assert_allclose(model.predict(inputs, verbose=0), model(inputs, training=False), rtol=1e-5, atol=1e-7)
