"""The checkpoints of a run: saving, verifying, finding, restoring and deleting them.

A checkpoint is a directory `step-N/` with a TensorFlow checkpoint that has the original's names (weights.index,
weights.data-*), albert_config.json, and manifest.json, which gives the size and the SHA-256 of each file. It is written
to a staging directory, synced to disk and renamed, so that it appears completely or not at all. On a remote file
system, such as an object store, renaming a directory would copy each file. There it is written to a local directory and
uploaded. manifest.json is uploaded last, so a directory without it is an unfinished checkpoint.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from albert.config.model import ModelConfig
from albert.data.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files, json_values, local_files
from albert.io.progress import log
from albert.runs.directory_lock import DirectoryLock
from albert.runs.logs import rank_evaluation
from albert.runs.output_files import STEP_DIRECTORY
from albert.startup import quick_imports
from albert.weights.arrays import open_bundle
from albert.weights.names import OUTPUT_SCALE

if TYPE_CHECKING:
  import tensorflow as tf

# The names of the files of the TensorFlow checkpoint begin with this: weights.index, weights.data-00000-of-00001.
WEIGHTS_PREFIX = "weights"
MANIFEST_FILE = "manifest.json"
BEST_FILE = "best.json"
GLOBAL_STEP = "global_step"
_MODEL_CONFIG_FILE = "albert_config.json"
# A file that marks a remote directory while its files are written or deleted.
_UPLOAD_MARKER = ".uploading"
_UPLOAD_BLOCK_BYTES = 8 << 20
# Earlier versions wrote these names without the id of the process.
_STAGING_DIRECTORY = re.compile(r"^\.step-\d+(\.[0-9a-f-]+)?\.tmp$")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A checkpoint whose files agree with their manifest.

  Attributes:
    step: the number of updates after which it was saved.
    path: its directory.
  """

  step: int
  path: str

  @property
  def prefix(self) -> str:
    """The path that tf.train.load_checkpoint takes."""
    return files.join(self.path, WEIGHTS_PREFIX)


class BestEvaluation(msgspec.Struct):
  """The content of best.json.

  Attributes:
    step: the step of the best checkpoint.
    value: the value of its metric; None stands for NaN, which JSON does not have.
    metric: the name of the metric.
    loss: the loss, which decides between equal values of the metric; None if it is not known or NaN.
  """

  step: json_values.Count
  value: float | None
  metric: str = ""
  loss: float | None = None


class _FileEntry(msgspec.Struct):
  """The size and the hash of a file."""

  bytes: json_values.Count
  sha256: str


class _Manifest(msgspec.Struct):
  """The content of manifest.json."""

  step: json_values.Count
  files: dict[json_values.FileName, _FileEntry]


def find_damage(path: str, step: int | None = None) -> str | None:
  """Compares a checkpoint directory with its manifest.

  Args:
    path: the directory.
    step: the step that the manifest must have; None for any step.
  Returns:
    A description of the damage; None if the checkpoint is undamaged.
  Raises:
    UserError, RunError: a file exists but cannot be read, because of its permissions or of a disk error. This does not
      count as damage: the checkpoint may be intact, and the user decides whether to use an older one.
  """
  if not files.exists(path):
    return "it is missing"
  if not files.is_dir(path):
    return "it is not a directory"
  try:
    with files.convert_errors(path, "read"):
      names = files.listdir(path)
    if MANIFEST_FILE not in names or not files.is_regular(files.join(path, MANIFEST_FILE)):
      return f"no file {MANIFEST_FILE}, so it was never finished"
    content = files.read(files.join(path, MANIFEST_FILE))
    try:
      manifest = json_values.parse(MANIFEST_FILE, content, _Manifest)
    except UserError as error:
      return f"{MANIFEST_FILE} is damaged ({error})"
    for start in (f"{WEIGHTS_PREFIX}.index", _MODEL_CONFIG_FILE, f"{WEIGHTS_PREFIX}.data-"):
      if not any(name.startswith(start) for name in manifest.files):
        return f"{MANIFEST_FILE} is damaged (it does not list {start})"
    if step is not None and manifest.step != step:
      return f"{MANIFEST_FILE} says step {manifest.step}, so the checkpoint of that step was renamed or copied"
    damages = (_find_file_damage(files.join(path, name), name, entry) for name, entry in manifest.files.items())
    return next(filter(None, damages), None)
  except (UserError, RunError) as error:
    raise type(error)(
      f"{error}; if it cannot be made readable, move {path} away, and an older checkpoint is used"
    ) from error


