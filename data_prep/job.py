"""What a run of data preparation is asked for, and its state in output_dir: the same for every runner."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from albert import files
from albert.data.manifest import Manifest, ShardInfo, shard_is_intact
from albert.errors import UserError
from albert.tokenization import Tokenizer
from albert.workers import Workers
from data_prep import segments
from data_prep.corpus import Counts
from data_prep.preparation import Settings

KIND = "pretraining"
# Raised when the same settings give other examples than before.
_FORMAT_VERSION = 1
_WORK_PREFIX = ".preparation-"
_SETTINGS_FILE = "settings.json"


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


class Workspace:
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
        raise other_settings_error(job.output_dir, "an unfinished run", there, self.identity)
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


class Made(NamedTuple):
  """What a runner made of the text: counts, examples with label 0 and 1, the shards in order."""

  counts: Counts
  labels: list[int]
  infos: list[ShardInfo]


# Makes the shards of a job.
Run = Callable[[Job, Workspace, Tokenizer, Workers], Made]


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


def resume(job: Job, workspace: Workspace) -> Manifest | None:
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
    raise other_settings_error(job.output_dir, "a finished run", manifest.settings, workspace.identity)
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


def check_counts(counts: Counts, num_examples: int, settings: Settings) -> None:
  """UserError if the text is too little for the settings."""
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


def make_identity(job: Job, vocab_sha256: str, sha256: Mapping[str, str]) -> dict[str, Any]:
  """Everything the shards are a function of, as JSON values. `sha256`: input file -> its hash."""
  return {
    "format_version": _FORMAT_VERSION,
    **dataclasses.asdict(job.settings),
    "num_shards": job.num_shards,
    "compress": job.compress,
    "vocab_sha256": vocab_sha256,
    "input_files": [
      {"file": os.path.basename(path), "bytes": files.size(path), "sha256": sha256[path]} for path in job.inputs
    ],
  }


def make_manifest(
  identity: dict[str, Any], tokenizer: Tokenizer, counts: Counts, labels: Sequence[int], infos: Sequence[ShardInfo]
) -> Manifest:
  """The manifest of finished shards. `labels`: examples with label 0 and with label 1."""
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
    label_counts={str(label): number for label, number in enumerate(labels)},
    shards=tuple(infos),
  )
