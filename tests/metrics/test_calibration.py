"""Calibration equals a computation example by example, and scikit-learn's calibration curve."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from albert.metrics.calibration import measure_calibration


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


def test_calibrated_predictions_have_a_small_error_and_overconfident_ones_a_large_one() -> None:
  rng = np.random.default_rng(1)
  probabilities = rng.uniform(0.5, 1, 20_000)
  assert measure_calibration(probabilities, rng.random(20_000) < probabilities).error < 0.02
  # Right in half of the cases: the mean of |p - 0.5| is 0.25.
  assert measure_calibration(probabilities, rng.random(20_000) < 0.5).error == pytest.approx(0.25, abs=0.01)
