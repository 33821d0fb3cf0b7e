"""The loss of the best guess: of a model that ignores its input and always gives the same answer.

N examples, C labels.
"""

from __future__ import annotations

import numpy as np

# The name of this loss among the metrics of an evaluation.
GUESSING_LOSS = "guessing_loss"


def guessing_loss(labels: np.ndarray, weights: np.ndarray | None = None) -> float:
  """Computes the lowest loss that a constant answer has.

  For classes it is the entropy of the labels, for several labels the mean of their binary entropies, and for numbers
  the variance.

  Args:
    labels: classes, int [N]; 0 or 1 for each label, int [N, C]; or numbers, float [N]. N > 0.
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
