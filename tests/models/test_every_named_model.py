"""The contract of every named model (albert.config.model.MODELS): losses and a training step.

These tests include each model that is added to MODELS. Several names of the same model share a test.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from albert.config.model import MODELS, ModelConfig
from albert.config.run import OptimizerConfig
from albert.models.heads import PretrainingModel
from albert.optimizers.factory import make_optimizer
from tests.golden.make_tiny_albert import random_batch, random_weights
from tests.models.build_models import build_pretraining_model
from tests.reference.albert import Reference
from tests.thorough import thorough_except


def reduce_size(config: ModelConfig) -> ModelConfig:
  """Divides the widths of a model by 32 and its number of layers by 8. Keeps its sharing and its dropout."""
  return dataclasses.replace(
    config,
    vocab_size=97,
    embedding_size=config.embedding_size // 32,
    hidden_size=config.hidden_size // 32,
    intermediate_size=config.intermediate_size // 32,
    num_hidden_layers=max(2, config.num_hidden_layers // 8),
    num_attention_heads=config.num_attention_heads // 2,
    max_position_embeddings=24,
  )


def _reduced_models() -> dict[str, ModelConfig]:
  """Returns the config of each model at the reduced size. The keys are all names of the model, joined by "="."""
  names_of_config: dict[ModelConfig, list[str]] = {}
  for name, config in MODELS.items():
    names_of_config.setdefault(config, []).append(name)
  return {"=".join(names): reduce_size(config) for config, names in names_of_config.items()}


REDUCED_MODELS = _reduced_models()


class MeanLosses(NamedTuple):
  """The mean masked LM loss over masked tokens, and the mean sentence order loss over examples."""

  masked_lm: tf.Tensor
  sentence_order: tf.Tensor


def compute_losses(model: PretrainingModel, features: dict[str, tf.Tensor], **call_arguments: Any) -> MeanLosses:
  output = model(features, **call_arguments)
  weights = features["masked_lm_weights"]
  token_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(features["masked_lm_ids"], output.masked_lm_logits)
  order_labels = features["next_sentence_labels"][:, 0]
  example_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(order_labels, output.sentence_logits)
  return MeanLosses(tf.reduce_sum(token_losses * weights) / tf.reduce_sum(weights), tf.reduce_mean(example_losses))


# `make test` runs it for one ALBERT and one BERT, `make test-thorough` for the others.
@pytest.mark.parametrize(
  "config",
  thorough_except([reduce_size(MODELS[name]) for name in ("albert_base", "bert_base")], REDUCED_MODELS.values()),
  ids=REDUCED_MODELS,
)
def test_losses_equal_the_numpy_reference_and_a_training_step_lowers_them(config: ModelConfig) -> None:
  initial_weights, features = random_weights(config, 5), random_batch(config, 3)
  model = build_pretraining_model(config, initial_weights)
  tensors = {name: tf.constant(value) for name, value in features.items()}
  losses = compute_losses(model, tensors)
  expected = Reference(config, initial_weights).pretrain(features)
  np.testing.assert_allclose(losses.masked_lm, expected.masked_lm_loss, rtol=1e-4)
  np.testing.assert_allclose(losses.sentence_order, expected.sentence_loss, rtol=1e-4)

  with tf.GradientTape() as tape:
    training_loss = sum(compute_losses(model, tensors, training=True, seed=tf.constant([3, 4])))
  has_dropout = config.hidden_dropout_prob > 0
  assert (abs(float(training_loss - sum(losses))) > 1e-6) == has_dropout
  variables = model.named_weights()
  assert sorted(map(id, variables.values())) == sorted(map(id, model.variables))  # each has one name
  gradients = tape.gradient(training_loss, list(variables.values()))
  optimizer = make_optimizer(OptimizerConfig(optimizer="lamb"), 1e-3)
  optimizer.apply_gradients(zip(gradients, variables.values(), strict=True))
  for name, variable in variables.items():
    # The gradient of a key's bias is 0: it adds the same number to all scores of a query.
    if not name.endswith("key/bias"):
      assert np.abs(variable.numpy() - initial_weights[name]).max() > 0, name
  assert sum(compute_losses(model, tensors)) < sum(losses)
