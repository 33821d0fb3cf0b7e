"""The checkpoints of a run: saving, verifying, finding and deleting them.

A checkpoint is a directory `step-N/` with a TensorFlow checkpoint that has the original's names (weights.index,
weights.data-*), albert_config.json, and manifest.json, which gives the size and the SHA-256 of each file. It is written
to a staging directory, synced to disk and renamed, so that it appears completely or not at all. On a remote file
system, such as an object store, renaming a directory would copy each file. There it is written to a local directory and
uploaded. manifest.json is uploaded last, so a directory without it is an unfinished checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from albert.config.model import ModelConfig
from albert.data.shard_files.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files, json_values, local_files
from albert.runs.directory_lock import DirectoryLock
from albert.runs.evaluation_log import rank_evaluation
from albert.runs.metrics_log import log
from albert.runs.output_files import STEP_DIRECTORY
from albert.weights.checkpoint_damage import (
  MANIFEST_FILE,
  MODEL_CONFIG_FILE,
  WEIGHTS_PREFIX,
  describe_damage,
  find_damage,
)
from albert.weights.checkpoint_files import Checkpoint, write_bundle
from albert.weights.uploads import UPLOAD_MARKER, is_unfinished_upload, upload_file

if TYPE_CHECKING:
  import tensorflow as tf

BEST_FILE = "best.json"
GLOBAL_STEP = "global_step"
# Earlier versions wrote these names without the id of the process.
_STAGING_DIRECTORY = re.compile(r"^\.step-\d+(\.[0-9a-f-]+)?\.tmp$")
# The largest number of damaged checkpoints that an error message describes.
_MAX_SHOWN_DAMAGES = 3


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


class CheckpointManager:
  """The checkpoints of one run.

  Args:
    directory: the directory of the step-N directories.
    keep: the number of newest undamaged checkpoints that `save` keeps; it keeps the best one, too.
    model_config: the config that is written into each checkpoint.

  Attributes:
    lock: the lock of the run, which is checked before each save, so that two processes do not write at once. None
      outside of training.
  """

  def __init__(self, directory: str, *, keep: int, model_config: ModelConfig):
    self.directory = directory
    self.keep = keep
    self.model_config = model_config
    self.lock: DirectoryLock | None = None
    # Step -> damage of the checkpoint, or None if it is undamaged, for checkpoints that this process has saved or
    # verified. Hashing is slow, so `prune` hashes each checkpoint at most once.
    self._damage: dict[int, str | None] = {}
    self._verified_files: dict[int, dict[str, files.Stat]] = {}  # step -> its files when `_verify` last hashed them
    self._read_errors: dict[int, str] = {}  # step -> error, for checkpoints that could not be read
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
    import tensorflow as tf  # imported here, because commands that only look for a checkpoint use this module, too

    from albert.io.parallel.lost_processes import is_lost_process

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
      files.write_json(os.path.join(staging, MODEL_CONFIG_FILE), self.model_config.to_dict())
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

  def check_lock(self, *, read: bool = True) -> None:
    """Raises a RunError if this process has lost the lock of the run; see DirectoryLock.check."""
    if self.lock is not None:
      self.lock.check(read=read)

  def _rename(self, staging: str, step: int) -> None:
    """Syncs the files of a staging directory to disk, writes their manifest, and renames the directory."""
    local_files.sync_tree(staging)
    paths = {name: os.path.join(staging, name) for name in files.listdir(staging)}
    entries = {name: {"bytes": files.size(path), "sha256": file_sha256(path)} for name, path in paths.items()}
    files.write_json(os.path.join(staging, MANIFEST_FILE), {"step": step, "files": entries})
    self.check_lock()  # again, because writing may have taken minutes
    self._rename_existing(step)
    files.replace(staging, self.path(step))

  def _upload(self, staging: str, step: int) -> None:
    """Copies the files of a local staging directory to a remote file system, and then writes their manifest.

    Each file is hashed while it is copied. Nothing is renamed, because an object store would copy it again.
    """
    checkpoint_path = self.path(step)
    if is_unfinished_upload(checkpoint_path):
      files.remove_tree(checkpoint_path)
    self._rename_existing(step)
    files.makedirs(checkpoint_path)
    marker = files.join(checkpoint_path, UPLOAD_MARKER)
    with files.open_file(marker, "wb") as file:
      file.write(b"This checkpoint is being written.\n")
    entries = {
      name: upload_file(os.path.join(staging, name), files.join(checkpoint_path, name)) for name in os.listdir(staging)
    }
    self.check_lock()
    with files.open_file(files.join(checkpoint_path, MANIFEST_FILE), "wb") as file:
      file.write(json.dumps({"step": step, "files": entries}, indent=2).encode())
    files.remove(marker)

  def _rename_existing(self, step: int) -> None:
    """Renames a directory that already has the name of the checkpoint to be written, and logs a warning."""
    path = self.path(step)
    if files.exists(path):
      damage = describe_damage(path)
      new_path = files.unused_path(f"{path}.{'replaced' if damage is None else 'damaged'}")
      files.replace(path, new_path)
      log(f"warning: {path} exists already ({damage or 'undamaged'}): renamed to {new_path}")

  def latest(self) -> tuple[Checkpoint | None, list[str]]:
    """Finds the newest undamaged checkpoint.

    Reads it and the newer ones completely, to verify them, unless their files have not changed since the last call.

    Returns:
      The checkpoint, or None if there is none; and a message about each newer one, which was skipped because of damage.
    """
    skip_messages: list[str] = []
    for step in reversed(self.steps()):
      damage = self._verify(step)
      if damage is None:
        return Checkpoint(step, self.path(step)), skip_messages
      self._warned_steps.add(step)
      skip_messages.append(f"skipped {self.path(step)}: {damage}")
    return None, skip_messages

  def latest_to_resume(self, *, start_over: bool) -> tuple[Checkpoint | None, list[str]]:
    """Finds the checkpoint from which training is resumed, as `latest` does.

    Args:
      start_over: whether training starts from the beginning if there are checkpoints and all are damaged; otherwise
        this is an error. The caller then calls `rename_damaged` before the first save.
    Returns:
      See `latest`. The checkpoint is None if training starts from the beginning.
    Raises:
      UserError: all checkpoints are damaged and start_over is False; or best.json, which each save reads, is damaged.
    """
    self.best()
    newest, skip_messages = self.latest()
    if newest is None and not start_over:
      steps = [step for step in reversed(self.steps()) if not is_unfinished_upload(self.path(step))]
      if not steps:
        return None, skip_messages
      damages = [f"step-{step}: {self._damage[step]}" for step in steps]
      more = f"; and {len(damages) - _MAX_SHOWN_DAMAGES} more" if len(damages) > _MAX_SHOWN_DAMAGES else ""
      raise UserError(
        f"{self.directory}: all of its {len(damages)} checkpoints are damaged "
        f"({'; '.join(damages[:_MAX_SHOWN_DAMAGES])}{more}): restore one from a copy, or give --start_over to rename "
        "them and train from the start"
      )
    return newest, skip_messages

  def rename_damaged(self) -> None:
    """Renames the directory of the checkpoints, all of which are damaged, so that training can start over."""
    if self.steps():
      new_path = files.unused_path(f"{self.directory}.damaged")
      files.replace(self.directory, new_path)
      self._damage.clear()
      log(f"warning: training starts over; the damaged checkpoints are kept in {new_path}")

  def best_or_latest(self) -> tuple[Checkpoint | None, list[str]]:
    """Finds the best checkpoint, or the newest undamaged one if the best is damaged or none was evaluated.

    Returns:
      The checkpoint, or None if there is none; and a message about each one that was skipped because of damage.
    """
    best = self.best()
    if best is None:
      return self.latest()
    damage = self._verify(best.step)
    if damage is None:
      return Checkpoint(best.step, self.path(best.step)), []
    newest, skip_messages = self.latest()
    return newest, [f"skipped {self.path(best.step)}, the best: {damage}", *skip_messages]

  def steps(self) -> list[int]:
    """The steps of all checkpoints, damaged or not, in ascending order.

    Raises:
      UserError: `directory` exists and is not a directory.
    """
    if not files.exists(self.directory) and not os.path.islink(self.directory):
      return []
    if not files.is_dir(self.directory):
      raise UserError(f"{self.directory}: must be a directory of checkpoints, but is not a directory: move it away")
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
      # The loss of an evaluation that an earlier version recorded is not known, and decides nothing.
      is_better = best.value is None or (rank > best_rank if best.loss is not None else rank[0] > best_rank[0])
      if not is_better and damage is None:
        return False
      if damage is not None:
        log(f"warning: {self.path(best.step)}, the best so far, cannot be used: {damage}")
    content: dict[str, Any] = {"step": step, "metric": metric, "value": value}
    if loss is not None:
      content["loss"] = loss
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
        if _STAGING_DIRECTORY.match(name) or (STEP_DIRECTORY.match(name) and is_unfinished_upload(path)):
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
    """Verifies a checkpoint, unless its files are those that were verified before.

    Returns:
      Its damage, or None if it is undamaged.
    """
    stats = self.file_stats(step)
    if step not in self._damage or not stats or stats != self._verified_files.get(step):
      self._damage[step] = find_damage(self.path(step), step)
      self._verified_files[step] = stats
    return self._damage[step]

  def _damage_of(self, step: int) -> str | None:
    """Like `_verify`, but does not read a checkpoint again that this process has saved or verified."""
    return self._damage[step] if step in self._damage else self._verify(step)

  def _damage_or_error(self, step: int) -> tuple[str | None, bool]:
    """Like `_damage_of`, but if the checkpoint cannot be read, it returns the error instead of raising it.

    During training, an old checkpoint that cannot be read must not end the run.

    Returns:
      problem: the damage, or the error of reading; None if there is neither.
      is_damage: False if `problem` is an error of reading. Then the checkpoint may be undamaged. This process does not
        try to read it again.
    """
    if step not in self._read_errors:
      try:
        return self._damage_of(step), True
      except (UserError, RunError) as error:
        self._read_errors[step] = str(error)
    return self._read_errors[step], False

  def prune(self, saved_step: int) -> None:
    """Deletes undamaged checkpoints. Keeps the newest `keep` of them, the best one, and the one of step `saved_step`.

    Damaged checkpoints are neither counted nor deleted; a warning names each of them once.
    """
    steps = self.steps()
    if len(steps) <= self.keep:
      return  # nothing to delete, so no checkpoint needs to be hashed
    best = self.best()
    never_deleted = {saved_step, best.step} if best else {saved_step}
    num_undamaged = 0
    for step in reversed(steps):
      problem, _ = self._damage_or_error(step)
      if problem is None:
        num_undamaged += 1
        if num_undamaged > self.keep and step not in never_deleted:
          with files.convert_errors(self.path(step), "remove"):
            self._delete(step)
      elif step not in self._warned_steps:
        self._warned_steps.add(step)
        log(f"warning: {self.path(step)} is not deleted: {problem}")

  def _delete(self, step: int) -> None:
    """Deletes a checkpoint. If the process is killed during this, `remove_leftovers` deletes the remaining files."""
    path = self.path(step)
    if not files.is_remote(path):
      staging = files.staging_path(path)
      files.replace(path, staging)
      files.remove_tree(staging)
      return
    with files.open_file(files.join(path, UPLOAD_MARKER), "wb") as file:
      file.write(b"This checkpoint is being deleted.\n")
    names = [name for name in files.listdir(path) if name not in (MANIFEST_FILE, UPLOAD_MARKER)]
    for name in [MANIFEST_FILE, *names]:
      files.remove(files.join(path, name))
    files.remove_tree(path)
