"""Data preparation on Apache Beam: the same shards as on one machine, byte for byte, by any of Beam's runners.

    units of text -> instances, by stretch of keys -> sorted stretches -> parts of shards -> shards

The two arrows into "stretches" and "shards" are the only ones that move data between machines. A stretch knows its
first example's number from the sizes of the stretches before it, so every shard gets the very examples it gets on one
machine.

The launching machine reads no text. The workers hash what they read, then each file once more as a whole, and no shard
is written before all files are found to be what was read.
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
from data_prep import corpus, inputs, segments, shards
from data_prep.corpus import Counts, Unit
from data_prep.preparation import Packed, Settings, UnitMaker
from data_prep.runners import beam_flags, blocks
from data_prep.runners.blocks import Block
from data_prep.runners.job import Job, Made, Runner, UnusableTextError, Workspace, check_counts, check_shards
from data_prep.text_files import is_gzip

# Tags of outputs.
_SUMMARY = "summary"
_RECORDS = "records"
_RESULT = "beam-result.json"
_HASHES = ".input-hashes.json"
# Bytes of instances that a machine sorts in memory.
_STRETCH_BYTES = 32 << 20
# Instances that a process gathers before it hands them to the shuffle.
_GATHERED_BYTES = 64 << 20
# Bytes of packed instances (uint16 tokens, positions, labels) for one of text, about: 4.4 characters a token.
_PACKED_FOR_TEXT = 0.75
_UNPACKED_FOR_GZIP = 4

# What the workers' errors look like once a runner has passed them on.
_ERRORS = {error.__name__: error for error in (UserError, UnusableTextError, RunError)}
_ERROR = re.compile(rf"\b({'|'.join(_ERRORS)}): (.+?)(?: \[while running .*)?$", re.MULTILINE)

# What Beam adds to the errors of a step's own code.
_IN_STEP = "[while running"
_LONGEST_REASON = 300

# A unit of text, or a whole packed file with its place among the inputs.
Source = Unit | tuple[int, str]

_Result = TypeVar("_Result")


class MakeInstances(beam.DoFn):
  """Units of text, or whole packed files (ordinal, path), to (stretch, Block).

  For each unit comes a tagged summary, and for each text range that it read a tagged (ordinal, is it the unit's own,
  inputs.TextRange).

  Args:
    settings: of the job.
    spm_model: the SentencePiece model's bytes, which travel with the pipeline.
    num_stretches: of keys.
  """

  def __init__(self, settings: Settings, spm_model: bytes, num_stretches: int):
    self._settings = settings
    self._spm_model = spm_model
    self._num_stretches = num_stretches
    self._maker: UnitMaker | None = None
    self._gathered: list[Block] = []

  def setup(self) -> None:
    """Opens the tokenizer of this process."""
    with tempfile.TemporaryDirectory() as directory:
      path = Path(directory) / "spiece.model"
      path.write_bytes(self._spm_model)
      self._maker = UnitMaker(self._settings, str(path))

  def start_bundle(self) -> None:
    """Forgets what an earlier bundle may have left when it failed."""
    self._gathered = []

  def process(self, source: Source) -> Iterator[Any]:
    """One element."""
    if isinstance(source, Unit):
      yield from self._process_unit(source)
      return
    for unit in _units_of_packed(*source):
      yield from self._process_unit(unit)

  def _process_unit(self, unit: Unit) -> Iterator[Any]:
    assert self._maker is not None
    unit, record = inputs.read_unit(unit)
    for is_own, values in ((True, record["ranges"]), (False, record["donors"])):
      for value in values:
        yield beam.pvalue.TaggedOutput(_RECORDS, (value[0], (is_own, value)))
    first = unit.ranges[0]
    where = blocks.origin(first.ordinal, first.start)
    labels = np.zeros(2, np.int64)
    counts = Counts()
    for made in self._maker.packed(unit):
      if isinstance(made, Counts):
        counts = made
        continue
      labels += np.bincount(made.labels, minlength=2)
      self._gathered.append(_block(made, where))
      if sum(block.num_bytes for block in self._gathered) >= _GATHERED_BYTES:
        yield from self._hand_over()
    summary = {**dataclasses.asdict(counts), "label_0": int(labels[0]), "label_1": int(labels[1])}
    yield beam.pvalue.TaggedOutput(_SUMMARY, summary)

  def _hand_over(self) -> Iterator[tuple[int, Block]]:
    if self._gathered:
      yield from blocks.split(blocks.join(self._gathered), self._num_stretches)
    self._gathered = []

  def finish_bundle(self) -> Iterator[Any]:
    """Hands over what is left."""
    for element in self._hand_over():
      yield beam.transforms.window.GlobalWindows.windowed_value(element)


def _block(made: Packed, where: int) -> Block:
  origins = np.full(made.keys.shape, where, np.uint64)
  return Block(made.keys, origins, made.sizes.astype(np.uint32), made.words)


def _units_of_packed(ordinal: int, path: str) -> Iterator[Unit]:
  for index, (part, read) in enumerate(corpus.packed_ranges(path, ordinal)):
    yield Unit(index, (part,), (), read)


def _sum_summaries(summaries: Iterable[Mapping[str, int]]) -> dict[str, int]:
  total: dict[str, int] = {}
  for summary in summaries:
    for name, value in summary.items():
      total[name] = total.get(name, 0) + value
  return total


def check_input(
  read: tuple[int, Iterable[tuple[bool, list[Any]]]], job: Job, sizes: Sequence[int]
) -> tuple[int, dict[str, Any]]:
  """What was read of a file to (ordinal, its entry for the manifest). `sizes`: of the files when the job began."""
  ordinal, values = read
  found = [(is_own, inputs.TextRange(*value)) for is_own, value in values]
  own = tuple(text for is_own, text in found if is_own)
  donors = tuple(text for is_own, text in found if not is_own)
  return ordinal, inputs.check_file(inputs.FileTask(job.inputs[ordinal], sizes[ordinal], own, donors))


def check_made(summary: Mapping[str, int], entries: Mapping[int, dict[str, Any]], job: Job) -> dict[str, Any]:
  """What stands before the writing of shards: the counts as JSON values, when all files are read and checked.

  Raises:
    UserError: the text is too little.
    RunError: the runner lost files.
  """
  missing = [path for ordinal, path in enumerate(job.inputs) if ordinal not in entries]
  if missing:
    raise RunError(f"{missing[0]}: the runner lost the work on {len(missing)} of {len(job.inputs)} files: run it again")
  counts = dict(summary)
  labels = [counts.pop("label_0"), counts.pop("label_1")]
  check_counts(Counts(**counts), sum(labels), job.settings)
  shards.check_total(sum(labels), job.num_shards)
  return {"counts": counts, "labels": labels, "inputs": [entries[ordinal] for ordinal in range(len(job.inputs))]}


def sort_stretch(
  stretch: tuple[int, Iterable[Block]], sizes: Mapping[int, int], num_shards: int
) -> Iterator[tuple[int, tuple[int, Block]]]:
  """A stretch of keys to parts of shards: (shard, (number of the first example, Block)).

  Args:
    stretch: its number, and the blocks of its instances in any order.
    sizes: instances in each stretch.
    num_shards: that all instances make.
  """
  number, unsorted = stretch
  total = sum(sizes.values())
  first = sum(size for other, size in sizes.items() if other < number)
  for shard, rank, part in blocks.cut(blocks.in_order(unsorted), first, total, num_shards):
    yield shard, (rank, part)


def write_shard(
  parts: tuple[int, Iterable[tuple[int, Block]]], made: Mapping[str, Any] | None, job: Job
) -> dict[str, Any]:
  """Writes a shard from its parts; returns its ShardInfo as JSON values. `made` comes when the input is checked."""
  del made
  shard, unsorted = parts
  name = job.shard_name(shard)
  path = files.join(job.output_dir, name)
  settings = job.settings
  with RecordWriter(path, compress=job.compress) as writer:
    for _, block in sorted(unsorted, key=lambda part: part[0]):
      starts = np.cumsum(block.sizes, dtype=np.int64) - block.sizes
      lengths = settings.max_seq_length, settings.max_predictions_per_seq
      shards.write_examples(writer, block.words, starts, *lengths)
  return dataclasses.asdict(ShardInfo(name, writer.num_records, writer.num_bytes, writer.sha256))


def _sources(job: Job) -> list[Source]:
  """What the machines take up, piece by piece. UserError where neighbours would have to come from packed files."""
  packed = [(i, path) for i, path in enumerate(job.inputs) if is_gzip(path)]
  if not packed:
    with_donors = job.settings.sentence_prediction == segments.NSP
    return list(corpus.plan_units(list(job.inputs), with_donors=with_donors))
  if job.settings.rules.crosses_documents:
    raise UserError(
      f"--input_file: {packed[0][1]} is packed: with --runner=beam, nsp and full_sentences take .txt alone, since "
      "they need a document's neighbours; unpack the files, or use sop"
    )
  # Elsewhere what a document gives does not depend on the units.
  plain = [(i, path) for i, path in enumerate(job.inputs) if not is_gzip(path)]
  ranges = [ranged for i, path in plain for ranged in corpus.plain_ranges(path, i)]
  return [*packed, *(Unit(0, (part,), (), read) for part, read in ranges)]


def num_stretches(job: Job) -> int:
  """So many that one holds about _STRETCH_BYTES."""
  text = sum(files.size(path) * (_UNPACKED_FOR_GZIP if is_gzip(path) else 1) for path in job.inputs)
  return max(1, round(text * _PACKED_FOR_TEXT * job.settings.dupe_factor / _STRETCH_BYTES))


def build(pipeline: beam.Pipeline, job: Job, spm_model: bytes, result_file: str) -> None:
  """Adds the whole of data preparation to a pipeline; its last step writes `result_file`."""
  sizes = [files.size(path) for path in job.inputs]
  made = (
    pipeline
    | "Units" >> beam.Create(_sources(job))
    | "Spread" >> beam.Reshuffle()
    | "Make instances"
    >> beam.ParDo(MakeInstances(job.settings, spm_model, num_stretches(job))).with_outputs(
      _SUMMARY, _RECORDS, main="blocks"
    )
  )
  stretch_sizes = (
    made.blocks
    | "Count" >> beam.Map(lambda element: (element[0], int(element[1].keys.size)))
    | "Add counts" >> beam.CombinePerKey(sum)
  )
  entries = made[_RECORDS] | "Gather records" >> beam.GroupByKey() | "Check input" >> beam.Map(check_input, job, sizes)
  checked = (
    made[_SUMMARY]
    | "Add summaries" >> beam.CombineGlobally(_sum_summaries)
    | "Check" >> beam.Map(check_made, beam.pvalue.AsDict(entries), job)
  )
  infos = (
    made.blocks
    | "Shuffle by key" >> beam.GroupByKey()
    | "Sort" >> beam.FlatMap(sort_stretch, beam.pvalue.AsDict(stretch_sizes), job.num_shards)
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


def _run(pipeline: beam.Pipeline, result_file: str, kind: type[_Result]) -> _Result:
  """Runs a pipeline and returns what its last step wrote.

  Args:
    pipeline: what to run.
    result_file: JSON that the last step writes.
    kind: its schema.
  Raises:
    UserError: as the local run.
    RunError: as the local run, or the runner ended without the result.
  """
  if files.exists(result_file):
    files.remove(result_file)
  try:
    state = pipeline.run().wait_until_finish()
  except Exception as error:  # what a runner makes of an error on one of its machines is its own
    found = _ERROR.search(f"{type(error).__name__}: {error}")
    if found is not None:
      raise _ERRORS[found[1]](found[2]) from error
    if _IN_STEP in str(error):  # a fault of this program, whose traceback is of use
      raise
    reason = next(iter(str(error).splitlines()), "")[:_LONGEST_REASON]
    raise RunError(
      f"Beam's runner failed ({type(error).__name__}: {reason}): check its flags after -- and its log"
    ) from error
  if not files.exists(result_file):
    raise RunError(f"the runner ended ({state}) without a result: look at its log, and run the same command again")
  return files.read_json(result_file, kind)


def run(job: Job, workspace: Workspace, tokenizer: Tokenizer, workers: Workers, *, flags: tuple[str, ...] = ()) -> Made:
  """Makes the shards of a job with the runner that Beam's own `flags` name; DirectRunner if none.

  Raises:
    UserError: as the local run.
    RunError: as the local run, or the runner lost or repeated work.
  """
  del tokenizer, workers
  with files.open_file(job.spm_model_file) as file:
    spm_model = file.read()
  pipeline = beam_flags.pipeline_of(flags)
  result_file = workspace.file(_RESULT)
  build(pipeline, job, spm_model, result_file)
  result = _run(pipeline, result_file, _ShardsResult)
  check_shards(job, result.infos, sum(result.labels))
  return Made(result.counts, result.labels, result.infos, result.inputs)


def hash_inputs(
  job: Job, workspace: Workspace, workers: Workers, *, flags: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
  """The input files' entries, as for the manifest, of the files as they are; hashed by the runner's machines."""
  del workspace, workers
  result_file = files.join(job.output_dir, _HASHES)
  pipeline = beam_flags.pipeline_of(flags)

  def write_result(entries: list[tuple[int, dict[str, Any]]]) -> None:
    files.write_json(result_file, {"inputs": [entry for _, entry in sorted(entries, key=lambda item: item[0])]})

  _ = (
    pipeline
    | "Files" >> beam.Create(list(enumerate(job.inputs)))
    | "Spread" >> beam.Reshuffle()
    | "Hash" >> beam.MapTuple(lambda ordinal, path: (ordinal, inputs.hash_file(path)))
    | "List" >> beam.combiners.ToList()
    | "Write result" >> beam.Map(write_result)
  )
  result = _run(pipeline, result_file, _HashesResult)
  files.remove(result_file)
  return result.inputs


def make_runner(flags: tuple[str, ...] = ()) -> Runner:
  """The runner that Beam's own `flags` name; DirectRunner if none. UserError if they are wrong."""
  beam_flags.pipeline_of(flags)  # before any text is read
  return Runner(functools.partial(run, flags=flags), functools.partial(hash_inputs, flags=flags))
