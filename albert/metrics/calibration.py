"""Calibration: whether predictions with a probability of 80% are right in 80% of the cases.

The expected calibration error and the reliability diagram are those of Guo et al. (2017), "On Calibration of Modern
Neural Networks", section 2. M predictions, K intervals of probabilities.
"""

from __future__ import annotations

import dataclasses

import numpy as np

NUM_INTERVALS = 10


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
  """Sorts predictions into intervals of their probability.

  Args:
    probabilities: float [M] between 0 and 1, M > 0.
    is_right: whether each prediction is right, bool [M].
  """
  intervals = np.searchsorted(np.linspace(0, 1, NUM_INTERVALS + 1)[1:-1], probabilities)
  counts = np.bincount(intervals, minlength=NUM_INTERVALS)
  sums = [np.bincount(intervals, values, NUM_INTERVALS) for values in (probabilities, is_right.astype(float))]
  with np.errstate(invalid="ignore"):
    return Calibration(sums[0] / counts, sums[1] / counts, counts)
