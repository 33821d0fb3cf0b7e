"""Checkpoints: TensorFlow tensor bundles whose names are the original's, in directories that appear atomically.

`step-N/` holds weights.index, weights.data-*, albert_config.json and manifest.json, which gives each file's size and
SHA-256. It is written to a staging directory, synced to disk and renamed. On a remote file system, such as an object
store, where renaming a directory copies each file, it is written to a local directory and uploaded; manifest.json is
uploaded last, so that a directory without it is unfinished.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.data.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files, json_values, local_files
from albert.io.lost_processes import is_lost_process
from albert.runs.directory_lock import DirectoryLock
from albert.runs.metrics_log import log
from albert.weights.checkpoint_damage import MANIFEST, MODEL_CONFIG, PREFIX, describe_damage, find_damage

BEST = "best.json"
GLOBAL_STEP = "global_step"
_STEP_DIRECTORY = re.compile(r"^step-(\d+)$")
# Also without a process in it, as versions before wrote it.
_STAGING_DIRECTORY = re.compile(r"^\.step-\d+(\.[0-9a-f-]+)?\.tmp$")
# In a remote directory while its files are written or deleted.
_UPLOADING = ".uploading"
_UPLOAD_BLOCK = 8 << 20
# Damaged checkpoints that an error describes.
_NUM_SHOWN = 3


class Best(msgspec.Struct):
  """best.json: the best evaluation so far. A value of NaN is written as null."""

  step: json_values.Count
  value: float | None
  metric: str = ""

  @property
  def number(self) -> float:
    """The value, NaN for null."""
    return math.nan if self.value is None else self.value


def write_bundle(prefix: str, tensors: Mapping[str, tf.Tensor | np.ndarray]) -> None:
  """Writes tensors by name, in the format tf.train.load_checkpoint (and the original) reads."""
  names = list(tensors)
  with tf.device("CPU:0"):
    tf.raw_ops.SaveV2(
      prefix=prefix,
      tensor_names=names,
      shape_and_slices=[""] * len(names),
      tensors=[tf.convert_to_tensor(tensors[name]) for name in names],
    )


def _upload_file(source: str, target: str) -> dict[str, Any]:
  """Copies a local file to a remote one; returns its entry of the manifest."""
  digest, num_bytes = hashlib.sha256(), 0
  with open(source, "rb") as local, files.open_file(target, "wb") as remote:
    while block := local.read(_UPLOAD_BLOCK):
      digest.update(block)
      remote.write(block)
      num_bytes += len(block)
  return {"bytes": num_bytes, "sha256": digest.hexdigest()}


def _is_unfinished_upload(path: str) -> bool:
  """True for the directory of a checkpoint whose writer on a remote file system ended before it was complete."""
  if not files.is_remote(path) or files.exists(files.join(path, MANIFEST)):
    return False
  return files.exists(files.join(path, _UPLOADING))


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A verified checkpoint directory."""

  step: int
  path: str

  @property
  def prefix(self) -> str:
    """What tf.train.load_checkpoint takes."""
    return files.join(self.path, PREFIX)


