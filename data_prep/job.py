"""A job of data preparation, its hidden directory, and the checks before a later command continues the job."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import msgspec

from albert.config.base import Config, option
from albert.config.command_flags import MAX_PROCESSES
from albert.data.manifest import FILE_NAME as MANIFEST_NAME
from albert.data.manifest import HELDOUT_FOLDER, Manifest, ShardInfo, checksum_of, shard_is_intact
from albert.errors import UserError
from albert.io import files
from albert.io.text import counted
from albert.io.workers import WorkerPool
from albert.runs.directory_lock import DirectoryLock
from data_prep import units
from data_prep.examples.settings import PreparationSettings
from data_prep.readers import formats
from data_prep.readers.records import ReadingSettings
from data_prep.text_files import read_record

# The kind of data set, which is in manifest.json and in the names of the shards.
KIND = "pretraining"
# The names of shards number them with five digits.
_MAX_SHARDS = 99_999


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(Config):
  """A job of data preparation. Local processes, a Ray cluster or Apache Beam carry it out.

  The inputs are sorted, and the position of a file among them is its ordinal. `settings` are those that the examples
  depend on, and `reading` says how documents and sentences are found in the inputs.
  """

  inputs: tuple[str, ...]
  output_dir: str
  spm_model_file: str
  settings: PreparationSettings
  reading: ReadingSettings = dataclasses.field(default_factory=ReadingSettings)
  num_shards: int = option(16, "number of TFRecord files to write", minimum=1, maximum=_MAX_SHARDS)
  num_processes: int = option(
    1, "number of local processes; the output does not depend on it", minimum=1, maximum=MAX_PROCESSES
  )
  compress: bool = option(False, "write the shards as GZIP files")

  @property
  def is_read_directly(self) -> bool:
    """Whether no input file is converted."""
    return all(formats.is_read_directly(path, self.reading) for path in self.inputs)

  def of_heldout(self) -> Job | None:
    """Returns the job that writes the held-out documents to one shard; None if there are none."""
    settings, output_dir = self.settings, files.join(self.output_dir, HELDOUT_FOLDER)
    if not settings.eval_share or settings.heldout:
      return None
    return dataclasses.replace(self, settings=settings.of_heldout(), output_dir=output_dir, num_shards=1)

  def shard_name(self, index: int) -> str:
    """Returns the file name of shard number `index`, from 0."""
    ending = "tfrecord.gz" if self.compress else "tfrecord"
    return f"{KIND}-{index:05d}-of-{self.num_shards:05d}.{ending}"


# Starts the processes that carry out a job, or connects to them: processes of this machine, Ray or Apache Beam. The
# arguments are the job, a function that each process calls first, and the arguments of this function: the job's
# settings and vocabulary.
OpenPool: TypeAlias = Callable[[Job, Callable[..., None], tuple[Any, ...]], AbstractContextManager[WorkerPool]]


# Increase this when the same settings produce different examples than before.
_FORMAT_VERSION = 1
# Increase this when the format of the files of an unfinished job changes.
_WORKSPACE_VERSION = 4
_WORK_PREFIX = ".preparation-"
_SETTINGS_FILE = "settings.json"
# In settings.json: whether bad input stopped the job, so that a job with other input files may continue it.
_STOPPED_BY_INPUT = "stopped_by_input"
_SHARD_PREFIX = "shard-"
# Settings that manifests record only if they are set, since those of earlier versions lack them.
_LATER_SETTINGS = ("keep_accents", "eval_share", "heldout")
# Settings that the shards depend on but the block files do not.
_SHARD_SETTINGS = ("num_shards", "compress")
BLOCK_ENDING = ".block"


class _ShardRecord(msgspec.Struct):
  """shard-N.json, which records a finished shard of an unfinished job: the hash of its settings, and the shard."""

  content: str
  shard: ShardInfo


def _record_path(directory: str, index: int) -> str:
  return files.join(directory, f"{_SHARD_PREFIX}{index:05d}.json")


def record_shard(directory: str, index: int, info: ShardInfo, shard_digest: str) -> None:
  """Records in a job's workspace that shard number `index`, from 0, is finished."""
  files.write_json(_record_path(directory, index), {"content": shard_digest, "shard": dataclasses.asdict(info)})


