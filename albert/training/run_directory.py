"""The output_dir of a run: whose it is, and what it was made with."""

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

from albert import files, output_files
from albert.errors import UserError


def claim(
  directory: str,
  identity: Mapping[str, Any],
  resolved: Mapping[str, Any],
  *,
  is_started: bool,
  is_chief: bool = True,
) -> None:
  """Writes config.json; refuses a directory that holds another run.

  Args:
    directory: the output_dir.
    identity: what the run depends on, as JSON values.
    resolved: sections to write in place of those of `identity`, with the fields that may change, too.
    is_started: whether a run has already saved something there.
    is_chief: false in a process that leaves the writing to another one.
  Raises:
    UserError: config.json there differs in `identity`; the first difference is named.
  """
  files.makedirs(directory)
  path = files.join(directory, output_files.CONFIG)
  if is_started:
    if not files.exists(path):
      raise UserError(f"{directory} has checkpoints but no {output_files.CONFIG}: give another --output_dir")
    for key, ours, theirs in _differences(identity, files.read_json(path)):
      raise UserError(
        f"{path}: this directory holds a run with {key} = {theirs!r}, this one has {ours!r}: give another "
        "--output_dir, or that value to resume it"
      )
  if is_chief:
    files.write_json(path, dict(identity) | dict(resolved))


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
    for key, ours, theirs in _differences(settings, files.read_json(path).get("data", {})):
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
  """(key, ours, theirs) where two nested dicts differ; what only one of them has is of another version."""
  for key, value in ours.items():
    if key not in theirs:
      continue
    other = theirs[key]
    if isinstance(value, Mapping) and isinstance(other, Mapping):
      yield from _differences(value, other, f"{prefix}{key}.")
    elif value != other:
      yield f"{prefix}{key}", value, other
