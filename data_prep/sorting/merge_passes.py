"""Passes that merge sorted runs until there are few enough to read all of them at the same time.

With n runs and at most f open files there are about log_f(n) passes. Each pass reads and writes all instances once,
sequentially. After a merged run has been synced to the disk, the runs that it was made from are removed. So a pass
needs little more disk space than the runs themselves, and a command that was stopped continues in the middle of a pass.
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
from albert.io.parallel.workers import WorkerPool
from albert.io.progress import Progress
from data_prep.sorting import merge, spills
from data_prep.sorting.spills import Spill, SpillWriter

# Greatest number of runs that are read at the same time. Each needs an open file and memory for one block.
_MAX_OPEN_RUNS = 384
# The key of the merge pass's number in the summary of a merged file.
_LEVEL = "level"


def max_open_runs() -> int:
  """Returns the number of runs that a process may read at the same time: at most half of the files it may open."""
  soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
  return _MAX_OPEN_RUNS if soft_limit == resource.RLIM_INFINITY else max(2, min(_MAX_OPEN_RUNS, soft_limit // 2))


def compute_fan_in(num_runs: int, max_runs: int) -> int:
  """Returns how many runs each merge should combine into one.

  It is the smallest number with which the least possible number of passes leaves at most `max_runs` runs.

  Args:
    num_runs: number of runs before the first pass.
    max_runs: greatest number of runs after the last pass, and greatest number that a merge may read.
  """
  num_passes = 1
  while max_runs**num_passes < num_runs:
    num_passes += 1
  fan_in = max(2, math.ceil(num_runs ** (1 / num_passes)))
  while fan_in > 2 and (fan_in - 1) ** num_passes >= num_runs:  # the root may be too large by a rounding error
    fan_in -= 1
  return fan_in


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
  """Writes a spill file with a single run, which holds the instances of all inputs.

  The file gets the records of all inputs, and the sums of their summaries.

  Raises:
    RunError: an input is damaged, or the disk failed.
  """
  with SpillWriter(task.path, spills.MERGED_BUCKET_BITS) as writer:
    writer.write_run(merge.merge_whole_files(task.inputs, task.word_type, task.key_range_bytes))
    records = [record for spill in task.inputs for record in spill.records()]
    writer.close({**add_summaries(task.inputs), _LEVEL: task.level}, records)
  merged = Spill.load(task.path)
  if merged is None:
    raise RunError(f"{task.path} was damaged after it was written: run the same command again")
  return merged


def add_summaries(all_spills: Iterable[Spill]) -> dict[str, Any]:
  """Adds up the summaries of spill files: "counts" (name -> number) and "labels" (number of each label)."""
  counts: dict[str, int] = {}
  labels = [0, 0]
  for spill in all_spills:
    for name, number in spill.summary["counts"].items():
      counts[name] = counts.get(name, 0) + number
    labels = [total + number for total, number in zip(labels, spill.summary["labels"], strict=True)]
  return {"counts": counts, "labels": labels}


def merge_level(spill: Spill) -> int:
  """Returns the number of the merge pass that wrote the file; 0 for the file of a unit."""
  return int(spill.summary.get(_LEVEL, 0))


def _count_runs(all_spills: Iterable[Spill]) -> int:
  return sum(len(spill.runs) for spill in all_spills)


def _group_neighbours(all_spills: Sequence[Spill], level: int, fan_in: int) -> Iterator[tuple[Spill, ...]]:
  """Yields the groups of neighbouring files that merge pass `level` merges.

  Args:
    all_spills: files of earlier passes and, if an earlier command was stopped, of this pass.
    level: number of the pass, from 1. It merges only files of earlier passes.
    fan_in: about this many runs are in each group.

  Yields:
    Groups of two or more files.
  """
  # A command that was stopped may have written some files of this pass. They separate the sequences of its inputs.
  for is_input, neighbours in itertools.groupby(all_spills, lambda spill: merge_level(spill) < level):
    inputs = list(neighbours)
    if not is_input or len(inputs) < 2:
      continue
    num_groups = min(len(inputs) // 2, math.ceil(_count_runs(inputs) / fan_in))
    bounds = [index * len(inputs) // num_groups for index in range(num_groups + 1)]
    for low, high in itertools.pairwise(bounds):
      yield tuple(inputs[low:high])


def _run_pass(all_spills: list[Spill], tasks: Sequence[MergeTask], workers: WorkerPool) -> list[Spill]:
  """Carries out the tasks of a merge pass, and removes their inputs.

  Returns:
    The files after the pass, in the order of the text. A merged file replaces its inputs.
  """
  merged: dict[str, Spill] = {}  # path of a task's first input -> the merged file
  num_bytes = sum(run.num_bytes for task in tasks for spill in task.inputs for run in spill.runs)
  with Progress(num_bytes, "B", "merging") as progress:
    for task, merged_spill in workers.map(merge_spills, tasks):
      merged[task.inputs[0].path] = merged_spill
      for spill in task.inputs:
        files.remove(spill.path)
      progress.update(merged_spill.runs[0].num_bytes)
  removed = {spill.path for task in tasks for spill in task.inputs}
  remaining = []
  for spill in all_spills:
    if spill.path in merged:
      remaining.append(merged[spill.path])
    elif spill.path not in removed:
      remaining.append(spill)
  return remaining


def merge_until(
  all_spills: Sequence[Spill], directory: str, word_type: str, workers: WorkerPool, *, num_units: int, max_runs: int
) -> list[Spill]:
  """Merges neighbouring spill files until they have at most `max_runs` runs. The inputs are removed.

  Args:
    all_spills: the files of all units of text, in order. Some may be merged already.
    directory: where the merged files are written.
    word_type: NumPy type of the words.
    workers: processes that merge.
    num_units: number of units of text. The passes are planned from this number and not from the number of files, so
      that a command that continues a stopped one makes the same plan.
    max_runs: greatest number of runs in the remaining files.

  Returns:
    The remaining files, in the same order.

  Raises:
    RunError: a file is damaged, or the disk failed.
  """
  remaining = list(all_spills)
  fan_in = compute_fan_in(max(num_units, _count_runs(remaining)), max_runs)
  level = 1
  while _count_runs(remaining) > max_runs and len(remaining) > 1:
    tasks = []
    for group in _group_neighbours(remaining, level, fan_in):
      # A spill file's name ends in the file number and the start of its first unit: ...-00000000-000000000000000.spill.
      first_unit = "-".join(os.path.basename(group[0].path).split("-")[-2:])
      path = files.join(directory, f"merged-{level}-{first_unit}")
      tasks.append(MergeTask(group, path, level, word_type, merge.KEY_RANGE_BYTES))
    remaining = _run_pass(remaining, tasks, workers)
    level += 1
  return remaining
