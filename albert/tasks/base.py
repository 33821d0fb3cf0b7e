"""What a task must say of itself so that the training loop, evaluation and the scripts need not know its name."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.data.dataset import Dataset
from albert.tokenization.vocabulary import VocabularyId

# Name of the metric of the whole loss, the sum of its terms.
LOSS = "loss"

Batch = Mapping[str, tf.Tensor]
# Name -> [N, ...]: what the model gives for each example of a data set, in the order of the data.
Outputs = dict[str, np.ndarray]


class Sum(NamedTuple):
  """A mean in two parts: `total` float32 scalar, the sum over examples or tokens; `weight`, their number."""

  total: tf.Tensor
  weight: tf.Tensor


class Forward(NamedTuple):
  """What a task computes of a batch.

  sums: each metric of metric_names, the losses among them. outputs: name -> [B, ...], what predictions and the
  metrics of whole data sets are made of; may be empty.
  """

  sums: dict[str, Sum]
  outputs: dict[str, tf.Tensor]


class Task(abc.ABC):
  """One thing to train and evaluate."""

  name: str
  # Metric by which checkpoints are compared, and its direction.
  best_metric: str
  higher_is_better: bool
  # Prefixes of the model's weights that a warm start may leave fresh, and of a checkpoint's it may leave unused.
  fresh_weights: Sequence[str] = ()
  ignored_weights: Sequence[str] = ()
  # Prefixes of the model's weights that the task does not use, and which a checkpoint may lack.
  unused_weights: Sequence[str] = ()
  # Prefixes of the model's weights that a warm start leaves fresh even if the checkpoint has them.
  replaced_weights: Sequence[str] = ()
  # Whether predict runs the model over batches of eval_batch_size.
  predicts_in_batches = True
  # Extension of a predictions file.
  predictions_extension = ".tsv"
  # True if training without --init_checkpoint is most likely a mistake.
  needs_initial_weights = False

  def __init__(self, model_config: ModelConfig):
    self.model_config = model_config

  @abc.abstractmethod
  def settings(self) -> dict[str, Any]:
    """What the run depends on besides model, optimizer and training: the task's part of config.json."""

  def all_settings(self) -> dict[str, Any]:
    """settings(), and those of the task's settings that may differ when a run is resumed, for later commands."""
    return self.settings()

  def vocabulary(self) -> VocabularyId | None:
    """The vocabulary that ids are of; None where it is not known."""
    return None

  def checkpoint_settings(self) -> dict[str, Any]:
    """Those of settings() without which a checkpoint of a run means nothing, such as its labels."""
    return {}

  @abc.abstractmethod
  def build_model(self) -> keras.Model:
    """A built model, whose `named_weights()` gives its variables by the original's names."""

  @abc.abstractmethod
  def check_inputs(self, *, train: bool, evaluate: bool, predict: bool) -> None:
    """Reads and checks the files of what a command will do, so that none of them ends it after hours of training.

    Called before the model is built, and possibly more than once: what it reads is kept.

    Args:
      train, evaluate, predict: what the command will do; evaluations during training count.
    Raises:
      UserError: a file that is missing or cannot be used, with its line and the remedy.
    """

  @abc.abstractmethod
  def training_data(self) -> Dataset:
    """What to train on."""

  @abc.abstractmethod
  def evaluation_data(self) -> dict[str, Dataset]:
    """Split -> what to evaluate on. Where there are several, `SPLIT_` starts the names of their metrics."""

  @abc.abstractmethod
  def loss_names(self) -> Sequence[str]:
    """The terms of the loss, names of metric_names."""

  @abc.abstractmethod
  def loss_weights(self, batch: Batch) -> dict[str, tf.Tensor]:
    """Each of loss_names -> its weight in this batch (tokens, examples), float32 scalar.

    The loss is the sum over the terms of total / weight, both summed over the global batch, so that
    it does not depend on how the batch is cut among replicas and accumulation steps.
    """

  @abc.abstractmethod
  def forward(self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None) -> Forward:
    """Computes the losses, metrics and outputs of a batch.

    Args:
      model: the model of build_model.
      batch: feature name -> [B, ...].
      training: whether dropout is applied.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.
    """

  @abc.abstractmethod
  def metric_names(self) -> Sequence[str]:
    """The names that forward gives."""

  def with_loss(self, metrics: Mapping[str, float]) -> dict[str, float]:
    """The means of metric_names, and the loss, which is the sum of its terms, before them."""
    return {LOSS: sum(metrics[name] for name in self.loss_names()), **metrics}

  def evaluation_metrics(self, split: str, outputs: Outputs) -> dict[str, float]:
    """Metrics of a whole split that are no means over examples or tokens, and numbers to report beside them."""
    del split, outputs
    return {}

  def write_evaluation(self, split: str, outputs: Outputs, directory: str) -> None:
    """Writes what a person would look at after an evaluation: predictions, mistakes, pictures."""
    del split, outputs, directory

  @abc.abstractmethod
  def prediction_inputs(self) -> Sequence[str]:
    """The files that predict makes its predictions of."""

  @abc.abstractmethod
  def prediction_files(self, directory: str, predictions_file: str = "") -> Sequence[str]:
    """The files that predict writes, the predictions first. See predict for the arguments and errors."""

  @abc.abstractmethod
  def predict(
    self, model: keras.Model, run: Callable[[Dataset], Outputs], directory: str, predictions_file: str = ""
  ) -> Sequence[str]:
    """Writes predictions.

    Args:
      model: with its weights.
      run: gives the outputs of forward for all examples of a data set.
      directory: where to.
      predictions_file: where to write the predictions, instead of under the task's own name in `directory`; what
        belongs to them is written beside it.
    Returns: the files written.
    Raises:
      UserError: a predictions_file, and several test sets.
    """

  def head_settings(self) -> dict[str, Any]:
    """What the meaning of `fresh_weights` depends on, under the keys of config.json ("task", or one of its data)."""
    return {}

  def files_to_keep(self) -> dict[str, str]:
    """Name in the output_dir -> the file to copy there: what its checkpoints cannot be used without."""
    return {}
