"""The calibration of predictions: its error, and the reliability diagram calibration_SPLIT.png.

N examples, C classes.
"""

from __future__ import annotations

import numpy as np

from albert.io import figures, files
from albert.metrics.calibration import NUM_INTERVALS, Calibration, measure_calibration
from albert.tasks.predictions import Predictions


def calibration_of(predictions: Predictions) -> Calibration:
  """Measures the calibration of the most probable class of each example.

  Args:
    predictions: predictions of one class for each example, with labels.
  """
  assert predictions.thresholds is None
  return measure_calibration(np.nanmax(predictions.scores, axis=1), predictions.predicted == predictions.labels)


def calibration_errors_of_labels(predictions: Predictions) -> np.ndarray:
  """Computes for each label the calibration error of its probability, where an example may have several labels.

  Args:
    predictions: predictions of labels, with labels.
  Returns: float64 [C].
  """
  assert predictions.labels is not None
  columns = zip(predictions.scores.T, predictions.labels.T > 0, strict=True)
  return np.array([measure_calibration(scores, has_label).error for scores, has_label in columns])


def draw_calibration(directory: str, split: str, predictions: Predictions) -> str:
  """Draws for each interval of probabilities the share of the predictions that are right, and their number.

  On the diagonal, the share equals the probability.

  Args:
    directory: where to write calibration_SPLIT.png.
    split: the name of the split.
    predictions: predictions of one class for each example, with labels.
  Returns: the path of the picture.
  """
  calibration = calibration_of(predictions)
  figure = figures.new_figure(4.2, 4.2)
  axes = figure.subplots()
  width = 1 / NUM_INTERVALS
  is_used = calibration.counts > 0
  centers = (np.arange(NUM_INTERVALS) + 0.5)[is_used] * width
  shares, counts = calibration.share_right[is_used], calibration.counts[is_used]
  axes.bar(centers, shares, width, alpha=0.35, edgecolor="white")
  axes.plot(calibration.probability[is_used], shares, "o-", label="measured, with the number of rows")
  axes.plot([0, 1], [0, 1], "--", color="gray", label="calibrated")
  for center, share, count in zip(centers, shares, counts, strict=True):
    axes.text(center, share + 0.02, f"{count}", ha="center", va="bottom", fontsize=7)
  axes.set_xlim(0, 1)
  axes.set_ylim(0, 1.08)  # leaves room for a number above a bar of height 1
  axes.set_xlabel("probability of the predicted label")
  axes.set_ylabel("share that is right")
  axes.set_title(f"{split}: calibration error {calibration.error:.3f}")
  axes.legend(loc="upper left", fontsize=8)
  path = files.join(directory, f"calibration_{split}.png")
  files.write_atomically(path, figures.png(figure))
  return path
