"""Pretrains for a few steps in NumPy float64. Tests compare the training loop with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.config.model import ModelConfig
from tests.reference.albert import Reference
from tests.reference.optimizers import Optimizer, clip_by_global_norm


def train(
  config: ModelConfig,
  weights: Mapping[str, np.ndarray],
  batch: Mapping[str, Any],
  learning_rates: Sequence[float],
  *,
  rescale: bool,
  clip_norm: float = 1.0,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Trains on one batch with LAMB (`rescale`) or AdamW. Returns the loss before each step, and the final weights."""
  optimizer = Optimizer(weights, rescale=rescale)
  model = Reference(config, weights)
  losses = []
  for rate in learning_rates:
    model.weights = optimizer.weights
    computed = model.pretrain(batch)
    losses.append(computed.masked_lm_loss + computed.sentence_loss)
    optimizer.step(clip_by_global_norm(computed.gradients, clip_norm, computed.row_squares), rate)
  return np.array(losses), optimizer.weights
