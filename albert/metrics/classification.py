"""Metrics of classification and regression (those of GLUE), by scikit-learn and scipy.

Predictions that are all alike leave a correlation undefined (0 / 0). It is 0.0 here, without a warning: such
predictions tell nothing. The same holds for labels that are all alike, and for fewer than two examples.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import numpy as np
from scipy import stats
from sklearn import metrics


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Share of equal entries. labels, predictions: int [N], N > 0."""
  return float(metrics.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """F1 of class 1 among classes 0 and 1: 0.0 if no label and no prediction is 1. int [N], N > 0."""
  return float(metrics.f1_score(labels, predictions, pos_label=1, zero_division=0.0))


def matthews_corrcoef(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Matthews' correlation, for any number of classes. int [N], N > 0."""
  if _is_constant(labels) or _is_constant(predictions):
    return 0.0
  return float(metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Pearson's correlation. float [N]."""
  return _correlation(stats.pearsonr, labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Spearman's rank correlation; equal values share their mean rank. float [N]."""
  return _correlation(stats.spearmanr, labels, predictions)


def _is_constant(values: np.ndarray) -> bool:
  return bool(len(values) < 2 or np.all(values == values[0]))


def _correlation(function: Callable[..., tuple[float, float]], labels: np.ndarray, predictions: np.ndarray) -> float:
  labels, predictions = labels.astype(np.float64), predictions.astype(np.float64)
  if _is_constant(labels) or _is_constant(predictions):
    return 0.0
  with warnings.catch_warnings():
    # A model in its first steps gives values that differ in their last digits alone.
    warnings.simplefilter("ignore", stats.NearConstantInputWarning)
    return float(function(labels, predictions)[0])


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": accuracy,
  "f1": f1,
  "matthews_corrcoef": matthews_corrcoef,
  "pearson": pearson,
  "spearman": spearman,
}


def compute(names: Iterable[str], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
  """The metrics of METRICS called `names`."""
  return {name: METRICS[name](labels, predictions) for name in names}
