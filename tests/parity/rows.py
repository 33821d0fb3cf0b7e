"""What a comparison gives: the rows that the tests check and that `benchmarks/parity.py` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np


class Row(NamedTuple):
  """One comparison. `difference` is the largest absolute one, unless `what` says that it is relative or counts."""

  what: str
  against: str
  difference: float
  tolerance: float

  @property
  def ok(self) -> bool:
    """True within the tolerance; a NaN is not."""
    return self.difference <= self.tolerance


class Unavailable(Exception):
  """A comparison that cannot be made here: the message says what is missing."""


def largest_difference(found: Any, truth: Any) -> float:
  """The largest absolute difference of two arrays of one shape, in float64; NaN if there is one."""
  a, b = np.asarray(found, np.float64), np.asarray(truth, np.float64)
  assert a.shape == b.shape, f"{a.shape} is compared with {b.shape}"
  return float(np.abs(a - b).max())


def relative_distance(found: Any, truth: Any) -> float:
  """|found - truth| / |truth| of a whole array (L2).

  A weight of about 0 has no relative error of its own, so the norm of its variable is the measure.
  """
  a, b = np.asarray(found, np.float64), np.asarray(truth, np.float64)
  assert a.shape == b.shape, f"{a.shape} is compared with {b.shape}"
  return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def assert_ok(rows: Iterable[Row]) -> None:
  """Fails with every row that exceeds its tolerance, and if there is no row at all."""
  rows = list(rows)
  assert rows
  assert [row for row in rows if not row.ok] == []
