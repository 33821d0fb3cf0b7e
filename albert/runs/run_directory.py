"""The output_dir of a run: its config.json, and the check that a command continues the run that is there."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.data.content import DataContent
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.runs.metrics_log import log


def claim(
  directory: str,
  identity: Mapping[str, Any],
  resolved: Mapping[str, Any],
  *,
  is_started: bool,
  is_chief: bool = True,
  content: DataContent | None = None,
) -> None:
  """Writes config.json; refuses a directory that holds another run.

  Args:
    directory: the output_dir.
    identity: the settings that affect training, as JSON values.
    resolved: sections to write in place of those of `identity`, with the fields that may change, too.
    is_started: whether a run has already saved something there.
    is_chief: false in a process that leaves the writing to another one.
    content: the hashes of the training data; None where they are not known.
  Raises:
    UserError: config.json there differs in `identity` or in the hashes of the data; the first difference is named.
  """
  files.makedirs(directory)
  path = files.join(directory, output_files.CONFIG)
  values = dict(identity) | dict(resolved)
  if is_started:
    if not files.exists(path):
      raise UserError(f"{directory} has checkpoints but no {output_files.CONFIG}: give another --output_dir")
    there = output_files.read_config(path)
    for key, ours, theirs in _differences(identity, there):
      raise UserError(
        f"{path}: this directory holds a run with {key} = {theirs!r}, this one has {ours!r}: give another "
        "--output_dir, or that value to resume it"
      )
    if content is not None:
      _compare_content(directory, path, there, content)
    # What this command does not know, such as the vocabulary of shards without a manifest, stays recorded.
    values["data"] = there.get("data", {}) | values.get("data", {})
  if content is not None:
    values["training_data"] = content.summary()
  if is_chief:
    if content is not None:
      files.write_atomically(files.join(directory, output_files.TRAINING_DATA), content.to_json())
    files.write_json(path, values)


def _compare_content(directory: str, path: str, there: Mapping[str, Any], content: DataContent) -> None:
  """UserError if the run in `directory` was trained on other data; a warning if it did not record on which."""
  recorded = there.get("training_data", {}).get("sha256")
  if recorded is None:
    log(
      f"warning: {path} has no hashes of the training data, since an earlier version wrote it: the data cannot be "
      "compared with those that the run began with; the hashes of this command's data are recorded from now on"
    )
    return
  if recorded == content.sha256:
    return
  detail = f"SHA-256 of all is {content.sha256[:12]}..., it was {recorded[:12]}..."
  list_path = files.join(directory, output_files.TRAINING_DATA)
  if files.exists(list_path):
    expected = _read_content(list_path)
    if expected is not None and expected.sha256 == recorded:
      detail = content.difference(expected)
  raise UserError(
    f"{path}: this run was trained on other data than this command gives ({detail}): give the same data (its place and "
    "names may differ) or another --output_dir"
  )


def _read_content(path: str) -> DataContent | None:
  """The list of files that a run was trained on; None if it is damaged: it only makes an error more precise."""
  try:
    return files.read_json(path, DataContent)
  except UserError:
    return None


def check_writable(directory: str) -> None:
  """Checks that files can be written to a directory, which need not exist yet. Nothing is left there.

  Raises:
    UserError: the directory, or the one it would be made in, is a file or cannot be written to.
  """
  if files.is_remote(directory):
    probe = files.join(directory, f".writable-{uuid.uuid4().hex}")
    try:
      files.write_atomically(probe, b"")
      files.remove(probe)
    except tf.errors.OpError as error:
      raise UserError(
        f"{directory}: cannot write there ({str(error).splitlines()[0]}): check path and rights"
      ) from error
    return
  place = os.path.abspath(directory)
  while not os.path.lexists(place):
    place = os.path.dirname(place)
  if not os.path.isdir(place):
    raise UserError(f"{directory}: cannot be made, since {place} is not a directory: choose another one")
  if not os.access(place, os.W_OK | os.X_OK):
    raise UserError(f"{directory}: {place} cannot be written to: choose another directory, or change its rights")


def check_checkpoint_settings(directory: str, settings: Mapping[str, Any]) -> None:
  """UserError if the run in `directory` was trained with other `settings` of its data, such as other labels."""
  path = files.join(directory, output_files.CONFIG)
  if files.exists(path):
    for key, ours, theirs in _differences(settings, output_files.read_config(path).get("data", {})):
      raise UserError(f"{path}: its checkpoints were trained with {key} = {theirs!r}, asked for is {ours!r}: give that")


def write_environment(directory: str, strategy: tf.distribute.Strategy) -> None:
  """Writes environment.json: versions, devices, the command."""
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
  ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
  """(key, ours, theirs) where two nested dicts differ; keys missing on either side are ignored."""
  for key, value in ours.items():
    if key not in theirs:
      continue
    other = theirs[key]
    if isinstance(value, Mapping) and isinstance(other, Mapping):
      yield from _differences(value, other, f"{prefix}{key}.")
    elif value != other:
      yield f"{prefix}{key}", value, other
