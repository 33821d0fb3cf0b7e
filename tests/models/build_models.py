"""Builds models with given weights, for tests of models, weights, training, export and parity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models.classifier import ClassifierModel
from albert.models.encoder import Encoder
from albert.models.heads import EncoderModel, PretrainingModel
from albert.models.multiple_choice import MultipleChoiceModel
from albert.models.squad_heads import SquadV1Model, SquadV2Model

# B examples of K options, S tokens, P masked tokens.
B, K, S, P = 3, 2, 7, 4
# All sizes differ.
SMALL_MODEL = ModelConfig(
  vocab_size=41,
  embedding_size=6,
  hidden_size=20,
  num_hidden_layers=3,
  num_attention_heads=5,
  intermediate_size=28,
  max_position_embeddings=14,
)
INPUT_NAMES = ("input_ids", "input_mask", "segment_ids")
# Name -> class of a task model, and the arguments of its constructor after the config.
TASK_MODELS: dict[str, tuple[type[EncoderModel], tuple[Any, ...]]] = {
  "pretraining": (PretrainingModel, ()),
  "classifier": (ClassifierModel, (3,)),
  "multiple_choice": (MultipleChoiceModel, ()),
  "squad_v1": (SquadV1Model, ()),
  "squad_v2": (SquadV2Model, ()),
}


def token_features(*shape: int) -> dict[str, np.ndarray]:
  """Makes random ids from 5 to 30 of one segment, without padding, of a shape."""
  ids = np.random.default_rng(0).integers(5, 31, shape).astype(np.int32)
  return {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}


def task_model_inputs(name: str) -> dict[str, np.ndarray]:
  if name == "multiple_choice":
    return token_features(B, K, S) | {"option_mask": np.ones([B, K], np.float32)}
  positions = np.random.default_rng(1).integers(1, S, [B, P]).astype(np.int32)
  further = {"pretraining": {"masked_lm_positions": positions}, "classifier": {}}
  return token_features(B, S) | further.get(name, {"p_mask": np.zeros([B, S], np.int32)})


def assign_weights(variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]) -> None:
  """Assigns a weight to each variable. Both arguments must have the same names."""
  assert set(variables) == set(weights)
  for name, variable in variables.items():
    variable.assign(weights[name])


def build_pretraining_model(config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None) -> PretrainingModel:
  model = PretrainingModel(config)
  ids = tf.zeros([1, 2], tf.int32)
  model({"input_ids": ids, "input_mask": ids, "segment_ids": ids, "masked_lm_positions": ids[:, :1]})
  if weights is not None:
    assign_weights(model.named_weights(), weights)
  return model


def build_encoder(config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None) -> Encoder:
  model = Encoder(config)
  ids = tf.zeros([1, 2], tf.int32)
  model({"input_ids": ids, "input_mask": ids, "segment_ids": ids})
  if weights is not None:
    assign_weights(model.named_weights(), weights)
  return model
