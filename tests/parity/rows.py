"""The rows of a table of comparisons. Tests check them, and `benchmarks/parity.py` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
  """One comparison.

  Attributes:
    quantity: what is compared.
    compared_with: where the expected values are from.
    difference: the largest absolute difference, unless `quantity` says otherwise.
    tolerance: the largest difference that is allowed.
  """

  quantity: str
  compared_with: str
  difference: float
  tolerance: float

  @property
  def ok(self) -> bool:
    """Whether the difference is within the tolerance. NaN is not."""
    return self.difference <= self.tolerance


class Unavailable(Exception):
  """A comparison cannot be made here. The message says what is missing."""


def largest_difference(values: Any, expected: Any) -> float:
  """Returns the largest absolute difference of two arrays of the same shape, in float64; NaN if one contains NaN."""
  values, expected = np.asarray(values, np.float64), np.asarray(expected, np.float64)
  assert values.shape == expected.shape, f"{values.shape} is compared with {expected.shape}"
  return float(np.abs(values - expected).max())


def relative_distance(values: Any, expected: Any) -> float:
  """Returns |values - expected| / |expected|, with the L2 norms of the whole arrays.

  The relative error of a single weight near 0 would have no meaning.
  """
  values, expected = np.asarray(values, np.float64), np.asarray(expected, np.float64)
  assert values.shape == expected.shape, f"{values.shape} is compared with {expected.shape}"
  return float(np.linalg.norm(values - expected) / np.linalg.norm(expected))


def assert_ok(rows: Iterable[Row]) -> None:
  """Fails if a row exceeds its tolerance, or if there are no rows. The failure shows all such rows."""
  rows = list(rows)
  assert rows
  assert [row for row in rows if not row.ok] == []