class CheckpointManager:
  """The checkpoints of one run.

  Args:
    directory: of the checkpoints.
    keep: how many of the newest ones that verify are kept, besides the best one.
    model_config: is written into each checkpoint.

  Attributes:
    lock: of the run; before a save it is checked that no other process has taken it. None outside of training.
  """

  def __init__(self, directory: str, *, keep: int, model_config: ModelConfig):
    self.directory = directory
    self.keep = keep
    self.model_config = model_config
    self.lock: DirectoryLock | None = None
    # Step -> its damage (None: it verifies), for checkpoints that this process has saved or verified. Hashing is
    # slow, so pruning hashes each checkpoint at most once.
    self._damage: dict[int, str | None] = {}
    self._unreadable: dict[int, str] = {}
    self._warned: set[int] = set()

  def path(self, step: int) -> str:
    """The directory of the checkpoint of a step."""
    return files.join(self.directory, f"step-{step}")

  def save(self, step: int, tensors: Mapping[str, tf.Tensor | np.ndarray], *, prune: bool = True) -> str:
    """Writes step-N, then deletes old checkpoints (see `_prune`) unless `prune` is false. Returns its path.

    Raises:
      RunError: it could not be written, or another process has taken the lock; older checkpoints are as they were.
    """
    self.check_lock()
    final = self.path(step)
    is_remote = files.is_remote(final)
    staging = files.staging_path(os.path.join(tempfile.gettempdir(), f"step-{step}") if is_remote else final)
    files.makedirs(self.directory)
    is_copied = False
    try:
      os.mkdir(staging, 0o700 if is_remote else 0o777)
      write_bundle(os.path.join(staging, PREFIX), tensors)
      is_copied = True
      files.write_json(os.path.join(staging, MODEL_CONFIG), self.model_config.to_dict())
      if is_remote:
        self._upload(staging, step)
      else:
        self._rename(staging, step)
    except (OSError, tf.errors.OpError) as error:
      if isinstance(error, tf.errors.OpError) and is_lost_process(error) and not is_copied:
        raise  # a device that is lost, not a disk
      found = local_files.system_error(error)
      reason = (found and found.strerror) or " ".join(str(error).split())[:300] or type(error).__name__
      where = f"there and in {tempfile.gettempdir()}" if is_remote else "there"
      raise RunError(
        f"{local_files.final_path(final)}: cannot save it ({reason}): check space and rights {where}, and run the same "
        "command again; older checkpoints are kept"
      ) from error
    finally:
      files.discard(staging)  # what is left of it
    self._damage[step] = None
    if prune:
      self._prune(step)
    return final

  def check_lock(self, *, read: bool = True) -> None:
    """RunError if this process has lost the lock of the run; see DirectoryLock.check."""
    if self.lock is not None:
      self.lock.check(read=read)

  def _rename(self, staging: str, step: int) -> None:
    """Syncs the files of a staging directory to disk, writes their manifest, and renames the directory."""
    files.sync_tree(staging)
    paths = {name: os.path.join(staging, name) for name in files.listdir(staging)}
    entries = {name: {"bytes": files.size(path), "sha256": file_sha256(path)} for name, path in paths.items()}
    files.write_json(os.path.join(staging, MANIFEST), {"step": step, "files": entries})
    self.check_lock()  # writing takes long
    self._rename_existing(step)
    files.replace(staging, self.path(step))

  def _upload(self, staging: str, step: int) -> None:
    """Copies the files of a local staging directory to a remote file system, and then writes their manifest.

    Each file is written once, and hashed on the way. Nothing is renamed, which on an object store is a copy.
    """
    final = self.path(step)
    if _is_unfinished_upload(final):
      files.remove_tree(final)
    self._rename_existing(step)
    files.makedirs(final)
    marker = files.join(final, _UPLOADING)
    with files.open_file(marker, "wb") as file:
      file.write(b"This checkpoint is being written.\n")
    entries = {name: _upload_file(os.path.join(staging, name), files.join(final, name)) for name in os.listdir(staging)}
    self.check_lock()
    with files.open_file(files.join(final, MANIFEST), "wb") as file:
      file.write(json.dumps({"step": step, "files": entries}, indent=2).encode())
    files.remove(marker)

  def _rename_existing(self, step: int) -> None:
    """Gives a directory that has the name of the checkpoint to be written another name, and says so."""
    path = self.path(step)
    if files.exists(path):
      damage = describe_damage(path)
      kept = files.unused_path(f"{path}.{'replaced' if damage is None else 'damaged'}")
      files.replace(path, kept)
      log(f"warning: {path} was there already ({damage or 'it verifies'}): kept as {kept}")

  def latest(self) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies, and a line about each newer one that was skipped."""
    skipped: list[str] = []
    for step in reversed(self.steps()):
      damage = self._verify(step)
      if damage is None:
        return Checkpoint(step, self.path(step)), skipped
      self._warned.add(step)
      skipped.append(f"skipped {self.path(step)}: {damage}")
    return None, skipped

  def latest_to_resume(self, *, start_over: bool) -> tuple[Checkpoint | None, list[str]]:
    """As `latest`, for training, which must not go on where every checkpoint is damaged.

    Args:
      start_over: return None if every checkpoint is damaged; call `rename_damaged` before the first save.
    Raises:
      UserError: there are checkpoints, none of them verifies, and start_over is false; or best.json, which every
        save needs, is damaged.
    """
    self.best()
    newest, skipped = self.latest()
    if newest is None and not start_over:
      steps = [step for step in reversed(self.steps()) if not _is_unfinished_upload(self.path(step))]
      if not steps:
        return None, skipped
      damages = [f"step-{step}: {self._damage[step]}" for step in steps]
      more = f"; and {len(damages) - _NUM_SHOWN} more" if len(damages) > _NUM_SHOWN else ""
      raise UserError(
        f"{self.directory}: none of its {len(damages)} checkpoints verifies ({'; '.join(damages[:_NUM_SHOWN])}{more}): "
        "restore one from a copy, or give --start_over to keep them under another name and train from the start"
      )
    return newest, skipped

  def rename_damaged(self) -> None:
    """Gives a directory in which no checkpoint verifies another name, and says so. To start over."""
    if self.steps():
      kept = files.unused_path(f"{self.directory}.damaged")
      files.replace(self.directory, kept)
      self._damage.clear()
      log(f"warning: training starts over; the damaged checkpoints are kept in {kept}")

  def best_or_latest(self) -> tuple[Checkpoint | None, list[str]]:
    """The best checkpoint if it verifies, else the newest; and a line about each that was skipped."""
    best = self.best()
    if best is None:
      return self.latest()
    damage = self._verify(best.step)
    if damage is None:
      return Checkpoint(best.step, self.path(best.step)), []
    newest, skipped = self.latest()
    return newest, [f"skipped {self.path(best.step)}, the best: {damage}", *skipped]

  def steps(self) -> list[int]:
    """Steps that have a directory, damaged or not, in ascending order. UserError if `directory` is none."""
    if not files.exists(self.directory) and not os.path.islink(self.directory):
      return []
    if not files.is_dir(self.directory):
      raise UserError(f"{self.directory}: must be a directory of checkpoints, and is none: move it away")
    with files.naming(self.directory, "read"):
      matches = [_STEP_DIRECTORY.match(name) for name in files.listdir(self.directory)]
    return sorted(int(match.group(1)) for match in matches if match)

  def best(self) -> Best | None:
    """The best evaluation so far, or None. UserError if best.json does not hold one."""
    path = files.join(self.directory, BEST)
    if not files.exists(path):
      return None
    return files.read_json(path, Best, "restore or delete this file", nan_is_null=True)

  def record_evaluation(self, step: int, metric: str, value: float, *, higher_is_better: bool) -> bool:
    """Records `step` as the best if it beats the best so far, which pruning then keeps. True if it does.

    A best checkpoint that is missing or damaged cannot be used, so any other one beats it.
    """
    best = self.best()
    if best is not None:
      wrong, is_damage = self._damage_or_fault(best.step)
      damage = wrong if is_damage else None
      is_better = math.isnan(best.number) or (value > best.number if higher_is_better else value < best.number)
      if not is_better and damage is None:
        return False
      if damage is not None:
        log(f"warning: {self.path(best.step)}, the best so far, cannot be used: {damage}")
    files.write_json(files.join(self.directory, BEST), {"step": step, "metric": metric, "value": value})
    return True

  def remove_leftovers(self) -> None:
    """Deletes what a killed run was writing or deleting: staging directories and unfinished uploads, nothing else.

    Call it with the lock held.
    """
    if files.is_remote(self.directory):
      files.remove_leftovers(tempfile.gettempdir())
    if files.exists(self.directory):
      for name in files.listdir(self.directory):
        path = files.join(self.directory, name)
        if _STAGING_DIRECTORY.match(name) or (_STEP_DIRECTORY.match(name) and _is_unfinished_upload(path)):
          files.remove_tree(path)

  def _verify(self, step: int) -> str | None:
    """The damage of a checkpoint, looked for now."""
    self._damage[step] = find_damage(self.path(step), step)
    return self._damage[step]

  def _damage_of(self, step: int) -> str | None:
    """The damage of a checkpoint; one that this process has saved or verified is not read again."""
    return self._damage[step] if step in self._damage else self._verify(step)

  def _damage_or_fault(self, step: int) -> tuple[str | None, bool]:
    """(what is wrong with a checkpoint, whether it is its damage): one that cannot be read may be intact.

    For a run that is under way. What could not be read is not tried again before the next start.
    """
    if step not in self._unreadable:
      try:
        return self._damage_of(step), True
      except (UserError, RunError) as error:
        self._unreadable[step] = str(error)
    return self._unreadable[step], False

  def _prune(self, saved: int) -> None:
    """Deletes checkpoints that verify and are older than the newest `keep` that do, except the best and `saved`.

    A damaged checkpoint is left alone and named in a warning, once.
    """
    steps = self.steps()
    if len(steps) <= self.keep:
      return  # nothing to hash
    best = self.best()
    spared = {saved, best.step} if best else {saved}
    num_good = 0
    for step in reversed(steps):
      damage, _ = self._damage_or_fault(step)
      if damage is None:
        num_good += 1
        if num_good > self.keep and step not in spared:
          with files.naming(self.path(step), "remove"):
            self._delete(step)
      elif step not in self._warned:
        self._warned.add(step)
        log(f"warning: {self.path(step)} is left alone: {damage}")

  def _delete(self, step: int) -> None:
    """Deletes a checkpoint so that a kill in between leaves no damaged one, but what `remove_leftovers` deletes."""
    path = self.path(step)
    if not files.is_remote(path):
      staging = files.staging_path(path)
      files.replace(path, staging)
      files.remove_tree(staging)
      return
    with files.open_file(files.join(path, _UPLOADING), "wb") as file:
      file.write(b"This checkpoint is being deleted.\n")
    names = [name for name in files.listdir(path) if name not in (MANIFEST, _UPLOADING)]
    for name in [MANIFEST, *names]:
      files.remove(files.join(path, name))
    files.remove_tree(path)


def restore(checkpoint: Checkpoint, variables: Mapping[str, tf.Variable]) -> None:
  """Assigns every variable from the checkpoint.

  Raises:
    UserError: one is missing, has another shape or type, or holds a value that is not finite, which no run saves.
  """
  reader = tf.train.load_checkpoint(checkpoint.prefix)
  shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
  for name, variable in variables.items():
    if name not in shapes:
      raise UserError(f"{checkpoint.path}: has no {name}: it was not saved by a run of this configuration")
    if list(variable.shape) != list(shapes[name]):
      raise UserError(
        f"{checkpoint.path}: {name} has shape {list(shapes[name])}, the model needs {list(variable.shape)}"
      )
    found, wanted = tf.as_dtype(dtypes[name]), variable.dtype
    if found.is_floating != wanted.is_floating or found.is_integer != wanted.is_integer:
      raise UserError(f"{checkpoint.path}: {name} holds {found.name} values, the model needs {wanted.name}")
    value = tf.cast(reader.get_tensor(name), wanted)
    if wanted.is_floating and not tf.reduce_all(tf.math.is_finite(value)):
      raise UserError(f"{checkpoint.path}: {name} holds values that are not finite: give another checkpoint")
    variable.assign(value)
