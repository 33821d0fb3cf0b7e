"""What a run of data preparation is asked for, and its state in output_dir: the same for every runner."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from albert.config.base import Config, option
from albert.config.ranges import MAX_PROCESSES
from albert.data.manifest import InputFile, Manifest, ShardInfo, shard_is_intact
from albert.errors import RunError, UserError
from albert.io import files, json_values
from albert.io.workers import Workers
from albert.runs.directory_lock import DirectoryLock
from albert.tokenization.tokenizer import Tokenizer
from data_prep import segments
from data_prep.corpus import Counts
from data_prep.preparation import Settings

KIND = "pretraining"
# Raised when the same settings give other examples than before.
_FORMAT_VERSION = 1
# Raised when an unfinished run's files have another form than before.
_WORKSPACE_VERSION = 2
_WORK_PREFIX = ".preparation-"
_SETTINGS_FILE = "settings.json"
_STOPPED_BY_INPUT = "stopped_by_input"
_SHARD_PREFIX = "shard-"
# What the shards depend on, but not the spill files.
_SHARD_SETTINGS = ("num_shards", "compress")
# Names of shards hold five digits.
_MAX_SHARDS = 99_999
SPILL_ENDING = ".spill"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(Config):
  """One run: where from, where to, and how."""

  inputs: tuple[str, ...]
  output_dir: str
  spm_model_file: str
  settings: Settings
  num_shards: int = option(16, "TFRecord files to write", minimum=1, maximum=_MAX_SHARDS)
  num_processes: int = option(1, "processes; the output does not depend on it", minimum=1, maximum=MAX_PROCESSES)
  compress: bool = option(False, "write GZIP files")

  def shard_name(self, index: int) -> str:
    ending = "tfrecord.gz" if self.compress else "tfrecord"
    return f"{KIND}-{index:05d}-of-{self.num_shards:05d}.{ending}"


def _digest(values: dict[str, Any]) -> str:
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class _SettingsFile(msgspec.Struct):
  """settings.json of an unfinished run."""

  workspace_version: int = 0
  stopped_by_input: bool = False
  input_files: list[InputFile] = []


class _ShardRecord(msgspec.Struct):
  """shard-N.json of an unfinished run."""

  content: str
  file: json_values.FileName
  examples: json_values.Count
  bytes: json_values.Count
  sha256: str

  @property
  def info(self) -> ShardInfo:
    """The shard's entry of the manifest."""
    return ShardInfo(self.file, self.examples, self.bytes, self.sha256)


class UnusableTextError(UserError):
  """The text gives no example with these settings: nothing that was made of it can be used with others."""


