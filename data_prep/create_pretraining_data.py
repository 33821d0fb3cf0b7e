"""Plain text to TFRecord shards for pretraining: python -m data_prep.create_pretraining_data --help.

A document ends at a blank line or at the end of a file, a sentence at the end of a line. The shards are a
function of the texts, the vocabulary and the settings: the number of processes changes nothing. A run that
was stopped is continued by the same command.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import resource
import signal
import sys
from typing import Any, NoReturn

from absl import flags

from albert import app, files
from albert.data.manifest import Manifest, ShardInfo, file_sha256, shard_is_intact
from albert.errors import Stopped, UserError
from albert.progress import Progress
from albert.tokenization import Tokenizer
from albert.workers import Workers
from data_prep import preparation, segments, shards
from data_prep.corpus import Counts, plan_units
from data_prep.preparation import Settings

KIND = "pretraining"
# Raised when the same settings give other examples than before.
_FORMAT_VERSION = 1
_WORK_PREFIX = ".preparation-"
_SETTINGS_FILE = "settings.json"

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
  """One run: where from, where to, and how."""

  inputs: tuple[str, ...]
  output_dir: str
  spm_model_file: str
  settings: Settings
  num_shards: int = 16
  num_processes: int = 1
  compress: bool = False

  def __post_init__(self) -> None:
    for name in ("num_shards", "num_processes"):
      if getattr(self, name) < 1:
        raise UserError(f"--{name}={getattr(self, name)}: must be at least 1")

  def shard_name(self, index: int) -> str:
    ending = "tfrecord.gz" if self.compress else "tfrecord"
    return f"{KIND}-{index:05d}-of-{self.num_shards:05d}.{ending}"


class _Workspace:
  """The hidden directory in output_dir that holds what is not finished, named after a hash of the settings."""

  def __init__(self, job: Job, identity: dict[str, Any]):
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    self.job, self.identity = job, identity
    self.path = files.join(job.output_dir, f"{_WORK_PREFIX}{digest[:16]}")
    self._lock: Any = None

  def file(self, name: str) -> str:
    return files.join(self.path, name)

  def check_output_dir(self) -> None:
    """Refuses a directory that holds another run's files."""
    job = self.job
    names = files.listdir(job.output_dir) if files.is_dir(job.output_dir) else []
    for name in names:
      if name.startswith(_WORK_PREFIX) and files.join(job.output_dir, name) != self.path:
        settings = files.join(job.output_dir, name, _SETTINGS_FILE)
        there = json.loads(files.open_file(settings).read()) if files.exists(settings) else {}
        raise _other_settings(job.output_dir, "an unfinished run", there, self.identity)
    if not files.exists(self.path):
      for index in range(job.num_shards):
        if job.shard_name(index) in names:
          raise UserError(
            f"--output_dir={job.output_dir} holds {job.shard_name(index)}, which no manifest describes: "
            "choose another directory, or move the file away"
          )

  def open(self) -> None:
    """Makes the directory, and keeps another process from using it at the same time."""
    files.makedirs(self.path)
    self._acquire()
    if not files.exists(self.file(_SETTINGS_FILE)):
      files.write_atomically(self.file(_SETTINGS_FILE), json.dumps(self.identity, indent=2) + "\n")

  def _acquire(self) -> None:
    if files.is_remote(self.path):
      return
    import fcntl

    self._lock = open(self.file("lock"), "wb")  # noqa: SIM115 - held until the process ends
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise UserError(
        f"--output_dir={self.job.output_dir}: another process is preparing data there: wait for it, or stop it"
      ) from error

  def save_shard(self, index: int, info: ShardInfo) -> None:
    files.write_atomically(self.file(f"shard-{index:05d}.json"), json.dumps(dataclasses.asdict(info)))

  def finished_shard(self, index: int) -> ShardInfo | None:
    """The shard's entry, if its file is in output_dir and is what was written."""
    path = self.file(f"shard-{index:05d}.json")
    if not files.exists(path):
      return None
    with files.open_file(path) as file:
      info = ShardInfo(**json.loads(file.read()))
    return info if shard_is_intact(self.job.output_dir, info) else None

  def remove(self) -> None:
    if self._lock is not None:
      self._lock.close()
      self._lock = None
    files.remove_tree(self.path)


def _other_settings(output_dir: str, what: str, there: dict[str, Any], here: dict[str, Any]) -> UserError:
  differing = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
  shown = ", ".join(
    "other input files" if name == "input_files" else f"{name} {there.get(name)}, not {here.get(name)}"
    for name in differing
  )
  return UserError(
    f"--output_dir={output_dir} holds {what} with other settings ({shown}): "
    "choose another directory, or remove this one"
  )


def _identity(job: Job, tokenizer: Tokenizer, workers: Workers) -> dict[str, Any]:
  """Everything the shards are a function of, as JSON values."""
  hashes = dict(workers.map(file_sha256, job.inputs))
  return {
    "format_version": _FORMAT_VERSION,
    **dataclasses.asdict(job.settings),
    "num_shards": job.num_shards,
    "compress": job.compress,
    "vocab_sha256": tokenizer.sha256,
    "input_files": [
      {"file": os.path.basename(path), "bytes": files.size(path), "sha256": hashes[path]} for path in job.inputs
    ],
  }


