"""Makes the task and the config of a run from the settings that a command line or a Python call gives."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from albert.config.base import alternatives, check_types, option_fields
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.errors import UserError
from albert.io.json_values import format_value
from albert.settings.existing_run import find_existing_run
from albert.settings.sources import Settings
from albert.tasks import registry
from albert.tasks.definitions import TaskDefinition
from albert.tasks.splits import DEV, TRAIN

if TYPE_CHECKING:
  from albert.tasks.base import Task


def make_task_and_config(task_name: str, given: Mapping[str, Any]) -> tuple[Task, RunConfig]:
  """Makes the task and the config of the run; see albert.settings.sources.

  Args:
    task_name: a key of albert.tasks.registry.TASKS.
    given: name -> value of the settings that are given, which are named as the flags of the scripts.
  Raises:
    UserError: a value out of range, an unknown model or recipe, data that the model cannot be trained on, or a setting
      that contradicts the run in output_dir.
  """
  settings = Settings(task_name, given)
  config = settings.run_config()
  model_file = vocabulary = None
  if config.init_checkpoint and settings.existing_run is None:
    from albert.weights.files import open_weights  # imports TensorFlow, which takes seconds

    weights = open_weights(config.init_checkpoint)
    model_file, vocabulary = weights.config_file, weights.vocabulary
  task = registry.make_task(task_name, settings.model_config(model_file), settings.data_config(vocabulary))
  settings.check_data(task.settings())
  return task, config


# Settings of a command that are not settings of an Estimator.
_OF_COMMANDS = {"do_train", "do_eval", "do_predict", "num_runs", "predictions_file"}


def make_defined_task(definition: TaskDefinition, given: Mapping[str, Any]) -> tuple[Task, RunConfig]:
  """Makes the task of a definition and the config of its run.

  Args:
    definition: the task and its data.
    given: name -> value of the settings that the Estimator gets; None stands for a setting that is not given.
  Raises:
    UserError: see make_task_and_config; or a setting is unknown or belongs to the definition.
  """
  name = definition.task_name
  given = _check_given(definition, {key: value for key, value in given.items() if value is not None})
  given = _defaults(definition, given) | given | definition.settings
  given |= {"do_train": definition.has(TRAIN), "do_eval": definition.has(DEV)}
  task, config = make_task_and_config(name, given)
  for split, rows in definition.rows.items():
    task = task.with_data(split, rows)
  return task, config


def _check_given(definition: TaskDefinition, given: Mapping[str, Any]) -> dict[str, Any]:
  """Checks the names and types of settings. A ModelConfig as `model` is replaced by its fields."""
  configs = (RunConfig, TrainConfig, OptimizerConfig, ModelConfig, registry.TASKS[definition.task_name].config_class)
  fields = {field: config for config in configs for field in option_fields(config)}
  checked: dict[str, Any] = {}
  for name, value in given.items():
    if name == "model":
      checked |= _model_settings(value)
      continue
    if name not in fields or name in _OF_COMMANDS:
      close = difflib.get_close_matches(name, fields, n=1)
      hint = f"; is {close[0]} meant?" if close else "; see the flags of the scripts, which have the same names"
      raise UserError(f"{name}={format_value(value)}: no such setting{hint}")
    if name in definition.settings or name in definition.file_fields.values():
      raise UserError(f"{name}={format_value(value)}: the task gives this setting: leave it out")
    plain = os.fspath(value) if isinstance(value, os.PathLike) else value
    checked |= check_types(fields[name], {name: plain}, source="Estimator")
  return checked


def _model_settings(model: Any) -> dict[str, Any]:
  if isinstance(model, ModelConfig):
    return model.to_dict()
  name = str(os.fspath(model))
  return {"albert_config_file" if name.endswith(".json") else "model": name}


def _defaults(definition: TaskDefinition, given: Mapping[str, Any]) -> dict[str, Any]:
  """The definition's default settings, for a new run without an own recipe."""
  if "recipe" in given or find_existing_run(given.get("output_dir", "")) is not None:
    return {}
  other_names = alternatives(TrainConfig) | alternatives(OptimizerConfig)
  return {
    name: value
    for name, value in definition.default_settings.items()
    if name not in given and other_names.get(name) not in given
  }
