"""The metrics of GLUE for classification and regression, computed by scikit-learn and scipy.

A correlation is undefined (0 / 0) if all predictions or all labels are equal, or if there are fewer than two examples.
The functions then return 0.0, without a warning.

Both libraries are imported when a metric is computed, because importing them takes almost a second.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import numpy as np

# N is the number of examples.


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the fraction of predictions that equal their label.

  Args:
    labels: int [N], N > 0.
    predictions: int [N].
  """
  from sklearn import metrics

  return float(metrics.accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes F1 of class 1 in a binary classification; 0.0 if no label and no prediction is 1.

  Args:
    labels: int [N] of 0 and 1, N > 0.
    predictions: int [N] of 0 and 1.
  """
  from sklearn import metrics

  return float(metrics.f1_score(labels, predictions, pos_label=1, zero_division=0.0))


def matthews_corrcoef(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the Matthews correlation coefficient, for any number of classes.

  Args:
    labels: int [N].
    predictions: int [N].
  """
  from sklearn import metrics

  if _is_constant(labels) or _is_constant(predictions):
    return 0.0
  return float(metrics.matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the Pearson correlation coefficient.

  Args:
    labels: float [N].
    predictions: float [N].
  """
  return _correlation("pearsonr", labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the Spearman rank correlation coefficient. Equal values get the mean of their ranks.

  Args:
    labels: float [N].
    predictions: float [N].
  """
  return _correlation("spearmanr", labels, predictions)


def _is_constant(values: np.ndarray) -> bool:
  return bool(len(values) < 2 or np.all(values == values[0]))


def _correlation(name: str, labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes a correlation coefficient with the function `name` of scipy.stats."""
  from scipy import stats

  labels, predictions = labels.astype(np.float64), predictions.astype(np.float64)
  if _is_constant(labels) or _is_constant(predictions):
    return 0.0
  with warnings.catch_warnings():
    # scipy warns about predictions that are almost equal, as they are in the first steps of training.
    warnings.simplefilter("ignore", stats.NearConstantInputWarning)
    return float(getattr(stats, name)(labels, predictions)[0])


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
  "accuracy": accuracy,
  "f1": f1,
  "matthews_corrcoef": matthews_corrcoef,
  "pearson": pearson,
  "spearman": spearman,
}


def compute(names: Iterable[str], labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
  """Computes several metrics.

  Args:
    names: keys of METRICS.
    labels: [N], see the metrics.
    predictions: [N].

  Returns:
    Name -> value.
  """
  return {name: METRICS[name](labels, predictions) for name in names}
