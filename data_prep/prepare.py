"""The story of data preparation: text -> documents -> instances -> one sorted file for each block -> shards.

Each step calls a function for many items in a pool: processes of this machine, a Ray cluster, or Apache Beam. A call
reads files and writes another one under a temporary name, so it may be repeated or be killed at any time. A job that
was stopped continues with the finished files, and after a change of the input only the blocks that the change affects
are made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from albert.data.manifest import Manifest, ShardInfo
from albert.errors import RunError, UserError
from albert.io import files
from albert.io.progress import Progress
from albert.io.text import counted
from albert.io.workers import WorkerPool, Workers
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from data_prep import blocks, input_hashes, shards
from data_prep.block_files import Block
from data_prep.conversion.convert import NO_TEXT_MESSAGE, convert_inputs, print_report
from data_prep.documents import Counts
from data_prep.examples import packing, segments
from data_prep.examples.settings import PreparationSettings
from data_prep.readers import formats
from data_prep.runners import gzip_text
from data_prep.runners.gzip_text import GzipTask
from data_prep.runners.job import KIND, Job, OpenPool
from data_prep.runners.workspace import UnusableTextError, Workspace, resume
from data_prep.text import text_checks
from data_prep.text.text_files import is_gzip

# Threads that read the ends of block files, which takes long for many files on a remote file system.
_NUM_READERS = 16


def open_workers(job: Job, initializer: Callable[..., None], arguments: tuple[Any, ...]) -> Workers:
  """Returns the processes of this machine that carry out a job. See `OpenPool`."""
  return Workers(job.num_processes, initializer, arguments)


def prepare(job: Job, open_pool: OpenPool = open_workers) -> Manifest:
  """Writes the shards of a job and their manifest. If an earlier command was stopped, this one continues its work.

  Args:
    job: the job.
    open_pool: the processes that carry out the job, by default those of this machine.

  Returns:
    The manifest, which is also in job.output_dir.

  Raises:
    UserError: bad input, or output_dir holds a run with other settings.
    RunError: the disk or the system failed. Finished files are kept, and the same job continues with them.
  """
  job, tokenizer = _load_tokenizer(job)
  workspace = Workspace(job, tokenizer.sha256)
  with _finished_files_kept(job, workspace):
    # ---- check the first bytes of all files, and look for what an earlier command has finished
    direct_paths, converted_paths = formats.split_by_conversion(job.inputs, job.reading)
    _print_warnings(text_checks.check_inputs(direct_paths, tokenizer))
    formats.check_inputs(converted_paths, job.reading)
    files.makedirs(job.output_dir)
    with open_pool(job, blocks.start_worker, (job.settings, job.spm_model_file)) as pool:
      manifest = resume(job, workspace, lambda: _hash_files(job.inputs, pool))
      if manifest is not None:
        return manifest

      # ---- read: every input file becomes text with a sentence on each line and a blank line after each document
      text, reading_report = _convert(job, tokenizer, workspace, pool)
      text = _decompress(text, workspace, pool)
      sizes = [files.size(path) for path in text.paths]

      # ---- documents -> instances -> one file for each block of text, sorted by the random keys of the instances
      with text.errors_renamed():
        sorted_blocks = _make_blocks(text.paths, job, workspace, pool)
        counts, labels = _add_summaries(sorted_blocks)
        check_counts(counts, sum(labels), job.settings)
        shards.check_total(sum(labels), job.num_shards)
        text_entries = _check_unchanged(text.paths, sizes, sorted_blocks, pool)
      input_files = text.input_entries(text_entries)

      # ---- shards: the instances of all blocks in the order of the keys, cut into equal parts
      word_type = packing.word_dtype(tokenizer.vocab_size).str
      infos = _write_shards(job, workspace, pool, sorted_blocks, word_type, workspace.shard_digest(input_files))
    check_shards(job, infos, sum(labels))
    settings = workspace.shard_settings(input_files)
    manifest = _make_manifest(settings, tokenizer, counts, labels, infos, reading_report)
    manifest.save(job.output_dir)
    workspace.remove()
    return manifest


def _load_tokenizer(job: Job) -> tuple[Job, Tokenizer]:
  """Loads the tokenizer. Returns the job with the case and accents of the vocabulary, and the tokenizer."""
  config = job.settings.tokenizer_config(job.spm_model_file)
  switches: dict[str, Any] = {"do_lower_case": config.do_lower_case, "keep_accents": config.keep_accents}
  settings = dataclasses.replace(job.settings, **switches)
  return dataclasses.replace(job, settings=settings), load_tokenizer(config)


@contextlib.contextmanager
def _finished_files_kept(job: Job, workspace: Workspace) -> Iterator[None]:
  """Closes the workspace at the end. After bad input, it keeps the files with which corrected input can continue."""
  try:
    with files.convert_errors(job.output_dir, "use"):
      yield
  except UserError as error:
    with contextlib.suppress(OSError, UserError, RunError):
      workspace.keep_finished_files(error)
    raise
  finally:
    workspace.close()


def _print_warnings(warnings: str | None) -> None:
  if warnings:
    print(warnings, file=sys.stderr, flush=True)


# ---- read ----------------------------------------------------------------------------------------------


class _Text(NamedTuple):
  """The text files that the examples are made from.

  Attributes:
    paths: the files, in the order of the input.
    input_entries: takes the manifest's entries of these files, and returns those of the input files.
    originals: path of a decompressed file -> the GZIP file.
  """

  paths: tuple[str, ...]
  input_entries: Callable[[Sequence[Mapping[str, Any]]], Sequence[Mapping[str, Any]]]
  originals: Mapping[str, str]

  @contextlib.contextmanager
  def errors_renamed(self) -> Iterator[None]:
    """Replaces the names of decompressed files by those of the GZIP files in the errors of the user's input."""
    try:
      yield
    except UserError as error:
      message = str(error)
      for text_path, path in self.originals.items():
        message = message.replace(text_path, path)
      if message == str(error):
        raise
      raise type(error)(message) from error


