"""Passes that merge the sorted runs of the units into few enough to be read at the same time.

With n runs and at most f files open at once there are log_f(n) passes, each of which reads and writes everything once,
sequentially. A run that is durable takes the place of those it was merged from, which are removed, so a pass needs
little more disk than the runs themselves, and a run that was stopped goes on in the middle of one.
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
from data_prep.runners import spills
from data_prep.runners.spills import RunPart, Spill, SpillWriter

# Runs read at the same time: each costs an open file and a block of memory.
_MAX_OPEN = 384
_LEVEL = "level"


def max_open() -> int:
  """How many runs a process reads at the same time: at most half of the open files it may have."""
  soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  return _MAX_OPEN if soft == resource.RLIM_INFINITY else max(2, min(_MAX_OPEN, soft // 2))


def fan_in(num_runs: int, limit: int) -> int:
  """How many runs to merge into one, so that the fewest passes leave at most `limit`: the smallest such number."""
  passes = 1
  while limit**passes < num_runs:
    passes += 1
  found = max(2, math.ceil(num_runs ** (1 / passes)))
  while found > 2 and (found - 1) ** passes >= num_runs:  # the root may be rounded up
    found -= 1
  return found


@dataclasses.dataclass(frozen=True)
class MergeTask:
  """Neighbouring spill files to merge into one, that file's path, and its level (the passes that made it)."""

  inputs: tuple[Spill, ...]
  path: str
  level: int
  words: str
  stretch_bytes: int


def merge_spills(task: MergeTask) -> Spill:
  """Writes one run with the instances of all inputs, their units' records, and the sums of their summaries.

  Raises:
    RunError: a run is damaged, or the disk failed.
  """
  runs = [(spill, run) for spill in task.inputs for run in spill.runs]
  parts = [RunPart(spill.path, run.begin, 0, run.end) for spill, run in runs]
  num_stretches = 1 + sum(run.num_bytes for _, run in runs) // task.stretch_bytes
  with SpillWriter(task.path, spills.MERGED_BUCKET_BITS) as writer:
    writer.write_run(
      spills.merge(parts, task.words, first_key=0, last_key=spills.LAST_KEY, num_stretches=num_stretches)
    )
    records = [record for spill in task.inputs for record in spill.records()]
    writer.close({**add_summaries(task.inputs), _LEVEL: task.level}, records)
  merged = Spill.load(task.path)
  if merged is None:
    raise RunError(f"{task.path} is damaged since it was written: run the same command again")
  return merged


def add_summaries(all_spills: Iterable[Spill]) -> dict[str, Any]:
  """The sums of the spills' summaries: "counts" (name -> number) and "labels" (numbers)."""
  counts: dict[str, int] = {}
  labels = [0, 0]
  for spill in all_spills:
    for name, number in spill.summary["counts"].items():
      counts[name] = counts.get(name, 0) + number
    labels = [total + number for total, number in zip(labels, spill.summary["labels"], strict=True)]
  return {"counts": counts, "labels": labels}


def level(spill: Spill) -> int:
  return int(spill.summary.get(_LEVEL, 0))


def _num_runs(all_spills: Iterable[Spill]) -> int:
  return sum(len(spill.runs) for spill in all_spills)


def _groups(all_spills: Sequence[Spill], greatest_level: int, size: int) -> Iterator[tuple[Spill, ...]]:
  """Neighbouring files of at most `greatest_level`, in groups of two files or more with about `size` runs each."""
  for is_input, found in itertools.groupby(all_spills, lambda spill: level(spill) <= greatest_level):
    neighbours = list(found)
    if not is_input or len(neighbours) < 2:
      continue
    count = min(len(neighbours) // 2, math.ceil(_num_runs(neighbours) / size))
    bounds = [index * len(neighbours) // count for index in range(count + 1)]
    yield from (tuple(neighbours[low:high]) for low, high in itertools.pairwise(bounds))


def merge_down(
  all_spills: Sequence[Spill], directory: str, words: str, workers: Workers, *, num_units: int, limit: int
) -> list[Spill]:
  """Merges neighbouring files until their runs are at most `limit`; returns the files, in the same order.

  Args:
    all_spills: of all units of text in order; some may be merged already.
    directory: where they are, and where the merged ones go.
    words: type of a word.
    workers: that merge.
    num_units: units of text, from which the passes are planned: the same ones when a stopped run goes on.
    limit: runs that may be left.

  Raises:
    RunError: a file is damaged, or the disk failed.
  """
  current = list(all_spills)
  size = fan_in(max(num_units, _num_runs(current)), limit)
  greatest_level = 0
  while _num_runs(current) > limit and len(current) > 1:
    tasks = []
    for group in _groups(current, greatest_level, size):
      first = "-".join(os.path.basename(group[0].path).split("-")[-2:])
      path = files.join(directory, f"merged-{greatest_level + 1}-{first}")
      tasks.append(MergeTask(group, path, greatest_level + 1, words, spills.STRETCH_BYTES))
    merged: dict[str, Spill] = {}
    num_bytes = sum(run.num_bytes for task in tasks for spill in task.inputs for run in spill.runs)
    with Progress(num_bytes, "B", "merging") as progress:
      for task, made in workers.map(merge_spills, tasks):
        merged[task.inputs[0].path] = made
        for spill in task.inputs:
          files.remove(spill.path)
        progress.update(made.runs[0].num_bytes)
    consumed = {spill.path for task in tasks for spill in task.inputs}
    current = [merged.get(spill.path, spill) for spill in current if spill.path in merged or spill.path not in consumed]
    greatest_level += 1
  return current
