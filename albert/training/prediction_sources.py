"""prediction_sources.json: which weights and which input files each predictions file of a run was made from.

A later command must not replace predictions of other files, or by another checkpoint. What counts is the content of
the input files and of the weights, not where they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert.config.run import RunConfig
from albert.data.manifest import cached_sha256
from albert.errors import UserError
from albert.io import files, json_values
from albert.runs import output_files, run_directory
from albert.tasks.base import Task

_REMEDY = "give another file as --predictions_file, or move that one away"


@dataclasses.dataclass(frozen=True)
class PredictionSource:
  """What predictions are made from.

  Attributes:
    checkpoint: path of the checkpoint.
    step: its step; 0 for --init_checkpoint.
    weights_sha256: see hash_weights.
    inputs: path -> SHA-256 of each file that is predicted.
  """

  checkpoint: str
  step: int
  weights_sha256: str
  inputs: Mapping[str, str]


def hash_inputs(paths: Iterable[str]) -> dict[str, str]:
  """Path -> SHA-256 of each file. A file that has not changed since the last call is not read again."""
  return {path: cached_sha256(path, status) for path, status in files.stats(paths).items()}


def hash_weights(weights: Mapping[str, tf.Variable]) -> str:
  """SHA-256 of the names and values of a model's weights, in hex."""
  digest = hashlib.sha256()
  for name in sorted(weights):
    digest.update(name.encode("utf-8"))
    digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
  return digest.hexdigest()


class PredictionSources:
  """The predictions files of one command, and what is known of those that are there already.

  Args:
    directory: the output_dir.
    paths: the files that the command writes.
    inputs: of hash_inputs.
  """

  def __init__(self, directory: str, paths: Sequence[str], inputs: Mapping[str, str]):
    self._directory = directory
    self._record = files.join(directory, output_files.PREDICTION_SOURCES)
    self._paths = paths
    self.inputs = inputs
    remedy = "restore or delete this file"
    self._known = files.read_json(self._record, remedy=remedy) if files.exists(self._record) else {}

  def are_complete(self) -> bool:
    """Whether all files are there, made from the same input."""
    entries = [self._entry(path) for path in self._paths if files.exists(path)]
    return len(entries) == len(self._paths) and all(entry and self._is_of_these_inputs(entry) for entry in entries)

  def describe_inputs(self) -> str:
    """The input files, for a message."""
    return _listed(self.inputs)

  def check_writable(self) -> None:
    """UserError if the folder of a file cannot be written to."""
    for path in self._paths:
      run_directory.check_writable(os.path.dirname(path))

  def check(self, weights_sha256: str = "") -> None:
    """Checks that no file would be replaced but by predictions of the same input (and by the same weights, if given).

    Raises:
      UserError: one of the files holds other predictions, or something else.
    """
    for path in filter(files.exists, self._paths):
      entry = self._entry(path)
      if entry is None:
        raise UserError(f"{path} is there already, and it is not known what it was predicted from: {_REMEDY}")
      if not self._is_of_these_inputs(entry):
        raise UserError(
          f"{path} holds predictions of {_listed(entry.inputs)}, not of {_listed(self.inputs)}: {_REMEDY}"
        )
      if weights_sha256 and entry.weights_sha256 != weights_sha256:
        raise UserError(f"{path} holds predictions of another checkpoint, {entry.checkpoint}: {_REMEDY}")

  def check_before_training(self) -> None:
    """UserError if one of the files is there: training will give other weights."""
    for path in filter(files.exists, self._paths):
      raise UserError(f"{path} holds predictions made before this training: {_REMEDY}")

  def write(self, source: PredictionSource) -> None:
    """Writes what the files are made from. Call it before the files are written."""
    entry = dataclasses.asdict(source)
    files.makedirs(self._directory)  # predicting with --init_checkpoint alone, nothing else makes it
    files.write_json(self._record, self._known | {self._key(path): entry for path in self._paths})

  def _entry(self, path: str) -> PredictionSource | None:
    """What is known of a file; None if nothing is, or the entry has another form."""
    try:
      return json_values.convert(self._record, self._known.get(self._key(path)), PredictionSource)
    except UserError:
      return None

  def _is_of_these_inputs(self, entry: PredictionSource) -> bool:
    return list(entry.inputs.values()) == list(self.inputs.values())

  def _key(self, path: str) -> str:
    """The path as the record has it: from the output_dir on for a file in it, so that a run can be moved."""
    if files.is_remote(path) or files.is_remote(self._directory):
      return path.removeprefix(self._directory.rstrip("/") + "/")
    path, directory = os.path.abspath(path), os.path.abspath(self._directory)
    return path.removeprefix(directory.rstrip(os.sep) + os.sep)


def prediction_sources_of(task: Task, config: RunConfig) -> PredictionSources:
  """The predictions files that a command writes. UserError if --predictions_file cannot be used."""
  name = config.predictions_file
  if name and not name.endswith(task.predictions_extension):
    raise UserError(f"--predictions_file={name}: give a name that ends in {task.predictions_extension}")
  paths = task.prediction_files(config.output_dir, name)
  return PredictionSources(config.output_dir, paths, hash_inputs(task.prediction_inputs()))


def _listed(paths: Iterable[str]) -> str:
  first, *others = list(paths) or ["no file"]
  return f"{first} and {len(others)} others" if others else first
