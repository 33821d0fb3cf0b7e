"""The task of rows with any number of labels (--multi_label): a sigmoid for each label, and thresholds."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.runs.metrics_log import log
from albert.tasks.base import LOSS, Batch, DatasetOutputs, ForwardResult, weighted_sum
from albert.tasks.glue.features import LABEL_IDS
from albert.tasks.glue.own_data.multi_label import (
  DEFAULT_THRESHOLD,
  ChosenThresholds,
  choose_thresholds,
  fixed_threshold,
  read_thresholds,
)
from albert.tasks.glue.weighted_task import WeightedTask
from albert.tasks.predictions import Predictions

# B examples in a batch, N examples of a split, C labels.


class MultiLabelTask(WeightedTask):
  """Predicts any number of labels for each row: those whose probability is at least their threshold.

  The thresholds are chosen on the development set, and chosen anew whenever it is evaluated. For other data, such as a
  test set, those of the run are used.
  """

  # Whether thresholds are chosen on the development set. If not, those of the run are used for it, too.
  chooses_thresholds = True
  # The thresholds in thresholds.json of the run.
  _stored: ChosenThresholds | None = None

  def forward(
    self, model: keras.Model, batch: Batch, *, training: bool, seed: tf.Tensor | None = None
  ) -> ForwardResult:
    """Computes the binary cross entropy, as the mean over the labels. The output is logits, float32 [B, C].

    In training, the term of a label that a row has is multiplied by the label's class weight.
    """
    logits = self.row_logits(model, batch, training=training, seed=seed)
    labels = tf.cast(batch[LABEL_IDS], tf.float32)
    weights = self.class_weights() if training and self.config.class_weights else 1.0
    losses = tf.nn.weighted_cross_entropy_with_logits(labels, logits, pos_weight=tf.constant(weights))
    mean_losses = tf.reduce_mean(losses, axis=1)
    return ForwardResult({LOSS: weighted_sum(mean_losses, batch[EXAMPLE_WEIGHT])}, {"logits": logits})

  def scores(self, outputs: DatasetOutputs) -> np.ndarray:
    """Returns the probabilities of the labels, float64 [N, C]."""
    return 1.0 / (1.0 + np.exp(-outputs["logits"].astype(np.float64)))

  def predictions(self, split: str, outputs: DatasetOutputs) -> Predictions:
    """Makes the predictions for a split, with the thresholds for it."""
    return self._with_thresholds(split, super().predictions(split, outputs))

  def _with_thresholds(self, split: str, split_predictions: Predictions) -> Predictions:
    chosen = self._choose(split, split_predictions)
    fixed = fixed_threshold(self.config.thresholds)
    default = DEFAULT_THRESHOLD if fixed is None else fixed
    thresholds = [chosen.thresholds[label] if chosen else default for label in self.spec.labels]
    return split_predictions.with_thresholds(np.array(thresholds), self.spec.label_separator)

  def _choose(self, split: str, split_predictions: Predictions) -> ChosenThresholds | None:
    """The thresholds for a split: chosen on it if it is the development set of the run, else those of the run."""
    choice, labels = self.config.thresholds, split_predictions.labels
    if fixed_threshold(choice) is not None:
      return None
    is_other_data = self._stored is not None and self._stored.data_sha256 != self.content(split).sha256
    if labels is None or is_other_data or not self.chooses_thresholds:
      return self._stored
    values = choose_thresholds(choice, labels, split_predictions.scores)
    thresholds = dict(zip(self.spec.labels, values.tolist(), strict=True))
    return ChosenThresholds(choice, split, self.content(split).sha256, thresholds)

  def read_run(self, output_dir: str) -> None:
    """Reads thresholds.json of a run."""
    self._stored = read_thresholds(output_dir, self.spec.labels)

  def write_evaluation(self, split: str, outputs: DatasetOutputs, directory: str) -> None:
    """Also writes thresholds.json, if the thresholds were chosen on this split."""
    chosen = self._choose(split, super().predictions(split, outputs))
    if chosen is not None and chosen is not self._stored:
      chosen.write(directory)
      self._stored = chosen
    elif chosen is not None:
      log(f"{split}: the thresholds are those that were chosen on the run's development set ({chosen.choice})")
    super().write_evaluation(split, outputs, directory)