def _find_file_damage(path: str, name: str, entry: _FileEntry) -> str | None:
  """Compares a file with its entry in the manifest, and returns a description of its damage."""
  if not files.exists(path):
    return f"{name} is missing"
  if files.size(path) != entry.bytes:
    return f"{name} has {files.size(path)} bytes instead of {entry.bytes}"
  return f"{name} is damaged (its SHA-256 differs from the manifest's)" if file_sha256(path) != entry.sha256 else None


def write_bundle(prefix: str, tensors: Mapping[str, tf.Tensor | np.ndarray]) -> None:
  """Writes a TensorFlow checkpoint with exactly these names, so that the original code can read it.

  Args:
    prefix: the path of the files without .index and .data-*.
    tensors: name -> values.
  """
  with quick_imports():  # here, because commands that only look for a checkpoint use this module, too
    import tensorflow as tf

  names = list(tensors)
  with tf.device("CPU:0"):
    values = [tf.convert_to_tensor(tensors[name]) for name in names]
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def restore(checkpoint: Checkpoint, variables: Mapping[str, tf.Variable]) -> None:
  """Assigns all variables from a checkpoint.

  Args:
    checkpoint: the checkpoint.
    variables: name in the checkpoint -> variable. Other tensors of the checkpoint are ignored. OUTPUT_SCALE may be
      missing, because runs of earlier versions do not have it; then the variable keeps its value.
  Raises:
    UserError: a variable is missing, has another shape or type, or holds a value that is not finite. Runs do not save
      such values.
  """
  import tensorflow as tf

  arrays = open_bundle(checkpoint.prefix, "checkpoint")
  for name, variable in variables.items():
    if name not in arrays and name == OUTPUT_SCALE:
      continue
    if name not in arrays:
      raise UserError(f"{checkpoint.path}: has no {name}: give its run's --optimizer, --precision, --max_train_seconds")
    array, shape, dtype = arrays[name], list(variable.shape), variable.dtype
    if list(array.shape) != shape:
      raise UserError(f"{checkpoint.path}: {name} has shape {list(array.shape)}, the model needs {shape}")
    saved_dtype = tf.as_dtype(array.dtype)
    if saved_dtype.is_floating != dtype.is_floating or saved_dtype.is_integer != dtype.is_integer:
      raise UserError(f"{checkpoint.path}: {name} holds {saved_dtype.name} values, the model needs {dtype.name}")
    value = tf.cast(array.read_raw(), dtype)
    if dtype.is_floating and not tf.reduce_all(tf.math.is_finite(value)):
      raise UserError(f"{checkpoint.path}: {name} holds values that are not finite: give another checkpoint")
    variable.assign(value)


def _mark_unfinished(path: str) -> None:
  """Marks a remote checkpoint whose files are about to be written or deleted."""
  with files.open_file(files.join(path, _UPLOAD_MARKER), "wb") as file:
    file.write(b"The files of this checkpoint are being written or deleted.\n")


def _is_unfinished_upload(path: str) -> bool:
  """Whether a remote directory is a checkpoint whose upload or deletion was interrupted."""
  is_finished = not files.is_remote(path) or files.exists(files.join(path, MANIFEST_FILE))
  return not is_finished and files.exists(files.join(path, _UPLOAD_MARKER))


