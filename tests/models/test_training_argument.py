"""The argument `training` switches dropout on: in direct calls, in Keras' fit and evaluate, in functional models."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.models.classifier import ClassifierModel
from albert.models.encoder import Encoder
from tests.models.build_models import INPUT_NAMES, SMALL_MODEL, TASK_MODELS, B, S, task_model_inputs, token_features
from tests.thorough import thorough_except

CONFIG = dataclasses.replace(
  SMALL_MODEL, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3, classifier_dropout_prob=0.3
)
SHALLOW_CONFIG = dataclasses.replace(CONFIG, num_hidden_layers=1)


@pytest.mark.parametrize("recompute_grad", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_without_a_seed_the_backward_pass_has_the_masks_of_the_forward_pass(recompute_grad):
  """Compares the gradient with a central difference.

  All passes draw the same masks, because tf.random.set_seed is called before each of them.
  """
  encoder, inputs = Encoder(dataclasses.replace(CONFIG, num_hidden_layers=2)), token_features(B, S)
  encoder(inputs)
  encoder.recompute_grad = recompute_grad
  weight = encoder.feed_forward_layers[0].intermediate.kernel

  @tf.function(autograph=False)
  def loss_and_gradient() -> tuple[tf.Tensor, tf.Tensor]:
    with tf.GradientTape() as tape:
      pooled_output = encoder(inputs, training=True).pooled_output
      loss = tf.reduce_sum(pooled_output * tf.range(CONFIG.hidden_size, dtype=tf.float32))
    return loss, tape.gradient(loss, weight)

  def run_with(weight_array: np.ndarray) -> tuple[float, np.ndarray]:
    tf.random.set_seed(11)
    weight.assign(weight_array)
    loss, gradient = loss_and_gradient()
    return float(loss), gradient.numpy()

  initial = weight.numpy()
  direction = np.random.default_rng(1).standard_normal(initial.shape).astype(np.float32)
  _, gradient = run_with(initial)
  loss_above, _ = run_with(initial + 1e-2 * direction)
  loss_below, _ = run_with(initial - 1e-2 * direction)
  # The losses are rounded to float32, so a small gradient has a large relative error.
  assert (loss_above - loss_below) / 2e-2 == pytest.approx(float(np.sum(gradient * direction)), rel=2e-2, abs=1e-3)


@pytest.mark.parametrize("name", thorough_except(["pretraining", "squad_v2"], list(TASK_MODELS)))
def test_every_model_applies_dropout_in_training_only(name: str):
  (model_class, arguments), inputs = TASK_MODELS[name], task_model_inputs(name)
  model = model_class(CONFIG, *arguments)
  further_arguments = {"start_positions": tf.constant([1, 2, 3])} if name == "squad_v2" else {}

  def outputs(**training: bool | None) -> list[np.ndarray]:
    output = model(inputs, **further_arguments, **training)
    return [tensor.numpy() for tensor in tf.nest.flatten(output) if tensor is not None]

  without_dropout = outputs()
  for actual, expected in zip(outputs(training=False), without_dropout, strict=True):
    np.testing.assert_array_equal(actual, expected)
  with_dropout, with_another_mask = outputs(training=True), outputs(training=True)
  for index, expected in enumerate(without_dropout):
    assert np.any(with_dropout[index] != expected)
    assert np.any(with_dropout[index] != with_another_mask[index])


def functional_model() -> keras.Model:
  inputs = {name: keras.Input([S], dtype=tf.int32, name=name) for name in INPUT_NAMES}
  return keras.Model(inputs, keras.layers.Dense(2)(Encoder(SHALLOW_CONFIG)(inputs).pooled_output))


def subclassed_model() -> keras.Model:
  return ClassifierModel(SHALLOW_CONFIG, 2)


@pytest.mark.thorough
@pytest.mark.parametrize("build", [functional_model, pytest.param(subclassed_model, marks=pytest.mark.thorough)])
def test_fit_draws_another_mask_at_each_step_and_evaluate_has_no_dropout(build):
  model = build()
  loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  # With a learning rate of 0 the losses differ only by their dropout.
  model.compile(optimizer=keras.optimizers.SGD(0.0), loss=loss)
  inputs, labels = token_features(B, S), tf.constant([0, 1, 1])
  losses = [model.fit(inputs, labels, batch_size=B, verbose=0).history["loss"][0] for _ in range(3)]
  loss_without_dropout = float(loss(labels, model(inputs, training=False)))
  assert len({*losses, loss_without_dropout}) == 4
  assert model.evaluate(inputs, labels, verbose=0) == pytest.approx(loss_without_dropout, rel=1e-6)
  np.testing.assert_allclose(model.predict(inputs, verbose=0), model(inputs, training=False), rtol=1e-5, atol=1e-7)
