"""Estimates the cost of pretraining: parameters, operations, and hours on TPUs, GPUs or this machine. No TensorFlow."""

from __future__ import annotations

import functools
import math
import time
from typing import NamedTuple

import numpy as np

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.weights.names import encoder_shapes, num_parameters

# The speed of a training step, as a fraction of the speed of a product of large matrices (both in operations/s).
_EFFICIENCY = 0.5
# Number of rows and of columns of the matrices whose product is timed.
_MATRIX_SIZE = 1024
_NUM_MEASUREMENTS = 5
# For some models and lengths, the speed is higher or lower than that of SPEEDS by up to this factor. On one H100 this
# project's step reached 29% to 58% of the peak for five of them (benchmarks/results/gpu_step_2026-11-26.md).
SPEED_RANGE = 1.6
CPU = "cpu"  # the kind of chip that stands for the processors of this machine


class Speed(NamedTuple):
  """The speed of a kind of chip in one precision.

  Attributes:
    peak: operations per second of a core of a TPU, or of a GPU, in products of dense matrices, according to its maker.
    fraction: the part of the peak that a training step reaches.
    source: where the fraction comes from.
  """

  peak: float
  fraction: float
  source: str

  @property
  def flops_per_second(self) -> float:
    """The operations per second of a training step."""
    return self.peak * self.fraction


# The fractions are geometric means of what was published or measured for BERT-large, or for the models of
# gpu_step_2026-11-26.md. No speed of ALBERT that others reported went into them.
_LAMB = "BERT-large on 16 to 1,024 chips of v3, arXiv:1904.00962"
_LIKE_V3 = "assumed to be as on v3"
_NVIDIA = "BERT-large in NVIDIA's DeepLearningExamples, TensorFlow"
_LIKE_V100, _LIKE_A100 = "assumed to be as on a V100", "assumed to be as on an A100"
_MEASURED = "this project's step in JAX, measured"
# Kind of chip -> precision -> speed. The first precision is the one of --precision=auto. On GPUs since Ampere, float32
# matrices are multiplied in TF32.
SPEEDS = {
  "v2": {"bfloat16": Speed(23e12, 0.28, _LIKE_V3)},
  "v3": {"bfloat16": Speed(61.5e12, 0.28, _LAMB)},
  "v4": {"bfloat16": Speed(275e12, 0.28, _LIKE_V3)},
  "v5e": {"bfloat16": Speed(197e12, 0.28, _LIKE_V3)},
  "v5p": {"bfloat16": Speed(459e12, 0.28, _LIKE_V3)},
  "v6e": {"bfloat16": Speed(918e12, 0.12, "assumed; the memory limits compiled steps of base models to 19%")},
  "t4": {"float32": Speed(8.1e12, 0.68, _LIKE_V100), "float16": Speed(65e12, 0.3, _LIKE_V100)},
  "v100": {"float32": Speed(15.7e12, 0.68, _NVIDIA), "float16": Speed(125e12, 0.3, _NVIDIA)},
  "a10g": {"bfloat16": Speed(70e12, 0.33, _LIKE_A100), "float32": Speed(35e12, 0.4, _LIKE_A100)},
  "l4": {"bfloat16": Speed(121e12, 0.33, _LIKE_A100), "float32": Speed(60e12, 0.4, _LIKE_A100)},
  "rtx3090": {"bfloat16": Speed(71e12, 0.33, _LIKE_A100), "float32": Speed(35.6e12, 0.4, _LIKE_A100)},
  "rtx4090": {"bfloat16": Speed(165e12, 0.33, _LIKE_A100), "float32": Speed(82.6e12, 0.4, _LIKE_A100)},
  "a100": {"bfloat16": Speed(312e12, 0.33, _NVIDIA), "float32": Speed(156e12, 0.4, _NVIDIA)},
  "a100-80gb": {"bfloat16": Speed(312e12, 0.33, _NVIDIA), "float32": Speed(156e12, 0.4, _NVIDIA)},
  "h100": {"bfloat16": Speed(989e12, 0.37, _MEASURED), "float32": Speed(494e12, 0.4, _LIKE_A100)},
  "h200": {"bfloat16": Speed(989e12, 0.36, _MEASURED), "float32": Speed(494e12, 0.4, _LIKE_A100)},
}
# Kind of GPU -> GiB of memory.
GPU_GIB = {"t4": 16, "v100": 16, "a10g": 24, "l4": 24, "rtx3090": 24, "rtx4090": 24, "a100": 40}
GPU_GIB |= {"a100-80gb": 80, "h100": 80, "h200": 141}


def num_model_parameters(config: ModelConfig) -> int:
  """Returns the number of parameters of embeddings, layers and pooler, as the paper counts them."""
  return num_parameters(encoder_shapes(config))


def step_flops(config: ModelConfig, *, batch_size: int, seq_length: int, predictions: int | None) -> float:
  """Returns the number of floating-point operations of a pretraining step.

  Only matrix products are counted. The backward pass takes twice as many operations as the forward pass.

  Args:
    config: sizes of the model.
    batch_size: sequences per step.
    seq_length: tokens per sequence.
    predictions: masked tokens per sequence; None for 15% of the tokens.
  """
  predictions = math.ceil(seq_length * 15 / 100) if predictions is None else predictions
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


@functools.cache
def chip_speeds(kind: str) -> dict[str, Speed]:
  """Returns precision -> speed of a kind of chip, which is CPU or a key of SPEEDS. The speed of CPU is measured."""
  if kind == CPU:
    return {"float32": Speed(matmul_flops_per_second(), _EFFICIENCY, "assumed; the peak was measured now")}
  return SPEEDS[kind]


def resolve_speed(chip: str, kind: str, precision: str) -> tuple[str, Speed]:
  """Returns the precision that training on a chip has, and its speed.

  Args:
    chip: value of --chip.
    kind: its kind, CPU or a key of SPEEDS.
    precision: value of --precision.
  Raises:
    UserError: the speed of this precision is not known.
  """
  speeds = chip_speeds(kind)
  name = next(iter(speeds)) if precision == "auto" else precision
  if name not in speeds:
    raise UserError(
      f"--chip={chip}: has speeds for {' and '.join(speeds)} only: give --precision=auto, not {precision}"
    )
  return name, speeds[name]
