"""Estimates the cost of pretraining: number of parameters, operations per step, and the speed of this machine."""

from __future__ import annotations

import time

import numpy as np

from albert.config.model import ModelConfig
from albert.weights.names import encoder_shapes, num_parameters

# The speed of a training step, as a fraction of the speed of a product of large matrices (both in operations/s).
_EFFICIENCY = 0.5
# Number of rows and of columns of the matrices whose product is timed.
_MATRIX_SIZE = 1024
_NUM_MEASUREMENTS = 5


def num_model_parameters(config: ModelConfig) -> int:
  """Returns the number of parameters of embeddings, layers and pooler, as the paper counts them."""
  return num_parameters(encoder_shapes(config))


def step_flops(config: ModelConfig, *, batch_size: int, seq_length: int, predictions: int) -> float:
  """Returns the number of floating-point operations of a pretraining step.

  Only matrix products are counted. The backward pass takes twice as many operations as the forward pass.

  Args:
    config: sizes of the model.
    batch_size: sequences per step.
    seq_length: tokens per sequence.
    predictions: masked tokens per sequence.
  """
  hidden, embedding = config.hidden_size, config.embedding_size
  # Multiplications per token in a block: attention's four matrices, the feed-forward layer, and the attention scores
  # with the weighted sum of the values.
  per_block = 4 * hidden * hidden + 2 * hidden * config.intermediate_size + 2 * seq_length * hidden
  per_token = config.num_hidden_layers * config.inner_group_num * per_block
  if embedding != hidden:
    per_token += hidden * embedding
  per_prediction = hidden * embedding + embedding * config.vocab_size
  multiplications = batch_size * (seq_length * per_token + predictions * per_prediction)
  forward = 2.0 * multiplications  # each multiplication is followed by an addition
  backward = 2 * forward
  return forward + backward


def training_flops_per_second(gflops: float | None = None) -> float:
  """Returns the speed of training that estimates assume, in floating-point operations per second.

  Args:
    gflops: the speed in GFLOP/s, as --gflops gives it. None to estimate the speed of this machine's processors.
  """
  return _EFFICIENCY * matmul_flops_per_second() if gflops is None else gflops * 1e9


def matmul_flops_per_second() -> float:
  """Measures the speed of a product of large float32 matrices, in floating-point operations per second."""
  matrix = np.ones((_MATRIX_SIZE, _MATRIX_SIZE), np.float32)
  best_seconds = float("inf")
  for _ in range(_NUM_MEASUREMENTS):
    start = time.perf_counter()
    matrix @ matrix
    best_seconds = min(best_seconds, time.perf_counter() - start)
  return 2.0 * _MATRIX_SIZE**3 / best_seconds  # each multiplication is followed by an addition
