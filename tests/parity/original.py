"""Compares the model, its losses and its training with recorded numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from albert.config.run import OptimizerConfig, TrainConfig
from albert.optimizers.factory import make_optimizer
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.loop import Trainer
from albert.training.run_plan import TrainingPlan
from tests.models.build_models import build_pretraining_model
from tests.parity.golden import Golden, as_batch
from tests.parity.rows import Row, largest_difference, relative_distance

LOSS_NAMES = ("masked_lm_loss", "sentence_order_loss")
OUTPUT_TOLERANCE = 1e-5
TRAINING_TOLERANCE = 1e-4


def output_rows(recorded: Golden, compared_with: str) -> Iterator[Row]:
  """Compares embeddings, every layer, the pooled output and both heads."""
  model, batch = build_pretraining_model(recorded.config, recorded.weights), as_batch(recorded.batch)
  output = model(batch)
  encoded = model.encoder(batch)
  pairs = {"embedding output": (encoded.embedding_output, recorded.embedding_output)}
  for index, states in enumerate(zip(encoded.hidden_states[1:], recorded.hidden_states, strict=True), start=1):
    pairs[f"layer {index}"] = states
  pairs["pooled output"] = (encoded.pooled_output, recorded.pooled_output)
  pairs["masked LM log-probabilities"] = (tf.nn.log_softmax(output.masked_lm_logits), recorded.masked_lm_log_probs)
  pairs["sentence order log-probabilities"] = (tf.nn.log_softmax(output.sentence_logits), recorded.sentence_log_probs)
  for quantity, (values, expected) in pairs.items():
    yield Row(quantity, compared_with, largest_difference(values, expected), OUTPUT_TOLERANCE)


def training_rows(recorded: Golden, optimizer: str, compared_with: str) -> Iterator[Row]:
  """Compares the loss before each of eight training steps on the batch, and the weights after the last step."""
  losses, final_weights = recorded.training[optimizer]
  strategy = tf.distribute.OneDeviceStrategy("CPU:0")
  with strategy.scope():
    model = build_pretraining_model(recorded.config, recorded.weights)
    trainer = Trainer(
      PretrainingTask(recorded.config, PretrainingConfig()),
      model,
      make_optimizer(OptimizerConfig(optimizer=optimizer), recorded.schedule),
      TrainingPlan(strategy=strategy, train=TrainConfig(train_batch_size=len(recorded.batch["input_ids"]))),
    )
  batches = iter(tf.data.Dataset.from_tensors(as_batch(recorded.batch)).repeat())
  step_losses = []  # masked LM and sentence order, before each step
  for _ in losses:
    trainer.train_steps(batches, tf.constant(1))
    metrics = trainer.accumulator.result_and_reset()
    step_losses.append([metrics[name] for name in LOSS_NAMES])
  if optimizer == "lamb":  # the first losses do not depend on the optimizer, so they are compared once
    for name, loss, expected in zip(LOSS_NAMES, step_losses[0], recorded.losses, strict=True):
      yield Row(name.replace("_", " "), compared_with, largest_difference(loss, expected), OUTPUT_TOLERANCE)
  title = {"lamb": "LAMB", "adamw": "AdamW"}[optimizer]
  totals = np.sum(step_losses, axis=1)
  yield Row(
    f"{len(losses)} steps of {title}: losses, relative",
    compared_with,
    float(np.abs(totals / losses - 1).max()),
    TRAINING_TOLERANCE,
  )
  variables = model.named_weights()
  assert variables.keys() == final_weights.keys()
  yield Row(
    f"{len(losses)} steps of {title}: final weights, relative (L2, worst variable)",
    compared_with,
    max(relative_distance(variable.numpy(), final_weights[name]) for name, variable in variables.items()),
    TRAINING_TOLERANCE,
  )
