"""The interface of a runner, and the checks that every runner makes before and after it writes shards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from albert.data.shard_files.manifest import Manifest, ShardInfo
from albert.errors import RunError
from albert.io import files
from albert.io.parallel.workers import WorkerPool
from albert.io.wording import counted
from albert.tokenization.tokenizer import Tokenizer
from data_prep.documents import Counts
from data_prep.examples import segments
from data_prep.examples.settings import PreparationSettings
from data_prep.runners.job import KIND, Job
from data_prep.runners.workspace import UnusableTextError, Workspace
from data_prep.sorting.shards import shard_bounds


class PreparedShards(NamedTuple):
  """The result of a runner.

  Attributes:
    counts: numbers of documents and tokens in the text.
    labels: number of examples with label 0, and with label 1.
    infos: the manifest's entries for the shards, in order.
    input_files: the manifest's entries for the input files (name, size, SHA-256), in order. These are the files that
      the user gave, also if they were converted or decompressed.
  """

  counts: Counts
  labels: list[int]
  infos: list[ShardInfo]
  input_files: Sequence[Mapping[str, Any]]


# Takes the manifest's entries of the text files that the examples are made from, and returns those of the input files.
# They are the same unless input files are converted or decompressed first.
InputEntries = Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]


def same_entries(entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
  """The `InputEntries` of a job whose input files are read as they are."""
  return entries


Argument = TypeVar("Argument")
Result = TypeVar("Result")


class RunTasks(Protocol):
  """Calls a function for each of some arguments. See `data_prep.conversion.convert.RunTasks`."""

  def __call__(
    self,
    workspace: Workspace,
    workers: WorkerPool,
    function: Callable[[Argument], Result],
    arguments: Sequence[Argument],
    schema: type[Result],
  ) -> Iterable[tuple[Argument, Result]]: ...


class Runner(NamedTuple):
  """A way to carry out a job.

  Attributes:
    open_workers: starts the processes, or connects to them. They are an argument of the other three functions.
    make_shards: writes the shards of a job. Its last argument tells which input files the text was made from.
    hash_inputs: returns the name, size and SHA-256 of each input file as it is now, in order.
    run_tasks: calls a function for each of some arguments.
  """

  open_workers: Callable[[Job], AbstractContextManager[WorkerPool]]
  make_shards: Callable[[Job, Workspace, Tokenizer, WorkerPool, InputEntries], PreparedShards]
  hash_inputs: Callable[[Job, Workspace, WorkerPool], list[dict[str, Any]]]
  run_tasks: RunTasks


def check_counts(counts: Counts, num_examples: int, settings: PreparationSettings) -> None:
  """Checks that the text was enough for the settings.

  Args:
    counts: numbers of documents and tokens in the text.
    num_examples: number of examples made from it.
    settings: the job's settings.

  Raises:
    UnusableTextError: the text gave no examples, or NSP was requested for a single document.
  """
  if settings.sentence_prediction == segments.NSP and counts.documents - counts.cut < 2:
    raise UnusableTextError(
      "--sentence_prediction=nsp needs at least two documents, but the text is a single one: "
      "put blank lines between documents, or use sop"
    )
  if num_examples == 0:
    raise UnusableTextError(
      f"--input_file: no example in {counted(counts.documents, 'document')} of {counts.tokens} tokens: "
      "every document needs at least two words (one word with --sentence_prediction=none)"
    )


def check_shards(job: Job, infos: Sequence[ShardInfo], num_examples: int) -> None:
  """Checks a runner's list of shards against the number of examples counted before the shuffle.

  Args:
    job: the job that the shards belong to.
    infos: the manifest's entries for the shards, in the order of their names.
    num_examples: number of examples made from the text.

  Raises:
    RunError: shards or examples are missing or superfluous, or a file is missing or has the wrong size.
  """
  problem = _shard_problem(job, infos, num_examples)
  if problem:
    raise RunError(f"the runner lost or repeated work: {problem}: no manifest was written; run the same command again")


def _shard_problem(job: Job, infos: Sequence[ShardInfo], num_examples: int) -> str:
  """Returns the first problem that `check_shards` finds; "" if there is none."""
  expected_names = [job.shard_name(index) for index in range(job.num_shards)]
  names = [info.file for info in infos]
  if names != expected_names:
    # If the names are the same, they are repeated or in another order.
    wrong_names = sorted({*expected_names} ^ {*names}) or names
    return (
      f"{len(names)} shards instead of {len(expected_names)} ({wrong_names[0]} and others are missing, unknown or "
      "repeated)"
    )
  num_written = sum(info.examples for info in infos)
  if num_written != num_examples:
    return f"{num_written} examples in the shards, but {num_examples} were made from the text"
  bounds = shard_bounds(num_examples, job.num_shards)
  for info, (start, end) in zip(infos, itertools.pairwise(bounds), strict=True):
    path = files.join(job.output_dir, info.file)
    if info.examples != end - start:
      return f"{info.examples} examples in {info.file}, which should have {end - start}"
    if not files.exists(path) or files.size(path) != info.bytes:
      return f"{path} is missing or does not have its {info.bytes} bytes"
  return ""


def make_manifest(
  settings: dict[str, Any], tokenizer: Tokenizer, prepared: PreparedShards, reading: dict[str, Any] | None
) -> Manifest:
  """Makes the manifest of finished shards.

  Args:
    settings: everything that the shards depend on, see `Workspace.shard_settings`.
    tokenizer: the tokenizer of the job.
    prepared: the runner's result.
    reading: what was read and left out when the input files were converted; None if they were not.
  """
  counts = prepared.counts
  return Manifest(
    kind=KIND,
    settings=settings,
    vocab_sha256=tokenizer.sha256,
    vocab_size=tokenizer.vocab_size,
    vocab_kind=tokenizer.vocabulary.kind,
    num_documents=counts.documents,
    num_tokens=counts.tokens,
    num_dropped_documents=counts.dropped,
    num_cut_documents=counts.cut,
    num_unknown_tokens=counts.unknown,
    reading=reading,
    label_counts={str(label): number for label, number in enumerate(prepared.labels)},
    shards=tuple(prepared.infos),
  )
