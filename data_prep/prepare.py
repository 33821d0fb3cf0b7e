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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from albert.data.manifest import HELDOUT_FOLDER, Manifest, checksum_of
from albert.errors import RunError, UserError
from albert.io import files
from albert.io.progress import Progress, log
from albert.io.text import counted
from albert.io.workers import WorkerPool, Workers
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from data_prep import blocks, shards, text_checks, units
from data_prep.block_files import Block, load_blocks
from data_prep.conversion.convert import NO_TEXT_MESSAGE, ConvertedText, convert_inputs, print_report
from data_prep.documents import Counts, share_that_holds_out
from data_prep.examples import packing
from data_prep.examples.settings import NSP
from data_prep.job import BLOCK_ENDING, KIND, Job, OpenPool, UnusableTextError, Workspace, resume
from data_prep.readers import formats


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
    formats.check_inputs(job.inputs, job.reading)
    samples = formats.sample_lines([path for path in job.inputs if formats.is_read_directly(path, job.reading)])
    for warning in text_checks.sample_warnings(samples, tokenizer) + text_checks.layout_warnings(samples):
      log(warning)
    files.makedirs(job.output_dir)
    with open_pool(job, blocks.start_worker, (job.settings, job.spm_model_file)) as pool:
      manifest = resume(job, workspace, pool)
      if manifest is not None:
        return manifest

      # ---- read: every input file becomes text with a sentence on each line and a blank line after each document
      text = convert_inputs(job.inputs, job.reading, workspace.path, pool)
      _check_converted(job, text, tokenizer)

      # ---- documents -> instances -> one file for each block of text, sorted by the random keys of the instances; with
      # --eval_share, first those of the held-out documents
      with _errors_name_originals(text.originals):
        _hold_out(workspace, text)
        contents = [_read_part(part, pool, text, tokenizer) for part in workspace.parts]

      # ---- shards: the instances of all blocks in the order of the keys, cut into equal parts
      manifests = [_write_shards(part, pool, *content) for part, content in zip(workspace.parts, contents, strict=True)]
    workspace.lock.check()
    for part, manifest in zip(workspace.parts, manifests, strict=True):
      manifest.save(part.job.output_dir)  # last that of the job: the data set is then complete
    workspace.remove()
    return manifests[-1]


def _hold_out(workspace: Workspace, text: ConvertedText) -> None:
  """Lets the parts of a small text hold out one document, if --eval_share holds out none."""
  settings = workspace.job.settings
  share = settings.eval_share and share_that_holds_out(text.paths, settings.eval_share, settings.random_seed)
  if share != settings.eval_share:
    log(f"--eval_share={settings.eval_share:g} holds out none of these few documents: one is held out")
    for part in workspace.parts:
      part.job = dataclasses.replace(part.job, settings=dataclasses.replace(part.job.settings, eval_share=share))


def _read_part(
  workspace: Workspace, pool: WorkerPool, text: ConvertedText, tokenizer: Tokenizer
) -> tuple[list[Block], Manifest]:
  """Makes the instances of the held-out documents or of the others. Returns them, and the manifest without shards."""
  job, metadata = workspace.job, files.stats(text.paths)
  sorted_blocks = _make_blocks(metadata, workspace, pool)
  counts = sum((Counts(**block.summary["counts"]) for block in sorted_blocks), Counts())
  labels = [sum(block.summary["labels"][label] for block in sorted_blocks) for label in (0, 1)]
  _check_counts(counts, sum(labels), job)
  units.check_unchanged(metadata)
  records = itertools.chain.from_iterable(block.records for block in sorted_blocks)
  text_entries = dict(zip(metadata, units.text_entries(metadata, records), strict=True))
  # A file that is read directly has no entry of its conversion.
  input_files = [entry or text_entries[path] for path, entry in zip(job.inputs, text.entries, strict=True)]
  return sorted_blocks, Manifest(
    kind=KIND,
    settings=workspace.shard_settings(input_files),
    vocab_sha256=tokenizer.sha256,
    vocab_size=tokenizer.vocab_size,
    vocab_kind=tokenizer.vocabulary.kind,
    num_documents=counts.documents,
    num_tokens=counts.tokens,
    num_dropped_documents=counts.dropped,
    num_cut_documents=counts.cut,
    num_unknown_tokens=counts.unknown,
    reading=None if job.is_read_directly else text.report.to_dict(),
    label_counts={str(label): number for label, number in enumerate(labels)},
    heldout=HELDOUT_FOLDER if job.of_heldout() else None,
  )


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
    workspace.lock.check()  # a process that took the lock may have removed what this one reads
    with contextlib.suppress(OSError, UserError, RunError):
      workspace.keep_finished_files(error)
    raise
  finally:
    workspace.lock.release()


# ---- read ----------------------------------------------------------------------------------------------


