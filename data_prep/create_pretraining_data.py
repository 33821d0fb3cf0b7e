"""Plain text to TFRecord shards for pretraining.

A document ends at a blank line or at the end of a file, a sentence at the end of a line. The shards are a
function of the texts, the vocabulary and the settings: the number of processes changes nothing. A run that
was stopped is continued by the same command.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import resource
import signal
import sys
from typing import Any, NoReturn

from absl import flags

from albert import app, files
from albert.data.manifest import Manifest, ShardInfo, file_sha256
from albert.errors import Stopped, UserError
from albert.progress import Progress
from albert.tokenization import Tokenizer
from albert.workers import Workers
from data_prep import preparation, segments, shards, text_checks
from data_prep.corpus import Counts, plan_units
from data_prep.job import Job, Made, Run, Workspace, check_counts, make_identity, make_manifest, resume
from data_prep.preparation import Settings

FLAGS = flags.FLAGS
# What follows after -- on the command line.
_beam_flags: list[str] = []


def _make_spills(job: Job, workspace: Workspace, workers: Workers) -> list[shards.Spill]:
  """Text to spills; finished ones are kept."""
  paths: list[str] = []
  kept = 0
  with Progress(sum(map(files.size, job.inputs)), "B", "reading text") as progress:

    def tasks() -> Any:
      nonlocal kept
      with_donors = job.settings.sentence_prediction == segments.NSP
      for unit in plan_units(list(job.inputs), with_donors=with_donors):
        path = workspace.file(f"unit-{unit.index:06d}.spill")
        paths.append(path)
        if shards.Spill.load(path) is None:
          yield preparation.UnitTask(unit, path)
        else:
          kept += 1
          progress.update(unit.progress_bytes)

    for task, _ in workers.map(preparation.make_spill, tasks(), lambda task: task.unit.data_bytes):
      progress.update(task.unit.progress_bytes)
  if kept:
    print(f"kept {kept} of {len(paths)} units of an earlier run")
  return shards.load_spills(paths)


def _write_shards(
  job: Job, workspace: Workspace, workers: Workers, spills: list[shards.Spill], words: str
) -> list[ShardInfo]:
  """Spills to shards; finished ones that verify are kept."""
  bounds = shards.shard_bounds(spills, job.num_shards, words)
  infos: dict[int, ShardInfo] = {}
  for index in range(job.num_shards):
    finished = workspace.finished_shard(index)
    if finished:
      infos[index] = finished
  if infos:
    print(f"kept {len(infos)} of {job.num_shards} shards of an earlier run")
  tasks = [
    shards.ShardTask(
      tuple(spill.path for spill in spills),
      first,
      last,
      workspace.file(job.shard_name(index)),
      job.settings.max_seq_length,
      job.settings.max_predictions_per_seq,
      words,
      job.compress,
    )
    for index, (first, last) in enumerate(bounds)
  ]
  total = sum(run.num_instances for spill in spills for run in spill.runs)
  with Progress(total, " examples", "writing shards") as progress:
    progress.update(sum(info.examples for info in infos.values()))
    missing = [index for index in range(job.num_shards) if index not in infos]
    for task, written in workers.map(shards.write_shard, [tasks[index] for index in missing]):
      index = tasks.index(task)
      info = dataclasses.replace(written, file=job.shard_name(index))
      files.replace(task.path, files.join(job.output_dir, info.file))
      workspace.save_shard(index, info)
      infos[index] = info
      progress.update(info.examples)
  return [infos[index] for index in range(job.num_shards)]


def run_here(job: Job, workspace: Workspace, tokenizer: Tokenizer, workers: Workers) -> Made:
  """Makes the shards in processes of this machine."""
  words = shards.word_dtype(tokenizer.vocab_size).str
  spills = _make_spills(job, workspace, workers)
  counts = sum((Counts(**spill.summary["counts"]) for spill in spills), Counts())
  labels = [sum(spill.summary["labels"][label] for spill in spills) for label in (0, 1)]
  check_counts(counts, sum(labels), job.settings)
  return Made(counts, labels, _write_shards(job, workspace, workers, spills, words))


def prepare(job: Job, run: Run = run_here) -> Manifest:
  """Runs the job, or what is left of it, and returns the manifest it wrote.

  Raises:
    UserError: for bad input, and when output_dir holds a run with other settings.
  """
  tokenizer = Tokenizer(job.spm_model_file, job.settings.do_lower_case)
  if warning := text_checks.check_inputs(job.inputs, tokenizer):
    print(warning, file=sys.stderr, flush=True)
  files.makedirs(job.output_dir)
  with Workers(job.num_processes, preparation.start_worker, (job.settings, job.spm_model_file)) as workers:
    identity = make_identity(job, tokenizer.sha256, dict(workers.map(file_sha256, job.inputs)))
    workspace = Workspace(job, identity)
    manifest = resume(job, workspace)
    if manifest is not None:
      return manifest
    try:
      made = run(job, workspace, tokenizer, workers)
    except UserError:
      # The remedy changes the input or the settings: nothing of this run can be used again.
      workspace.remove()
      raise
  manifest = make_manifest(identity, tokenizer, made.counts, made.labels, made.infos)
  manifest.save(job.output_dir)
  workspace.remove()
  return manifest


# ---- command line --------------------------------------------------------------------------------------


def _define_flags() -> None:
  default = Settings()
  flags.DEFINE_string("input_file", None, "comma-separated globs of .txt or .txt.gz files, UTF-8", required=True)
  flags.DEFINE_string("output_dir", None, "directory for the shards and manifest.json", required=True)
  flags.DEFINE_string("spm_model_file", None, "SentencePiece model with ALBERT's control symbols", required=True)
  flags.DEFINE_boolean("do_lower_case", default.do_lower_case, "lower-case the text")
  flags.DEFINE_integer("max_seq_length", default.max_seq_length, "tokens in an example, special ones included")
  flags.DEFINE_integer(
    "max_predictions_per_seq", 0, "masked tokens in an example; 0: max_seq_length * masked_lm_prob, rounded up"
  )
  flags.DEFINE_float("masked_lm_prob", default.masked_lm_prob, "share of tokens to mask")
  flags.DEFINE_integer("ngram", default.ngram, "greatest number of words masked in one go; p(n) ~ 1/n")
  flags.DEFINE_float(
    "short_seq_prob",
    default.short_seq_prob,
    "share of examples that aim for a shorter length (sentence pairs never do)",
  )
  flags.DEFINE_integer("dupe_factor", default.dupe_factor, "times each document is used, with other segments and masks")
  flags.DEFINE_enum(
    "sentence_prediction",
    default.sentence_prediction,
    segments.SENTENCE_PREDICTIONS,
    "second segment: the next one, swapped or not (sop); the next or a random one (nsp); none",
  )
  flags.DEFINE_enum(
    "input_format",
    default.input_format,
    segments.INPUT_FORMATS,
    "segments: of several sentences, filled up to the length, as BERT's; sentence_pair: two sentences; with "
    "--sentence_prediction=none, doc_sentences: whole sentences of one document; full_sentences: of several, "
    "with a separator between (RoBERTa)",
  )
  flags.DEFINE_enum(
    "masking",
    default.masking,
    preparation.MASKINGS,
    "static: masks in the shards; none: training makes them, new ones each time it sees an example",
  )
  flags.DEFINE_integer("random_seed", default.random_seed, "seed of every random draw")
  flags.DEFINE_integer("num_shards", 16, "TFRecord files to write")
  flags.DEFINE_integer("num_processes", os.cpu_count() or 1, "processes; the output does not depend on it")
  flags.DEFINE_boolean("compress", False, "write GZIP files")
  flags.DEFINE_enum(
    "runner",
    "local",
    ["local", "beam"],
    "local: processes of this machine; beam: Apache Beam, whose own flags follow after --, such as "
    "-- --runner=DataflowRunner --project=NAME",
  )


def _job_from_flags() -> Job:
  settings: dict[str, Any] = {field.name: FLAGS[field.name].value for field in dataclasses.fields(Settings)}
  return Job(
    inputs=tuple(files.expand_globs(FLAGS.input_file)),
    output_dir=FLAGS.output_dir,
    spm_model_file=FLAGS.spm_model_file,
    settings=Settings(**settings),
    num_shards=FLAGS.num_shards,
    num_processes=FLAGS.num_processes,
    compress=FLAGS.compress,
  )


def _runner() -> Run:
  """What --runner names.

  Raises:
    UserError: Apache Beam is not installed, or its flags are given without it.
  """
  if FLAGS.runner == "local":
    if _beam_flags:
      raise UserError(f"{_beam_flags[0]!r} follows after --, which is for --runner=beam alone")
    return run_here
  try:
    from data_prep import beam_runner
  except ImportError as error:
    raise UserError(
      f"--runner=beam needs Apache Beam ({error}): pip install -c constraints/beam.txt -e '.[beam]'"
    ) from error
  return functools.partial(beam_runner.run, flags=tuple(_beam_flags))


def _report(manifest: Manifest, output_dir: str) -> None:
  labels = ", ".join(f"{count} with label {label}" for label, count in manifest.label_counts.items())
  print(
    f"{output_dir}: {manifest.num_examples} examples ({labels}) in {len(manifest.shards)} shards from "
    f"{manifest.num_documents} documents, {manifest.num_tokens} tokens "
    f"({manifest.num_dropped_documents} documents dropped as too short, {manifest.num_cut_documents} cut)"
  )
  if manifest.unknown_share is not None:
    print(f"<unk>: {manifest.num_unknown_tokens} of the tokens ({manifest.unknown_share:.3%})")
    if warning := text_checks.unknown_warning(output_dir, manifest.unknown_share):
      print(warning, file=sys.stderr)
  # ru_maxrss is in KiB (bytes on macOS).
  scale = 1 if sys.platform == "darwin" else 1024
  peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
  print(f"peak memory of a process: {peak * scale / 1e6:.0f} MB")


def _stop(signal_number: int, frame: object) -> NoReturn:
  raise Stopped("stopped: the same command goes on from here", signal_number)


def main() -> None:
  job = _job_from_flags()
  for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, _stop)
  try:
    _report(prepare(job, _runner()), job.output_dir)
  except OSError as error:
    if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}:
      raise
    raise UserError(
      f"--output_dir={job.output_dir}: {error.strerror}: make room or choose another directory; "
      "the same command goes on from here"
    ) from error


if __name__ == "__main__":
  _define_flags()
  app.run(main, rest=_beam_flags)