class UnusableTextError(UserError):
  """The text gives no examples with these settings, so no later job can use the block files made from it."""


class Workspace:
  """The hidden directory in output_dir that holds the files of an unfinished job, at `path`.

  Its name is a hash of the vocabulary and of the settings that the block files depend on. A job with the same hash can
  therefore reuse the block files, even if its input files or its number of shards differ. `parts` are the workspace of
  the job that writes the held-out documents, if there is one, and this one.
  """

  def __init__(self, job: Job, vocab_sha256: str):
    self.job = job
    self._block_settings = {
      "format_version": _FORMAT_VERSION,
      **dataclasses.asdict(job.settings),
      "vocab_sha256": vocab_sha256,
    }
    for name in _LATER_SETTINGS:
      if not self._block_settings[name]:
        del self._block_settings[name]
    self.path = files.join(job.output_dir, f"{_WORK_PREFIX}{checksum_of(self._block_settings)[:16]}")
    self.lock = DirectoryLock(job.output_dir, "preparing data")
    self._is_open = False
    self.parts = [self]
    if heldout_job := job.of_heldout():
      heldout = Workspace(heldout_job, vocab_sha256)
      heldout.path, heldout.lock = files.join(self.path, HELDOUT_FOLDER), self.lock
      self.parts.insert(0, heldout)

  def shard_settings(self, input_files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns everything that the shards depend on, as JSON values. The manifest records them.

    The entries of the input files are those of `units.text_entries` and `units.hash_file`, as far as they are known.
    """
    values = {**self._block_settings, "num_shards": self.job.num_shards, "compress": self.job.compress}
    values["vocab_sha256"] = values.pop("vocab_sha256")  # in manifests it stands after compress
    if not self.job.is_read_directly:
      values["reading"] = self.job.reading.to_dict()
      del values["reading"]["skip_bad_records"]  # it changes no examples
    return {**values, "input_files": [dict(entry) for entry in input_files]}

  def _initial_settings(self) -> dict[str, Any]:
    """Returns the contents of settings.json: the settings that are known before the input is read."""
    entries = [{"file": os.path.basename(path)} for path in self.job.inputs]
    return {"workspace_version": _WORKSPACE_VERSION, **self.shard_settings(entries)}

  def _read_settings(self, path: str) -> dict[str, Any]:
    """Reads settings.json in the directory of an unfinished job. Returns {} if there is no such file."""
    settings_file = files.join(path, _SETTINGS_FILE)
    if not files.exists(settings_file):
      return {}
    return files.read_json(settings_file, remedy=f"remove {path}, or choose another --output_dir")

  def check_output_dir(self) -> None:
    """Raises a UserError if output_dir holds an unfinished job with other settings, or a file of another job."""
    job = self.job
    for name in files.listdir(job.output_dir) if files.is_dir(job.output_dir) else []:
      if name.startswith(_WORK_PREFIX):
        self._check_unfinished(files.join(job.output_dir, name))
    existing = self._read_settings(self.path)
    # If the settings agree, a shard belongs to this job even without a record: the job may have been stopped before it
    # wrote the record.
    if any(existing.get(name) != getattr(job, name) for name in _SHARD_SETTINGS):
      for part in (workspace.job for workspace in self.parts):
        names = files.listdir(part.output_dir) if files.is_dir(part.output_dir) else []
        for name in (MANIFEST_NAME, *map(part.shard_name, range(part.num_shards))):
          if name in names:
            raise UserError(
              f"{part.output_dir} holds {name}, which no manifest describes: choose another directory, or move it away"
            )

  def _check_unfinished(self, path: str) -> None:
    """Raises a UserError if this job cannot continue the unfinished job in directory `path`."""
    existing, requested = self._read_settings(path), self._initial_settings()
    stopped_by_input = existing.pop(_STOPPED_BY_INPUT, False)
    if not existing and path == self.path:
      return
    if existing.get("workspace_version") != _WORKSPACE_VERSION:
      raise UserError(
        f"--output_dir={self.job.output_dir} holds an unfinished run that another version of this program started: "
        f"remove {path}, or choose another directory"
      )
    may_differ = set()  # settings that this job may change
    if path == self.path:
      if stopped_by_input:
        may_differ.add("input_files")
      has_records = any(name.startswith(_SHARD_PREFIX) for name in files.listdir(path))
      if not has_records and not any(name.startswith(f"{KIND}-") for name in files.listdir(self.job.output_dir)):
        may_differ.update(_SHARD_SETTINGS)
    if any(existing.get(name) != requested[name] for name in requested.keys() - may_differ):
      raise _other_settings_error(self.job.output_dir, "an unfinished run", existing, requested)

  def open(self) -> None:
    """Makes the directories and writes settings.json. The caller must hold the lock."""
    for part in self.parts:
      files.makedirs(part.path)
      files.makedirs(part.job.output_dir)
    self._is_open = True
    if self._read_settings(self.path) != self._initial_settings():
      files.write_json(files.join(self.path, _SETTINGS_FILE), self._initial_settings())
    files.remove_leftovers(self.path)

  def find_intact(self, input_files: Sequence[Mapping[str, Any]]) -> list[tuple[int, ShardInfo]]:
    """Returns the numbers and the entries of the intact shards that the manifest of a finished job lists."""
    manifest, directory = Manifest.load(self.job.output_dir), self.job.output_dir
    if manifest is None or manifest.settings != self.shard_settings(input_files):
      return []
    is_intact = files.in_threads(lambda shard: shard_is_intact(directory, shard), manifest.shards)
    return [pair for pair, ok in zip(enumerate(manifest.shards), is_intact, strict=True) if ok]

  def find_finished_shard(self, index: int, shard_digest: str) -> ShardInfo | None:
    """Returns the manifest's entry of a shard that an earlier command has finished with the same `shard_digest`.

    None if the shard has no record, or its file is missing or damaged.
    """
    record = read_record(_record_path(self.path, index), _ShardRecord)
    if record is None or record.content != shard_digest or record.shard.file != self.job.shard_name(index):
      return None
    return record.shard if shard_is_intact(self.job.output_dir, record.shard) else None

  def remove(self) -> None:
    """Removes the directory, then releases the lock."""
    self._is_open = False
    files.remove_tree(self.path)  # before the lock is released, so that no other process uses the directory
    self.lock.release()

  def keep_finished_files(self, error: UserError) -> None:
    """Keeps finished files after an error of the input, so that a job with corrected input can use them.

    The directory is removed instead if it holds no finished files, or if the text is unusable.
    """
    if not self._is_open:
      return
    names = files.listdir(self.path)
    has_finished_files = any(
      name.endswith(BLOCK_ENDING) or name.startswith((_SHARD_PREFIX, "text-", ".text-", "gzip-")) for name in names
    )
    if isinstance(error, UnusableTextError) or not has_finished_files:
      self.remove()
    else:
      files.write_json(files.join(self.path, _SETTINGS_FILE), {**self._initial_settings(), _STOPPED_BY_INPUT: True})


def _other_settings_error(output_dir: str, run: str, existing: dict[str, Any], requested: dict[str, Any]) -> UserError:
  """Returns the error for an output_dir whose run, such as "a finished run", has other settings than the requested."""
  defaults = ReadingSettings().to_dict()  # "reading" is not recorded for text that is read directly
  existing, requested = ({**defaults, **s, **s.get("reading", {}), "reading": None} for s in (existing, requested))
  differing = [name for name in sorted({*existing, *requested}) if existing.get(name) != requested.get(name)]
  differences = ", ".join(
    "other input files" if name == "input_files" else f"{name} {existing.get(name)}, not {requested.get(name)}"
    for name in differing
  )
  return UserError(
    f"--output_dir={output_dir} holds {run} with other settings ({differences}): choose another directory, or remove it"
  )


def _hash_inputs(job: Job, pool: WorkerPool, entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Returns the manifest's entries of the input files as they are now, with the kinds of hashes of its `entries`.

  Manifests of earlier versions have the SHA-256 of every file. Now text that is read directly has one of its ranges.
  """
  text_paths = [path for path, entry in zip(job.inputs, entries, strict=True) if "ranges_sha256" in entry]
  tasks = list(units.plan_units(text_paths, with_donors=False))
  records = dict(pool.map(units.hash_unit, tasks))
  text_entries = units.text_entries(files.stats(text_paths), (records[task] for task in tasks))
  current = dict(zip(text_paths, text_entries, strict=True))
  current |= pool.map(units.hash_file, [path for path in job.inputs if path not in current])
  return [current[path] for path in job.inputs]


def _check_finished_run(job: Job, workspace: Workspace, manifest: Manifest, pool: WorkerPool) -> None:
  """Raises a UserError if output_dir holds the finished run of another job.

  Hashing all input files is slow, so it is done only if everything else, including their sizes, is equal.
  """
  existing = manifest.settings
  existing_files = existing.get("input_files", [])
  entries = [{"file": os.path.basename(path), "bytes": files.size(path)} for path in job.inputs]
  has_same_sizes = entries == [{name: entry.get(name) for name in ("file", "bytes")} for entry in existing_files]
  requested = workspace.shard_settings(existing_files if has_same_sizes else entries)
  if requested == existing:
    requested = workspace.shard_settings(_hash_inputs(job, pool, existing_files))
  if manifest.kind != KIND or requested != existing:
    raise _other_settings_error(job.output_dir, "a finished run", existing, requested)


def resume(job: Job, workspace: Workspace, pool: WorkerPool) -> Manifest | None:
  """Opens the workspace, unless output_dir holds the finished and intact shards of the same job.

  If shards of a finished job are missing or damaged, its manifest is removed and the intact shards are recorded in the
  workspace, so that only the others are made again.

  Returns:
    The manifest if all shards are finished and intact, else None.
  """
  manifest = earlier_manifest = Manifest.load(job.output_dir)
  if manifest is None:
    if files.is_remote(job.output_dir):  # where the lock is taken from a running process, which a mistake must not stop
      workspace.check_output_dir()
    workspace.lock.acquire()
    manifest = Manifest.load(job.output_dir)  # another process may have written it before this one got the lock
  if manifest is None:
    workspace.check_output_dir()
    workspace.open()
    return None
  _check_finished_run(job, workspace, manifest, pool)
  input_files = manifest.settings["input_files"]
  intact = [(part, index, shard) for part in workspace.parts for index, shard in part.find_intact(input_files)]
  num_shards = sum(part.job.num_shards for part in workspace.parts)
  if len(intact) == num_shards:
    workspace.remove()
    print(f"{job.output_dir}: complete; {counted(num_shards, 'shard')} with correct checksums, nothing to do")
    return manifest
  num_damaged = num_shards - len(intact)
  print(f"{job.output_dir}: {num_damaged} of {num_shards} shards are missing or damaged: making them again")
  if earlier_manifest is not None:  # else the lock was taken above
    workspace.lock.acquire()
  workspace.open()
  for part, index, shard in intact:
    record_shard(part.path, index, shard, checksum_of(part.shard_settings(input_files)))
  files.remove(files.join(job.output_dir, MANIFEST_NAME))
  return None
