"""What a task must say of itself so that the training loop, evaluation and the scripts need not know its name."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.config import ModelConfig
from albert.data.pipeline import Shards
from albert.data.schema import FeatureSpec

Batch = Mapping[str, tf.Tensor]


class Sum(NamedTuple):
  """A mean in two parts: `total` float32 scalar, the sum over examples or tokens; `weight`, their number."""

  total: tf.Tensor
  weight: tf.Tensor


class Task(abc.ABC):
  """One thing to train and evaluate."""

  name: str
  # Metric by which checkpoints are compared, and its direction.
  best_metric: str
  higher_is_better: bool
  # Prefixes of the model's weights that a warm start may leave fresh, and of a checkpoint's it may leave unused.
  fresh_weights: Sequence[str] = ()
  ignored_weights: Sequence[str] = ()

  def __init__(self, model_config: ModelConfig):
    self.model_config = model_config

  @abc.abstractmethod
  def settings(self) -> dict[str, Any]:
    """What the run depends on besides model, optimizer and training: the task's part of config.json."""

  @abc.abstractmethod
  def build_model(self) -> keras.Model:
    """A built model, whose `named_weights()` gives its variables by the original's names."""

  @abc.abstractmethod
  def training_shards(self) -> Shards:
    """The records to train on."""

  @abc.abstractmethod
  def evaluation_shards(self) -> Shards:
    """The records to evaluate on."""

  @abc.abstractmethod
  def features(self) -> Sequence[FeatureSpec]:
    """The FeatureSpecs of a record."""

  @abc.abstractmethod
  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Name of each term of the loss -> its weight in this batch (tokens, examples), float32 scalar.

    The loss is the sum over the terms of total / weight, both summed over the global batch, so that
    it does not depend on how the batch is cut among replicas and accumulation steps.
    """

  @abc.abstractmethod
  def forward(self, model: keras.Model, batch: Batch, seed: tf.Tensor | None) -> dict[str, Sum]:
    """Name -> Sum of each metric, those of loss_weights among them. seed int32 [2]: of dropout, None for none."""

  @abc.abstractmethod
  def metric_names(self) -> Sequence[str]:
    """The names that forward gives."""

  @abc.abstractmethod
  def predict(self, model: keras.Model) -> Iterator[dict[str, Any]]:
    """Rows of predictions.tsv: column -> value, the same columns in each."""

  def evaluation_extras(self, shards: Shards) -> dict[str, float]:
    """Numbers to report beside the metrics of an evaluation, such as baselines."""
    del shards
    return {}