class Workspace:
  """The hidden directory in output_dir that holds what is not finished.

  It is named after what the examples of a unit of text are a function of besides the text: whatever else differs, what
  is in it can be used.

  Args:
    job: whose directory it is.
    vocab_sha256: of its SentencePiece model.
  """

  def __init__(self, job: Job, vocab_sha256: str):
    unit_settings = {
      "format_version": _FORMAT_VERSION,
      **dataclasses.asdict(job.settings),
      "vocab_sha256": vocab_sha256,
    }
    self.job, self.unit_settings = job, unit_settings
    self.path = files.join(job.output_dir, f"{_WORK_PREFIX}{_digest(unit_settings)[:16]}")
    self._lock: DirectoryLock | None = None
    self._is_open = False

  def identity(self, input_files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything the shards are a function of, as JSON values. `input_files`: file, bytes and sha256 of each."""
    values = {**self.unit_settings, "num_shards": self.job.num_shards, "compress": self.job.compress}
    values["vocab_sha256"] = values.pop("vocab_sha256")  # where manifests have it
    return {**values, "input_files": [dict(entry) for entry in input_files]}

  def content(self, input_files: Sequence[Mapping[str, Any]]) -> str:
    """A hash of everything the shards are a function of."""
    return _digest(self.identity(input_files))

  def _request(self) -> dict[str, Any]:
    """What is known of the job before its input is read."""
    entries = [{"file": os.path.basename(path)} for path in self.job.inputs]
    return {"workspace_version": _WORKSPACE_VERSION, **self.identity(entries)}

  def file(self, name: str) -> str:
    return files.join(self.path, name)

  def _settings(self, path: str) -> dict[str, Any]:
    settings = files.join(path, _SETTINGS_FILE)
    if not files.exists(settings):
      return {}
    remedy = f"remove {path}, or choose another --output_dir"
    values = files.read_json(settings, remedy=remedy)
    json_values.convert(settings, values, _SettingsFile, remedy)
    return values

  def check_output_dir(self) -> None:
    """Refuses a directory that holds another run's files."""
    job = self.job
    names = files.listdir(job.output_dir) if files.is_dir(job.output_dir) else []
    for name in names:
      if name.startswith(_WORK_PREFIX):
        self._check_unfinished(files.join(job.output_dir, name))
    there = self._settings(self.path)
    # A run that was stopped between moving a shard and recording it goes on.
    if any(there.get(name) != getattr(job, name) for name in _SHARD_SETTINGS):
      for index in range(job.num_shards):
        if job.shard_name(index) in names:
          raise UserError(
            f"--output_dir={job.output_dir} holds {job.shard_name(index)}, which no manifest describes: "
            "choose another directory, or move the file away"
          )

  def _check_unfinished(self, path: str) -> None:
    """Refuses the directory of an unfinished run if this job cannot go on with it."""
    there, here = self._settings(path), self._request()
    stopped_by_input = there.pop(_STOPPED_BY_INPUT, False)
    if not there and path == self.path:
      return
    if there.get("workspace_version") != _WORKSPACE_VERSION:
      raise UserError(
        f"--output_dir={self.job.output_dir} holds an unfinished run of another version of this program: remove "
        f"{path}, or choose another directory"
      )
    may_differ = set()
    if path == self.path:
      if stopped_by_input:
        may_differ.add("input_files")
      if not self._has_shards():
        may_differ.update(_SHARD_SETTINGS)
    if any(there.get(name) != here[name] for name in here.keys() - may_differ):
      raise other_settings_error(self.job.output_dir, "an unfinished run", there, here)

  def lock(self) -> None:
    """Keeps another process from preparing data in output_dir. UserError if one is doing so."""
    if self._lock is None:
      lock = DirectoryLock(self.job.output_dir, "preparing data")
      lock.acquire()
      self._lock = lock

  def open(self) -> None:
    """Makes the directory. Call it with the lock held."""
    files.makedirs(self.path)
    self._is_open = True
    if self._settings(self.path) != self._request():
      files.write_json(self.file(_SETTINGS_FILE), self._request())
    if files.is_remote(self.path):
      files.remove_leftovers(self.path)
    else:
      for name in files.listdir(self.path):
        if files.is_staging_name(name):  # of a process that was killed: this one holds the lock
          files.remove(self.file(name))

  def close(self) -> None:
    """Lets another process use the directory."""
    if self._lock is not None:
      self._lock.release()
      self._lock = None

  def save_shard(self, index: int, info: ShardInfo, content: str) -> None:
    """Records a finished shard. `content`: of everything it is a function of, a hash."""
    if self._lock is not None:
      self._lock.check()
    files.write_json(self.file(f"{_SHARD_PREFIX}{index:05d}.json"), {"content": content, **dataclasses.asdict(info)})

  def finished_shard(self, index: int, content: str) -> ShardInfo | None:
    """The shard's entry, if its file is in output_dir, has this content and is what was written."""
    path = self.file(f"{_SHARD_PREFIX}{index:05d}.json")
    if not files.exists(path):
      return None
    try:
      record = files.read_json(path, _ShardRecord)
    except UserError:
      return None  # damaged: the shard is made again
    if record.content != content or record.file != self.job.shard_name(index):
      return None
    return record.info if shard_is_intact(self.job.output_dir, record.info) else None

  def _has_shards(self) -> bool:
    """True if shards were finished, recorded or not: with other settings they would stand beside this job's."""
    is_recorded = any(name.startswith(_SHARD_PREFIX) for name in files.listdir(self.path))
    return is_recorded or any(name.startswith(f"{KIND}-") for name in files.listdir(self.job.output_dir))

  def remove(self) -> None:
    self._is_open = False
    files.remove_tree(self.path)  # with the lock held: another process may make it anew
    self.close()

  def leave(self, error: UserError) -> None:
    """After bad input: keeps what is finished, for a run with the input mended; removes the directory if nothing is."""
    if not self._is_open:
      return
    names = files.listdir(self.path)
    is_used = any(name.endswith(SPILL_ENDING) or name.startswith(_SHARD_PREFIX) for name in names)
    if isinstance(error, UnusableTextError) or not is_used:
      self.remove()
    else:
      files.write_json(self.file(_SETTINGS_FILE), {**self._request(), _STOPPED_BY_INPUT: True})


class Made(NamedTuple):
  """What a runner made of the text: counts, examples with label 0 and 1, the shards and the input files in order."""

  counts: Counts
  labels: list[int]
  infos: list[ShardInfo]
  input_files: list[dict[str, Any]]


class Runner(NamedTuple):
  """What makes the shards.

  Attributes:
    make: the shards of a job.
    hash_inputs: the job's input files as they are now: their names, sizes and hashes in order.
  """

  make: Callable[[Job, Workspace, Tokenizer, Workers], Made]
  hash_inputs: Callable[[Job, Workspace, Workers], list[dict[str, Any]]]


def other_settings_error(output_dir: str, what: str, there: dict[str, Any], here: dict[str, Any]) -> UserError:
  """The error for a directory that holds what other settings made."""
  differing = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
  shown = ", ".join(
    "other input files" if name == "input_files" else f"{name} {there.get(name)}, not {here.get(name)}"
    for name in differing
  )
  return UserError(
    f"--output_dir={output_dir} holds {what} with other settings ({shown}): "
    "choose another directory, or remove this one"
  )


def _finished_identity(
  job: Job, workspace: Workspace, there: dict[str, Any], hash_inputs: Callable[[], list[dict[str, Any]]]
) -> dict[str, Any]:
  """The job's identity, for the comparison with that of a finished run. Files are hashed only if all else is equal."""
  input_files = [{"file": os.path.basename(path), "bytes": files.size(path)} for path in job.inputs]
  known = there.get("input_files", [])
  if input_files != [{name: entry.get(name) for name in ("file", "bytes")} for entry in known]:
    return workspace.identity(input_files)
  here = workspace.identity(known)
  return here if here != there else workspace.identity(hash_inputs())


def resume(job: Job, workspace: Workspace, hash_inputs: Callable[[], list[dict[str, Any]]]) -> Manifest | None:
  """The manifest of a finished run of the same job that verifies. A damaged one is opened up for repair.

  Raises:
    UserError: when output_dir holds another run.
  """
  manifest = Manifest.load(job.output_dir)
  if manifest is None:
    workspace.lock()
    manifest = Manifest.load(job.output_dir)  # of a process that has just ended
  if manifest is None:
    workspace.check_output_dir()
    workspace.open()
    return None
  identity = _finished_identity(job, workspace, manifest.settings, hash_inputs)
  if manifest.kind != KIND or manifest.settings != identity:
    raise other_settings_error(job.output_dir, "a finished run", manifest.settings, identity)
  names = [job.shard_name(index) for index in range(job.num_shards)]
  if [shard.file for shard in manifest.shards] != names:
    raise UserError(
      f"{files.join(job.output_dir, 'manifest.json')} lists {len(manifest.shards)} shards, not {names[0]} to "
      f"{names[-1]}: restore it, or delete it and the shards"
    )
  intact = [shard_is_intact(job.output_dir, shard) for shard in manifest.shards]
  if all(intact):
    workspace.remove()
    print(f"{job.output_dir}: complete; all {len(intact)} shards verify, nothing to do")
    return manifest
  print(f"{job.output_dir}: {intact.count(False)} of {len(intact)} shards are missing or damaged: making them again")
  workspace.lock()
  workspace.open()
  content = workspace.content(identity["input_files"])
  for index, shard in enumerate(manifest.shards):
    if intact[index]:
      workspace.save_shard(index, shard, content)
  files.remove(files.join(job.output_dir, "manifest.json"))
  return None


def check_counts(counts: Counts, num_examples: int, settings: Settings) -> None:
  """UnusableTextError if the text is too little for the settings."""
  if settings.sentence_prediction == segments.NSP and counts.documents - counts.cut < 2:
    raise UnusableTextError(
      "--sentence_prediction=nsp needs at least two documents, and the text is one: "
      "put blank lines between documents, or use sop"
    )
  if num_examples == 0:
    raise UnusableTextError(
      f"--input_file: no example in {counts.documents} documents of {counts.tokens} tokens: "
      "every document needs two words at least (--sentence_prediction=none: one)"
    )


def check_shards(job: Job, infos: Sequence[ShardInfo], num_examples: int) -> None:
  """Checks what a runner says it wrote against what was counted before the shuffle.

  Args:
    job: whose shards they are.
    infos: of the shards, in the order of their names.
    num_examples: that the text gave.

  Raises:
    RunError: shards or examples are missing or too many, or a file is not there or not as long as it was written.
  """
  names = [job.shard_name(index) for index in range(job.num_shards)]
  found = [info.file for info in infos]
  problem = ""
  if found != names:
    wrong = sorted({*names} ^ {*found}) or found
    problem = f"{len(found)} shards instead of {len(names)} ({wrong[0]} and others are missing, unknown or repeated)"
  elif sum(info.examples for info in infos) != num_examples:
    problem = f"{sum(info.examples for info in infos)} examples in the shards, and the text gave {num_examples}"
  else:
    for index, info in enumerate(infos):
      expected = (index + 1) * num_examples // job.num_shards - index * num_examples // job.num_shards
      path = files.join(job.output_dir, info.file)
      if info.examples != expected:
        problem = f"{info.examples} examples in {info.file}, which should have {expected}"
      elif not files.exists(path) or files.size(path) != info.bytes:
        problem = f"{path} is not there with its {info.bytes} bytes"
      if problem:
        break
  if problem:
    raise RunError(f"the runner lost or repeated work: {problem}: no manifest was written; run the same command again")


def make_manifest(identity: dict[str, Any], tokenizer: Tokenizer, made: Made) -> Manifest:
  """The manifest of finished shards."""
  counts = made.counts
  return Manifest(
    kind=KIND,
    settings=identity,
    vocab_sha256=tokenizer.sha256,
    vocab_size=tokenizer.vocab_size,
    num_documents=counts.documents,
    num_tokens=counts.tokens,
    num_dropped_documents=counts.dropped,
    num_cut_documents=counts.cut,
    num_unknown_tokens=counts.unknown,
    label_counts={str(label): number for label, number in enumerate(made.labels)},
    shards=tuple(made.infos),
  )
