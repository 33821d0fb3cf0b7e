"""Turns text into TFRecord shards for pretraining.

By default the text has one sentence on each line, and a blank line after each document. Other forms, such as plain text
with paragraphs and JSON lines, are converted first. The shards depend only on the text, the vocabulary and the
settings, and not on the number of processes. If the command was stopped, run it again: it continues where it stopped.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import contextlib
import dataclasses
import functools
import resource
import sys
from typing import Any, cast

from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.base import Config, define_field_flag, option_fields
from albert.config.ranges import default_processes
from albert.data.shard_files.manifest import Manifest
from albert.errors import Interrupted, RunError, Stopped, UserError
from albert.io import files
from albert.io.parallel.workers import WorkerPool
from albert.io.wording import counted
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from data_prep.conversion.convert import NO_TEXT_MESSAGE, RunTasks, convert_inputs, print_report
from data_prep.examples.settings import PreparationSettings
from data_prep.readers import formats
from data_prep.readers.reading_flags import define_flags, settings_from_flags
from data_prep.readers.settings import ReadingSettings
from data_prep.runners import local as local_runner
from data_prep.runners.base import InputEntries, Runner, make_manifest, same_entries
from data_prep.runners.job import Job
from data_prep.runners.workspace import UnusableTextError, Workspace, resume
from data_prep.text import text_checks

FLAGS = flags.FLAGS
# The words after -- on the command line, which are flags of Apache Beam or Ray.
_runner_flags: list[str] = []


def prepare(job: Job, runner: Runner = local_runner.RUNNER) -> Manifest:
  """Writes the shards of a job and their manifest. If an earlier command was stopped, this one continues its work.

  Args:
    job: the job.
    runner: carries out the job, by default with processes of this machine.

  Returns:
    The manifest, which is also in job.output_dir.

  Raises:
    UserError: bad input, or output_dir holds a run with other settings.
    RunError: the disk or the system failed. Finished files are kept, and the same job continues with them.
  """
  config = job.settings.tokenizer_config(job.spm_model_file)
  switches: dict[str, Any] = {"do_lower_case": config.do_lower_case, "keep_accents": config.keep_accents}
  job = dataclasses.replace(job, settings=dataclasses.replace(job.settings, **switches))
  tokenizer = load_tokenizer(config)
  workspace = Workspace(job, tokenizer.sha256)
  try:
    with files.convert_errors(job.output_dir, "use"):
      return _prepare(job, runner, tokenizer, workspace)
  except UserError as error:
    with contextlib.suppress(OSError, UserError, RunError):
      workspace.keep_finished_files(error)
    raise
  finally:
    workspace.close()


def _prepare(job: Job, runner: Runner, tokenizer: Tokenizer, workspace: Workspace) -> Manifest:
  direct_paths, converted_paths = formats.split_by_conversion(job.inputs, job.reading)
  _print_warnings(text_checks.check_inputs(direct_paths, tokenizer))
  formats.check_inputs(converted_paths, job.reading)
  files.makedirs(job.output_dir)
  with runner.open_workers(job) as workers:
    manifest = resume(job, workspace, lambda: runner.hash_inputs(job, workspace, workers))
    if manifest is not None:
      return manifest
    text_job, input_entries, reading_report = _convert(job, runner, tokenizer, workspace, workers)
    prepared = runner.make_shards(text_job, workspace, tokenizer, workers, input_entries)
  settings = workspace.shard_settings(prepared.input_files)
  manifest = make_manifest(settings, tokenizer, prepared, reading_report)
  manifest.save(job.output_dir)
  workspace.remove()
  return manifest


def _convert(
  job: Job, runner: Runner, tokenizer: Tokenizer, workspace: Workspace, workers: WorkerPool
) -> tuple[Job, InputEntries, dict[str, Any] | None]:
  """Converts the input files that are not read directly.

  Returns:
    The job with the converted text in place of these files, the function that returns the entries of the input files
    for those of the new job, and the report of what was read and left out as JSON values; None if no file needs a
    conversion.
  """
  if job.is_read_directly:
    return job, same_entries, None
  run_tasks = cast("RunTasks", functools.partial(runner.run_tasks, workspace, workers))
  converted = convert_inputs(job.inputs, job.reading, workspace.path, run_tasks)
  print_report(converted, job.inputs, job.reading)
  if not converted.paths:
    raise UnusableTextError(NO_TEXT_MESSAGE)
  new_paths = [path for path in converted.paths if path not in job.inputs]
  _print_warnings(text_checks.check_inputs(new_paths, tokenizer, warns_of_layout=False))
  text_job = dataclasses.replace(job, inputs=tuple(converted.paths), reading=ReadingSettings())
  return text_job, converted.input_entries, converted.report.to_dict()


def _print_warnings(warnings: str | None) -> None:
  if warnings:
    print(warnings, file=sys.stderr, flush=True)


# ---- command line --------------------------------------------------------------------------------------


def _define_flags() -> None:
  define_flags()
  command_flags.define("str", "output_dir", None, "directory to write the shards and manifest.json to", required=True)
  command_flags.define(
    "str",
    "spm_model_file",
    None,
    "vocabulary: a SentencePiece model with ALBERT's control symbols, or a WordPiece vocab.txt",
    required=True,
  )
  for field in option_fields(PreparationSettings).values():
    define_field_flag(field, field.default)
  for field in option_fields(Job).values():
    define_field_flag(field, default_processes() if field.name == "num_processes" else field.default)
  command_flags.define(
    "str",
    "runner",
    "local",
    "local: processes on this machine; beam: Apache Beam; ray: a Ray cluster, or one that is started on this machine "
    "with --num_processes workers; flags of Beam and Ray are given after --, such as -- --runner=DataflowRunner "
    "--project=NAME, or -- --address=HOST:6379",
    choices=["local", "beam", "ray"],
  )
  # The scripts for training call their seed --seed.
  flags.DEFINE_alias("seed", "random_seed", module_name=sys.argv[0])


def _job_from_flags() -> Job:
  def flag_values(config_class: type[Config]) -> dict[str, Any]:
    return {name: FLAGS[name].value for name in option_fields(config_class)}

  return Job(
    inputs=tuple(formats.find_inputs(FLAGS.input_file)),
    reading=settings_from_flags(),
    output_dir=FLAGS.output_dir,
    spm_model_file=FLAGS.spm_model_file,
    settings=PreparationSettings(**flag_values(PreparationSettings)),
    **flag_values(Job),
  )


def _select_runner() -> Runner:
  """Returns the runner that --runner selects.

  Raises:
    UserError: Apache Beam or Ray is not installed, or its flags are wrong, or are given with --runner=local.
  """
  words = tuple(_runner_flags)
  if FLAGS.runner == "local":
    if words:
      raise UserError(
        f"{words[0]!r}: words after -- are flags of Apache Beam or Ray: give --runner=beam or --runner=ray, or leave "
        "them out"
      )
    return local_runner.RUNNER
  if FLAGS.runner == "ray":
    try:
      from data_prep.runners import ray as ray_runner
    except ImportError as error:
      raise UserError(f"--runner=ray needs Ray ({error}): pip install 'ray>=2.49,<3'") from error
    return ray_runner.make_runner(words)
  try:
    from data_prep.runners import beam as beam_runner
  except ImportError as error:
    raise UserError(f"--runner=beam needs Apache Beam ({error}): pip install 'apache-beam>=2.70,<3'") from error
  return beam_runner.make_runner(words)


def _print_summary(manifest: Manifest, output_dir: str) -> None:
  """Prints the counts of the manifest, with warnings about unknown tokens and dropped documents."""
  labels = ", ".join(f"{count} with label {label}" for label, count in manifest.label_counts.items())
  print(
    f"{output_dir}: {manifest.num_examples} examples ({labels}) in {counted(len(manifest.shards), 'shard')} from "
    f"{counted(manifest.num_documents, 'document')}, {manifest.num_tokens} tokens "
    f"({manifest.num_dropped_documents} documents too short and dropped, {manifest.num_cut_documents} too long and cut)"
  )
  if manifest.unknown_share is not None:
    print(f"<unk>: {manifest.num_unknown_tokens} of the tokens ({manifest.unknown_share:.3%})")
    if warning := text_checks.unknown_warning(output_dir, manifest.unknown_share):
      print(warning, file=sys.stderr)
  if 2 * manifest.num_dropped_documents > manifest.num_documents:
    print(
      f"warning: {output_dir}: {manifest.num_dropped_documents} of {manifest.num_documents} documents are too short "
      "and dropped: look at the text; if its paragraphs are taken for documents, give --document=file",
      file=sys.stderr,
    )
  _print_peak_memory()


def _print_peak_memory() -> None:
  """Prints the greatest memory that this process or one of its worker processes has used."""
  bytes_per_unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
  own_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  worker_peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
  print(f"peak memory of a process: {max(own_peak, worker_peak) * bytes_per_unit / 1e6:.0f} MB")


def main() -> None:
  job = _job_from_flags()
  try:
    manifest = prepare(job, _select_runner())
  except Interrupted as stop:
    raise Stopped("stopped: run the same command again to continue", stop.signal_number) from stop
  _print_summary(manifest, job.output_dir)


def run_command() -> None:
  """Runs the command: albert-create-pretraining-data, or python -m data_prep.create_pretraining_data."""
  _define_flags()
  app.run(main, words_after_dashes=_runner_flags)


if __name__ == "__main__":
  run_command()
