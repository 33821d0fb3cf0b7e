"""Comparisons of training in bfloat16 with float32: one forward pass, and fifty steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, PretrainingConfig
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.optimizers.clipping import clip_by_global_norm, densify
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import WarmupPolynomialDecay
from albert.tasks.pretraining import PretrainingTask
from albert.training.global_state import dtype_policy
from tests.golden.make_tiny_albert import batch, random_weights
from tests.models.built import pretraining_model
from tests.parity.rows import Row

CONFIG = ModelConfig(
  vocab_size=41,
  embedding_size=8,
  hidden_size=24,
  num_hidden_layers=3,
  num_attention_heads=3,
  intermediate_size=40,
  max_position_embeddings=14,
  hidden_dropout_prob=0.1,
  attention_probs_dropout_prob=0.1,
)
# Optimizer -> peak rate that learns the batches well in fifty steps.
PEAKS = {"lamb": 5e-3, "adamw": 1e-3}
STEPS = 50
# bfloat16 keeps 8 bits of a number; the loss is about 4.
FORWARD_TOLERANCE = 0.01
SHARE_TOLERANCE = 0.05


def features(seed: int) -> dict[str, tf.Tensor]:
  """A batch of three examples."""
  return {n: tf.constant(v) for n, v in batch(CONFIG, seed).items()} | {EXAMPLE_WEIGHT: tf.ones([3])}


def losses_of_training(precision: str, optimizer_name: str) -> np.ndarray:
  """The loss before each of STEPS steps, which cycle through five batches."""
  with dtype_policy(precision):
    return _losses(optimizer_name)


def _losses(optimizer_name: str) -> np.ndarray:
  model = pretraining_model(CONFIG, random_weights(CONFIG, 3))
  task = PretrainingTask(CONFIG, PretrainingConfig())
  variables = list(model.named_weights().values())
  schedule = WarmupPolynomialDecay(PEAKS[optimizer_name], 10, 2 * STEPS)
  optimizer = make_optimizer(OptimizerConfig(optimizer=optimizer_name), schedule)
  optimizer.build(variables)

  @tf.function
  def step(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
    with tf.GradientTape() as tape:
      sums = task.forward(model, inputs, training=False).sums
      loss = tf.add_n([sums[name].total / weight for name, weight in task.loss_weights(inputs).items()])
    gradients, _ = clip_by_global_norm(densify(tape.gradient(loss, variables)), 1.0)
    optimizer.apply_gradients(zip(gradients, variables, strict=True), experimental_aggregate_gradients=False)
    return loss

  return np.array([float(step(features(index % 5))) for index in range(STEPS)])


def rows(optimizer_name: str) -> Iterator[Row]:
  """The first loss, and the largest difference over all steps as a share of what float32 has learned."""
  truth, found = losses_of_training("float32", optimizer_name), losses_of_training("bfloat16", optimizer_name)
  learned = truth[:5].mean() - truth[-5:].mean()
  assert learned > 0.5, learned
  difference = np.abs(found - truth)
  assert difference[0] > 0, "this was not bfloat16"
  title = {"lamb": "LAMB", "adamw": "AdamW"}[optimizer_name]
  yield Row(f"bfloat16, first loss ({title})", "float32", float(difference[0]), FORWARD_TOLERANCE)
  what = f"bfloat16, {STEPS} steps of {title}: loss, as a share of the loss unlearned"
  yield Row(what, "float32", float(difference.max() / learned), SHARE_TOLERANCE)
