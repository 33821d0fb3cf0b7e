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

import importlib

from absl import flags

from albert.config import command_flags
from albert.config.base import define_field_flag, option_fields
from albert.data.manifest import Manifest
from albert.errors import Interrupted, Stopped, UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import counted
from albert.tokenization.tokenizer import unknown_warnings
from data_prep.examples.settings import PreparationSettings
from data_prep.job import Job, OpenPool
from data_prep.prepare import open_workers, prepare
from data_prep.readers import formats
from data_prep.text_checks import UNKNOWN_REMEDY

FLAGS = flags.FLAGS
# The words after -- on the command line, which are flags of Apache Beam or Ray.
_runner_flags: list[str] = []
OTHER_WORDS = {"words_after_dashes": _runner_flags}


def define_flags() -> None:
  formats.define_flags()
  command_flags.define("str", "output_dir", None, "directory to write the shards and manifest.json to", required=True)
  command_flags.define(
    "str",
    "spm_model_file",
    None,
    "the vocabulary: a SentencePiece model, a WordPiece vocab.txt, a byte-level BPE vocab.json, or a tokenizer.json",
    required=True,
  )
  for field in option_fields(PreparationSettings).values():
    define_field_flag(field, field.default)
  for field in option_fields(Job).values():
    define_field_flag(field, command_flags.default_processes() if field.name == "num_processes" else field.default)
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
  command_flags.define_other_name("random_seed", "seed")


def _job_from_flags() -> Job:
  # The processes of a cluster are in other directories.
  path_of = str if FLAGS.runner == "local" else files.absolute
  return Job(
    inputs=tuple(map(path_of, formats.find_inputs(FLAGS.input_file))),
    reading=formats.settings_from_flags(),
    output_dir=path_of(FLAGS.output_dir),
    spm_model_file=path_of(FLAGS.spm_model_file),
    settings=PreparationSettings(**formats.flag_values(PreparationSettings)),
    **formats.flag_values(Job),
  )


def _select_runner() -> OpenPool:
  """Returns the function that opens the processes that --runner selects."""
  words = tuple(_runner_flags)
  if FLAGS.runner == "local":
    if words:
      raise UserError(
        f"{words[0]!r}: words after -- are flags of Apache Beam or Ray: give --runner=beam or ray, or leave them out"
      )
    return open_workers
  name, remedy = {
    "ray": ("Ray", "pip install 'ray>=2.49,<3'"),
    "beam": ("Apache Beam", "pip install 'apache-beam>=2.70,<3'"),
  }[FLAGS.runner]
  try:
    runner = importlib.import_module(f"data_prep.runners.{FLAGS.runner}")
  except ImportError as error:
    raise UserError(f"--runner={FLAGS.runner} needs {name} ({error}): {remedy}") from error
  return runner.make_runner(words)


def _print_summary(manifest: Manifest, output_dir: str) -> None:
  """Prints the counts of the manifest, with warnings about unknown tokens and dropped documents."""
  labels = f"{manifest.label_counts['0']} in order, {manifest.label_counts['1']} swapped or random"
  print(
    f"{output_dir}: {manifest.num_examples} examples ({labels}) in {counted(len(manifest.shards), 'shard')} from "
    f"{counted(manifest.num_documents, 'document')}, {manifest.num_tokens} tokens "
    f"({manifest.num_dropped_documents} documents too short and dropped, {manifest.num_cut_documents} too long and cut)"
  )
  if manifest.unknown_share is not None:
    print(f"<unk>: {manifest.num_unknown_tokens} of the tokens ({manifest.unknown_share:.3%})")
    for warning in unknown_warnings(output_dir, manifest.unknown_share, remedy=UNKNOWN_REMEDY):
      log(warning)
  if 2 * manifest.num_dropped_documents > manifest.num_documents:
    log(
      f"warning: {output_dir}: {manifest.num_dropped_documents} of {manifest.num_documents} documents are too short "
      "and dropped: look at the text; if its paragraphs are taken for documents, give --document=file"
    )


def main() -> None:
  job = _job_from_flags()
  try:
    manifest = prepare(job, _select_runner())
  except Interrupted as stop:
    raise Stopped("stopped: run the same command again to continue", stop.signal_number) from stop
  _print_summary(manifest, job.output_dir)
  heldout_job = job.of_heldout()
  if heldout_job and (heldout := Manifest.load(heldout_job.output_dir)):
    _print_summary(heldout, heldout_job.output_dir)


if __name__ == "__main__":
  startup.run_command_of(__name__)