class CheckpointManager:
  """The checkpoints of one run.

  Args:
    directory: the directory of the step-N directories.
    keep: the number of newest undamaged checkpoints that `save` keeps; it keeps the best one, too.
    model_config: the config that is written into each checkpoint.
    class_keys: further keys of this config, see albert.weights.files.WeightLocation.class_keys.

  Attributes:
    healthy_step: `prune` keeps the newest undamaged checkpoint up to this step, too; None for no such checkpoint.
    lock: the lock of the run, which is checked before each save, so that two processes do not write at once. None
      outside of training.
  """

  def __init__(
    self, directory: str, *, keep: int, model_config: ModelConfig, class_keys: Mapping[str, object] | None = None
  ):
    self.directory = directory
    self.keep = keep
    self.model_config = model_config
    self.class_keys = class_keys or {}
    self.lock: DirectoryLock | None = None
    self.healthy_step: int | None = None
    # Step -> damage of the checkpoint, or None if it is undamaged, for checkpoints that this process has saved or
    # verified. Hashing is slow, so `prune` hashes each checkpoint at most once.
    self._damage: dict[int, str | None] = {}
    self._verified_files: dict[int, dict[str, files.Stat]] = {}  # step -> its files when `_verify` last hashed them
    self._warned_steps: set[int] = set()  # steps of damaged checkpoints that a warning has named

  def path(self, step: int) -> str:
    """The directory of the checkpoint of a step."""
    return files.join(self.directory, f"step-{step}")

  def save(self, step: int, tensors: Mapping[str, tf.Tensor | np.ndarray], *, prune: bool = True) -> str:
    """Writes a checkpoint, and then deletes old ones.

    Args:
      step: the number of updates so far.
      tensors: name -> values.
      prune: whether to delete old checkpoints, see `prune`.
    Returns:
      The path of the checkpoint.
    Raises:
      RunError: the checkpoint could not be written, or another process has taken the lock. Older checkpoints are
        unchanged.
    """
    with quick_imports():
      import tensorflow as tf

    from albert.io.workers import is_lost_process

    self.check_lock()
    checkpoint_path = self.path(step)
    is_remote = files.is_remote(checkpoint_path)
    local_path = os.path.join(tempfile.gettempdir(), f"step-{step}") if is_remote else checkpoint_path
    staging = files.staging_path(local_path)
    files.makedirs(self.directory)
    is_copied_from_device = False
    try:
      os.mkdir(staging, 0o700 if is_remote else 0o777)
      write_bundle(os.path.join(staging, WEIGHTS_PREFIX), tensors)
      is_copied_from_device = True
      files.write_json(os.path.join(staging, _MODEL_CONFIG_FILE), {**self.model_config.to_dict(), **self.class_keys})
      paths = {name: os.path.join(staging, name) for name in files.listdir(staging)}
      entries = {name: {"bytes": files.size(path), "sha256": file_sha256(path)} for name, path in paths.items()}
      files.write_json(os.path.join(staging, MANIFEST_FILE), {"step": step, "files": entries})
      if is_remote:
        self._upload(staging, step)
      else:
        self._rename(staging, step)
    except (OSError, tf.errors.OpError) as error:
      if isinstance(error, tf.errors.OpError) and is_lost_process(error) and not is_copied_from_device:
        raise  # the error comes from a lost device, not from a disk
      reason = local_files.describe_error(error)
      locations = f"there and in {tempfile.gettempdir()}" if is_remote else "there"
      raise RunError(
        f"{local_files.final_path(checkpoint_path)}: cannot save it ({reason}): check space and rights {locations}, "
        "and run the same command again; older checkpoints are kept"
      ) from error
    finally:
      files.discard(staging)
    self._damage[step] = None
    if prune:
      self.prune(step)
    return checkpoint_path

  def check_lock(self) -> None:
    """Raises a RunError if this process has lost the lock of the run; see DirectoryLock.check."""
    if self.lock is not None:
      self.lock.check()

  def _rename(self, staging: str, step: int) -> None:
    """Syncs the files of a staging directory to disk, and renames the directory."""
    local_files.sync_tree(staging)
    self.check_lock()  # again, because writing may have taken minutes
    self._rename_existing(step)
    files.replace(staging, self.path(step))

  def _upload(self, staging: str, step: int) -> None:
    """Copies the files of a staging directory to an object store, which would copy them again to rename them."""
    checkpoint_path = self.path(step)
    if _is_unfinished_upload(checkpoint_path):
      files.remove_tree(checkpoint_path)
    self._rename_existing(step)
    files.makedirs(checkpoint_path)
    _mark_unfinished(checkpoint_path)
    for name in sorted(os.listdir(staging), key=lambda name: name == MANIFEST_FILE):  # the manifest is the last one
      if name == MANIFEST_FILE:
        self.check_lock()
      target_path = files.join(checkpoint_path, name)
      with open(os.path.join(staging, name), "rb") as source, files.open_file(target_path, "wb") as target:
        shutil.copyfileobj(source, target, _UPLOAD_BLOCK_BYTES)
    files.remove(files.join(checkpoint_path, _UPLOAD_MARKER))

  def _rename_existing(self, step: int) -> None:
    """Renames a directory that already has the name of the checkpoint to be written, and logs a warning."""
    path = self.path(step)
    if files.exists(path):
      try:
        damage = find_damage(path)
      except (UserError, RunError) as error:
        damage = str(error)
      new_path = files.unused_path(f"{path}.{'replaced' if damage is None else 'damaged'}")
      files.replace(path, new_path)
      log(f"warning: {path} exists already ({damage or 'undamaged'}): renamed to {new_path}")

  def latest(self) -> Checkpoint | None:
    """Finds the newest undamaged checkpoint; None if there is none. A warning names each damaged one that is skipped.

    Reads it and the newer ones completely, to verify them, unless their files have not changed since the last call.
    """
    for step in reversed(self.steps()):
      damage = self._verify(step)
      if damage is None:
        return Checkpoint(step, self.path(step))
      self._warn_once(step, f"skipped {self.path(step)}: {damage}")
    return None

  def _warn_once(self, step: int, message: str) -> None:
    if step not in self._warned_steps:
      self._warned_steps.add(step)
      log(f"warning: {message}")

  def latest_to_resume(self, *, start_over: bool) -> Checkpoint | None:
    """Finds the checkpoint from which training is resumed, as `latest` does.

    Args:
      start_over: whether training starts from the beginning if there are checkpoints and all are damaged; otherwise
        this is an error. The caller then calls `rename_damaged` before the first save.
    Returns:
      The checkpoint; None if training starts from the beginning.
    Raises:
      UserError: all checkpoints are damaged and start_over is False; or best.json, which each save reads, is damaged.
    """
    self.best()
    newest = self.latest()
    damaged = [step for step in self.steps() if not _is_unfinished_upload(self.path(step))] if newest is None else []
    if damaged and not start_over:
      raise UserError(
        f"{self.directory}: all of its {len(damaged)} checkpoints are damaged (step-{damaged[-1]}: "
        f"{self._damage[damaged[-1]]}): restore one from a copy, or give --start_over to rename them and train from "
        "the start"
      )
    return newest

  def rename_damaged(self) -> None:
    """Renames the directory of the checkpoints, all of which are damaged, so that training can start over."""
    if self.steps():
      new_path = files.unused_path(f"{self.directory}.damaged")
      files.replace(self.directory, new_path)
      self._damage.clear()
      log(f"warning: training starts over; the damaged checkpoints are kept in {new_path}")

  def select(self, which: str) -> Checkpoint | None:
    """Finds the "newest" or the "best" undamaged checkpoint, as --select_checkpoint says; None if there is none.

    If the best one is damaged, or none was evaluated, it is the newest one.
    """
    if which == "best" and (best := self.best()):
      damage = self._verify(best.step)
      if damage is None:
        return Checkpoint(best.step, self.path(best.step))
      self._warn_once(best.step, f"skipped {self.path(best.step)}, the best: {damage}")
    return self.latest()

  def steps(self) -> list[int]:
    """The steps of all checkpoints, damaged or not, in ascending order.

    Raises:
      UserError: `directory` exists and is not a directory.
    """
    if not files.exists(self.directory) and not os.path.islink(self.directory):
      return []
    with files.convert_errors(self.directory, "read"):
      matches = [STEP_DIRECTORY.match(name) for name in files.listdir(self.directory)]
    return sorted(int(match.group(1)) for match in matches if match)

  def best(self) -> BestEvaluation | None:
    """The best evaluation so far; None if there is none.

    Raises:
      UserError: best.json is damaged.
    """
    path = files.join(self.directory, BEST_FILE)
    if not files.exists(path):
      return None
    return files.read_json(path, BestEvaluation, "restore or delete this file", nan_is_null=True)

  def record_evaluation(
    self, step: int, metric: str, value: float, *, higher_is_better: bool, loss: float | None = None
  ) -> bool:
    """Records an evaluation in best.json if it is the best so far. `prune` does not delete the best checkpoint.

    Args:
      step: the step of the evaluated checkpoint.
      metric: the name of the metric.
      value: its value. Of two equal values, the one with the lower loss is better.
      loss: the loss of the evaluation; None if it is not known.
      higher_is_better: whether the metric is a score, and not a loss.
    Returns:
      Whether it is the best so far. If the previous best checkpoint is missing or damaged, any evaluation is the best.
    """
    best = self.best()
    if best is not None:
      problem, is_damage = self._damage_or_error(best.step)
      damage = problem if is_damage else None
      rank = rank_evaluation(value, loss, higher_is_better=higher_is_better)
      best_rank = rank_evaluation(best.value, best.loss, higher_is_better=higher_is_better)
      if rank <= best_rank and damage is None:
        return False
      if damage is not None:
        log(f"warning: {self.path(best.step)}, the best so far, cannot be used: {damage}")
    content = {"step": step, "metric": metric, "value": value, "loss": loss}
    files.write_json(files.join(self.directory, BEST_FILE), content)
    return True

  def remove_leftovers(self) -> None:
    """Deletes the staging directories and unfinished uploads of a killed run, and nothing else.

    The caller must hold the lock of the run.
    """
    if files.is_remote(self.directory):
      files.remove_leftovers(tempfile.gettempdir())
    if files.exists(self.directory):
      for name in files.listdir(self.directory):
        path = files.join(self.directory, name)
        if _STAGING_DIRECTORY.match(name) or (STEP_DIRECTORY.match(name) and _is_unfinished_upload(path)):
          files.remove_tree(path)

  def file_stats(self, step: int) -> dict[str, files.Stat]:
    """Returns path -> size and time of the files of a checkpoint; {} if they cannot be read."""
    path = self.path(step)
    try:
      with files.convert_errors(path, "read"):
        return files.stats(files.join(path, name) for name in files.listdir(path)) if files.is_dir(path) else {}
    except (UserError, RunError):
      return {}

  def _verify(self, step: int) -> str | None:
    """The damage of a checkpoint, or None. It is verified, unless its files are those that were verified before."""
    stats = self.file_stats(step)
    if step not in self._damage or not stats or stats != self._verified_files.get(step):
      self._damage[step] = find_damage(self.path(step), step)
      self._verified_files[step] = stats
    return self._damage[step]

  def _damage_or_error(self, step: int) -> tuple[str | None, bool]:
    """The damage or the error of reading, and whether it is damage. Hashes a checkpoint once in a process."""
    # During training, an old checkpoint that cannot be read must not end the run.
    try:
      return self._damage[step] if step in self._damage else self._verify(step), True
    except (UserError, RunError) as error:
      return str(error), False

  def prune(self, saved_step: int) -> None:
    """Deletes undamaged checkpoints. Keeps the newest `keep` of them, the best one, and the one of step `saved_step`.

    If there is a `healthy_step`, the newest one up to it is kept, too.
    Damaged checkpoints are neither counted nor deleted; a warning names each of them once.
    """
    steps = self.steps()
    if len(steps) <= self.keep:
      return  # nothing to delete, so no checkpoint needs to be hashed
    best = self.best()
    never_deleted = {saved_step, best.step} if best else {saved_step}
    num_undamaged, healthy_step = 0, self.healthy_step
    for step in reversed(steps):
      problem, _ = self._damage_or_error(step)
      if problem is None:
        num_undamaged += 1
        if healthy_step is not None and step <= healthy_step:
          healthy_step = None
          never_deleted.add(step)
        if num_undamaged > self.keep and step not in never_deleted:
          with files.convert_errors(self.path(step), "remove"):
            self._delete(step)
      else:
        self._warn_once(step, f"{self.path(step)} is not deleted: {problem}")

  def _delete(self, step: int) -> None:
    """Deletes a checkpoint. If the process is killed during this, `remove_leftovers` deletes the remaining files."""
    path = self.path(step)
    if not files.is_remote(path):
      staging = files.staging_path(path)
      files.replace(path, staging)
      files.remove_tree(staging)
      return
    _mark_unfinished(path)
    names = [name for name in files.listdir(path) if name not in (MANIFEST_FILE, _UPLOAD_MARKER)]
    for name in [MANIFEST_FILE, *names]:
      files.remove(files.join(path, name))
    files.remove_tree(path)
