"""Chooses which batch size to compile next, so that few compilations find the largest one that fits into a core.

A file of JSON lines holds the searches: a line for each compilation.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tpu.programs import Program

# Batch sizes per core: powers of two, and the numbers halfway between them.
GRID = [1, 2, *(batch for power in range(1, 10) for batch in (3 * 2 ** (power - 1), 2 ** (power + 1)))]
# This many batch sizes are chosen by interpolation, and further ones by bisection. Interpolation fails where the
# compiler recomputes activations on its own.
_MAX_INTERPOLATIONS = 6
# The next batch is at most this many times as large as the largest one tried.
_MAX_GROWTH = 4

# The result of compiler.compile_program.
Trial = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Search:
  """The compilations of a program for a chip, by which its largest batch is found.

  Attributes:
    began: the date of the first compilation, such as "2026-11-23".
    trials: batch size -> result of its compilation.
  """

  began: str
  trials: dict[int, Trial] = dataclasses.field(default_factory=dict)


def read_searches(path: Path) -> dict[tuple[Program, str], Search]:
  """Returns (program, name of the chip) -> its newest search, from a file that may be absent."""
  searches: dict[tuple[Program, str], Search] = {}
  for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
    recorded = json.loads(line)
    key, began = (Program(**recorded["program"]), recorded["chip"]), recorded["search_began"]
    if key not in searches or searches[key].began < began:
      searches[key] = Search(began)
    if searches[key].began == began:
      searches[key].trials[recorded["batch_size"]] = recorded["trial"]
  return searches


def record_trial(path: Path, program: Program, chip: str, began: str, batch: int, trial: Trial) -> None:
  """Appends a compilation to the file of searches."""
  record = {
    "program": dataclasses.asdict(program),
    "chip": chip,
    "search_began": began,
    "batch_size": batch,
    "trial": trial,
  }
  with path.open("a", encoding="utf-8") as file:
    file.write(json.dumps(record) + "\n")


def fits(trial: Trial) -> bool:
  """Whether the program was compiled. If not, it needs too much memory."""
  return "needs" not in trial


def bytes_used(trial: Trial) -> int:
  """Returns the bytes of HBM that the program uses on a core, or would need."""
  if not fits(trial):
    return int(trial["needs"])
  return int(trial["argument"] + trial["output"] - trial["alias"] + trial["temporary"] + trial["code"])


def batch_sizes(program: Program) -> list[int]:
  """Returns the batch sizes of GRID that the program can have: multiples of its accumulation steps, up to max_batch."""
  sizes = [batch for batch in GRID if batch % program.gradient_accumulation_steps == 0]
  return [batch for batch in sizes if program.max_batch is None or batch <= program.max_batch]


def next_batch(trials: Mapping[int, Trial], hbm: int, first: int, sizes: Sequence[int] = GRID) -> int | None:
  """Chooses the batch size to compile next.

  Args:
    trials: batch size -> result of its compilation.
    hbm: bytes of HBM of a core.
    first: the first batch size to try.
    sizes: the batch sizes to choose from, in ascending order.

  Returns:
    One of `sizes`; None if the largest one that fits is known.
  """
  if not trials:
    return sizes[max(0, bisect.bisect_right(sizes, first) - 1)]
  largest_fitting = max((batch for batch in trials if fits(trials[batch])), default=None)
  smallest_too_large = min((batch for batch in trials if not fits(trials[batch])), default=None)
  # The limit is between these two positions in `sizes`.
  low = -1 if largest_fitting is None else sizes.index(largest_fitting)
  high = len(sizes) if smallest_too_large is None else sizes.index(smallest_too_large)
  if high - low <= 1:
    return None
  if len(trials) >= _MAX_INTERPOLATIONS and low >= 0 and high < len(sizes):
    return sizes[(low + high) // 2]
  expected = min(_extrapolate_limit(trials, hbm), _MAX_GROWTH * max(trials))
  position = bisect.bisect_right(sizes, expected) - 1
  return sizes[min(max(position, low + 1), high - 1)]


def _extrapolate_limit(trials: Mapping[int, Trial], hbm: int) -> float:
  """Returns the batch size at which a line through the two trials nearest to the memory limit reaches the limit."""
  limit = min((trial["limit"] for trial in trials.values() if not fits(trial)), default=hbm)
  batch, *others = sorted(trials, key=lambda size: abs(bytes_used(trials[size]) - limit))
  used = bytes_used(trials[batch])
  if others:
    bytes_per_sequence = (used - bytes_used(trials[others[0]])) / (batch - others[0])
  else:  # The arguments are three numbers per weight, and the gradients are a fourth. The rest depends on the batch.
    bytes_per_sequence = (used - 4 / 3 * trials[batch].get("argument", 0)) / batch
  return batch + (limit - used) / bytes_per_sequence if bytes_per_sequence > 0 else float(GRID[-1])
