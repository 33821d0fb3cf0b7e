"""Writes the shards: the examples of all blocks in the order of their random keys, cut into equal parts.

The examples are numbered in the order of their keys. The tables of the blocks give the number of examples in each range
of keys, and with it the ranges that hold the examples of a shard.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from albert.data.manifest import ShardInfo
from albert.io import files
from albert.io.records import RecordWriter
from data_prep.block_files import Block, KeyRanges, PackedInstances, SortedRun, add_sizes, group_ranges, read_sorted
from data_prep.examples.packing import write_examples
from data_prep.job import Job, record_shard

# A task sorts about this fraction of the instances in memory at a time, with these limits in bytes.
_NUM_STEPS = 256
_MIN_STEP_BYTES, _MAX_STEP_BYTES = 4 << 20, 256 << 20
_RUNS_FILE = "runs.json"


@dataclasses.dataclass(frozen=True)
class ShardsTask:
  """Neighbouring shards to write.

  It has neither the inputs of the job nor the list of all block files, which is in a file of the workspace: with them,
  the tasks of a large text would be too large for a pipeline of Beam.

  Attributes:
    shards: the number of each shard, from 0, and its number of examples.
    job: the job, without its inputs.
    directory: the job's workspace.
    steps: the key ranges that are sorted in memory, one step after the other.
    num_before: number of examples in the first step that belong to the shards before.
    word_type: NumPy type of the words.
    digest: a hash of everything that the shards depend on.
  """

  shards: tuple[tuple[int, int], ...]
  job: Job
  directory: str
  steps: tuple[KeyRanges, ...]
  num_before: int
  word_type: str
  digest: str


class ShardPlan:
  """Says which ranges of keys, in the blocks of the whole text, hold the examples of each shard."""

  def __init__(self, blocks: Sequence[Block], num_shards: int):
    sizes = add_sizes(blocks)
    self._runs = tuple(itertools.chain.from_iterable(block.runs for block in blocks))
    self._num_bytes = sizes.num_bytes
    self._num_below = np.cumsum(sizes.counts) - sizes.counts  # number of examples with keys below each range
    self.num_examples = int(sizes.counts.sum())
    # Shard s holds the examples bounds[s] to bounds[s + 1] - 1. The sizes of shards differ by at most one.
    self._bounds = [shard * self.num_examples // num_shards for shard in range(num_shards + 1)]
    self._step_bytes = min(max(int(sizes.num_bytes.sum()) // _NUM_STEPS, _MIN_STEP_BYTES), _MAX_STEP_BYTES)

  def save_runs(self, directory: str) -> None:
    """Writes the file and the table offset of each sorted run of all blocks to the job's workspace, for the tasks."""
    runs = [[os.path.basename(run.path), run.table_offset] for run in self._runs]
    files.write_json(files.join(directory, _RUNS_FILE), {"runs": runs})

  def _find_range(self, example: int) -> int:
    """Returns the number of the key range that holds an example."""
    return int(np.searchsorted(self._num_below, example, side="right")) - 1

  def group_shards(self, indices: Iterable[int]) -> Iterator[list[int]]:
    """Groups the shards to write. The shards of a group are neighbours, and need a single step if there are several."""
    group: list[int] = []
    for index in indices:
      if group:
        first, last = self._find_range(self._bounds[group[0]]), self._find_range(self._bounds[index + 1] - 1)
        needs_steps = last > first and self._num_bytes[first : last + 1].sum() > self._step_bytes
        if index != group[-1] + 1 or needs_steps:
          yield group
          group = []
      group.append(index)
    if group:
      yield group

  def make_task(self, indices: Sequence[int], job: Job, directory: str, word_type: str, digest: str) -> ShardsTask:
    """Makes the task that writes some neighbouring shards. `directory` is the workspace. See also `ShardsTask`."""
    first_example, end_example = self._bounds[indices[0]], self._bounds[indices[-1] + 1]
    first, last = self._find_range(first_example), self._find_range(end_example - 1)
    steps = tuple(group_ranges(self._num_bytes[: last + 1], self._step_bytes, first))
    shards = tuple((index, self._bounds[index + 1] - self._bounds[index]) for index in indices)
    num_before = first_example - int(self._num_below[first])
    return ShardsTask(shards, dataclasses.replace(job, inputs=()), directory, steps, num_before, word_type, digest)


def write_shards(task: ShardsTask) -> list[ShardInfo]:
  """Writes the shards of a task, each with a record from which a later command sees that it is finished."""
  run_list = files.read_json(files.join(task.directory, _RUNS_FILE))["runs"]
  runs = [SortedRun(files.join(task.directory, name), offset) for name, offset in run_list]
  remaining_steps = iter(task.steps)
  step: PackedInstances | None = None
  num_taken = task.num_before  # examples of the step that are in this shard or an earlier one
  infos = []
  for index, num_examples in task.shards:
    # A cluster may run a task twice at the same time, so the name is unique.
    name = task.job.shard_name(index)
    path = files.staging_path(files.join(task.directory, name))
    with RecordWriter(path, compress=task.job.compress) as writer:
      while writer.num_records < num_examples:
        step = step or read_sorted(runs, next(remaining_steps), task.word_type)
        end = min(num_taken + num_examples - writer.num_records, step.starts.size)
        write_examples(writer, step.words, step.starts[num_taken:end], task.job.settings)
        num_taken = end
        if end == step.starts.size:
          step, num_taken = None, 0  # frees its memory before the next step is read
    infos.append(ShardInfo(name, writer.num_records, writer.num_bytes, writer.sha256))
    files.replace(path, files.join(task.job.output_dir, name))
    record_shard(task.directory, index, infos[-1], task.digest)
  return infos
