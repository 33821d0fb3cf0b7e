"""Checkpoints: TensorFlow tensor bundles whose names are the original's, in directories that are whole or absent.

`step-N/` holds weights.index, weights.data-*, albert_config.json and manifest.json, which gives each
file's size and SHA-256. It is written aside, synced to disk and renamed; manifest.json is written last, so
that on an object store, where renaming is not atomic, a directory without it is unfinished.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from albert import files
from albert.config import ModelConfig
from albert.data.manifest import file_sha256
from albert.errors import UserError

PREFIX = "weights"
MANIFEST = "manifest.json"
BEST = "best.json"
GLOBAL_STEP = "global_step"
_STEP_DIRECTORY = re.compile(r"^step-(\d+)$")
_ASIDE_DIRECTORY = re.compile(r"^\.step-\d+\.tmp$")


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


def _sync_file(path: str) -> None:
  if files.is_remote(path):
    return
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


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
  """The checkpoints of one run, under `directory`."""

  def __init__(self, directory: str, *, keep: int, model_config: ModelConfig):
    self.directory = directory
    self.keep = keep
    self.model_config = model_config

  def save(self, step: int, tensors: Mapping[str, tf.Tensor | np.ndarray]) -> str:
    """Writes step-N, then deletes what is older than the newest `keep`, but for the best. Returns its path."""
    final = files.join(self.directory, f"step-{step}")
    aside = files.join(self.directory, f".step-{step}.tmp")
    files.remove_tree(aside)
    files.makedirs(aside)
    write_bundle(files.join(aside, PREFIX), tensors)
    files.write_json(files.join(aside, "albert_config.json"), self.model_config.to_dict())
    names = files.listdir(aside)
    for name in names:
      _sync_file(files.join(aside, name))
    entries = {
      name: {"bytes": files.size(files.join(aside, name)), "sha256": file_sha256(files.join(aside, name))}
      for name in names
    }
    files.write_json(files.join(aside, MANIFEST), {"step": step, "files": entries})
    files.remove_tree(final)  # one that did not verify, or the same step of the same run
    files.replace(aside, final)
    self._prune()
    return final

  def latest(self) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that verifies, and a line about each newer one that was skipped."""
    skipped: list[str] = []
    for step in sorted(self.steps(), reverse=True):
      path = files.join(self.directory, f"step-{step}")
      damage = find_damage(path)
      if damage is None:
        return Checkpoint(step, path), skipped
      skipped.append(f"skipped {path}: {damage}")
    return None, skipped

  def best_or_latest(self) -> tuple[Checkpoint | None, list[str]]:
    """The best checkpoint if it verifies, else the newest; and a line about each that was skipped."""
    best = self.best()
    if best is None:
      return self.latest()
    path = files.join(self.directory, f"step-{int(best['step'])}")
    damage = find_damage(path)
    if damage is None:
      return Checkpoint(int(best["step"]), path), []
    newest, skipped = self.latest()
    return newest, [f"skipped {path}, the best: {damage}", *skipped]

  def steps(self) -> list[int]:
    """Steps that have a directory, whole or not."""
    if not files.exists(self.directory):
      return []
    matches = (_STEP_DIRECTORY.match(name) for name in files.listdir(self.directory))
    return sorted(int(match.group(1)) for match in matches if match)

  def best(self) -> dict[str, float] | None:
    """{"step", "value"} and the metric's name of the best evaluation so far, or None."""
    path = files.join(self.directory, BEST)
    return files.read_json(path) if files.exists(path) else None

  def record_evaluation(self, step: int, metric: str, value: float, *, higher_is_better: bool) -> bool:
    """Notes step as the best if it beats the best so far, which pruning then spares. True if it does."""
    best = self.best()
    if best is not None:
      better = value > best["value"] if higher_is_better else value < best["value"]
      if not better:
        return False
    files.write_json(files.join(self.directory, BEST), {"step": step, "metric": metric, "value": value})
    return True

  def remove_leftovers(self) -> None:
    """Deletes what a killed run was writing: directories of our own hidden name only."""
    if files.exists(self.directory):
      for name in files.listdir(self.directory):
        if _ASIDE_DIRECTORY.match(name):
          files.remove_tree(files.join(self.directory, name))

  def _prune(self) -> None:
    best = self.best()
    spared = set(self.steps()[-self.keep :]) | ({int(best["step"])} if best else set())
    for step in self.steps():
      if step not in spared:
        files.remove_tree(files.join(self.directory, f"step-{step}"))


def find_damage(path: str) -> str | None:
  """What is wrong with a checkpoint directory, against its manifest; None if it is whole."""
  manifest_path = files.join(path, MANIFEST)
  if not files.exists(manifest_path):
    return f"no {MANIFEST}, so it was never finished"
  try:
    entries = files.read_json(manifest_path)["files"]
    for name, entry in entries.items():
      file = files.join(path, name)
      if not files.exists(file):
        return f"{name} is missing"
      if files.size(file) != entry["bytes"]:
        return f"{name} has {files.size(file)} bytes instead of {entry['bytes']}"
      if file_sha256(file) != entry["sha256"]:
        return f"{name} is damaged (its SHA-256 differs from the manifest's)"
  except (UserError, KeyError, TypeError, AttributeError) as error:
    return f"{MANIFEST} is damaged ({json.dumps(str(error))})"
  return None


def restore(checkpoint: Checkpoint, variables: Mapping[str, tf.Variable]) -> None:
  """Assigns every variable from the checkpoint. UserError if one is missing or has another shape."""
  reader = tf.train.load_checkpoint(checkpoint.prefix)
  shapes = reader.get_variable_to_shape_map()
  for name, variable in variables.items():
    if name not in shapes:
      raise UserError(f"{checkpoint.path}: has no {name}: it was not saved by a run of this configuration")
    if list(variable.shape) != list(shapes[name]):
      raise UserError(
        f"{checkpoint.path}: {name} has shape {list(shapes[name])}, the model needs {list(variable.shape)}"
      )
    variable.assign(tf.cast(reader.get_tensor(name), variable.dtype))
