"""Data preparation on Apache Beam: the same shards as on one machine, byte for byte, by any of Beam's runners.

    units of text -> instances, by stretch of keys -> sorted stretches -> parts of shards -> shards

The two arrows into "stretches" and "shards" are the only ones that move data between machines. A stretch knows its
first example's number from the sizes of the stretches before it, so every shard gets the very examples it gets on one
machine.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from albert import files
from albert.data.manifest import ShardInfo
from albert.data.records import RecordWriter
from albert.errors import UserError
from albert.tokenization import Tokenizer
from albert.workers import Workers
from data_prep import blocks, corpus, segments, shards
from data_prep.blocks import Block
from data_prep.corpus import Counts, Unit
from data_prep.job import Job, Made, Workspace, check_counts
from data_prep.preparation import Packed, Settings, UnitMaker

_SUMMARY = "summary"
_RESULT = "beam-result.json"
# Instances that a process gathers before it hands them to the shuffle.
_GATHERED_BYTES = 64 << 20
# Bytes of packed instances (uint16 tokens, positions, labels) for one of text, about: 4.4 characters a token.
_PACKED_FOR_TEXT = 0.75
_UNPACKED_FOR_GZIP = 4

# What the workers' UserError looks like once a runner has passed it on.
_USER_ERROR = re.compile(r"\bUserError: (.+?)(?: \[while running .*)?$", re.MULTILINE)

# A unit of text, or a whole packed file with its place among the inputs.
Source = Unit | tuple[int, str]


class MakeInstances(beam.DoFn):
  """Units of text, or whole packed files (ordinal, path), to (stretch, Block); a tagged summary for each unit.

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
    for unit in [source] if isinstance(source, Unit) else _units_of_packed(*source):
      yield from self._process_unit(unit)

  def _process_unit(self, unit: Unit) -> Iterator[Any]:
    assert self._maker is not None
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


def write_shard(parts: tuple[int, Iterable[tuple[int, Block]]], job: Job) -> dict[str, Any]:
  """Writes a shard from its parts, and returns its ShardInfo as JSON values."""
  shard, unsorted = parts
  name = job.shard_name(shard)
  settings = job.settings
  with RecordWriter(files.join(job.output_dir, name), compress=job.compress) as writer:
    for _, block in sorted(unsorted, key=lambda part: part[0]):
      starts = np.cumsum(block.sizes, dtype=np.int64) - block.sizes
      lengths = settings.max_seq_length, settings.max_predictions_per_seq
      shards.write_examples(writer, block.words, starts, *lengths)
  return dataclasses.asdict(ShardInfo(name, writer.num_records, writer.num_bytes, writer.sha256))


def _sources(job: Job) -> list[Source]:
  """What the machines take up, piece by piece. UserError where neighbours would have to come from packed files."""
  packed = [(i, path) for i, path in enumerate(job.inputs) if corpus.is_packed(path)]
  if not packed:
    with_donors = job.settings.sentence_prediction == segments.NSP
    return list(corpus.plan_units(list(job.inputs), with_donors=with_donors))
  if job.settings.rules.crosses_documents:
    raise UserError(
      f"--input_file: {packed[0][1]} is packed: with --runner=beam, nsp and full_sentences take .txt alone, since "
      "they need a document's neighbours; unpack the files, or use sop"
    )
  # Elsewhere what a document gives does not depend on the units.
  plain = [(i, path) for i, path in enumerate(job.inputs) if not corpus.is_packed(path)]
  ranges = [ranged for i, path in plain for ranged in corpus.plain_ranges(path, i)]
  return [*packed, *(Unit(0, (part,), (), read) for part, read in ranges)]


def num_stretches(job: Job) -> int:
  """So many that one holds about shards.STRETCH_BYTES."""
  text = sum(files.size(path) * (_UNPACKED_FOR_GZIP if corpus.is_packed(path) else 1) for path in job.inputs)
  return max(1, round(text * _PACKED_FOR_TEXT * job.settings.dupe_factor / shards.STRETCH_BYTES))


def build(pipeline: beam.Pipeline, job: Job, spm_model: bytes, result_file: str) -> None:
  """Adds the whole of data preparation to a pipeline; its last step writes `result_file`."""
  made = (
    pipeline
    | "Units" >> beam.Create(_sources(job))
    | "Spread" >> beam.Reshuffle()
    | "Make instances"
    >> beam.ParDo(MakeInstances(job.settings, spm_model, num_stretches(job))).with_outputs(_SUMMARY, main="blocks")
  )
  sizes = (
    made.blocks
    | "Count" >> beam.Map(lambda element: (element[0], int(element[1].keys.size)))
    | "Add counts" >> beam.CombinePerKey(sum)
  )
  infos = (
    made.blocks
    | "Shuffle by key" >> beam.GroupByKey()
    | "Sort" >> beam.FlatMap(sort_stretch, beam.pvalue.AsDict(sizes), job.num_shards)
    | "Shuffle by shard" >> beam.GroupByKey()
    | "Write shards" >> beam.Map(write_shard, job)
    | "List shards" >> beam.combiners.ToList()
  )
  summary = made[_SUMMARY] | "Add summaries" >> beam.CombineGlobally(_sum_summaries)

  def write_result(infos: list[dict[str, Any]], summary: dict[str, int]) -> None:
    files.write_json(result_file, {"summary": summary, "infos": sorted(infos, key=lambda info: info["file"])})

  _ = infos | "Write result" >> beam.Map(write_result, beam.pvalue.AsSingleton(summary))


def run(job: Job, workspace: Workspace, tokenizer: Tokenizer, workers: Workers, *, flags: tuple[str, ...] = ()) -> Made:
  """Makes the shards of a job with the runner that Beam's own `flags` name; DirectRunner if none.

  Raises:
    UserError: as the local run.
  """
  del tokenizer, workers
  with files.open_file(job.spm_model_file) as file:
    spm_model = file.read()
  pipeline = beam.Pipeline(options=PipelineOptions(list(flags)))
  build(pipeline, job, spm_model, workspace.file(_RESULT))
  try:
    pipeline.run().wait_until_finish()
  except Exception as error:  # what a runner makes of an error on one of its machines is its own
    found = _USER_ERROR.search(f"{type(error).__name__}: {error}")
    if found is None:
      raise
    raise UserError(found[1]) from error
  result = files.read_json(workspace.file(_RESULT))
  summary = dict(result["summary"])
  labels = [summary.pop("label_0"), summary.pop("label_1")]
  counts, infos = Counts(**summary), [ShardInfo(**info) for info in result["infos"]]
  try:
    check_counts(counts, sum(labels), job.settings)
    shards.check_total(sum(labels), job.num_shards)
  except UserError:
    for info in infos:
      files.remove(files.join(job.output_dir, info.file))
    raise
  return Made(counts, labels, infos)
