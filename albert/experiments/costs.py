"""Estimates the cost of pretraining: number of parameters, operations per step, and the speed of this machine."""

from __future__ import annotations

import time

import numpy as np

from albert.config.model import ModelConfig
from albert.weights.names import encoder_shapes, num_parameters

# Speed of a whole training step, approximately, as a fraction of the speed of a large matrix product.
_EFFICIENCY = 0.5
_PROBE_SIZE = 1024


def parameters(config: ModelConfig) -> int:
  """Returns the number of parameters of embeddings, layers and pooler, as the paper counts them."""
  return num_parameters(encoder_shapes(config))


def step_flops(config: ModelConfig, *, batch_size: int, seq_length: int, predictions: int) -> float:
  """Returns the floating-point operations of a pretraining step.

  Only matrix products are counted. The backward pass takes twice as many operations as the forward pass.

  Args:
    config: sizes of the model.
    batch_size: sequences per step.
    seq_length: tokens per sequence.
    predictions: masked tokens per sequence.
  """
  hidden, width = config.hidden_size, config.embedding_size
  block = 4 * hidden * hidden + 2 * hidden * config.intermediate_size + 2 * seq_length * hidden
  token = config.num_hidden_layers * config.inner_group_num * block + (hidden * width if width != hidden else 0)
  prediction = hidden * width + width * config.vocab_size
  return 3 * 2.0 * batch_size * (seq_length * token + predictions * prediction)


def machine_flops() -> float:
  """Returns the estimated speed of training on this machine's processors, in operations per second."""
  return _EFFICIENCY * matrix_flops()


def matrix_flops() -> float:
  """Measures the speed of a product of large float32 matrices on this machine, in operations per second."""
  matrix = np.ones((_PROBE_SIZE, _PROBE_SIZE), np.float32)
  best = float("inf")
  for _ in range(5):
    start = time.perf_counter()
    matrix @ matrix
    best = min(best, time.perf_counter() - start)
  return 2.0 * _PROBE_SIZE**3 / best
