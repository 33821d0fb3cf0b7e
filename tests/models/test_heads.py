"""Heads, losses and all gradients of the pretraining model against the NumPy float64 reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.models.heads import LinearHead
from albert.tasks.pretraining import PretrainingTask
from tests.golden.make_tiny_albert import batch, random_weights
from tests.models.built import pretraining_model
from tests.reference.albert import Reference

CONFIG = ModelConfig(
  vocab_size=41,
  embedding_size=6,
  hidden_size=20,
  num_hidden_layers=3,
  num_attention_heads=5,
  intermediate_size=28,
  max_position_embeddings=14,
)
VARIANTS = [
  {},
  {"sharing": "none", "inner_group_num": 2},
  {"sharing": "attention", "num_hidden_groups": 2},
  {"embedding_size": 20, "hidden_act": "relu"},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_log_probabilities_losses_and_gradients(changes):
  config = dataclasses.replace(CONFIG, **changes)
  weights, features = random_weights(config, 1), batch(config, 2)
  expected = Reference(config, weights).pretrain(features)
  model = pretraining_model(config, weights)
  task = PretrainingTask(config, PretrainingConfig())
  tensors = {name: tf.constant(value) for name, value in features.items()} | {EXAMPLE_WEIGHT: tf.ones([3])}
  variables = model.named_weights()
  with tf.GradientTape() as tape:
    sums = task.forward(model, tensors, training=False).sums
    losses = {name: sums[name].total / weight for name, weight in task.loss_weights(tensors).items()}
    loss = tf.add_n(list(losses.values()))
  output = model(tensors)
  np.testing.assert_allclose(tf.nn.log_softmax(output.masked_lm_logits), expected.masked_lm_log_probs, atol=1e-5)
  np.testing.assert_allclose(tf.nn.log_softmax(output.sentence_logits), expected.sentence_log_probs, atol=1e-5)
  assert float(losses["masked_lm_loss"]) == pytest.approx(expected.masked_lm_loss, rel=2e-6)
  assert float(losses["sentence_order_loss"]) == pytest.approx(expected.sentence_loss, rel=2e-6)
  gradients = tape.gradient(loss, list(variables.values()))
  for name, gradient in zip(variables, gradients, strict=True):
    truth = expected.gradients[name]
    actual = tf.convert_to_tensor(gradient).numpy()
    np.testing.assert_allclose(actual, truth, atol=2e-6 + 1e-5 * np.abs(truth).max(), err_msg=name)


def test_the_references_gradients_are_right_by_central_differences():
  config = dataclasses.replace(CONFIG, num_hidden_groups=2, inner_group_num=2)
  weights, features = random_weights(config, 1), batch(config, 2)
  model = Reference(config, weights)
  gradients = dict(model.pretrain(features).gradients)
  rng, step = np.random.default_rng(3), 1e-5
  for name, gradient in gradients.items():
    direction = rng.standard_normal(gradient.shape)
    losses = []
    for sign in (1, -1):
      moved = Reference(config, weights)
      moved.weights[name] = moved.weights[name] + sign * step * direction
      result = moved.pretrain(features)
      losses.append(result.masked_lm_loss + result.sentence_loss)
    slope = (losses[0] - losses[1]) / (2 * step)
    assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-6, abs=1e-8), name


def test_linear_head_on_tokens_and_on_pooled_outputs():
  rng = np.random.default_rng(0)
  weights, bias = rng.standard_normal((3, 7)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
  for shape in ((4, 7), (2, 5, 7)):
    x = rng.standard_normal(shape).astype(np.float32)
    head = LinearHead(3, 0.02, name="head")
    head(tf.constant(x))
    head.output_weights.assign(weights)
    head.output_bias.assign(bias)
    np.testing.assert_allclose(head(tf.constant(x)), np.einsum("...h,ch->...c", x, weights) + bias, atol=1e-5)
