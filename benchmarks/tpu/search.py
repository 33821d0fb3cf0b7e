"""Which batch to compile next, so that few compilations find the largest one that fits a core."""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from typing import Any

# Sequences a core: powers of two, and what lies halfway between them.
GRID = [1, 2, *(batch for power in range(1, 10) for batch in (3 << power - 1, 2 << power))]
# So many compilations are placed by interpolation; the compiler's own rematerialization may defeat it.
_INTERPOLATED = 6
# The next batch is at most so many times the largest one tried.
_LEAP = 4

# What compiler.compile_program returns.
Trial = Mapping[str, Any]


def fits(trial: Trial) -> bool:
  """Whether the program was compiled, rather than refused for want of memory."""
  return "needs" not in trial


def bytes_used(trial: Trial) -> int:
  """HBM of a core that the program takes while it runs (or would take)."""
  if not fits(trial):
    return int(trial["needs"])
  return int(trial["argument"] + trial["output"] - trial["alias"] + trial["temporary"] + trial["code"])


def next_batch(trials: Mapping[int, Trial], hbm: int, first: int, multiple: int = 1) -> int | None:
  """The batch to compile next, or None when the largest one that fits is known to one place of GRID.

  Args:
    trials: batch -> what became of it.
    hbm: bytes of a core.
    first: where to start.
    multiple: batches are multiples of it (accumulation steps).
  """
  grid = [batch for batch in GRID if batch % multiple == 0]
  if not trials:
    return grid[max(0, bisect.bisect_right(grid, first) - 1)]
  largest = max((b for b in trials if fits(trials[b])), default=None)
  smallest = min((b for b in trials if not fits(trials[b])), default=None)
  low = -1 if largest is None else grid.index(largest)
  high = len(grid) if smallest is None else grid.index(smallest)
  if high - low <= 1:
    return None
  if len(trials) >= _INTERPOLATED and low >= 0 and high < len(grid):
    return grid[(low + high) // 2]
  expected = min(_expected_limit(trials, hbm), _LEAP * max(trials))
  place = bisect.bisect_right(grid, expected) - 1
  return grid[min(max(place, low + 1), high - 1)]


def _expected_limit(trials: Mapping[int, Trial], hbm: int) -> float:
  """The batch at which a straight line through the two trials nearest to the limit reaches it."""
  limit = min((trial["limit"] for trial in trials.values() if not fits(trial)), default=hbm)
  nearest = sorted(trials, key=lambda b: abs(bytes_used(trials[b]) - limit))[:2]
  one, used = nearest[0], bytes_used(trials[nearest[0]])
  if len(nearest) == 2:
    other = nearest[1]
    slope = (used - bytes_used(trials[other])) / (one - other)
  else:  # besides the variables there are their gradients; Adam and LAMB keep three numbers for each
    slope = (used - 4 / 3 * trials[one].get("argument", 0)) / one
  return one + (limit - used) / slope if slope > 0 else float(GRID[-1])
