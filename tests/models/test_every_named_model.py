"""The contract of every named model: what each entry of albert.config.model.MODELS must be able to do.

A model that is added to MODELS is tested here without another line. Names of the same model share a test.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.config.base import from_dict
from albert.config.model import MODELS, ModelConfig
from albert.config.run import OptimizerConfig
from albert.models.heads import PretrainingModel
from albert.optimizers.factory import make_optimizer
from albert.weights.checkpoint_files import restore
from albert.weights.checkpoints import CheckpointManager
from tests.golden.make_tiny_albert import batch, random_weights
from tests.models.built import assign, pretraining_model
from tests.reference.albert import Reference
from tests.thorough import thorough_except


def reduced(config: ModelConfig) -> ModelConfig:
  """The model with a thirty-second of its widths and an eighth of its layers; sharing and dropout are kept."""
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


def _distinct_models() -> dict[str, ModelConfig]:
  """The names of each model, joined by "=", -> its config at the reduced size."""
  names: dict[ModelConfig, list[str]] = {}
  for name, config in MODELS.items():
    names.setdefault(config, []).append(name)
  return {"=".join(same): reduced(config) for config, same in names.items()}


NAMED = _distinct_models()
# `make test` runs the longest tests for one ALBERT and one BERT, `make test-thorough` for the others.
IN_FULL = pytest.mark.parametrize(
  "config",
  thorough_except([reduced(MODELS[name]) for name in ("albert_base", "bert_base")], NAMED.values()),
  ids=NAMED,
  indirect=True,
)


@pytest.fixture(params=NAMED.values(), ids=NAMED)
def config(request: pytest.FixtureRequest) -> ModelConfig:
  """Each named model at its reduced size."""
  model: ModelConfig = request.param
  return model


def tensors(config: ModelConfig, seed: int = 3) -> dict[str, tf.Tensor]:
  """A pretraining batch of three examples."""
  return {name: tf.constant(value) for name, value in batch(config, seed).items()}


def losses(model: PretrainingModel, features: dict[str, tf.Tensor], **options: Any) -> tuple[tf.Tensor, tf.Tensor]:
  """The mean masked_lm loss over masked tokens and the mean sentence order loss over examples."""
  output = model(features, **options)
  weights = features["masked_lm_weights"]
  per_token = tf.nn.sparse_softmax_cross_entropy_with_logits(features["masked_lm_ids"], output.masked_lm_logits)
  per_example = tf.nn.sparse_softmax_cross_entropy_with_logits(
    features["next_sentence_labels"][:, 0], output.sentence_logits
  )
  return tf.reduce_sum(per_token * weights) / tf.reduce_sum(weights), tf.reduce_mean(per_example)


def test_the_config_round_trips_through_json(config: ModelConfig) -> None:
  values = json.loads(json.dumps(config.to_dict()))
  assert from_dict(ModelConfig, values, source="test") == config


def test_every_variable_has_one_name(config: ModelConfig) -> None:
  model = pretraining_model(config)
  named = model.named_weights()
  assert len(named) == len(model.variables)
  assert {id(variable) for variable in named.values()} == {id(variable) for variable in model.variables}


@IN_FULL
def test_losses_equal_the_numpy_reference_and_a_training_step_lowers_them(config: ModelConfig) -> None:
  before = random_weights(config, 5)
  model = pretraining_model(config, before)
  features = tensors(config)
  named = model.named_weights()
  masked_lm_loss, sentence_loss = losses(model, features)
  expected = Reference(config, before).pretrain(batch(config, 3))
  np.testing.assert_allclose(masked_lm_loss, expected.masked_lm_loss, rtol=1e-4)
  np.testing.assert_allclose(sentence_loss, expected.sentence_loss, rtol=1e-4)
  loss_before = masked_lm_loss + sentence_loss
  with tf.GradientTape() as tape:
    loss = sum(losses(model, features, training=True, seed=tf.constant([3, 4])))
  has_dropout = config.hidden_dropout_prob > 0
  assert (abs(float(loss - loss_before)) > 1e-6) == has_dropout
  optimizer = make_optimizer(OptimizerConfig(optimizer="lamb"), 1e-3)
  optimizer.apply_gradients(zip(tape.gradient(loss, list(named.values())), named.values(), strict=True))
  for name, variable in named.items():
    # The gradient of a key's bias is 0: it adds the same number to all scores of a query.
    if not name.endswith("key/bias"):
      assert np.abs(variable.numpy() - before[name]).max() > 0, name
  assert sum(losses(model, features)) < loss_before


@IN_FULL
def test_weights_round_trip_through_a_checkpoint(config: ModelConfig, tmp_path: Path) -> None:
  model = pretraining_model(config, random_weights(config, 5))
  manager = CheckpointManager(str(tmp_path / "checkpoints"), keep=1, model_config=config)
  manager.save(1, model.named_weights())
  checkpoint, warnings = manager.latest()
  assert checkpoint is not None
  assert not warnings
  restored = pretraining_model(config)
  assign(restored.named_weights(), random_weights(config, 6))
  restore(checkpoint, restored.named_weights())
  for name, variable in model.named_weights().items():
    np.testing.assert_array_equal(restored.named_weights()[name], variable, err_msg=name)
