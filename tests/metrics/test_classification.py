"""The metrics of GLUE equal their closed forms, and are zero where the closed forms are undefined."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from albert.metrics import classification


def test_binary_metrics_equal_their_closed_forms() -> None:
  rng = np.random.default_rng(0)
  labels = (rng.random(317) < 0.7).astype(int)
  predictions = np.where(rng.random(317) < 0.8, labels, 1 - labels)
  # True and false positives and negatives.
  tp = int(np.sum((labels == 1) & (predictions == 1)))
  tn = int(np.sum((labels == 0) & (predictions == 0)))
  fp = int(np.sum((labels == 0) & (predictions == 1)))
  fn = int(np.sum((labels == 1) & (predictions == 0)))
  assert classification.accuracy(labels, predictions) == pytest.approx((tp + tn) / 317, abs=1e-15)
  assert classification.f1(labels, predictions) == pytest.approx(2 * tp / (2 * tp + fp + fn), abs=1e-15)
  matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
  assert classification.matthews_corrcoef(labels, predictions) == pytest.approx(matthews, abs=1e-14)


def test_f1_depends_on_which_class_is_1_and_matthews_does_not() -> None:
  labels, predictions = np.array([1, 1, 1, 0]), np.array([1, 1, 0, 0])
  assert classification.f1(labels, predictions) == pytest.approx(0.8)  # precision 1, recall 2/3
  assert classification.f1(1 - labels, 1 - predictions) == pytest.approx(2 / 3)  # precision 1/2, recall 1
  for is_swapped in (False, True):
    pair = (1 - labels, 1 - predictions) if is_swapped else (labels, predictions)
    assert classification.matthews_corrcoef(*pair) == pytest.approx(1 / math.sqrt(3))


def test_matthews_works_for_more_than_two_classes() -> None:
  labels = np.array([0, 1, 2, 2, 1, 0, 2])
  assert classification.matthews_corrcoef(labels, labels) == pytest.approx(1.0)


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
  assert classification.pearson(labels, predictions) == pytest.approx(expected, abs=1e-12)
  expected = correlation(mean_ranks(labels), mean_ranks(predictions))
  assert classification.spearman(labels, predictions) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", classification.METRICS)
@pytest.mark.parametrize(("labels", "predictions"), [([0, 1, 0], [0, 0, 0]), ([0, 0, 0], [0, 1, 1]), ([0], [0])])
def test_undefined_metrics_are_zero_without_a_warning(metric: str, labels: list[int], predictions: list[int]) -> None:
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    value = classification.compute([metric], np.array(labels), np.array(predictions))[metric]
  if metric == "accuracy":
    assert value == np.mean(np.equal(labels, predictions))
  else:
    assert value == 0.0


def test_nearly_constant_predictions_give_a_number_without_a_warning() -> None:
  labels = np.array([0.0, 2.5, 5.0])
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    value = classification.pearson(labels, np.array([1.0, 1.0 + 1e-15, 1.0 + 2e-15]))
  assert -1.001 <= value <= 1.001
