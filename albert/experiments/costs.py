"""What a variant costs: parameters, arithmetic of a pretraining step, and a guess of the time."""

from __future__ import annotations

import time

import numpy as np

from albert.config.model import ModelConfig
from albert.weights.names import encoder_shapes, num_parameters

# The part of a large matrix product's speed that a whole training step reaches, about.
_EFFICIENCY = 0.5
_PROBE_SIZE = 1024


def parameters(config: ModelConfig) -> int:
  """Of embeddings, layers and pooler, as the paper counts them."""
  return num_parameters(encoder_shapes(config))


def step_flops(config: ModelConfig, *, batch_size: int, seq_length: int, predictions: int) -> float:
  """Floating-point operations of a pretraining step: products of matrices, forward and backward (twice the forward)."""
  hidden, width = config.hidden_size, config.embedding_size
  block = 4 * hidden * hidden + 2 * hidden * config.intermediate_size + 2 * seq_length * hidden
  token = config.num_hidden_layers * config.inner_group_num * block + (hidden * width if width != hidden else 0)
  prediction = hidden * width + width * config.vocab_size
  return 3 * 2.0 * batch_size * (seq_length * token + predictions * prediction)


def machine_flops() -> float:
  """What this machine's processors may reach in training, operations a second: a part of a matrix product's."""
  return _EFFICIENCY * matrix_flops()


def matrix_flops() -> float:
  """What this machine's processors reach in a product of large float32 matrices, operations a second."""
  matrix = np.ones((_PROBE_SIZE, _PROBE_SIZE), np.float32)
  best = float("inf")
  for _ in range(5):
    start = time.perf_counter()
    matrix @ matrix
    best = min(best, time.perf_counter() - start)
  return 2.0 * _PROBE_SIZE**3 / best
