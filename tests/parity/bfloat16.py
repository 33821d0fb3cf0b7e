"""Comparisons of training in bfloat16 with float32: one forward pass, and fifty steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from albert.config.run import OptimizerConfig
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.optimizers.factory import make_optimizer
from albert.optimizers.gradients import clip_by_global_norm, densify
from albert.optimizers.schedules import WarmupPolynomialDecay
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.model_weights import dtype_policy
from tests.golden.make_tiny_albert import random_batch, random_weights
from tests.models.build_models import build_pretraining_model
from tests.parity.rows import Row
from tests.synthetic import DROPOUT, TINY_MODEL

CONFIG = dataclasses.replace(TINY_MODEL, vocab_size=41, num_hidden_layers=3, max_position_embeddings=14, **DROPOUT)
# Optimizer -> peak learning rate with which the loss falls well in fifty steps.
PEAK_RATES = {"lamb": 5e-3, "adamw": 1e-3}
STEPS = 50
# Largest difference of the first loss, which is about 4. Rounding to bfloat16, which has 8 significant bits, changes a
# number by up to 1/256 of it. The roundings of many numbers partly cancel out in the loss, so 1/400 of it is allowed.
FORWARD_TOLERANCE = 0.01
# Largest difference of the losses of the same step, divided by the fall of the loss in float32. Rounding changes the
# course of the training, and no bound follows from the number of bits: 0.016 was measured.
TRAINING_TOLERANCE = 0.05


def make_batch(seed: int) -> dict[str, tf.Tensor]:
  tensors = {name: tf.constant(values) for name, values in random_batch(CONFIG, seed).items()}
  return tensors | {EXAMPLE_WEIGHT: tf.ones([3])}


def train_with_precision(precision: str, optimizer_name: str) -> np.ndarray:
  """Trains for STEPS steps on five batches in turn, and returns the loss before each step."""
  with dtype_policy(precision):
    return _train(optimizer_name)


def _train(optimizer_name: str) -> np.ndarray:
  """Trains with the current precision. CONFIG has dropout for other tests; here it is off (training=False)."""
  model = build_pretraining_model(CONFIG, random_weights(CONFIG, 3))
  task = PretrainingTask(CONFIG, PretrainingConfig())
  variables = list(model.named_weights().values())
  schedule = WarmupPolynomialDecay(PEAK_RATES[optimizer_name], 10, 2 * STEPS)
  optimizer = make_optimizer(OptimizerConfig(optimizer=optimizer_name), schedule)
  optimizer.build(variables)

  @tf.function
  def step(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    with tf.GradientTape() as tape:
      sums = task.forward(model, inputs, training=False).sums
      loss = tf.add_n([sums[name].total / count for name, count in task.loss_weights(inputs).items()])
    gradients, _ = clip_by_global_norm(dict(enumerate(map(densify, tape.gradient(loss, variables)))), 1.0)
    pairs = zip(gradients.values(), variables, strict=True)
    optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)
    return loss

  return np.array([float(step(make_batch(index % 5))) for index in range(STEPS)])


def precision_rows(optimizer_name: str) -> Iterator[Row]:
  """Compares the losses of training in bfloat16 with those in float32.

  The first row compares the losses of the first step. The second row has the largest difference of the losses of a
  step, divided by the fall of the loss in float32 from the first five steps to the last five.
  """
  expected = train_with_precision("float32", optimizer_name)
  losses = train_with_precision("bfloat16", optimizer_name)
  fall = expected[:5].mean() - expected[-5:].mean()
  assert fall > 0.5, fall
  difference = np.abs(losses - expected)
  assert difference[0] > 0, "the model did not compute in bfloat16"
  title = {"lamb": "LAMB", "adamw": "AdamW"}[optimizer_name]
  yield Row(f"bfloat16, first loss ({title})", "float32", float(difference[0]), FORWARD_TOLERANCE)
  quantity = f"bfloat16, {STEPS} steps of {title}: loss, as a share of its fall"
  yield Row(quantity, "float32", float(difference.max() / fall), TRAINING_TOLERANCE)