def _hash_files(paths: Sequence[str], pool: WorkerPool) -> list[dict[str, Any]]:
  """Returns the name, size and SHA-256 of each file as it is now, in order."""
  entries = dict(pool.map(input_hashes.hash_file, paths))
  return [entries[path] for path in paths]


def _convert(
  job: Job, tokenizer: Tokenizer, workspace: Workspace, pool: WorkerPool
) -> tuple[_Text, dict[str, Any] | None]:
  """Converts the input files that are not read directly.

  Returns:
    The text, and the report of what was read and left out as JSON values; None if no file needs a conversion.
  """
  if job.is_read_directly:
    return _Text(job.inputs, lambda entries: entries, {}), None
  converted = convert_inputs(job.inputs, job.reading, workspace.path, pool)
  print_report(converted, job.inputs, job.reading)
  if not converted.paths:
    raise UnusableTextError(NO_TEXT_MESSAGE)
  new_paths = [path for path in converted.paths if path not in job.inputs]
  _print_warnings(text_checks.check_inputs(new_paths, tokenizer, warns_of_layout=False))
  return _Text(tuple(converted.paths), converted.input_entries, {}), converted.report.to_dict()


def _decompress(text: _Text, workspace: Workspace, pool: WorkerPool) -> _Text:
  """Writes the text of each GZIP file to a file of the workspace, so that several processes can read parts of it."""
  tasks = {
    path: GzipTask(path, workspace.file_path(f"gzip-{ordinal:08d}.txt"))
    for ordinal, path in enumerate(text.paths)
    if is_gzip(path)
  }
  if not tasks:
    return text
  entries: dict[str, dict[str, Any]] = {}
  with Progress(sum(map(files.size, tasks)), "B", "decompressing") as progress:
    for task, entry in pool.map(gzip_text.decompress, list(tasks.values())):
      entries[task.path] = entry
      progress.update(entry["bytes"])

  def input_entries(text_entries: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    for path, entry in zip(tasks, _hash_files(list(tasks), pool), strict=True):
      if entry != entries[path]:
        raise input_hashes.changed_file_error(path)
    pairs = zip(text.paths, text_entries, strict=True)
    return text.input_entries([entries.get(path, entry) for path, entry in pairs])

  paths = tuple(tasks[path].text_path if path in tasks else path for path in text.paths)
  return _Text(paths, input_entries, {task.text_path: path for path, task in tasks.items()})


# ---- blocks --------------------------------------------------------------------------------------------


def _make_blocks(paths: Sequence[str], job: Job, workspace: Workspace, pool: WorkerPool) -> list[Block]:
  """Writes the sorted instances of all blocks of text. Valid files of an earlier command are kept.

  Returns:
    The blocks, in the order of the text.
  """
  tasks: list[blocks.BlockTask] = []
  num_units = num_made = 0

  def list_tasks() -> Iterator[blocks.BlockTask]:
    for task in blocks.plan_blocks(paths, job.settings, workspace.path):
      tasks.append(task)
      yield task

  with Progress(sum(map(files.size, paths)), "B", "reading text") as progress:
    for task, is_made in pool.map(blocks.make_block, list_tasks()):
      progress.update(task.progress_bytes)
      num_units += len(task.units)
      num_made += len(task.units) if is_made else 0
  workspace.remove_other_blocks({task.path for task in tasks})
  if num_made < num_units:
    print(f"kept {num_units - num_made} of {num_units} units of an earlier run")
  block_paths = [task.path for task in tasks]
  made_blocks: list[Block] = []
  with ThreadPoolExecutor(_NUM_READERS) as readers:
    for path, block in zip(block_paths, readers.map(Block.load, block_paths), strict=True):
      if block is None:
        raise RunError(f"{path} was removed or damaged after it was written: run the same command again")
      made_blocks.append(block)
  return made_blocks


def _add_summaries(all_blocks: Sequence[Block]) -> tuple[Counts, list[int]]:
  """Adds up the counts of blocks, and their numbers of examples with label 0 and with label 1."""
  counts, labels = Counts(), [0, 0]
  for block in all_blocks:
    counts += Counts(**block.summary["counts"])
    labels = [total + number for total, number in zip(labels, block.summary["labels"], strict=True)]
  return counts, labels


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


def _check_unchanged(
  paths: Sequence[str], sizes: list[int], all_blocks: Sequence[Block], pool: WorkerPool
) -> list[dict[str, Any]]:
  """Checks that the text files still hold the text that the blocks were made from.

  Args:
    paths: the text files.
    sizes: bytes of each file when it was cut into units.
    all_blocks: the blocks of the whole text.
    pool: processes that read the files.

  Returns:
    The manifest's entry for each file.

  Raises:
    UserError: a file has changed.
  """
  records = itertools.chain.from_iterable(block.records for block in all_blocks)
  tasks = input_hashes.make_file_tasks(paths, sizes, records)
  entries: dict[str, dict[str, Any]] = {}
  with Progress(sum(sizes), "B", "checking text") as progress:
    for task, entry in pool.map(input_hashes.check_file, tasks):
      entries[task.path] = entry
      progress.update(task.num_bytes)
  return [entries[path] for path in paths]


# ---- shards --------------------------------------------------------------------------------------------


def _write_shards(
  job: Job, workspace: Workspace, pool: WorkerPool, all_blocks: Sequence[Block], word_type: str, digest: str
) -> list[ShardInfo]:
  """Writes the shards. Intact shards of an earlier command with the same digest are kept.

  Args:
    job: the job.
    workspace: the job's workspace.
    pool: processes that write the shards.
    all_blocks: the blocks of the whole text.
    word_type: NumPy type of the packed words.
    digest: a hash of everything that the shards depend on.

  Returns:
    The manifest's entry for each shard, in order.
  """
  infos: dict[int, ShardInfo] = {}
  for index in range(job.num_shards):
    finished_info = workspace.find_finished_shard(index, digest)
    if finished_info:
      infos[index] = finished_info
  if infos:
    print(f"kept {len(infos)} of {job.num_shards} shards of an earlier run")
  plan = shards.ShardPlan(all_blocks, job.num_shards)
  missing = [index for index in range(job.num_shards) if index not in infos]
  tasks = (plan.make_task(group, job, workspace.path, word_type, digest) for group in plan.group_shards(missing))
  with Progress(plan.num_examples, " examples", "writing shards") as progress:
    progress.update(sum(info.examples for info in infos.values()))
    for task, written in pool.map(shards.write_shards, tasks):
      workspace.check_lock()
      for shard, info in zip(task.shards, written, strict=True):
        infos[shard.index] = info
        progress.update(info.examples)
  return [infos[index] for index in range(job.num_shards)]


def check_shards(job: Job, infos: Sequence[ShardInfo], num_examples: int) -> None:
  """Checks the list of shards against the number of examples that were made from the text.

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
  bounds = shards.shard_bounds(num_examples, job.num_shards)
  for info, (start, end) in zip(infos, itertools.pairwise(bounds), strict=True):
    path = files.join(job.output_dir, info.file)
    if info.examples != end - start:
      return f"{info.examples} examples in {info.file}, which should have {end - start}"
    if not files.exists(path) or files.size(path) != info.bytes:
      return f"{path} is missing or does not have its {info.bytes} bytes"
  return ""


def _make_manifest(
  settings: dict[str, Any],
  tokenizer: Tokenizer,
  counts: Counts,
  labels: Sequence[int],
  infos: Sequence[ShardInfo],
  reading: dict[str, Any] | None,
) -> Manifest:
  """Makes the manifest of finished shards.

  Args:
    settings: everything that the shards depend on, see `Workspace.shard_settings`.
    tokenizer: the tokenizer of the job.
    counts: numbers of documents and tokens in the text.
    labels: number of examples with label 0, and with label 1.
    infos: the manifest's entries for the shards, in order.
    reading: what was read and left out when the input files were converted; None if they were not.
  """
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
    label_counts={str(label): number for label, number in enumerate(labels)},
    shards=tuple(infos),
  )
