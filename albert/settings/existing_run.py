"""Finds the run that output_dir already holds, and compares the flags of a command with it. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from albert.config.base import Config, option_fields
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files

_SEED_DIRECTORY = re.compile(r"run-(\d+)$")


@dataclasses.dataclass(frozen=True)
class ExistingRun:
  """A run in output_dir that has saved a checkpoint or has ended.

  Attributes:
    directory: its output_dir.
    values: the content of its config.json.
    seed: its seed, if it is one of several runs that --num_runs started with different seeds; None for a single run.
  """

  directory: str
  values: Mapping[str, Any]
  seed: int | None = None

  @property
  def config_file(self) -> str:
    """The path of its config.json."""
    return files.join(self.directory, output_files.CONFIG)

  def reusable_values(self, config_class: type[Config], section: str = "") -> dict[str, Any]:
    """The recorded values that later commands reuse.

    Args:
      config_class: the config whose fields are looked up.
      section: the section of config.json that holds the config; "" for RunConfig, whose fields are at the top level.
    Returns:
      Field name -> value, without fields that depend on the command (`per_command` in `option`).
    """
    values = self.values.get(section, {}) if section else self.values
    fields = option_fields(config_class)
    reusable = {name for name, field in fields.items() if not field.metadata["per_command"]}
    if self.seed is not None:
      reusable.discard("seed")
    return {name: value for name, value in values.items() if name in reusable}


def find_existing_run(output_dir: str, num_runs: int = 1) -> ExistingRun | None:
  """Finds the run whose settings later commands on output_dir use.

  A run counts if it has a config.json and either a checkpoint or the record of the end of its training. With --num_runs
  only the best run keeps its checkpoints. A run that failed before it saved anything does not count.

  Args:
    output_dir: the output_dir of the command; "" if it has none.
    num_runs: the value of --num_runs. If it is greater than 1, the runs are in the folders run-SEED of output_dir.
  Returns:
    The run; if there are several, the one with the smallest seed; None if there is none.
  """
  if not output_dir:
    return None
  if num_runs == 1:
    return _read_run(output_dir)
  seeds = [int(match[1]) for match in map(_SEED_DIRECTORY.match, _list_directory(output_dir)) if match]
  for seed in sorted(seeds):
    run = _read_run(files.join(output_dir, f"run-{seed}"))
    if run:
      return dataclasses.replace(run, seed=seed)
  return None


def _read_run(directory: str) -> ExistingRun | None:
  """Reads the run in a directory; None if there is none, or if it failed before it saved anything."""
  path = files.join(directory, output_files.CONFIG)
  if not files.exists(path):
    return None
  checkpoints = _list_directory(files.join(directory, output_files.CHECKPOINTS))
  has_checkpoint = any(map(output_files.STEP_DIRECTORY.match, checkpoints))
  has_ended = files.exists(files.join(directory, output_files.TRAINING_LOSS))
  return ExistingRun(directory, output_files.read_config(path)) if has_checkpoint or has_ended else None


def _list_directory(directory: str) -> list[str]:
  return files.listdir(directory) if files.is_dir(directory) else []


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
