"""The output_dir of a run: names of its files, readers for some of them, and what makes it the directory of this run.

The first command writes config.json. A later one must have the same settings and data.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from albert.data.manifest import DataContent
from albert.errors import UserError
from albert.io import files, json_values, local_files
from albert.io.progress import log

if TYPE_CHECKING:
  import tensorflow as tf

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"  # a directory
# The name of a checkpoint's directory in CHECKPOINTS; its group is the number of updates.
STEP_DIRECTORY = re.compile(r"^step-(\d+)$")
ENVIRONMENT = "environment.json"
# Hashes of the files that the run was trained on, in the order in which they were read.
TRAINING_DATA = "training_data.json"
# How many rows each label has, and which rows of the training data are held out (--eval_share).
DATA_SUMMARY = "data_summary.json"
EVAL_SPLIT = "eval_split.json"
METRICS = "metrics.jsonl"
EVALUATIONS = "eval_metrics.jsonl"
EVAL_RESULTS = "eval_results.json"
# The training loss at the end of a run, and that of guessing. It exists only if training has ended.
TRAINING_LOSS = "training_loss.json"
# The thresholds of the labels' probabilities (--multi_label), and the development set that they were chosen on.
THRESHOLDS = "thresholds.json"
# The seeds and metrics of several runs (--num_runs), and which of them is the best.
RUNS = "runs.json"
# A file of this name is also in the folder of a converted checkpoint, and in the assets of an export.
VOCABULARY = "spiece.model"
# In the folder of a converted checkpoint: the names, the shape and the SHA-256 of each weight.
CONVERSION = "conversion.tsv"

_REMEDY = "restore this file, or give another --output_dir"


class _TrainingDataSummary(msgspec.Struct):
  sha256: str | None = None


class _DataSection(msgspec.Struct):
  vocab_sha256: str | None = None
  max_seq_length: json_values.Count = 0
  do_lower_case: bool | None = None
  keep_accents: bool | None = None
  convert_quotes: bool | None = None


class _TrainSection(msgspec.Struct):
  num_train_steps: json_values.Count = 0
  train_batch_size: json_values.Count = 0
  select_checkpoint: str = "newest"


class _Config(msgspec.Struct):
  """The values of config.json that are read. Earlier versions did not record all of them."""

  task: str = ""
  recipe: str | None = None
  init_checkpoint: str = ""
  init_checkpoint_sha256: str = ""
  model: dict[str, Any] = {}
  optimizer: dict[str, Any] = {}
  train: _TrainSection = msgspec.field(default_factory=_TrainSection)
  data: _DataSection = msgspec.field(default_factory=_DataSection)
  training_data: _TrainingDataSummary = msgspec.field(default_factory=_TrainingDataSummary)
  stages: list[dict[str, Any]] = []


class _Runs(msgspec.Struct):
  """The values of runs.json that are read."""

  seeds: list[int]
  best_run: Annotated[str, msgspec.Meta(pattern=r"^run-[0-9]+\Z")]
  metrics: dict[str, dict[str, Any]]
  failed_seeds: list[int] = []


def read_config(path: str) -> dict[str, Any]:
  """Reads config.json of a run.

  Raises:
    UserError: the file cannot be read, or a section or a value of it has the wrong type.
  """
  values = files.read_json(path, remedy=_REMEDY)
  json_values.convert(path, values, _Config, _REMEDY)
  return values


def read_runs(path: str) -> dict[str, Any]:
  """Reads runs.json. Numbers that are not finite are None.

  Raises:
    UserError: the file cannot be read, or it lacks the seeds, the best run or the metrics.
  """
  remedy = "make it again with the command of these runs"
  values = files.read_json(path, dict[str, Any], remedy, nan_is_null=True)
  json_values.convert(path, values, _Runs, remedy)
  return values


def read_results(path: str) -> dict[str, float]:
  """Reads the metrics in eval_results.json. A value that is null becomes NaN.

  Raises:
    UserError: the file cannot be read, or a value is not a number.
  """
  values = files.read_json(path, dict[str, int | float | None], _REMEDY, nan_is_null=True)
  return {name: math.nan if value is None else value for name, value in values.items()}


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
  path = files.join(directory, CONFIG)
  values = dict(training_settings) | dict(recorded_sections)
  if is_started:
    if not files.exists(path):
      raise UserError(f"{directory} has checkpoints but no {CONFIG}: give another --output_dir")
    recorded = {"stages": [], **read_config(path)}  # earlier versions had no stages
    # The stages are compared last. If the data of a stage has changed, its number of files may have changed, too. Then
    # the message of check_training_data about the data is clearer than one about this number.
    _refuse_differences(path, {**training_settings, "stages": recorded["stages"]}, recorded)
    if content is not None:
      if not recorded.get("training_data"):
        log(f"warning: {path} has no hashes of the training data: give the same data, since this cannot be checked")
      check_training_data(directory, recorded, content)
    _refuse_differences(path, training_settings, recorded)
    # Values that this command does not know, such as the vocabulary of shards without a manifest, stay recorded.
    values["data"] = recorded.get("data", {}) | values.get("data", {})
  if content is not None:
    values["training_data"] = content.summary()
  if is_chief:
    if content is not None:
      files.write_atomically(files.join(directory, TRAINING_DATA), content.to_json())
    files.write_json(path, values)


def _refuse_differences(path: str, settings: Mapping[str, Any], recorded: Mapping[str, Any]) -> None:
  """Refuses settings that differ from those in config.json."""
  for key, value, recorded_value in differences(settings, recorded):
    raise UserError(
      f"{path}: this directory holds a run with {key} = {recorded_value!r}, this one has {value!r}: give another "
      "--output_dir, or that value to resume it"
    )


def check_training_data(directory: str, config: Mapping[str, Any], content: DataContent) -> None:
  """Checks that the run with this config was trained on the same data. Passes if the config has no hash of the data."""
  recorded_sha256 = config.get("training_data", {}).get("sha256")
  if recorded_sha256 in (None, content.sha256):
    return
  difference = f"SHA-256 of all is {content.sha256[:12]}..., it was {recorded_sha256[:12]}..."
  with contextlib.suppress(UserError):  # without this list, or if it is damaged, the message has less detail
    recorded_content = files.read_json(files.join(directory, TRAINING_DATA), DataContent)
    if recorded_content.sha256 == recorded_sha256:
      difference = content.difference(recorded_content)
  raise UserError(
    f"{files.join(directory, CONFIG)}: this run was trained on other data than this command gives ({difference}): give "
    "the same data (folders and names may differ) or another --output_dir"
  )


def check_writable(directory: str) -> None:
  """Checks that files can be written to a directory. It need not exist, and the check does not make it.

  Args:
    directory: path of the directory, local or remote.
  Raises:
    UserError: the directory, or its nearest existing parent, is a file or cannot be written to.
  """
  if files.is_remote(directory):
    test_file = files.join(directory, f".writable-{uuid.uuid4().hex}")
    try:
      files.write_atomically(test_file, b"")
      files.remove(test_file)
    except Exception as error:  # of TensorFlow
      problem = f"{directory}: cannot write there ({local_files.describe_error(error)})"
      raise UserError(f"{problem}: check the path and its permissions") from error
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
  path = files.join(directory, CONFIG)
  if not files.exists(path):
    return
  for key, value, recorded_value in differences(settings, read_config(path).get("data", {})):
    raise UserError(
      f"{path}: its checkpoints were trained with {key} = {recorded_value!r}, not {value!r}: give the same"
    )


def write_environment(directory: str, strategy: tf.distribute.Strategy) -> None:
  """Writes environment.json: the command, the versions of Python and of the main packages, and the devices."""
  import numpy as np
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
  files.write_json(files.join(directory, ENVIRONMENT), values)


def differences(
  settings: Mapping[str, Any], recorded: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
  """Yields (key, value, recorded value) where two nested dicts differ. Keys missing on either side are ignored."""
  for key, value in settings.items():
    if key not in recorded:
      continue
    recorded_value = recorded[key]
    if isinstance(value, Mapping) and isinstance(recorded_value, Mapping):
      yield from differences(value, recorded_value, f"{prefix}{key}.")
    elif value != recorded_value:
      yield f"{prefix}{key}", value, recorded_value
