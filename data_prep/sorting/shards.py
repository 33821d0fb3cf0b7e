"""Writes the shards: the examples of all sorted runs in the order of their random keys, cut into equal parts.

For each shard, all runs are merged from the shard's first example to its last one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.data.shard_files.manifest import ShardInfo
from albert.errors import RunError, UserError
from albert.io.records import RecordWriter
from data_prep.examples.packing import write_examples
from data_prep.sorting import merge
from data_prep.sorting.merge import RunSection, merge_runs
from data_prep.sorting.spills import Spill


def check_total(num_examples: int, num_shards: int) -> None:
  """Raises a UserError if there are fewer examples than shards."""
  if num_examples < num_shards:
    raise UserError(
      f"--num_shards={num_shards}: the text gives only {num_examples} examples: lower --num_shards, or add text"
    )


def shard_bounds(num_examples: int, num_shards: int) -> list[int]:
  """Returns the number of each shard's first example, and at the end the number of all examples.

  Shard s holds the examples bounds[s] to bounds[s + 1] - 1. The sizes of shards differ by at most one.
  """
  return [shard * num_examples // num_shards for shard in range(num_shards + 1)]


@dataclasses.dataclass(frozen=True)
class ShardTask:
  """A shard to write.

  Attributes:
    index: number of the shard, from 0.
    path: its file.
    sections: the parts of the sorted runs to read.
    first_key: the smallest key to read.
    last_key: the greatest key to read.
    skip: number of examples to read and skip at the beginning. They belong to the shard before, but their keys are in
      the same bucket as the key of this shard's first example.
    num_examples: number of the shard's examples.
    num_key_ranges: see `merge_runs`.
    max_seq_length: tokens of an example.
    max_predictions_per_seq: masked positions of an example.
    word_type: NumPy type of the words.
    compress: whether to write a GZIP file.
  """

  index: int
  path: str
  sections: tuple[RunSection, ...]
  first_key: int
  last_key: int
  skip: int
  num_examples: int
  num_key_ranges: int
  max_seq_length: int
  max_predictions_per_seq: int
  word_type: str
  compress: bool


class ShardPlan:
  """Finds where each shard begins in the sorted runs.

  The examples are numbered in the order of their keys, and `shard_bounds` gives the number of each shard's first one.
  The tables of the runs give the number of examples with keys below each bucket of keys. A shard is read from the
  bucket that holds its first example.

  Args:
    all_spills: the spill files. They must be few enough to be open at the same time.
    num_shards: number of shards.

  Attributes:
    num_examples: number of examples in all shards.

  Raises:
    UserError: there are fewer examples than shards.
  """

  def __init__(self, all_spills: Sequence[Spill], num_shards: int):
    runs = [(spill, run) for spill in all_spills for run in spill.runs]
    self.num_examples = sum(run.num_instances for _, run in runs)
    check_total(self.num_examples, num_shards)
    num_bytes = sum(run.num_bytes for _, run in runs)
    self._num_key_ranges = 1 + num_bytes // merge.KEY_RANGE_BYTES
    self._runs = runs
    # The runs may have buckets of different sizes. The largest size is used for all runs.
    self._bucket_bits = min(run.bucket_bits for _, run in runs)
    self._bounds = shard_bounds(self.num_examples, num_shards)
    self._find_buckets()
    self._find_blocks()

  def _find_buckets(self) -> None:
    """Finds the buckets that hold the first and the last example of each shard."""
    num_below = np.zeros(1 << self._bucket_bits, np.int64)  # number of examples with keys below each bucket
    for spill, run in self._runs:
      buckets_of_run = 1 << (run.bucket_bits - self._bucket_bits)  # so many of them are in one bucket of num_below
      num_below += spill.table(run).num_below[::buckets_of_run]
    first_examples = np.array(self._bounds[:-1])
    last_examples = np.array(self._bounds[1:]) - 1
    # The bucket of example e is the last one with num_below <= e.
    self._first_buckets = np.searchsorted(num_below, first_examples, side="right") - 1
    self._last_buckets = np.searchsorted(num_below, last_examples, side="right") - 1
    # Number of examples of a shard's first bucket that belong to the shard before.
    self._skips = first_examples - num_below[self._first_buckets]

  def _find_blocks(self) -> None:
    """Finds the block of each run in which each shard's first bucket begins.

    The tables are read a second time, so that only one of them is in memory.
    """
    shape = len(self._runs), len(self._first_buckets)  # [runs, shards]
    self._offsets = np.empty(shape, np.int64)  # of the block in the file; the run's end if there is none
    self._run_skips = np.empty(shape, np.int64)  # number of the block's instances before the bucket
    for run_index, (spill, run) in enumerate(self._runs):
      table = spill.table(run)
      first_instance = table.num_below[self._first_buckets << (run.bucket_bits - self._bucket_bits)]
      block = np.searchsorted(table.block_firsts, first_instance, side="right") - 1  # the block with this instance
      self._offsets[run_index] = np.where(first_instance < run.num_instances, table.block_offsets[block], run.end)
      self._run_skips[run_index] = first_instance - table.block_firsts[block]

  def make_task(
    self, index: int, path: str, max_seq_length: int, max_predictions_per_seq: int, word_type: str, *, compress: bool
  ) -> ShardTask:
    """Makes the task that writes shard `index`. See `ShardTask` for the arguments."""
    offsets, skips = self._offsets[:, index].tolist(), self._run_skips[:, index].tolist()
    sections = tuple(
      RunSection(spill.path, offset, skip, run.end)
      for (spill, run), offset, skip in zip(self._runs, offsets, skips, strict=True)
      if offset < run.end
    )
    key_bits = 64 - self._bucket_bits  # a bucket holds 2 ** key_bits keys
    return ShardTask(
      index=index,
      path=path,
      sections=sections,
      first_key=int(self._first_buckets[index]) << key_bits,
      last_key=(int(self._last_buckets[index]) + 1 << key_bits) - 1,
      skip=int(self._skips[index]),
      num_examples=self._bounds[index + 1] - self._bounds[index],
      num_key_ranges=self._num_key_ranges,
      max_seq_length=max_seq_length,
      max_predictions_per_seq=max_predictions_per_seq,
      word_type=word_type,
      compress=compress,
    )


def write_shard(task: ShardTask) -> ShardInfo:
  """Writes a shard.

  Returns:
    The shard's entry for the manifest.

  Raises:
    RunError: a sorted run is damaged, or the disk failed.
  """
  num_to_skip, num_left = task.skip, task.num_examples  # examples that are still to be skipped, and to be written
  with RecordWriter(task.path, compress=task.compress) as writer:
    for instances in merge_runs(
      task.sections,
      task.word_type,
      first_key=task.first_key,
      last_key=task.last_key,
      num_key_ranges=task.num_key_ranges,
    ):
      starts = instances.starts[num_to_skip : num_to_skip + num_left]
      write_examples(writer, instances.words, starts, task.max_seq_length, task.max_predictions_per_seq)
      num_to_skip = max(0, num_to_skip - instances.starts.size)
      num_left -= starts.size
      if not num_left:
        break
    if num_left:
      raise RunError(f"{task.path}: {num_left} of its {task.num_examples} examples are missing from the sorted runs")
  return ShardInfo(task.path, writer.num_records, writer.num_bytes, writer.sha256)
