"""Data preparation on Apache Beam. Each of Beam's runners writes the same shards as one machine, byte for byte.

    units of text -> instances, by key range -> sorted key ranges -> parts of shards -> shards

Only the steps to "sorted key ranges" and to "shards" move data between machines. The number of the first example of a
key range is the sum of the sizes of the key ranges before it, so every shard gets the same examples as on one machine.

The machine that starts the pipeline reads no text. The workers hash the text that they read, and then every file once
more as a whole. Shards are written only after all files have been found unchanged.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apache_beam as beam
import msgspec
import numpy as np

from albert.data.manifest import ShardInfo
from albert.errors import RunError, UserError
from albert.io import files
from albert.io.records import RecordWriter
from albert.io.workers import Workers
from albert.tokenization.tokenizer import Tokenizer
from data_prep import input_hashes, packing, segments, units
from data_prep.documents import Counts
from data_prep.instances import InstanceMaker, PackedBatch
from data_prep.runners import beam_blocks, beam_flags
from data_prep.runners.base import PreparedShards, Runner, check_counts, check_shards
from data_prep.runners.beam_blocks import ShuffleBlock
from data_prep.runners.job import Job
from data_prep.runners.workspace import UnusableTextError, Workspace
from data_prep.settings import PreparationSettings
from data_prep.sorting import shards
from data_prep.text_files import is_gzip
from data_prep.units import TextUnit

# Tags of additional outputs of MakeInstances.
_SUMMARY = "summary"
_RECORDS = "records"
# The last step of a pipeline writes its result to one of these files.
_RESULT_FILE = "beam-result.json"
_HASHES_FILE = ".input-hashes.json"
# Approximate bytes of the instances in one key range. A machine sorts a key range in memory.
_KEY_RANGE_BYTES = 32 << 20
# A process gathers this many bytes of instances before it passes them to the shuffle.
_GATHERED_BYTES = 64 << 20
# Approximate bytes of packed instances (uint16 words) for a byte of text, at 4.4 characters a token.
_PACKED_BYTES_PER_TEXT_BYTE = 0.75
# Approximate bytes of text for a byte of a GZIP file.
_TEXT_BYTES_PER_GZIP_BYTE = 4

# Finds an error of a worker in the text of the exception that a Beam runner raises for it.
_ERRORS = {error.__name__: error for error in (UserError, UnusableTextError, RunError)}
_ERROR = re.compile(rf"\b({'|'.join(_ERRORS)}): (.+?)(?: \[while running .*)?$", re.MULTILINE)

# Beam adds this text to exceptions that a step's own code raised.
_IN_STEP = "[while running"
_LONGEST_REASON = 300

# One element of the pipeline's input: a unit of text, or a whole GZIP file (its ordinal and path).
PipelineInput = TextUnit | tuple[int, str]

_Result = TypeVar("_Result")


class MakeInstances(beam.DoFn):
  """Turns units of text, or whole GZIP files, into pairs (key range, ShuffleBlock).

  There are two additional outputs: a summary for each unit, and for each range of text that was read a pair (ordinal of
  the file, (whether the range is the unit's own and not a donor, input_hashes.RangeHash)).

  Args:
    settings: the job's settings.
    spm_model: the SentencePiece model's bytes, which are sent to the workers with the pipeline.
    num_key_ranges: all keys are divided into this many ranges.
  """

  def __init__(self, settings: PreparationSettings, spm_model: bytes, num_key_ranges: int):
    self._settings = settings
    self._spm_model = spm_model
    self._num_key_ranges = num_key_ranges
    self._maker: InstanceMaker | None = None
    self._gathered: list[ShuffleBlock] = []

  def setup(self) -> None:
    """Opens the tokenizer of this process."""
    with tempfile.TemporaryDirectory() as directory:
      path = Path(directory) / "spiece.model"
      path.write_bytes(self._spm_model)
      self._maker = InstanceMaker(self._settings, str(path))

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
    for is_own, values in ((True, record["ranges"]), (False, record["donors"])):
      for value in values:
        yield beam.pvalue.TaggedOutput(_RECORDS, (value[0], (is_own, value)))
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
        yield from self._emit()
    summary = {**dataclasses.asdict(counts), "label_0": int(labels[0]), "label_1": int(labels[1])}
    yield beam.pvalue.TaggedOutput(_SUMMARY, summary)

  def _emit(self) -> Iterator[tuple[int, ShuffleBlock]]:
    """Yields the gathered instances by key range."""
    if self._gathered:
      yield from beam_blocks.split_by_key_range(beam_blocks.concatenate(self._gathered), self._num_key_ranges)
    self._gathered = []

  def finish_bundle(self) -> Iterator[Any]:
    """Yields the instances that are left."""
    for element in self._emit():
      yield beam.transforms.window.GlobalWindows.windowed_value(element)


def _to_block(batch: PackedBatch, origin: int) -> ShuffleBlock:
  origins = np.full(batch.keys.shape, origin, np.uint64)
  return ShuffleBlock(batch.keys, origins, batch.sizes.astype(np.uint32), batch.words)


def _units_of_gzip_file(ordinal: int, path: str) -> Iterator[TextUnit]:
  for index, (text_range, bytes_read) in enumerate(units.gzip_ranges(path, ordinal)):
    yield TextUnit(index, (text_range,), (), bytes_read)


def _add_summaries(summaries: Iterable[Mapping[str, int]]) -> dict[str, int]:
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
    ranges_of_file: the file's ordinal, and for each range that was read (whether it is a unit's own, RangeHash).
    job: the job.
    sizes: bytes of each input file when the job began.

  Returns:
    The file's ordinal and its entry for the manifest.
  """
  ordinal, values = ranges_of_file
  hashes = [(is_own, input_hashes.RangeHash(*value)) for is_own, value in values]
  ranges = tuple(item for is_own, item in hashes if is_own)
  donors = tuple(item for is_own, item in hashes if not is_own)
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
    RunError: the runner lost files.
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
  number, unsorted_blocks = blocks_of_range
  num_examples = sum(sizes.values())
  first_example = sum(size for other, size in sizes.items() if other < number)
  block = beam_blocks.sort_blocks(unsorted_blocks)
  for shard, first, part in beam_blocks.split_by_shard(block, first_example, num_examples, num_shards):
    yield shard, (first, part)


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
    for _, block in sorted(unsorted_parts, key=lambda part: part[0]):
      starts = np.cumsum(block.sizes, dtype=np.int64) - block.sizes
      lengths = settings.max_seq_length, settings.max_predictions_per_seq
      packing.write_examples(writer, block.words, starts, *lengths)
  return dataclasses.asdict(ShardInfo(name, writer.num_records, writer.num_bytes, writer.sha256))


def _pipeline_inputs(job: Job) -> list[PipelineInput]:
  """The units of text of a job. A GZIP file, which can only be read from its beginning, is a single element.

  Raises:
    UserError: the settings need the neighbours of a document, and the document is in a GZIP file.
  """
  gzip_files = [(i, path) for i, path in enumerate(job.inputs) if is_gzip(path)]
  if not gzip_files:
    with_donors = job.settings.sentence_prediction == segments.NSP
    return list(units.plan_units(list(job.inputs), with_donors=with_donors))
  if job.settings.rules.crosses_documents:
    raise UserError(
      f"--input_file: {gzip_files[0][1]} is a GZIP file: with --runner=beam, nsp and full_sentences accept only .txt "
      "files, since they need the neighbours of each document; decompress the files, or use sop"
    )
  # The instances of a document do not depend on its unit here, so the units need not be those of a local run.
  plain_files = [(i, path) for i, path in enumerate(job.inputs) if not is_gzip(path)]
  ranges = [item for i, path in plain_files for item in units.plain_ranges(path, i)]
  return [*gzip_files, *(TextUnit(0, (text_range,), (), bytes_read) for text_range, bytes_read in ranges)]


def num_key_ranges(job: Job) -> int:
  """The number of key ranges, chosen so that each has about _KEY_RANGE_BYTES of instances."""
  text_bytes = sum(files.size(path) * (_TEXT_BYTES_PER_GZIP_BYTE if is_gzip(path) else 1) for path in job.inputs)
  packed_bytes = text_bytes * _PACKED_BYTES_PER_TEXT_BYTE * job.settings.dupe_factor
  return max(1, round(packed_bytes / _KEY_RANGE_BYTES))


def build(pipeline: beam.Pipeline, job: Job, spm_model: bytes, result_file: str) -> None:
  """Adds all steps of data preparation to a pipeline. The last step writes `result_file`."""
  sizes = [files.size(path) for path in job.inputs]
  instances = (
    pipeline
    | "Units" >> beam.Create(_pipeline_inputs(job))
    | "Spread" >> beam.Reshuffle()
    | "Make instances"
    >> beam.ParDo(MakeInstances(job.settings, spm_model, num_key_ranges(job))).with_outputs(
      _SUMMARY, _RECORDS, main="blocks"
    )
  )
  key_range_sizes = (
    instances.blocks
    | "Count" >> beam.Map(lambda element: (element[0], int(element[1].keys.size)))
    | "Add counts" >> beam.CombinePerKey(sum)
  )
  entries = (
    instances[_RECORDS] | "Gather records" >> beam.GroupByKey() | "Check input" >> beam.Map(check_input, job, sizes)
  )
  checked = (
    instances[_SUMMARY]
    | "Add summaries" >> beam.CombineGlobally(_add_summaries)
    | "Check" >> beam.Map(check_before_writing, beam.pvalue.AsDict(entries), job)
  )
  infos = (
    instances.blocks
    | "Shuffle by key" >> beam.GroupByKey()
    | "Sort" >> beam.FlatMap(sort_key_range, beam.pvalue.AsDict(key_range_sizes), job.num_shards)
    | "Shuffle by shard" >> beam.GroupByKey()
    | "Write shards" >> beam.Map(write_shard, beam.pvalue.AsSingleton(checked), job)
    | "List shards" >> beam.combiners.ToList()
  )

  def write_result(infos: list[dict[str, Any]], checked: dict[str, Any]) -> None:
    files.write_json(result_file, {**checked, "infos": sorted(infos, key=lambda info: info["file"])})

  _ = infos | "Write result" >> beam.Map(write_result, beam.pvalue.AsSingleton(checked))


class _ShardsResult(msgspec.Struct):
  infos: list[ShardInfo]
  labels: list[int]
  counts: Counts
  inputs: list[dict[str, Any]]


class _HashesResult(msgspec.Struct):
  inputs: list[dict[str, Any]]


def _run_pipeline(pipeline: beam.Pipeline, result_file: str, schema: type[_Result]) -> _Result:
  """Runs a pipeline.

  Args:
    pipeline: the pipeline.
    result_file: the JSON file that its last step writes.
    schema: the type of the file's contents.

  Returns:
    The contents of the file.

  Raises:
    UserError: a worker found bad input.
    RunError: a worker's disk or system failed, or the runner ended without a result.
  """
  if files.exists(result_file):
    files.remove(result_file)
  try:
    state = pipeline.run().wait_until_finish()
  except Exception as error:  # every Beam runner wraps a worker's error in an exception of its own
    worker_error = _ERROR.search(f"{type(error).__name__}: {error}")
    if worker_error is not None:
      raise _ERRORS[worker_error[1]](worker_error[2]) from error
    if _IN_STEP in str(error):  # a fault of this program: its traceback is useful
      raise
    reason = next(iter(str(error).splitlines()), "")[:_LONGEST_REASON]
    raise RunError(
      f"Beam's runner failed ({type(error).__name__}: {reason}): check its flags after -- and its log"
    ) from error
  if not files.exists(result_file):
    raise RunError(f"the runner ended ({state}) without a result: look at its log, and run the same command again")
  return files.read_json(result_file, schema)


def make_shards(
  job: Job, workspace: Workspace, tokenizer: Tokenizer, workers: Workers, *, flags: tuple[str, ...] = ()
) -> PreparedShards:
  """Writes the shards of a job with Apache Beam.

  Args:
    job: the job.
    workspace: the job's workspace, open.
    tokenizer: not used.
    workers: not used.
    flags: Beam's own flags.

  Raises:
    UserError: bad input.
    RunError: a disk or system failed, or the runner lost or repeated work.
  """
  del tokenizer, workers
  with files.open_file(job.spm_model_file) as file:
    spm_model = file.read()
  pipeline = beam_flags.make_pipeline(flags)
  result_file = workspace.file(_RESULT_FILE)
  build(pipeline, job, spm_model, result_file)
  result = _run_pipeline(pipeline, result_file, _ShardsResult)
  check_shards(job, result.infos, sum(result.labels))
  return PreparedShards(result.counts, result.labels, result.infos, result.inputs)


def hash_inputs(
  job: Job, workspace: Workspace, workers: Workers, *, flags: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
  """The name, size and SHA-256 of each input file as it is now, in order. The runner's machines hash the files."""
  del workspace, workers
  result_file = files.join(job.output_dir, _HASHES_FILE)
  pipeline = beam_flags.make_pipeline(flags)

  def write_result(entries: list[tuple[int, dict[str, Any]]]) -> None:
    files.write_json(result_file, {"inputs": [entry for _, entry in sorted(entries, key=lambda item: item[0])]})

  _ = (
    pipeline
    | "Files" >> beam.Create(list(enumerate(job.inputs)))
    | "Spread" >> beam.Reshuffle()
    | "Hash" >> beam.MapTuple(lambda ordinal, path: (ordinal, input_hashes.hash_file(path)))
    | "List" >> beam.combiners.ToList()
    | "Write result" >> beam.Map(write_result)
  )
  result = _run_pipeline(pipeline, result_file, _HashesResult)
  files.remove(result_file)
  return result.inputs


def make_runner(flags: tuple[str, ...] = ()) -> Runner:
  """The runner that carries out jobs with Apache Beam.

  Args:
    flags: Beam's own flags. They select Beam's runner, by default DirectRunner.

  Raises:
    UserError: the flags are wrong.
  """
  beam_flags.make_pipeline(flags)  # checks the flags before any text is read
  return Runner(functools.partial(make_shards, flags=flags), functools.partial(hash_inputs, flags=flags))
