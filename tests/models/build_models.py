"""Builds models with given weights, for tests of models, weights, training, export and parity."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models.encoder import Encoder
from albert.models.heads import PretrainingModel


def assign_weights(variables: Mapping[str, tf.Variable], weights: Mapping[str, np.ndarray]) -> None:
  """Assigns a weight to each variable. Both arguments must have the same names."""
  assert set(variables) == set(weights)
  for name, variable in variables.items():
    variable.assign(weights[name])


def build_pretraining_model(config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None) -> PretrainingModel:
  """Builds a pretraining model, with random weights if none are given."""
  model = PretrainingModel(config)
  ids = tf.zeros([1, 2], tf.int32)
  model({"input_ids": ids, "input_mask": ids, "segment_ids": ids, "masked_lm_positions": ids[:, :1]})
  if weights is not None:
    assign_weights(model.named_weights(), weights)
  return model


def build_encoder(config: ModelConfig, weights: Mapping[str, np.ndarray] | None = None) -> Encoder:
  """Builds an encoder, with random weights if none are given."""
  model = Encoder(config)
  ids = tf.zeros([1, 2], tf.int32)
  model({"input_ids": ids, "input_mask": ids, "segment_ids": ids})
  if weights is not None:
    assign_weights(model.named_weights(), weights)
  return model
