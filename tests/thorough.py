"""Marks cases of parametrized tests as thorough: `make test` leaves them out, and `make test-thorough` runs them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thorough_except(fast: Collection[Any], cases: Iterable[Any]) -> list[Any]:
  """Marks all cases but some as thorough.

  Args:
    fast: the cases that stay without a marker. Each must be one of `cases`.
    cases: the values of one parameter, or tuples of the values of several parameters.

  Returns:
    The cases in the same order, for `pytest.mark.parametrize`.
  """
  cases = list(cases)
  assert all(case in cases for case in fast), (fast, cases)
  values = [case if isinstance(case, tuple) else (case,) for case in cases]
  return [
    case if case in fast else pytest.param(*value, marks=pytest.mark.thorough)
    for case, value in zip(cases, values, strict=True)
  ]
