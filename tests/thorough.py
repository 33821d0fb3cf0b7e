"""Marks some cases of parametrized tests as thorough: `make test` leaves them out, `make test-thorough` runs them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def thorough_except(fast: Collection[Any], cases: Iterable[Any]) -> list[Any]:
  """Marks all cases as thorough, except those that `make test` is to run.

  Args:
    fast: the cases that `make test` runs. Each must be one of `cases`.
    cases: the values of one parameter, or tuples of the values of several parameters.

  Returns:
    The cases in the same order, for `pytest.mark.parametrize`.
  """
  cases = list(cases)
  assert all(case in cases for case in fast), (fast, cases)
  marked = []
  for case in cases:
    parameters = case if isinstance(case, tuple) else (case,)
    marked.append(case if case in fast else pytest.param(*parameters, marks=pytest.mark.thorough))
  return marked