def _make_spills(job: Job, workspace: _Workspace, workers: Workers) -> list[shards.Spill]:
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


def _check_counts(counts: Counts, num_examples: int, settings: Settings) -> None:
  if settings.sentence_prediction == segments.NSP and counts.documents - counts.cut < 2:
    raise UserError(
      "--sentence_prediction=nsp needs at least two documents, and the text is one: "
      "put blank lines between documents, or use sop"
    )
  if num_examples == 0:
    raise UserError(
      f"--input_file: no example in {counts.documents} documents of {counts.tokens} tokens: "
      "every document needs two words at least (--sentence_prediction=none: one)"
    )


def _write_shards(
  job: Job, workspace: _Workspace, workers: Workers, spills: list[shards.Spill], words: str
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


def _resume(job: Job, workspace: _Workspace) -> Manifest | None:
  """The manifest of a finished run of the same job that verifies. A damaged one is opened up for repair.

  Raises:
    UserError: when output_dir holds another run.
  """
  manifest = Manifest.load(job.output_dir)
  if manifest is None:
    workspace.check_output_dir()
    workspace.open()
    return None
  if manifest.kind != KIND or manifest.settings != workspace.identity:
    raise _other_settings(job.output_dir, "a finished run", manifest.settings, workspace.identity)
  intact = [shard_is_intact(job.output_dir, shard) for shard in manifest.shards]
  if all(intact):
    workspace.remove()
    print(f"{job.output_dir}: complete; all {len(intact)} shards verify, nothing to do")
    return manifest
  print(f"{job.output_dir}: {intact.count(False)} of {len(intact)} shards are missing or damaged: making them again")
  workspace.open()
  for index, shard in enumerate(manifest.shards):
    if intact[index]:
      workspace.save_shard(index, shard)
  files.remove(files.join(job.output_dir, "manifest.json"))
  return None


def prepare(job: Job) -> Manifest:
  """Runs the job, or what is left of it, and returns the manifest it wrote.

  Raises:
    UserError: for bad input, and when output_dir holds a run with other settings.
  """
  tokenizer = Tokenizer(job.spm_model_file, job.settings.do_lower_case)
  files.makedirs(job.output_dir)
  with Workers(job.num_processes, preparation.start_worker, (job.settings, job.spm_model_file)) as workers:
    workspace = _Workspace(job, _identity(job, tokenizer, workers))
    manifest = _resume(job, workspace)
    if manifest is not None:
      return manifest
    words = shards.word_dtype(tokenizer.vocab_size).str
    try:
      spills = _make_spills(job, workspace, workers)
      counts = sum((Counts(**spill.summary["counts"]) for spill in spills), Counts())
      labels = [sum(spill.summary["labels"][label] for spill in spills) for label in (0, 1)]
      _check_counts(counts, sum(labels), job.settings)
      infos = _write_shards(job, workspace, workers, spills, words)
    except UserError:
      # The remedy changes the input or the settings: nothing of this run can be used again.
      workspace.remove()
      raise
  manifest = Manifest(
    kind=KIND,
    settings=workspace.identity,
    vocab_sha256=tokenizer.sha256,
    vocab_size=tokenizer.vocab_size,
    num_documents=counts.documents,
    num_tokens=counts.tokens,
    num_dropped_documents=counts.dropped,
    num_cut_documents=counts.cut,
    label_counts={str(label): number for label, number in enumerate(labels)},
    shards=tuple(infos),
  )
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
  flags.DEFINE_float("short_seq_prob", default.short_seq_prob, "share of examples that aim for a shorter length")
  flags.DEFINE_integer("dupe_factor", default.dupe_factor, "times each document is used, with other segments and masks")
  flags.DEFINE_enum(
    "sentence_prediction",
    default.sentence_prediction,
    segments.SENTENCE_PREDICTIONS,
    "second segment: the next one, swapped or not (sop); the next or a random one (nsp); none",
  )
  flags.DEFINE_integer("random_seed", default.random_seed, "seed of every random draw")
  flags.DEFINE_integer("num_shards", 16, "TFRecord files to write")
  flags.DEFINE_integer("num_processes", os.cpu_count() or 1, "processes; the output does not depend on it")
  flags.DEFINE_boolean("compress", False, "write GZIP files")


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


def _report(manifest: Manifest, output_dir: str) -> None:
  labels = ", ".join(f"{count} with label {label}" for label, count in manifest.label_counts.items())
  print(
    f"{output_dir}: {manifest.num_examples} examples ({labels}) in {len(manifest.shards)} shards from "
    f"{manifest.num_documents} documents, {manifest.num_tokens} tokens "
    f"({manifest.num_dropped_documents} documents dropped as too short, {manifest.num_cut_documents} cut)"
  )
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
    _report(prepare(job), job.output_dir)
  except OSError as error:
    if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS}:
      raise
    raise UserError(
      f"--output_dir={job.output_dir}: {error.strerror}: make room or choose another directory; "
      "the same command goes on from here"
    ) from error


if __name__ == "__main__":
  _define_flags()
  app.run(main)
