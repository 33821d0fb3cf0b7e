"""The rows of a comparison, which the tests check and `benchmarks/parity.py` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
  """One comparison. `difference`: the largest absolute difference, unless `what` says otherwise."""

  what: str
  against: str
  difference: float
  tolerance: float

  @property
  def ok(self) -> bool:
    """Whether the difference is within the tolerance. NaN is not."""
    return self.difference <= self.tolerance


class Unavailable(Exception):
  """A comparison cannot be made here. The message says what is missing."""


def largest_difference(found: Any, truth: Any) -> float:
  """The largest absolute difference of two arrays of the same shape, in float64; NaN if an array contains NaN."""
  a, b = np.asarray(found, np.float64), np.asarray(truth, np.float64)
  assert a.shape == b.shape, f"{a.shape} is compared with {b.shape}"
  return float(np.abs(a - b).max())


def relative_distance(found: Any, truth: Any) -> float:
  """|found - truth| / |truth| of a whole array (L2).

  The norms of the whole arrays are compared, since the relative error of a weight near 0 has no meaning.
  """
  a, b = np.asarray(found, np.float64), np.asarray(truth, np.float64)
  assert a.shape == b.shape, f"{a.shape} is compared with {b.shape}"
  return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def assert_ok(rows: Iterable[Row]) -> None:
  """Fails if a row exceeds its tolerance, or if there are no rows. The failure shows all such rows."""
  rows = list(rows)
  assert rows
  assert [row for row in rows if not row.ok] == []
