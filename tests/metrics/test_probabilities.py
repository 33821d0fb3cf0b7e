"""The loss of the best guess equals the lowest loss that a search finds; calibration equals scikit-learn's curve."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from sklearn.calibration import calibration_curve

from albert.metrics.classification import guessing_loss, measure_calibration


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, np.array([2.0, 0.5, 1.0, 3.0])])
def test_of_classes_it_is_the_lowest_cross_entropy(weights: np.ndarray | None, smoothing: float) -> None:
  labels = np.random.default_rng(0).choice(4, 53, p=[0.2, 0.5, 0.0, 0.3])  # class 2 does not occur
  example_weights = np.ones(53) if weights is None else weights[labels]

  def loss(logits: np.ndarray) -> float:
    log_probabilities = logits - np.log(np.exp(logits).sum())
    targets = (1 - smoothing) * np.eye(4)[labels] + smoothing / 4
    return float(-(example_weights @ targets @ log_probabilities) / example_weights.sum())

  assert guessing_loss(labels, weights, smoothing) == pytest.approx(
    minimize(loss, np.zeros(4), tol=1e-12).fun, abs=1e-5
  )
  if weights is not None:
    balanced = 53 / (3 * np.maximum(np.bincount(labels, minlength=4), 1))
    assert guessing_loss(labels, balanced) == pytest.approx(np.log(3))


@pytest.mark.parametrize("weights", [None, np.array([2.0, 0.5, 1.0])])
def test_of_several_labels_it_is_the_lowest_binary_cross_entropy(weights: np.ndarray | None) -> None:
  labels = (np.random.default_rng(1).random([41, 3]) < [0.2, 0.7, 0.0]).astype(int)  # no row has the last label

  def loss(index: int) -> float:
    y, w = labels[:, index], 1.0 if weights is None else weights[index]
    result = minimize_scalar(lambda x: np.mean(w * y * np.log1p(np.exp(-x)) + (1 - y) * np.log1p(np.exp(x))), (-5, 5))
    return float(result.fun)

  expected = np.mean([loss(0), loss(1), 0.0])
  assert guessing_loss(labels, weights) == pytest.approx(expected, abs=1e-8)


def test_of_numbers_it_is_the_mean_squared_error_of_their_mean() -> None:
  numbers = np.array([1.0, 2.0, 6.0], np.float32)
  assert guessing_loss(numbers) == pytest.approx((4 + 1 + 9) / 3)


def test_calibration_equals_scikit_learns_curve_and_a_sum_over_the_intervals() -> None:
  rng = np.random.default_rng(0)
  # No probability in the first intervals, and some on the limits of the others.
  probabilities = np.concatenate([rng.beta(5, 1, 311), np.linspace(0, 1, 11)[4:]])
  is_right = rng.random(318) < probabilities**2
  calibration = measure_calibration(probabilities, is_right)
  shares, means = calibration_curve(is_right, probabilities, n_bins=10)
  is_used = calibration.counts > 0
  assert 0 < is_used.sum() < 10
  assert calibration.counts.sum() == 318
  np.testing.assert_allclose(calibration.share_right[is_used], shares)
  np.testing.assert_allclose(calibration.probability[is_used], means)
  expected = 0.0
  for low, high in zip(np.linspace(0, 1, 11)[:-1], np.linspace(0, 1, 11)[1:], strict=True):
    rows = [i for i in range(318) if low < probabilities[i] <= high]
    if rows:
      difference = np.mean([probabilities[i] for i in rows]) - np.mean([is_right[i] for i in rows])
      expected += len(rows) / 318 * abs(difference)
  assert calibration.error == pytest.approx(expected)


def test_probabilities_of_0_and_1_are_in_the_first_and_the_last_interval() -> None:
  calibration = measure_calibration(np.array([0.0, 1.0, 1.0]), np.array([False, True, False]))
  assert calibration.counts.tolist() == [1, *[0] * 8, 2]
  assert calibration.error == pytest.approx(1 / 3)
