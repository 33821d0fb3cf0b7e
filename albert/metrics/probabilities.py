"""Metrics of predicted probabilities: perplexity, the loss of the best guess, and calibration."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

# Number of intervals of probabilities in which calibration is measured.
NUM_INTERVALS = 10
# The name of the loss of the best guess among the metrics of an evaluation.
GUESSING_LOSS = "guessing_loss"


def perplexity(loss: float) -> float:
  """Returns exp(loss). A model that guesses among n tokens has perplexity n.

  Args:
    loss: mean cross entropy of a token, in nats. NaN gives NaN.
  Returns: the perplexity; infinity if it overflows.

  Example:
    >>> perplexity(0.0)
    1.0
  """
  try:
    return math.exp(loss)
  except OverflowError:
    return math.inf


def guessing_loss(labels: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Computes the loss of the best guess: of a model that ignores its input and always gives the same answer.

  For classes it is the entropy of the labels, for several labels the mean of their binary entropies, and for numbers
  the variance.

  Args:
    labels: of N > 0 examples: classes, int [N]; 0 or 1 for each of C labels, int [N, C]; or numbers, float [N].
    weights: the class weights of the loss, float [C]; None if all are 1.
  """
  if labels.dtype.kind == "f":
    return float(np.var(labels.astype(np.float64)))
  if labels.ndim == 2:
    shares = labels.mean(axis=0)
    positive, negative = shares * (1.0 if weights is None else weights), 1.0 - shares
    total = positive + negative
    return float(np.mean(_cross_entropy(positive, positive / total) + _cross_entropy(negative, negative / total)))
  counts = np.bincount(labels) if weights is None else np.bincount(labels, minlength=len(weights)) * weights
  shares = counts / counts.sum()
  return float(_cross_entropy(shares, shares).sum())


def _cross_entropy(weights: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
  """weights * -log(probabilities), and 0 where a weight is 0."""
  return -weights * np.log(np.where(weights > 0, probabilities, 1.0))


@dataclasses.dataclass(frozen=True)
class Calibration:
  """Predictions in K intervals of their probability, of equal width between 0 and 1, as (0.1, 0.2]; 0 is in the first.

  Attributes:
    probability: the mean probability in each interval, float64 [K]; NaN in an empty one.
    share_right: the share of predictions that are right, float64 [K]; NaN in an empty one.
    counts: the number of predictions, int [K].
  """

  probability: np.ndarray
  share_right: np.ndarray
  counts: np.ndarray

  @property
  def error(self) -> float:
    """The expected calibration error: the mean of |probability - share_right|, weighted by the counts. From 0 to 1."""
    is_used = self.counts > 0
    differences = np.abs(self.probability[is_used] - self.share_right[is_used])
    return float(np.average(differences, weights=self.counts[is_used]))


def measure_calibration(probabilities: np.ndarray, is_right: np.ndarray) -> Calibration:
  """Sorts predictions into intervals of their probability (Guo et al. 2017, On Calibration of Modern Neural Networks).

  A model is calibrated if predictions with a probability of 80% are right in 80% of the cases.

  Args:
    probabilities: float [M] between 0 and 1, M > 0.
    is_right: whether each prediction is right, bool [M].
  """
  intervals = np.searchsorted(np.linspace(0, 1, NUM_INTERVALS + 1)[1:-1], probabilities)
  counts = np.bincount(intervals, minlength=NUM_INTERVALS)
  sums = [np.bincount(intervals, values, NUM_INTERVALS) for values in (probabilities, is_right.astype(float))]
  with np.errstate(invalid="ignore"):
    return Calibration(sums[0] / counts, sums[1] / counts, counts)
