"""The metrics of GLUE equal their closed forms, and are zero where the closed forms are undefined."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from albert.metrics import classification
from albert.metrics.classification import METRICS


def test_binary_metrics_equal_their_closed_forms() -> None:
  rng = np.random.default_rng(0)
  labels = (rng.random(317) < 0.7).astype(int)
  predictions = np.where(rng.random(317) < 0.8, labels, 1 - labels)
  # True and false positives and negatives.
  tp = int(np.sum((labels == 1) & (predictions == 1)))
  tn = int(np.sum((labels == 0) & (predictions == 0)))
  fp = int(np.sum((labels == 0) & (predictions == 1)))
  fn = int(np.sum((labels == 1) & (predictions == 0)))
  assert METRICS["accuracy"](labels, predictions) == pytest.approx((tp + tn) / 317, abs=1e-15)
  assert METRICS["f1"](labels, predictions) == pytest.approx(2 * tp / (2 * tp + fp + fn), abs=1e-15)
  matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
  assert METRICS["matthews_corrcoef"](labels, predictions) == pytest.approx(matthews, abs=1e-14)
  three_classes = np.arange(7) % 3
  assert METRICS["matthews_corrcoef"](three_classes, three_classes) == pytest.approx(1.0)


def test_correlations_equal_their_closed_forms() -> None:
  rng = np.random.default_rng(1)
  labels = np.round(5 * rng.random(211), 1)  # ties, as in STS-B
  predictions = (labels + rng.normal(size=211)).astype(np.float32)

  def correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / math.sqrt((x @ x) * (y @ y)))

  def mean_ranks(x: np.ndarray) -> np.ndarray:
    return np.array([np.sum(x < value) + (np.sum(x == value) + 1) / 2 for value in x])

  expected = correlation(labels, predictions.astype(np.float64))
  assert METRICS["pearson"](labels, predictions) == pytest.approx(expected, abs=1e-12)
  expected = correlation(mean_ranks(labels), mean_ranks(predictions))
  assert METRICS["spearman"](labels, predictions) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
  "metric", ["accuracy", "f1", "precision", "recall", "matthews_corrcoef", "pearson", "spearman"]
)
@pytest.mark.parametrize(("labels", "predictions"), [([0, 1, 0], [0, 0, 0]), ([0, 0, 0], [0, 1, 1]), ([0], [0])])
def test_undefined_metrics_are_zero_without_a_warning(metric: str, labels: list[int], predictions: list[int]) -> None:
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    value = classification.compute([metric], np.array(labels), np.array(predictions))[metric]
  if metric == "accuracy":
    assert value == np.mean(np.equal(labels, predictions))
  else:
    assert value == 0.0


def counts_of_class(labels: np.ndarray, predictions: np.ndarray, index: int) -> tuple[int, int, int]:
  """Counts the true positives, false positives and false negatives of a class, in indicator matrices [N, C]."""
  pairs = list(zip(labels[:, index].tolist(), predictions[:, index].tolist(), strict=True))
  return pairs.count((1, 1)), pairs.count((0, 1)), pairs.count((1, 0))


def ratio(numerator: float, denominator: float) -> float:
  return numerator / denominator if denominator else 0.0


def expected_averages(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
  """The means over all columns of two indicator matrices, from the counts of each column."""
  counts = [counts_of_class(labels, predictions, index) for index in range(labels.shape[1])]
  tp, fp, fn = (sum(column) for column in zip(*counts, strict=True))
  return {
    "accuracy": float(np.mean([np.array_equal(*rows) for rows in zip(labels, predictions, strict=True)])),
    "macro_precision": float(np.mean([ratio(tp, tp + fp) for tp, fp, _ in counts])),
    "macro_recall": float(np.mean([ratio(tp, tp + fn) for tp, _, fn in counts])),
    "macro_f1": float(np.mean([ratio(2 * tp, 2 * tp + fp + fn) for tp, fp, fn in counts])),
    "micro_precision": ratio(tp, tp + fp),
    "micro_recall": ratio(tp, tp + fn),
    "micro_f1": ratio(2 * tp, 2 * tp + fp + fn),
  }


def test_averages_over_several_labels_equal_their_counts() -> None:
  rng = np.random.default_rng(3)
  labels = (rng.random([83, 5]) < [0.1, 0.5, 0.7, 0.0, 0.3]).astype(int)  # class 3 has no label and no prediction
  predictions = np.where(rng.random([83, 5]) < 0.8, labels, 1 - labels)
  predictions[:, 3] = 0
  expected = expected_averages(labels, predictions)
  assert classification.compute(expected, labels, predictions) == pytest.approx(expected, abs=1e-14)


def test_averages_over_classes_equal_their_counts() -> None:
  rng = np.random.default_rng(4)
  labels, predictions = rng.integers(0, 4, 71), rng.integers(1, 4, 71)  # class 0 is never predicted
  expected = expected_averages(np.eye(4, dtype=int)[labels], np.eye(4, dtype=int)[predictions])
  assert expected["micro_f1"] == expected["accuracy"]
  assert classification.compute(expected, labels, predictions) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("is_matrix", [False, True])
def test_the_scores_of_each_class_equal_their_counts(is_matrix: bool) -> None:
  rng = np.random.default_rng(5)
  labels, predictions = rng.integers(0, 3, 53), rng.integers(0, 2, 53)  # class 2 is never predicted, class 3 absent
  label_matrix, prediction_matrix = np.eye(4, dtype=int)[labels], np.eye(4, dtype=int)[predictions]
  arrays = (label_matrix, prediction_matrix) if is_matrix else (labels, predictions)
  scores = classification.scores_of_classes(*arrays, num_classes=4)
  for index in range(4):
    tp, fp, fn = counts_of_class(label_matrix, prediction_matrix, index)
    expected = {
      "precision": ratio(tp, tp + fp),
      "recall": ratio(tp, tp + fn),
      "f1": ratio(2 * tp, 2 * tp + fp + fn),
      "num_labels": tp + fn,
      "num_predictions": tp + fp,
    }
    assert {name: values[index] for name, values in scores.items()} == pytest.approx(expected, abs=1e-15)


def test_the_positive_class_is_compared_with_all_others() -> None:
  labels, predictions = np.array([2, 2, 0, 1, 2]), np.array([2, 0, 2, 1, 1])  # tp 1, fp 1, fn 2
  values = classification.compute(["precision", "recall", "f1"], labels, predictions, positive_class=2)
  assert values == pytest.approx({"precision": 1 / 2, "recall": 1 / 3, "f1": 2 / 5})


def test_errors_of_a_regression_equal_their_closed_forms() -> None:
  labels, predictions = np.array([1.0, 2.0, 5.0], np.float32), np.array([1.5, 4.0, 5.0], np.float32)
  assert METRICS["rmse"](labels, predictions) == pytest.approx(math.sqrt((0.25 + 4) / 3))
  assert METRICS["mae"](labels, predictions) == pytest.approx(2.5 / 3)


def test_nearly_constant_predictions_give_a_number_without_a_warning() -> None:
  labels = np.array([0.0, 2.5, 5.0])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    value = METRICS["pearson"](labels, np.array([1.0, 1.0 + 1e-15, 1.0 + 2e-15]))
  assert -1.001 <= value <= 1.001
