"""Recorded numbers in one format: the project's own, made by the NumPy reference, and the original's, if available."""

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


class Golden(NamedTuple):
  """A model, a batch, the model's outputs, and the weights after eight steps of each optimizer.

  log-probabilities: [B, P, V] and [B, 2]; hidden_states: the outputs of the layers, without the projected embeddings;
  losses: masked LM and sentence. training: optimizer -> (loss before each step, final weights).
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
  training: dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]


def _under(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
  return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def own() -> Golden:
  """tests/golden/tiny_albert.npz."""
  with np.load(make_tiny_albert.PATH) as file:
    arrays = dict(file)
  outputs = _under(arrays, "outputs/")
  return Golden(
    make_tiny_albert.CONFIG,
    _under(arrays, "weights/"),
    _under(arrays, "batch/"),
    outputs["embedding_output"],
    list(outputs["hidden_states"][1:]),
    outputs["pooled_output"],
    outputs["masked_lm_log_probs"],
    outputs["sentence_log_probs"],
    (float(outputs["losses"][0]), float(outputs["losses"][1])),
    WarmupPolynomialDecay(2e-3, 3, 20),
    {kind: (arrays[f"{kind}/losses"], _under(arrays, f"{kind}/weights/")) for kind in ("lamb", "adamw")},
  )


def original(directory: Path) -> Golden:
  """What the original TensorFlow 1 code was recorded to do.

  `directory` holds model.ckpt.*, albert_config.json; batch.npz (features of the records); outputs.npz
  (embedding_output, layer_00 on, pooled_output, log-probabilities and losses); train_lamb.npz and train_adamw.npz
  (`losses` before each of eight steps on the batch, final weights under `var:NAME`; peak rate 2e-3, 4 steps of
  warm-up, linear decay over 20, clip 1.0).
  """
  source = open_weights(str(directory / "model.ckpt"))
  with np.load(directory / "batch.npz") as file:
    batch = dict(file)
  with np.load(directory / "outputs.npz") as file:
    outputs = dict(file)
  config = load_model_config(str(directory / "albert_config.json"))
  training = {}
  for kind in ("lamb", "adamw"):
    with np.load(directory / f"train_{kind}.npz") as file:
      training[kind] = (file["losses"], _under(dict(file), "var:"))
  size, predictions = batch["masked_lm_ids"].shape
  return Golden(
    config,
    {name: source.read(name) for name in source.names},
    batch,
    outputs["embedding_output"],
    [outputs[f"layer_{index:02d}"] for index in range(config.num_hidden_layers)],
    outputs["pooled_output"],
    outputs["masked_lm_log_probs"].reshape(size, predictions, config.vocab_size),
    outputs["sop_log_probs"],
    (float(outputs["masked_lm_loss"]), float(outputs["sop_loss"])),
    WarmupPolynomialDecay(2e-3, 4, 20),
    training,
  )


def as_batch(features: dict[str, np.ndarray]) -> dict[str, tf.Tensor]:
  """Features of a record, and the weight that the pipeline gives each example."""
  tensors = {name: tf.constant(value) for name, value in features.items()}
  return tensors | {EXAMPLE_WEIGHT: tf.ones([len(features["input_ids"])])}
