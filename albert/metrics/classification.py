"""The metrics of classification, regression and tagging, and of predicted probabilities.

Every metric of classes takes one class for each example, int [N], or several, as an indicator matrix: int [N, C] of 0
and 1. A ratio is 0.0 where it is undefined (0 / 0), such as the precision of a class that is never predicted. A mean
over the classes includes all columns of an indicator matrix, and else the classes that occur as a label or prediction.

A correlation is undefined (0 / 0) if all predictions or all labels are equal, or if there are fewer than two examples.
The functions then return 0.0, without a warning.

scikit-learn, scipy and seqeval are imported when a metric is computed, because importing them takes almost a second.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

# Scheme of tags -> the name of its class in seqeval.scheme.
_SEQEVAL_SCHEMES = {"BIO": "IOB2", "BILOU": "BILOU", "BIOES": "IOBES", "plain": "IOB2"}
_Metric = Callable[[np.ndarray, np.ndarray], float]
# N is the number of examples, C of the classes.


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the share of predictions, int [N] or [N, C], that equal their label; with several, that are all right."""
  from sklearn import metrics

  return float(metrics.accuracy_score(labels, predictions))


def scores_of_classes(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> dict[str, np.ndarray]:
  """Computes precision, recall and F1 of each class.

  Args:
    labels: int [N] or [N, C], N > 0.
    predictions: int [N] or [N, C].
    num_classes: C.
  Returns: precision, recall and f1, float64 [C]; and the numbers of examples that have the class as a label and as a
    prediction: num_labels and num_predictions, int [C].
  """
  from sklearn import metrics

  classes = np.arange(num_classes)
  columns = metrics.precision_recall_fscore_support(labels, predictions, labels=classes, zero_division=0.0)
  scores = dict(zip(("precision", "recall", "f1", "num_labels"), columns, strict=True))
  is_matrix = predictions.ndim == 2
  num_predictions = predictions.sum(axis=0) if is_matrix else np.bincount(predictions, minlength=num_classes)
  return scores | {"num_predictions": num_predictions}


def _score(name: str, targets: np.ndarray, predictions: np.ndarray, **options: Any) -> float:
  """Computes a score with the function `name` of sklearn.metrics."""
  from sklearn import metrics

  return float(getattr(metrics, name)(targets, predictions, zero_division=0.0, **options))


def rmse(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the root of the mean squared error of float [N], N > 0."""
  return float(np.sqrt(np.mean(np.square(labels.astype(np.float64) - predictions))))


def mae(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the mean absolute error of float [N], N > 0."""
  return float(np.mean(np.abs(labels.astype(np.float64) - predictions)))


def matthews_corrcoef(labels: np.ndarray, predictions: np.ndarray) -> float:
  """Computes the Matthews correlation coefficient of int [N], for any number of classes."""
  from sklearn import metrics

  if _is_constant(labels) or _is_constant(predictions):
    return 0.0
  return float(metrics.matthews_corrcoef(labels, predictions))


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


# Metrics of one class among the others. `compute` renumbers the classes, so that the positive one is class 1.
POSITIVE_METRICS = ("f1", "precision", "recall")
METRICS: dict[str, _Metric] = {
  **{name: functools.partial(_score, f"{name}_score", labels=[1], average="macro") for name in POSITIVE_METRICS},
  # Of one class for each example, or of several. With one, micro_f1 equals accuracy.
  "accuracy": accuracy,
  "macro_f1": functools.partial(_score, "f1_score", average="macro"),
  "micro_f1": functools.partial(_score, "f1_score", average="micro"),
  "macro_precision": functools.partial(_score, "precision_score", average="macro"),
  "macro_recall": functools.partial(_score, "recall_score", average="macro"),
  # Over all pairs of an example and a label, of which an example may have several.
  "micro_precision": functools.partial(_score, "precision_score", average="micro"),
  "micro_recall": functools.partial(_score, "recall_score", average="micro"),
  "matthews_corrcoef": matthews_corrcoef,
  # Of numbers. Equal values get the mean of their ranks for "spearman".
  "pearson": functools.partial(_correlation, "pearsonr"),
  "spearman": functools.partial(_correlation, "spearmanr"),
  "rmse": rmse,
  "mae": mae,
}
# Metrics of which lower values are better.
ERRORS = ("rmse", "mae")


def compute(
  names: Iterable[str], labels: np.ndarray, predictions: np.ndarray, positive_class: int = 1
) -> dict[str, float]:
  """Computes several metrics.

  Args:
    names: keys of METRICS.
    labels: [N] or [N, C], see the metrics.
    predictions: [N] or [N, C].
    positive_class: the class that POSITIVE_METRICS are of.

  Returns: Name -> value.
  """
  of_class = (labels == positive_class).astype(int), (predictions == positive_class).astype(int)
  return {name: METRICS[name](*of_class if name in POSITIVE_METRICS else (labels, predictions)) for name in names}


def span_scores(
  labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]], types: Sequence[str], scheme: str
) -> dict[str, float]:
  """Computes the scores of spans of all types together, and F1 of each type. A score that is 0 / 0 is 0.

  A predicted span is right if a span of the text has the same first word, the same last word and the same type, as in
  the shared tasks of CoNLL.

  Args:
    labels: the correct tags of each text.
    predictions: the predicted tags of the same texts; they must follow the scheme.
    types: all types of spans.
    scheme: "BIO", "BILOU", "BIOES" or "plain".
  Returns: precision, recall, f1, and f1_TYPE for each type.
  """
  from seqeval import scheme as seqeval_schemes
  from seqeval.metrics import v1

  # seqeval would strip hyphens from the names of types.
  numbers = {span_type: number for number, span_type in enumerate(types)}

  def numbered(tags: Sequence[str]) -> list[str]:
    if scheme == "plain":
      return [f"B-{numbers[tag]}" for tag in tags]
    return [tag if "-" not in tag else f"{tag[0]}-{numbers[tag[2:]]}" for tag in tags]

  y_true, y_pred = [numbered(tags) for tags in labels], [numbered(tags) for tags in predictions]
  found = sorted({tag[2:] for tags in (*y_true, *y_pred) for tag in tags if tag != "O"})
  scores = dict.fromkeys(("precision", "recall", "f1", *(f"f1_{span_type}" for span_type in types)), 0.0)
  if not found:
    return scores
  seqeval_scheme = getattr(seqeval_schemes, _SEQEVAL_SCHEMES[scheme])
  micro = v1.precision_recall_fscore_support(y_true, y_pred, average="micro", scheme=seqeval_scheme, zero_division=0)
  scores |= dict(zip(("precision", "recall", "f1"), map(float, micro), strict=False))
  of_types = v1.precision_recall_fscore_support(y_true, y_pred, average=None, scheme=seqeval_scheme, zero_division=0)
  return scores | {f"f1_{types[int(number)]}": float(f1) for number, f1 in zip(found, of_types[2], strict=True)}


