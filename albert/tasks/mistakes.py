"""The wrong predictions of classes or numbers, sorted by how wrong they are: mistakes_SPLIT.tsv.

N examples, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from albert.io import files
from albert.tasks.predictions import ID, LABEL, PREDICTION, Predictions, write_table

_MAX_MISTAKES = 1000
# Smaller probabilities are rounded up to it, so that their logarithms are finite.
_SMALLEST_PROBABILITY = 1e-30


def write_mistakes(
  directory: str, split: str, predictions: Predictions, texts: Sequence[tuple[str, Sequence[str]]]
) -> str:
  """Writes mistakes_SPLIT.tsv: at most 1000 wrong predictions, the worst first.

  The worst mistakes are those with the highest loss (see label_losses), or the numbers with the largest absolute error.
  The fourth column has that value. If there is one label for each example, the fifth column has the probability of the
  predicted class.

  Args:
    directory: where to write.
    split: the name of the split.
    predictions: the predictions; they must have labels.
    texts: columns to add, as pairs: the name of the column, and its text for each example.
  Returns: the path of the file.
  """
  labels, predicted = predictions.labels, predictions.predicted
  assert labels is not None
  is_wrong = predicted != labels
  if predictions.thresholds is not None:
    is_wrong = is_wrong.any(axis=1)
  columns: dict[str, np.ndarray] = {}  # name -> a number for each example; mistakes are sorted by the first one
  if predictions.label_names:
    columns["loss"] = label_losses(predictions)
  else:
    columns["error"] = np.abs(predicted.astype(np.float64) - labels)
  if predictions.label_names and predictions.thresholds is None:
    columns["probability"] = np.nanmax(predictions.scores, axis=1)
  severity = next(iter(columns.values()))
  wrong_indices = np.flatnonzero(is_wrong)
  worst_indices = wrong_indices[np.argsort(-severity[wrong_indices], kind="stable")][:_MAX_MISTAKES]
  cells = [
    [predictions.ids[i] for i in worst_indices],
    predictions.format_values(labels[worst_indices]),
    predictions.format_values(predicted[worst_indices]),
    *([f"{values[i]:.4f}" for i in worst_indices] for values in columns.values()),
    *([column[i] for i in worst_indices] for _, column in texts),
  ]
  path = files.join(directory, f"mistakes_{split}.tsv")
  header = [ID, LABEL, PREDICTION, *columns, *(name for name, _ in texts)]
  write_table(path, header, zip(*cells, strict=True))
  return path


def label_losses(predictions: Predictions) -> np.ndarray:
  """Computes the loss of each example, without class weights: -log(p), with the probability p of the label.

  If an example may have several labels, it is the mean over the labels of the binary cross entropy.

  Args:
    predictions: predictions of classes, with labels.
  Returns: float64 [N]. A probability of 0 counts as 1e-30.
  """
  labels, scores = predictions.labels, predictions.scores.astype(np.float64)
  assert labels is not None
  if predictions.thresholds is not None:
    probabilities = np.where(labels > 0, scores, 1 - scores)  # [N, C]
  else:
    probabilities = scores[np.arange(len(labels)), labels][:, np.newaxis]
  return np.asarray(-np.log(np.maximum(probabilities, _SMALLEST_PROBABILITY)).mean(axis=1))