def _check_converted(job: Job, text: ConvertedText, tokenizer: Tokenizer) -> None:
  """Prints what was read and left out if files were converted. Raises an error if no text remains."""
  if job.is_read_directly:
    return
  print_report(text, job.inputs, job.reading)
  if not text.paths:
    raise UnusableTextError(NO_TEXT_MESSAGE)
  new_paths = [path for path in text.paths if path not in job.inputs and path not in text.originals]
  for warning in text_checks.sample_warnings(formats.sample_lines(new_paths), tokenizer):
    log(warning)


@contextlib.contextmanager
def _errors_name_originals(originals: Mapping[str, str]) -> Iterator[None]:
  """Replaces the names of decompressed files by those of the GZIP files in the errors of the user's input."""
  try:
    yield
  except UserError as error:
    message = str(error)
    for text_path, path in originals.items():
      message = message.replace(text_path, path)
    if message == str(error):
      raise
    raise type(error)(message) from error


# ---- blocks --------------------------------------------------------------------------------------------


def _make_blocks(text_files: Mapping[str, files.Stat], workspace: Workspace, pool: WorkerPool) -> list[Block]:
  """Writes the sorted instances of all blocks, in the order of the text. Valid files of an earlier command are kept."""
  tasks = list(blocks.plan_blocks(text_files, workspace.job.settings, workspace.path))
  num_kept = 0  # units
  with Progress(sum(metadata.num_bytes for metadata in text_files.values()), "B", "reading text") as progress:
    for task, is_made in pool.map(blocks.make_block, tasks):
      progress.update(sum(unit.progress_bytes for unit in task.units))
      num_kept += 0 if is_made else len(task.units)
  paths = dict.fromkeys(task.path for task in tasks)
  for name in files.listdir(workspace.path):
    if name.endswith(BLOCK_ENDING) and files.join(workspace.path, name) not in paths:
      files.remove(files.join(workspace.path, name))
  if num_kept:
    print(f"kept {num_kept} of {sum(len(task.units) for task in tasks)} units of an earlier run")
  return load_blocks(list(paths))


def _check_counts(counts: Counts, num_examples: int, job: Job) -> None:
  """Raises a UserError if the text gives no examples, or fewer than shards, or a single document for NSP."""
  if job.settings.heldout and num_examples == 0:
    share = job.settings.eval_share
    held_out = f"{counted(counts.documents, 'document')}, which give no example"
    raise UnusableTextError(f"--eval_share={share:.3g} holds out {held_out}: add documents, or give a larger share")
  if job.settings.sentence_prediction == NSP and counts.documents - counts.cut < 2:
    remedy = "put blank lines between documents, or give sop"
    raise UnusableTextError(f"--sentence_prediction=nsp needs at least two documents, the text is one: {remedy}")
  if num_examples == 0:
    raise UnusableTextError(
      f"--input_file: no example in {counted(counts.documents, 'document')} of {counts.tokens} tokens: "
      "every document needs at least two words (one word with --sentence_prediction=none)"
    )
  if num_examples < job.num_shards:
    raise UserError(
      f"--num_shards={job.num_shards}: the text gives only {num_examples} examples: lower --num_shards, or add text"
    )


# ---- shards --------------------------------------------------------------------------------------------


def _write_shards(workspace: Workspace, pool: WorkerPool, all_blocks: Sequence[Block], manifest: Manifest) -> Manifest:
  """Writes the shards, and returns the manifest with their entries.

  Intact shards of an earlier command with the same settings, which are all that the shards depend on, are kept.
  """
  job, word_type = workspace.job, packing.word_dtype(manifest.vocab_size).str
  digest = checksum_of(manifest.settings)
  finished = files.in_threads(lambda index: workspace.find_finished_shard(index, digest), range(job.num_shards))
  infos = {index: info for index, info in enumerate(finished) if info is not None}
  if infos:
    print(f"kept {len(infos)} of {job.num_shards} shards of an earlier run")
  plan = shards.ShardPlan(all_blocks, job.num_shards)
  plan.save_runs(workspace.path)
  missing = [index for index in range(job.num_shards) if index not in infos]
  tasks = (plan.make_task(group, job, workspace.path, word_type, digest) for group in plan.group_shards(missing))
  with Progress(plan.num_examples, " examples", "writing shards") as progress:
    progress.update(sum(info.examples for info in infos.values()))
    for task, written in pool.map(shards.write_shards, tasks):
      workspace.lock.check()
      for (index, _), info in zip(task.shards, written, strict=True):
        infos[index] = info
        progress.update(info.examples)
  for info in infos.values():  # a worker may have written to a disk that this machine does not see
    path = files.join(job.output_dir, info.file)
    if not files.exists(path) or files.size(path) != info.bytes:
      raise RunError(
        f"{path} is missing or does not have its {info.bytes} bytes: no manifest was written; run the same command "
        "again, and see that all workers share this directory"
      )
  return dataclasses.replace(manifest, shards=tuple(infos[index] for index in range(job.num_shards)))