# Number of intervals of probabilities in which calibration is measured.
NUM_INTERVALS = 10
# The name of the loss of the best guess among the metrics of an evaluation.
GUESSING_LOSS = "guessing_loss"


def guessing_loss(labels: np.ndarray, weights: np.ndarray | None = None, smoothing: float = 0.0) -> float:
  """Computes the loss of the best guess: of a model that ignores its input and always gives the same answer.

  For classes it is the entropy of the labels, for several labels the mean of their binary entropies, and for numbers
  the variance.

  Args:
    labels: of N > 0 examples: classes, int [N]; 0 or 1 for each of C labels, int [N, C]; or numbers, float [N].
    weights: the class weights of the loss, float [C]; None if all are 1.
    smoothing: of classes, the share of each label that is divided evenly among the C classes.
  """
  if labels.dtype.kind == "f":
    return float(np.var(labels.astype(np.float64)))
  if labels.ndim == 2:
    shares = labels.mean(axis=0)
    positive, negative = shares * (1.0 if weights is None else weights), 1.0 - shares
    total = positive + negative
    return float(np.mean(cross_entropy(positive, positive / total) + cross_entropy(negative, negative / total)))
  counts = np.bincount(labels) if weights is None else np.bincount(labels, minlength=len(weights)) * weights
  shares = (1.0 - smoothing) * counts / counts.sum() + smoothing / len(counts)
  return float(cross_entropy(shares, shares).sum())


def cross_entropy(weights: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
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
