"""Passes that merge sorted runs until there are few enough to read all of them at the same time.

With n runs and at most f open files there are log_f(n) passes. Each pass reads and writes everything once,
sequentially. As soon as a merged run is safely on the disk, the runs that it was made from are removed. So a pass needs
little more disk space than the runs themselves, and a command that was stopped resumes in the middle of a pass.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import resource
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from albert.errors import RunError
from albert.io import files
from albert.io.progress import Progress
from albert.io.workers import Workers
from data_prep.sorting import merge, spills
from data_prep.sorting.merge import LAST_KEY, RunSection, merge_runs
from data_prep.sorting.spills import Spill, SpillWriter

# Runs that are read at the same time. Each needs an open file and memory for one block.
_MAX_OPEN = 384
_LEVEL = "level"


def max_open_runs() -> int:
  """The number of runs that a process reads at the same time: at most half of the files that it may open."""
  soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  return _MAX_OPEN if soft_limit == resource.RLIM_INFINITY else max(2, min(_MAX_OPEN, soft_limit // 2))


def fan_in(num_runs: int, limit: int) -> int:
  """The number of runs to merge into one.

  Returns:
    The smallest number with which the least possible number of passes leaves at most `limit` runs.
  """
  passes = 1
  while limit**passes < num_runs:
    passes += 1
  size = max(2, math.ceil(num_runs ** (1 / passes)))
  while size > 2 and (size - 1) ** passes >= num_runs:  # the computed root may be too large by a rounding error
    size -= 1
  return size


@dataclasses.dataclass(frozen=True)
class MergeTask:
  """Spill files to merge into one.

  Attributes:
    inputs: neighbouring spill files.
    path: the merged file.
    level: the number of the merge pass, from 1.
    word_type: NumPy type of the words.
    key_range_bytes: approximate bytes of instances to hold in memory.
  """

  inputs: tuple[Spill, ...]
  path: str
  level: int
  word_type: str
  key_range_bytes: int


def merge_spills(task: MergeTask) -> Spill:
  """Writes a spill file with one run that holds the instances of all inputs.

  The file has the records of all inputs, and the sums of their summaries.

  Raises:
    RunError: an input is damaged, or the disk failed.
  """
  runs = [(spill, run) for spill in task.inputs for run in spill.runs]
  sections = [RunSection(spill.path, run.begin, 0, run.end) for spill, run in runs]
  num_key_ranges = 1 + sum(run.num_bytes for _, run in runs) // task.key_range_bytes
  with SpillWriter(task.path, spills.MERGED_BUCKET_BITS) as writer:
    writer.write_run(
      merge_runs(sections, task.word_type, first_key=0, last_key=LAST_KEY, num_key_ranges=num_key_ranges)
    )
    records = [record for spill in task.inputs for record in spill.records()]
    writer.close({**add_summaries(task.inputs), _LEVEL: task.level}, records)
  merged = Spill.load(task.path)
  if merged is None:
    raise RunError(f"{task.path} was damaged after it was written: run the same command again")
  return merged


def add_summaries(all_spills: Iterable[Spill]) -> dict[str, Any]:
  """The sums of the spill files' summaries: "counts" (name -> number) and "labels" (number of each label)."""
  counts: dict[str, int] = {}
  labels = [0, 0]
  for spill in all_spills:
    for name, number in spill.summary["counts"].items():
      counts[name] = counts.get(name, 0) + number
    labels = [total + number for total, number in zip(labels, spill.summary["labels"], strict=True)]
  return {"counts": counts, "labels": labels}


def merge_level(spill: Spill) -> int:
  """The number of the merge pass that wrote the file; 0 for the file of a unit."""
  return int(spill.summary.get(_LEVEL, 0))


def _num_runs(all_spills: Iterable[Spill]) -> int:
  return sum(len(spill.runs) for spill in all_spills)


def _groups(all_spills: Sequence[Spill], greatest_level: int, size: int) -> Iterator[tuple[Spill, ...]]:
  """Groups of two or more neighbouring files of at most `greatest_level`, with about `size` runs in each group."""
  for is_input, group in itertools.groupby(all_spills, lambda spill: merge_level(spill) <= greatest_level):
    neighbours = list(group)
    if not is_input or len(neighbours) < 2:
      continue
    count = min(len(neighbours) // 2, math.ceil(_num_runs(neighbours) / size))
    bounds = [index * len(neighbours) // count for index in range(count + 1)]
    yield from (tuple(neighbours[low:high]) for low, high in itertools.pairwise(bounds))


def merge_down(
  all_spills: Sequence[Spill], directory: str, word_type: str, workers: Workers, *, num_units: int, limit: int
) -> list[Spill]:
  """Merges neighbouring spill files until they have at most `limit` runs. The inputs are removed.

  Args:
    all_spills: the files of all units of text, in order. Some may be merged already.
    directory: where the merged files are written.
    word_type: NumPy type of the words.
    workers: processes that merge.
    num_units: number of units of text. The passes are planned from it, so that a command that resumes plans the same.
    limit: greatest number of runs at the end.

  Returns:
    The remaining files, in the same order.

  Raises:
    RunError: a file is damaged, or the disk failed.
  """
  current = list(all_spills)
  size = fan_in(max(num_units, _num_runs(current)), limit)
  greatest_level = 0
  while _num_runs(current) > limit and len(current) > 1:
    tasks = []
    for group in _groups(current, greatest_level, size):
      first_unit = "-".join(os.path.basename(group[0].path).split("-")[-2:])
      path = files.join(directory, f"merged-{greatest_level + 1}-{first_unit}")
      tasks.append(MergeTask(group, path, greatest_level + 1, word_type, merge.KEY_RANGE_BYTES))
    merged: dict[str, Spill] = {}
    num_bytes = sum(run.num_bytes for task in tasks for spill in task.inputs for run in spill.runs)
    with Progress(num_bytes, "B", "merging") as progress:
      for task, merged_spill in workers.map(merge_spills, tasks):
        merged[task.inputs[0].path] = merged_spill
        for spill in task.inputs:
          files.remove(spill.path)
        progress.update(merged_spill.runs[0].num_bytes)
    consumed = {spill.path for task in tasks for spill in task.inputs}
    current = [merged.get(spill.path, spill) for spill in current if spill.path in merged or spill.path not in consumed]
    greatest_level += 1
  return current
