"""Recorded numbers of a model, which come from the NumPy reference (shipped) or the original code (if available)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig, load_model_config
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.optimizers.schedules import WarmupPolynomialDecay
from albert.weights.files import open_weights
from tests.golden import make_tiny_albert


class RecordedTraining(NamedTuple):
  """The loss before each of eight training steps, and the weights after the last step."""

  losses: np.ndarray
  final_weights: dict[str, np.ndarray]


class Golden(NamedTuple):
  """Recorded numbers of a model on one batch.

  Attributes:
    config, weights: the model.
    batch: the features of the batch.
    embedding_output, pooled_output: outputs of the encoder.
    hidden_states: the output of each layer, without the projected embeddings.
    masked_lm_log_probs, sentence_log_probs: log-probabilities [B, P, V] and [B, 2].
    losses: the losses of masked LM and sentence order.
    schedule: the learning rates of the training below.
    training: optimizer -> recorded training with this optimizer.
  """

  config: ModelConfig
  weights: dict[str, np.ndarray]
  batch: dict[str, np.ndarray]
  embedding_output: np.ndarray
  hidden_states: list[np.ndarray]
  pooled_output: np.ndarray
  masked_lm_log_probs: np.ndarray
  sentence_log_probs: np.ndarray
  losses: tuple[float, float]
  schedule: WarmupPolynomialDecay
  training: dict[str, RecordedTraining]


def _select(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
  """Returns the arrays whose names begin with a prefix, by the rest of their names."""
  return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def read_shipped() -> Golden:
  """Reads tests/golden/tiny_albert.npz, which the NumPy reference has made."""
  with np.load(make_tiny_albert.PATH) as file:
    arrays = dict(file)
  outputs = _select(arrays, "outputs/")
  return Golden(
    make_tiny_albert.CONFIG,
    _select(arrays, "weights/"),
    _select(arrays, "batch/"),
    outputs["embedding_output"],
    list(outputs["hidden_states"][1:]),
    outputs["pooled_output"],
    outputs["masked_lm_log_probs"],
    outputs["sentence_log_probs"],
    (float(outputs["losses"][0]), float(outputs["losses"][1])),
    WarmupPolynomialDecay(peak=2e-3, warmup_steps=3, total_steps=20),
    {
      name: RecordedTraining(arrays[f"{name}/losses"], _select(arrays, f"{name}/weights/"))
      for name in ("lamb", "adamw")
    },
  )


def read_original(directory: Path) -> Golden:
  """Reads the recorded numbers of the original TensorFlow 1 code.

  Args:
    directory: it holds model.ckpt.* and albert_config.json; batch.npz (the features); outputs.npz (embedding_output,
      layer_00, layer_01, ..., pooled_output, log-probabilities and losses); train_lamb.npz and train_adamw.npz
      (`losses` before each of eight steps on the batch, and the final weights as `var:NAME`; peak rate 2e-3, 4 steps
      of warm-up, linear decay over 20 steps, gradients clipped to norm 1.0).
  """
  weights = open_weights(str(directory / "model.ckpt"))
  with np.load(directory / "batch.npz") as file:
    batch = dict(file)
  with np.load(directory / "outputs.npz") as file:
    outputs = dict(file)
  config = load_model_config(str(directory / "albert_config.json"))
  training = {}
  for optimizer in ("lamb", "adamw"):
    with np.load(directory / f"train_{optimizer}.npz") as file:
      training[optimizer] = RecordedTraining(file["losses"], _select(dict(file), "var:"))
  batch_size, num_predictions = batch["masked_lm_ids"].shape
  return Golden(
    config,
    {name: weights.read(name) for name in weights.entries},
    batch,
    outputs["embedding_output"],
    [outputs[f"layer_{index:02d}"] for index in range(config.num_hidden_layers)],
    outputs["pooled_output"],
    outputs["masked_lm_log_probs"].reshape(batch_size, num_predictions, config.vocab_size),
    outputs["sop_log_probs"],
    (float(outputs["masked_lm_loss"]), float(outputs["sop_loss"])),
    WarmupPolynomialDecay(peak=2e-3, warmup_steps=4, total_steps=20),
    training,
  )


def as_batch(features: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
  """Converts the features of a batch to tensors, and adds the weight that the pipeline gives each example."""
  tensors = {name: tf.constant(value) for name, value in features.items()}
  return tensors | {EXAMPLE_WEIGHT: tf.ones([len(features["input_ids"])])}
