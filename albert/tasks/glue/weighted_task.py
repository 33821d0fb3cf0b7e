"""The base class of the tasks whose labels can have weights in the training loss: --class_weights."""

from __future__ import annotations

import numpy as np

from albert.data.dataset import Dataset
from albert.metrics.guessing import guessing_loss
from albert.runs.metrics_log import log
from albert.tasks.finetuning import TRAIN
from albert.tasks.glue.class_weights import describe_class_weights, make_class_weights
from albert.tasks.glue.data import TextRows
from albert.tasks.glue.own_data.multi_label import combined_label_warning
from albert.tasks.glue.specs import CUSTOM
from albert.tasks.glue.text_task import TextTask


class WeightedTask(TextTask):
  """A task of classes or labels, which may have weights."""

  _has_logged_labels = False
  # The training rows and the class weights that were computed for them.
  _weighted_rows: tuple[TextRows, np.ndarray] | None = None

  def training_data(self) -> Dataset:
    """Returns the training set. Logs once the weights, and labels that seem to be several labels."""
    if not self._has_logged_labels:
      self._has_logged_labels = True
      if self.config.class_weights:
        log(f"class weights: {describe_class_weights(self.class_weights(), self.spec.labels)}")
      is_single_label = self.spec.name == CUSTOM and not self.spec.label_separator
      warning = combined_label_warning(self.spec.labels) if is_single_label else None
      if warning:
        log(f"warning: {', '.join(map(str, self.sources(TRAIN)))}: {warning}")
    return super().training_data()

  def guessing_loss(self) -> float | None:
    """Returns the entropy of the training labels, with their weights."""
    weights = self.class_weights() if self.config.class_weights else None
    return guessing_loss(self.cached_rows(TRAIN).labels, weights)

  def class_weights(self) -> np.ndarray:
    """Returns the weights of --class_weights for the rows that are trained on, float32 [C]."""
    rows = self.cached_rows(TRAIN)
    if self._weighted_rows is None or self._weighted_rows[0] is not rows:
      self._weighted_rows = rows, make_class_weights(self.config.class_weights, self.spec.labels, rows.labels)
    return self._weighted_rows[1]
