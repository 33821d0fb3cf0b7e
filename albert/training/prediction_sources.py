"""Records the weights and the input files of each predictions file in prediction_sources.json.

With this record, a later command can refuse to overwrite predictions for other input files, or predictions made with
other weights. Files and weights are compared by content, not by path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert.config.run import RunConfig
from albert.data.rows import DataSource, source_sha256
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.wording import name_and_others
from albert.runs import output_files, run_directory
from albert.tasks.base import Task

_REMEDY = "give another file as --predictions_file, or move the existing one away"


@dataclasses.dataclass(frozen=True)
class PredictionSource:
  """The weights and the input files that predictions are made from.

  Attributes:
    checkpoint: path of the checkpoint.
    step: step of the checkpoint; 0 for --init_checkpoint.
    weights_sha256: hash of the weights (see hash_weights).
    inputs: path -> SHA-256 of each input file.
  """

  checkpoint: str
  step: int
  weights_sha256: str
  inputs: Mapping[str, str]


def hash_inputs(sources: Iterable[DataSource]) -> dict[str, str]:
  """Returns path -> SHA-256 of each file, or name -> SHA-256 of rows in memory.

  A file that has not changed since the last call is not read again.
  """
  return {str(source): source_sha256(source) for source in sources}


def hash_weights(weights: Mapping[str, tf.Variable]) -> str:
  """Returns the SHA-256 of the names and values of a model's weights, as a hexadecimal string."""
  digest = hashlib.sha256()
  for name in sorted(weights):
    digest.update(name.encode("utf-8"))
    digest.update(np.ascontiguousarray(weights[name].numpy()).tobytes())
  return digest.hexdigest()


class PredictionSources:
  """The predictions files that a command writes, and the record of the existing ones.

  Args:
    directory: the output_dir.
    paths: the predictions files that the command writes.
    inputs: path -> SHA-256 of each input file (see hash_inputs).
  Raises:
    UserError: prediction_sources.json is damaged.
  """

  def __init__(self, directory: str, paths: Sequence[str], inputs: Mapping[str, str]):
    self._directory = directory
    self._record_file = files.join(directory, output_files.PREDICTION_SOURCES)
    self._paths = paths
    self.inputs = inputs
    remedy = "restore or delete this file"
    # The content of the record file: the key of a predictions file -> its PredictionSource as a dict.
    self._entries = files.read_json(self._record_file, remedy=remedy) if files.exists(self._record_file) else {}

  def are_complete(self) -> bool:
    """Whether all files of the command exist and hold predictions for its input files."""
    sources = [self._read_source(path) for path in self._paths if files.exists(path)]
    return len(sources) == len(self._paths) and all(source and self._has_same_inputs(source) for source in sources)

  def describe_inputs(self) -> str:
    """Returns the names of the input files, for a message."""
    return _format_paths(self.inputs)

  def check_writable(self) -> None:
    """Checks that the files can be written.

    Raises:
      UserError: the folder of a file cannot be written to.
    """
    for path in self._paths:
      run_directory.check_writable(os.path.dirname(path))

  def check(self, weights_sha256: str = "") -> None:
    """Checks that existing files may be overwritten: their predictions must be for the same input by the same weights.

    Args:
      weights_sha256: hash of the weights; "" if they are not known yet. Then only the input is compared.
    Raises:
      UserError: a file holds predictions for other input or by other weights, or its source is not recorded.
    """
    for path in filter(files.exists, self._paths):
      source = self._read_source(path)
      if source is None:
        raise UserError(
          f"{path} already exists, and the input and weights of its predictions are not recorded: {_REMEDY}"
        )
      if not self._has_same_inputs(source):
        raise UserError(
          f"{path} holds predictions for {_format_paths(source.inputs)}, not for {_format_paths(self.inputs)}: "
          f"{_REMEDY}"
        )
      if weights_sha256 and source.weights_sha256 != weights_sha256:
        raise UserError(f"{path} holds predictions made with another checkpoint, {source.checkpoint}: {_REMEDY}")

  def check_before_training(self) -> None:
    """Checks that no predictions file exists, because training changes the weights that its predictions belong to.

    Raises:
      UserError: one of the files exists.
    """
    existing_paths = [path for path in self._paths if files.exists(path)]
    if existing_paths:
      raise UserError(f"{existing_paths[0]} holds predictions made before this training: {_REMEDY}")

  def write(self, source: PredictionSource) -> None:
    """Records the source of the files that the command is about to write.

    Args:
      source: the weights and the input files.
    """
    entry = dataclasses.asdict(source)
    files.makedirs(self._directory)  # it may not exist yet if predictions are made with --init_checkpoint
    files.write_json(self._record_file, self._entries | {self._key(path): entry for path in self._paths})

  def _read_source(self, path: str) -> PredictionSource | None:
    """Returns the recorded source of a file; None if there is no valid record of it."""
    try:
      return json_values.convert(self._record_file, self._entries.get(self._key(path)), PredictionSource)
    except UserError:
      return None

  def _has_same_inputs(self, source: PredictionSource) -> bool:
    return list(source.inputs.values()) == list(self.inputs.values())

  def _key(self, path: str) -> str:
    """The key of a file in the record: its path, relative for a file in output_dir, so that a run can be moved."""
    if files.is_remote(path) or files.is_remote(self._directory):
      return path.removeprefix(self._directory.rstrip("/") + "/")
    path, directory = os.path.abspath(path), os.path.abspath(self._directory)
    return path.removeprefix(directory.rstrip(os.sep) + os.sep)


def prediction_sources_of(task: Task, config: RunConfig) -> PredictionSources:
  """Returns the predictions files that a command writes, with the record of the existing ones.

  Args:
    task: the task, which names the files.
    config: the settings of the command.
  Raises:
    UserError: --predictions_file has the wrong extension, or the record is damaged.
  """
  name = config.predictions_file
  if name and not name.endswith(task.predictions_extension):
    raise UserError(f"--predictions_file={name}: give a name that ends in {task.predictions_extension}")
  paths = task.prediction_files(config.output_dir, name)
  return PredictionSources(config.output_dir, paths, hash_inputs(task.prediction_inputs()))


def _format_paths(paths: Iterable[str]) -> str:
  """Returns a text with the first path and the number of the other paths."""
  names = list(paths)
  if not names:
    return "no file"
  return name_and_others(names[0], len(names) - 1)
