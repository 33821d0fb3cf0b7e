"""Data preparation on Apache Beam. Each of Beam's runners writes the same shards as one machine, byte for byte.

    units of text -> blocks of instances, by key range -> sorted key ranges -> parts of shards -> shards

Each instance has a random 64-bit key. The examples are in the order of their keys. All keys are divided into key ranges
of equal length, and each key range is sorted on its own. Data move between machines twice: before the key ranges are
sorted, and before the shards are written. The sizes of all key ranges are known before they are cut into parts of
shards, so every shard gets the same examples as on one machine.

The machine that starts the pipeline reads no text. The workers hash the text that they read, and later they hash every
whole file again. Shards are written only after this check has found all files unchanged.

The functions and the class that the workers execute are in `data_prep.runners.beam_steps`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import apache_beam as beam
import msgspec

from albert.data.shard_files.manifest import ShardInfo
from albert.errors import RunError, UserError
from albert.io import files, json_values
from albert.io.parallel.workers import WorkerPool, Workers
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary_files import read_vocabulary_files
from data_prep import input_hashes, units
from data_prep.documents import Counts
from data_prep.examples import segments
from data_prep.runners import beam_flags
from data_prep.runners.base import Argument, InputEntries, PreparedShards, Result, Runner, check_shards
from data_prep.runners.beam_steps import (
  RECORDS,
  SUMMARY,
  MakeInstances,
  PipelineInput,
  add_summaries,
  check_before_writing,
  check_input,
  sort_key_range,
  write_shard,
)
from data_prep.runners.job import Job
from data_prep.runners.workspace import UnusableTextError, Workspace
from data_prep.text.text_files import is_gzip
from data_prep.units import TextUnit

# The last step of a pipeline writes its result to one of these files.
_RESULT_FILE = "beam-result.json"
_HASHES_FILE = ".input-hashes.json"
_TASKS_FILE = "beam-tasks.json"
# Approximate bytes of the instances in one key range.
_KEY_RANGE_BYTES = 32 << 20
# Greatest number of key ranges. With more of them, few of the instances that a process has gathered would be in the
# same key range, and Beam would move many small blocks.
_MAX_KEY_RANGES = 512
# Approximate bytes of packed instances (uint16 words) for a byte of text, at 4.4 characters a token.
_PACKED_BYTES_PER_TEXT_BYTE = 0.75
# Approximate bytes of text for a byte of a GZIP file.
_TEXT_BYTES_PER_GZIP_BYTE = 4

# Beam runners raise exceptions of their own for a worker's error. The pattern finds the worker's error in their text.
_WORKER_ERRORS = {error.__name__: error for error in (UserError, UnusableTextError, RunError)}
_WORKER_ERROR = re.compile(rf"\b({'|'.join(_WORKER_ERRORS)}): (.+?)(?: \[while running .*)?$", re.MULTILINE)
# Beam adds this text to an exception that was raised by a step's own code.
_RAISED_BY_STEP = "[while running"
_MAX_REASON_LENGTH = 300

_Result = TypeVar("_Result")


def _pipeline_inputs(job: Job) -> list[PipelineInput]:
  """Returns the units of text of a job. A GZIP file can only be read from its beginning, so it is a single element.

  Raises:
    UserError: the settings need the neighbours of a document, and the document is in a GZIP file.
  """
  gzip_files = [(ordinal, path) for ordinal, path in enumerate(job.inputs) if is_gzip(path)]
  if not gzip_files:
    with_donors = job.settings.sentence_prediction == segments.NSP
    return list(units.plan_units(list(job.inputs), with_donors=with_donors))
  if job.settings.rules.crosses_documents:
    raise UserError(
      f"--input_file: {gzip_files[0][1]} is a GZIP file: with --runner=beam, nsp and full_sentences accept only .txt "
      "files, since they need the neighbours of each document; decompress the files, or use sop"
    )
  # Here the instances of a document do not depend on its unit, so the units may differ from those of a local run.
  plain_files = [(ordinal, path) for ordinal, path in enumerate(job.inputs) if not is_gzip(path)]
  ranges = [range_and_size for ordinal, path in plain_files for range_and_size in units.plain_ranges(path, ordinal)]
  return [*gzip_files, *(TextUnit(0, (text_range,), (), bytes_read) for text_range, bytes_read in ranges)]


def num_key_ranges(job: Job) -> int:
  """Returns the number of key ranges with which each has about _KEY_RANGE_BYTES of instances, or _MAX_KEY_RANGES."""
  text_bytes = sum(files.size(path) * (_TEXT_BYTES_PER_GZIP_BYTE if is_gzip(path) else 1) for path in job.inputs)
  packed_bytes = text_bytes * _PACKED_BYTES_PER_TEXT_BYTE * job.settings.dupe_factor
  return min(_MAX_KEY_RANGES, max(1, round(packed_bytes / _KEY_RANGE_BYTES)))


def build(pipeline: beam.Pipeline, job: Job, vocabulary: Mapping[str, bytes], result_file: str) -> None:
  """Adds all steps of data preparation to a pipeline.

  Args:
    pipeline: an empty pipeline.
    job: the job.
    vocabulary: the contents of the vocabulary's files, by name.
    result_file: the JSON file that the last step writes, see `_ShardsResult`.
  """
  sizes = [files.size(path) for path in job.inputs]
  instances = (
    pipeline
    | "Units" >> beam.Create(_pipeline_inputs(job))
    | "Spread" >> beam.Reshuffle()
    | "Make instances"
    >> beam.ParDo(MakeInstances(job.settings, vocabulary, num_key_ranges(job))).with_outputs(
      SUMMARY, RECORDS, main="blocks"
    )
  )
  key_range_sizes = (
    instances.blocks
    | "Count" >> beam.MapTuple(lambda key_range, block: (key_range, int(block.keys.size)))
    | "Add counts" >> beam.CombinePerKey(sum)
  )
  entries = (
    instances[RECORDS] | "Gather records" >> beam.GroupByKey() | "Check input" >> beam.Map(check_input, job, sizes)
  )
  checked = (
    instances[SUMMARY]
    | "Add summaries" >> beam.CombineGlobally(add_summaries)
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
  """The contents of the file that the pipeline of `build` writes."""

  infos: list[ShardInfo]
  labels: list[int]
  counts: Counts
  inputs: list[dict[str, Any]]


class _TaskResults(msgspec.Struct):
  """The contents of the file that the pipeline of `run_tasks` writes."""

  results: list[dict[str, Any]]


class _HashesResult(msgspec.Struct):
  """The contents of the file that the pipeline of `hash_inputs` writes."""

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
    worker_error = _WORKER_ERROR.search(f"{type(error).__name__}: {error}")
    if worker_error is not None:
      raise _WORKER_ERRORS[worker_error[1]](worker_error[2]) from error
    if _RAISED_BY_STEP in str(error):  # a fault of this program: its traceback is useful
      raise
    reason = next(iter(str(error).splitlines()), "")[:_MAX_REASON_LENGTH]
    raise RunError(
      f"Beam's runner failed ({type(error).__name__}: {reason}): check its flags after -- and its log"
    ) from error
  if not files.exists(result_file):
    raise RunError(f"the runner ended ({state}) without a result: look at its log, and run the same command again")
  return files.read_json(result_file, schema)


def make_shards(
  job: Job,
  workspace: Workspace,
  tokenizer: Tokenizer,
  workers: WorkerPool,
  input_entries: InputEntries,
  *,
  flags: tuple[str, ...] = (),
) -> PreparedShards:
  """Writes the shards of a job with Apache Beam.

  Args:
    job: the job.
    workspace: the job's workspace, open.
    tokenizer: not used.
    workers: not used.
    input_entries: returns the entries of the input files for those of job.inputs.
    flags: Beam's own flags.

  Raises:
    UserError: bad input.
    RunError: a disk or system failed, or the runner lost or repeated work.
  """
  del tokenizer, workers
  pipeline = beam_flags.make_pipeline(flags)
  result_file = workspace.file_path(_RESULT_FILE)
  build(pipeline, job, read_vocabulary_files(job.spm_model_file), result_file)
  result = _run_pipeline(pipeline, result_file, _ShardsResult)
  check_shards(job, result.infos, sum(result.labels))
  return PreparedShards(result.counts, result.labels, result.infos, input_entries(result.inputs))


def hash_inputs(
  job: Job, workspace: Workspace, workers: WorkerPool, *, flags: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
  """Returns the name, size and SHA-256 of each input file as it is now, in order. Beam's workers read the files.

  Args:
    job: the job.
    workspace: not used.
    workers: not used.
    flags: Beam's own flags.
  """
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


def run_tasks(
  workspace: Workspace,
  workers: WorkerPool,
  function: Callable[[Argument], Result],
  arguments: Sequence[Argument],
  schema: type[Result],
  *,
  flags: tuple[str, ...] = (),
) -> list[tuple[Argument, Result]]:
  """Calls a function for each argument on Beam's workers.

  Args:
    workspace: the job's workspace, open.
    workers: not used.
    function: a function of a module.
    arguments: its arguments.
    schema: the type of its results.
    flags: Beam's own flags.
  """
  del workers
  if not arguments:
    return []
  result_file = workspace.file_path(_TASKS_FILE)
  pipeline = beam_flags.make_pipeline(flags)

  def write_result(results: list[tuple[int, Any]]) -> None:
    files.write_json(result_file, {"results": [result for _, result in sorted(results, key=lambda item: item[0])]})

  _ = (
    pipeline
    | "Tasks" >> beam.Create(list(enumerate(arguments)))
    | "Spread" >> beam.Reshuffle()
    | "Run" >> beam.MapTuple(lambda index, argument: (index, msgspec.to_builtins(function(argument))))
    | "List" >> beam.combiners.ToList()
    | "Write result" >> beam.Map(write_result)
  )
  results = _run_pipeline(pipeline, result_file, _TaskResults).results
  if len(results) != len(arguments):
    raise RunError(
      f"the runner lost or repeated work: {len(results)} results of {len(arguments)} tasks: run the same command again"
    )
  values = [json_values.convert(result_file, result, schema) for result in results]
  return list(zip(arguments, values, strict=True))


def make_runner(flags: tuple[str, ...] = ()) -> Runner:
  """Makes the runner that carries out jobs with Apache Beam.

  Args:
    flags: Beam's own flags. They select Beam's runner, by default DirectRunner.

  Raises:
    UserError: the flags are wrong.
  """
  beam_flags.make_pipeline(flags)  # checks the flags before any text is read
  return Runner(
    lambda job: Workers(1),  # not used
    functools.partial(make_shards, flags=flags),
    functools.partial(hash_inputs, flags=flags),
    functools.partial(run_tasks, flags=flags),
  )
