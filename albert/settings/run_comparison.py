"""Compares the flags of a command with the run that output_dir already holds. Imports no TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from albert.config.base import Config, option_fields
from albert.errors import UserError
from albert.io import files
from albert.settings.existing_run import ExistingRun


def format_flag(name: str, value: Any) -> str:
  """A flag with its value, as it is written on the command line."""
  if isinstance(value, bool):
    return f"--{name}" if value else f"--no{name}"
  return f"--{name}={value}"


def must_equal_run(config_class: type[Config], name: str) -> bool:
  """Whether a later command on the output_dir of a run must give this field the value of the run."""
  metadata = option_fields(config_class)[name].metadata
  return bool(metadata["affects_training"] and not metadata["evaluation_may_differ"])


def is_same_value(name: str, value: Any, recorded_value: Any) -> bool:
  """Whether a flag has the value that the run recorded. Two paths of one --init_checkpoint are the same value."""
  return value == recorded_value or (name == "init_checkpoint" and _is_same_path(value, recorded_value))


def _is_same_path(path: str, other_path: str) -> bool:
  """Whether two local paths name the same file. False if one of them is empty or the first one is remote."""
  if not path or not other_path or files.is_remote(path):
    return False
  return os.path.abspath(path) == os.path.abspath(other_path)


def contradiction_error(
  run: ExistingRun, flag: str, name: str, recorded: Mapping[str, Any], *, does_training: bool
) -> UserError:
  """Makes the error for a flag that contradicts a value of the run.

  Args:
    run: the run in output_dir.
    flag: the flag with its value, as the message shows it.
    name: the name of the run's value.
    recorded: name -> value of the run.
    does_training: whether the command trains.
  """
  remedy = "give another --output_dir"
  if name == "select_checkpoint" or not does_training:  # the command uses a checkpoint of the run
    remedy += f" and --init_checkpoint={files.join(run.directory, 'checkpoints', 'step-N')}"
  elif name in ("num_train_steps", "num_train_epochs") and run.seed is None:
    remedy += (
      f"; with --init_checkpoint={run.directory} there, its weights are trained further, with a new schedule of the "
      "learning rate"
    )
  return UserError(
    f"{flag}: the run in {run.directory} has {name} = {recorded[name]!r} ({run.config_file}): leave the flag out, or "
    f"{remedy}"
  )
