"""The output_dir of a run: writes its config.json, and checks that a later command continues the same run."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.data.content import DataContent
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.runs.metrics_log import log

if TYPE_CHECKING:
  import tensorflow as tf


def claim_directory(
  directory: str,
  training_settings: Mapping[str, Any],
  recorded_sections: Mapping[str, Any],
  *,
  is_started: bool,
  is_chief: bool = True,
  content: DataContent | None = None,
) -> None:
  """Writes config.json, unless the directory holds another run.

  Args:
    directory: the output_dir.
    training_settings: the settings that affect training, as JSON values. A run that has started must have the same.
    recorded_sections: sections of config.json, with all settings, also the ones that may change between commands. They
      replace the sections of the same names in `training_settings`.
    is_started: whether a run has already saved something in the directory.
    is_chief: whether this process writes the files. The other processes only check the settings.
    content: hashes of the training data; None if they are not known.
  Raises:
    UserError: the run in the directory has other settings or other training data; the message names the first
      difference.
  """
  files.makedirs(directory)
  path = files.join(directory, output_files.CONFIG)
  values = dict(training_settings) | dict(recorded_sections)
  if is_started:
    if not files.exists(path):
      raise UserError(f"{directory} has checkpoints but no {output_files.CONFIG}: give another --output_dir")
    recorded = {"stages": [], **output_files.read_config(path)}  # earlier versions had no stages
    # The stages are compared last. If the data of a stage has changed, its number of files may have changed, too. Then
    # the message of _check_content about the data is clearer than one about this number.
    _refuse_differences(path, {**training_settings, "stages": recorded["stages"]}, recorded)
    if content is not None:
      _check_content(directory, path, recorded, content)
    _refuse_differences(path, training_settings, recorded)
    # Values that this command does not know, such as the vocabulary of shards without a manifest, stay recorded.
    values["data"] = recorded.get("data", {}) | values.get("data", {})
  if content is not None:
    values["training_data"] = content.summary()
  if is_chief:
    if content is not None:
      files.write_atomically(files.join(directory, output_files.TRAINING_DATA), content.to_json())
    files.write_json(path, values)


def _refuse_differences(path: str, settings: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
  """Refuses settings that differ from those in config.json."""
  difference = next(_differences(settings, recorded), None)
  if difference is not None:
    key, value, recorded_value = difference
    raise UserError(
      f"{path}: this directory holds a run with {key} = {recorded_value!r}, this one has {value!r}: give another "
      "--output_dir, or that value to resume it"
    )


def _check_content(directory: str, path: str, config: Mapping[str, Any], content: DataContent) -> None:
  """Checks that the run was trained on the same data. Logs a warning if its config has no hash of the data."""
  recorded_sha256 = config.get("training_data", {}).get("sha256")
  if recorded_sha256 is None:
    log(
      f"warning: {path} has no hashes of the training data, because an earlier version wrote it: it cannot be checked "
      "that the run began with the same data; the hashes of this command's data are recorded from now on"
    )
    return
  if recorded_sha256 == content.sha256:
    return
  difference = f"SHA-256 of all is {content.sha256[:12]}..., it was {recorded_sha256[:12]}..."
  list_path = files.join(directory, output_files.TRAINING_DATA)
  if files.exists(list_path):
    recorded_content = _read_content(list_path)
    if recorded_content is not None and recorded_content.sha256 == recorded_sha256:
      difference = content.difference(recorded_content)
  raise UserError(
    f"{path}: this run was trained on other data than this command gives ({difference}): give the same data (folders "
    "and names may differ) or another --output_dir"
  )


def _read_content(path: str) -> DataContent | None:
  """Reads the list of files that a run was trained on, which adds detail to an error. Returns None if it is damaged."""
  try:
    return files.read_json(path, DataContent)
  except UserError:
    return None


def check_writable(directory: str) -> None:
  """Checks that files can be written to a directory. It need not exist, and the check does not make it.

  Args:
    directory: path of the directory, local or remote.
  Raises:
    UserError: the directory, or its nearest existing parent, is a file or cannot be written to.
  """
  if files.is_remote(directory):
    import tensorflow as tf  # imported here, because a local directory is checked without TensorFlow

    test_file = files.join(directory, f".writable-{uuid.uuid4().hex}")
    try:
      files.write_atomically(test_file, b"")
      files.remove(test_file)
    except tf.errors.OpError as error:
      raise UserError(
        f"{directory}: cannot write there ({str(error).splitlines()[0]}): check the path and its permissions"
      ) from error
    return
  existing_parent = os.path.abspath(directory)
  while not os.path.lexists(existing_parent):
    existing_parent = os.path.dirname(existing_parent)
  if not os.path.isdir(existing_parent):
    raise UserError(f"{directory}: cannot be made, since {existing_parent} is not a directory: choose another one")
  if not os.access(existing_parent, os.W_OK | os.X_OK):
    raise UserError(
      f"{directory}: {existing_parent} cannot be written to: choose another directory, or change its permissions"
    )


def check_checkpoint_settings(directory: str, settings: Mapping[str, Any]) -> None:
  """Checks that the checkpoints of a run can be used with the settings of a task, such as its labels.

  Args:
    directory: the output_dir of the run.
    settings: see Task.checkpoint_settings.
  Raises:
    UserError: the run was trained with another value of a setting.
  """
  path = files.join(directory, output_files.CONFIG)
  if not files.exists(path):
    return
  difference = next(_differences(settings, output_files.read_config(path).get("data", {})), None)
  if difference is not None:
    key, value, recorded_value = difference
    raise UserError(
      f"{path}: its checkpoints were trained with {key} = {recorded_value!r}, but this command has {value!r}: give "
      "the same value"
    )


def write_environment(directory: str, strategy: tf.distribute.Strategy) -> None:
  """Writes environment.json: the command, the versions of Python and of the main packages, and the devices."""
  import tensorflow as tf
  import tf_keras as keras

  values = {
    "command": sys.argv,
    "python": platform.python_version(),
    "tensorflow": tf.__version__,
    "tf_keras": keras.__version__,
    "numpy": np.__version__,
    "platform": platform.platform(),
    "cpus": os.cpu_count(),
    "devices": [device.name for device in tf.config.list_logical_devices()],
    "replicas": strategy.num_replicas_in_sync,
    "strategy": type(strategy).__name__,
  }
  files.write_json(files.join(directory, output_files.ENVIRONMENT), values)


def _differences(
  settings: Mapping[str, Any], recorded: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
  """Yields (key, value, recorded value) where two nested dicts differ. Keys missing on either side are ignored."""
  for key, value in settings.items():
    if key not in recorded:
      continue
    recorded_value = recorded[key]
    if isinstance(value, Mapping) and isinstance(recorded_value, Mapping):
      yield from _differences(value, recorded_value, f"{prefix}{key}.")
    elif value != recorded_value:
      yield f"{prefix}{key}", value, recorded_value
