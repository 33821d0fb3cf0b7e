"""The pretraining model's outputs, losses and gradients, compared with the NumPy float64 reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from tests.golden.make_tiny_albert import random_batch, random_weights
from tests.models.build_models import SMALL_MODEL, build_pretraining_model
from tests.reference.albert import Reference

VARIANTS = [
  {},
  {"sharing": "none", "inner_group_num": 2},
  {"sharing": "attention", "num_hidden_groups": 2},
  {"embedding_size": 20, "hidden_act": "relu"},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_log_probabilities_losses_and_gradients_equal_the_reference(changes):
  config = dataclasses.replace(SMALL_MODEL, **changes)
  weights, features = random_weights(config, 1), random_batch(config, 2)
  expected = Reference(config, weights).pretrain(features)
  model = build_pretraining_model(config, weights)
  task = PretrainingTask(config, PretrainingConfig())
  tensors = {name: tf.constant(value) for name, value in features.items()} | {EXAMPLE_WEIGHT: tf.ones([3])}
  variables = model.named_weights()
  with tf.GradientTape() as tape:
    sums = task.forward(model, tensors, training=False).sums
    losses = {name: sums[name].total / weight for name, weight in task.loss_weights(tensors).items()}
    total_loss = tf.add_n(list(losses.values()))
  output = model(tensors)
  np.testing.assert_allclose(tf.nn.log_softmax(output.masked_lm_logits), expected.masked_lm_log_probs, atol=1e-5)
  np.testing.assert_allclose(tf.nn.log_softmax(output.sentence_logits), expected.sentence_log_probs, atol=1e-5)
  assert float(losses["masked_lm_loss"]) == pytest.approx(expected.masked_lm_loss, rel=2e-6)
  assert float(losses["sentence_order_loss"]) == pytest.approx(expected.sentence_loss, rel=2e-6)
  gradients = tape.gradient(total_loss, list(variables.values()))
  for name, gradient in zip(variables, gradients, strict=True):
    expected_gradient = expected.gradients[name]
    tolerance = 2e-6 + 1e-5 * np.abs(expected_gradient).max()
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected_gradient, atol=tolerance, err_msg=name)


def test_the_gradients_of_the_reference_equal_central_differences():
  config = dataclasses.replace(SMALL_MODEL, num_hidden_groups=2, inner_group_num=2)
  weights, features = random_weights(config, 1), random_batch(config, 2)

  def total_loss(name: str, change: np.ndarray) -> float:
    """Computes the loss after a change of one weight."""
    reference = Reference(config, weights)
    reference.weights[name] = reference.weights[name] + change
    outputs = reference.pretrain(features)
    return outputs.masked_lm_loss + outputs.sentence_loss

  gradients = Reference(config, weights).pretrain(features).gradients
  rng, step = np.random.default_rng(3), 1e-5
  for name, gradient in gradients.items():
    direction = rng.standard_normal(gradient.shape)
    slope = (total_loss(name, step * direction) - total_loss(name, -step * direction)) / (2 * step)
    assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-6, abs=1e-8), name
