"""The steps of data preparation that Apache Beam's workers execute. `data_prep.runners.beam` joins them to a pipeline.

Workers import the functions and the class from this module. Beam sends them copies of the arguments.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np

from albert.data.shard_files.manifest import ShardInfo
from albert.errors import RunError
from albert.io import files
from albert.io.records import RecordWriter
from data_prep import input_hashes, units
from data_prep.documents import Counts
from data_prep.examples import packing
from data_prep.examples.instances import InstanceMaker, PackedBatch
from data_prep.examples.settings import PreparationSettings
from data_prep.runners import beam_blocks
from data_prep.runners.base import check_counts
from data_prep.runners.beam_blocks import ShuffleBlock
from data_prep.runners.job import Job
from data_prep.sorting import shards
from data_prep.units import TextUnit

# Tags of the additional outputs of MakeInstances.
SUMMARY = "summary"
RECORDS = "records"
# A process gathers this many bytes of instances before it passes them to the shuffle.
_GATHERED_BYTES = 64 << 20

# One element of the pipeline's input: a unit of text, or a whole GZIP file (its ordinal and path).
PipelineInput = TextUnit | tuple[int, str]


class MakeInstances(beam.DoFn):
  """Turns units of text, or whole GZIP files, into pairs (key range, ShuffleBlock).

  There are two additional outputs. SUMMARY has the numbers of documents, tokens and labels of each unit. RECORDS has a
  pair (ordinal of the file, (is_own, input_hashes.RangeHash)) for each range of text that was read; is_own is False for
  the ranges of donors.

  Args:
    settings: the job's settings.
    vocabulary: the contents of the vocabulary's files, by name; they are sent to the workers with the pipeline.
    num_key_ranges: all keys are divided into this many ranges of equal length.
  """

  def __init__(self, settings: PreparationSettings, vocabulary: Mapping[str, bytes], num_key_ranges: int):
    self._settings = settings
    self._vocabulary = vocabulary
    self._num_key_ranges = num_key_ranges
    self._maker: InstanceMaker | None = None
    self._gathered: list[ShuffleBlock] = []  # instances that have not been passed to the shuffle

  def __getstate__(self) -> dict[str, Any]:
    """Returns what Beam sends to workers: no tokenizer and no instances, also after `setup`."""
    return {**self.__dict__, "_maker": None, "_gathered": []}

  def setup(self) -> None:
    """Opens the tokenizer of this process."""
    with tempfile.TemporaryDirectory() as directory:
      paths = [Path(directory) / name for name in self._vocabulary]
      for path in paths:
        path.write_bytes(self._vocabulary[path.name])
      self._maker = InstanceMaker(self._settings, str(paths[0]))

  def start_bundle(self) -> None:
    """Discards the instances of an earlier bundle that failed."""
    self._gathered = []

  def process(self, element: PipelineInput) -> Iterator[Any]:
    """Processes a unit, or all units of a GZIP file."""
    if isinstance(element, TextUnit):
      yield from self._process_unit(element)
      return
    for unit in _units_of_gzip_file(*element):
      yield from self._process_unit(unit)

  def _process_unit(self, unit: TextUnit) -> Iterator[Any]:
    assert self._maker is not None
    unit, record = input_hashes.read_unit(unit)
    for is_own, range_hashes in ((True, record["ranges"]), (False, record["donors"])):
      for range_hash in range_hashes:
        ordinal, *_ = range_hash
        yield beam.pvalue.TaggedOutput(RECORDS, (ordinal, (is_own, range_hash)))
    first = unit.ranges[0]
    origin = beam_blocks.unit_origin(first.ordinal, first.start)
    labels = np.zeros(2, np.int64)
    counts = Counts()
    for batch in self._maker.packed_batches(unit):
      if isinstance(batch, Counts):
        counts = batch
        continue
      labels += np.bincount(batch.labels, minlength=2)
      self._gathered.append(_to_block(batch, origin))
      if sum(block.num_bytes for block in self._gathered) >= _GATHERED_BYTES:
        yield from self._take_gathered()
    summary = {**dataclasses.asdict(counts), "label_0": int(labels[0]), "label_1": int(labels[1])}
    yield beam.pvalue.TaggedOutput(SUMMARY, summary)

  def _take_gathered(self) -> Iterator[tuple[int, ShuffleBlock]]:
    """Yields the gathered instances by key range, and forgets them."""
    if self._gathered:
      yield from beam_blocks.split_by_key_range(beam_blocks.concatenate(self._gathered), self._num_key_ranges)
    self._gathered = []

  def finish_bundle(self) -> Iterator[Any]:
    """Yields the gathered instances that `process` has not yielded."""
    for element in self._take_gathered():
      yield beam.transforms.window.GlobalWindows.windowed_value(element)


def _to_block(batch: PackedBatch, origin: int) -> ShuffleBlock:
  origins = np.full(batch.keys.shape, origin, np.uint64)
  return ShuffleBlock(batch.keys, origins, batch.sizes.astype(np.uint32), batch.words)


def _units_of_gzip_file(ordinal: int, path: str) -> Iterator[TextUnit]:
  for index, (text_range, bytes_read) in enumerate(units.gzip_ranges(path, ordinal)):
    yield TextUnit(index, (text_range,), (), bytes_read)


def add_summaries(summaries: Iterable[Mapping[str, int]]) -> dict[str, int]:
  """Adds up the summaries of units, name by name."""
  total: dict[str, int] = {}
  for summary in summaries:
    for name, value in summary.items():
      total[name] = total.get(name, 0) + value
  return total


def check_input(
  ranges_of_file: tuple[int, Iterable[tuple[bool, list[Any]]]], job: Job, sizes: Sequence[int]
) -> tuple[int, dict[str, Any]]:
  """Checks that a file has not changed since it was read.

  Args:
    ranges_of_file: the file's ordinal, and the pairs (is_own, RangeHash) of `MakeInstances`.
    job: the job.
    sizes: bytes of each input file when the job began.

  Returns:
    The file's ordinal and its entry for the manifest.
  """
  ordinal, own_and_donor_hashes = ranges_of_file
  hashes = [(is_own, input_hashes.RangeHash(*range_hash)) for is_own, range_hash in own_and_donor_hashes]
  ranges = tuple(range_hash for is_own, range_hash in hashes if is_own)
  donors = tuple(range_hash for is_own, range_hash in hashes if not is_own)
  task = input_hashes.FileTask(job.inputs[ordinal], sizes[ordinal], ranges, donors)
  return ordinal, input_hashes.check_file(task)


def check_before_writing(summary: Mapping[str, int], entries: Mapping[int, dict[str, Any]], job: Job) -> dict[str, Any]:
  """Checks the sums of all units. The shards are written only after this step.

  Args:
    summary: the sums of the summaries of all units.
    entries: ordinal -> entry for the manifest, of each checked input file.
    job: the job.

  Returns:
    "counts", "labels" and "inputs" (the entries in order) as JSON values.

  Raises:
    UserError: the text is too short for the settings.
    RunError: the runner lost the work on some files.
  """
  missing = [path for ordinal, path in enumerate(job.inputs) if ordinal not in entries]
  if missing:
    raise RunError(
      f"{missing[0]}: the runner lost the work on {len(missing)} of {len(job.inputs)} files: run the same command again"
    )
  counts = dict(summary)
  labels = [counts.pop("label_0"), counts.pop("label_1")]
  check_counts(Counts(**counts), sum(labels), job.settings)
  shards.check_total(sum(labels), job.num_shards)
  return {"counts": counts, "labels": labels, "inputs": [entries[ordinal] for ordinal in range(len(job.inputs))]}


def sort_key_range(
  blocks_of_range: tuple[int, Iterable[ShuffleBlock]], sizes: Mapping[int, int], num_shards: int
) -> Iterator[tuple[int, tuple[int, ShuffleBlock]]]:
  """Sorts the instances of a key range, and cuts them into parts of shards.

  Args:
    blocks_of_range: the number of the key range, and the blocks of its instances in any order.
    sizes: number of instances in each key range.
    num_shards: number of shards.

  Yields:
    (number of the shard, (number of the part's first example, part)).
  """
  key_range, unsorted_blocks = blocks_of_range
  num_examples = sum(sizes.values())
  first_example = sum(size for other, size in sizes.items() if other < key_range)
  for block in beam_blocks.sort_blocks(unsorted_blocks):
    for shard, first, part in beam_blocks.split_by_shard(block, first_example, num_examples, num_shards):
      yield shard, (first, part)
    first_example += block.keys.size


def write_shard(
  parts_of_shard: tuple[int, Iterable[tuple[int, ShuffleBlock]]], checked: Mapping[str, Any] | None, job: Job
) -> dict[str, Any]:
  """Writes a shard.

  Args:
    parts_of_shard: the number of the shard, and its parts in any order, each with the number of its first example.
    checked: the result of `check_before_writing`. It is not used, but Beam must compute it before it calls this step.
    job: the job.

  Returns:
    The shard's `ShardInfo` as JSON values.
  """
  del checked
  shard, unsorted_parts = parts_of_shard
  name = job.shard_name(shard)
  path = files.join(job.output_dir, name)
  settings = job.settings
  with RecordWriter(path, compress=job.compress) as writer:
    for _, block in sorted(unsorted_parts, key=lambda numbered_part: numbered_part[0]):
      starts = np.cumsum(block.sizes, dtype=np.int64) - block.sizes
      lengths = settings.max_seq_length, settings.max_predictions_per_seq
      packing.write_examples(writer, block.words, starts, *lengths)
  return dataclasses.asdict(ShardInfo(name, writer.num_records, writer.num_bytes, writer.sha256))
