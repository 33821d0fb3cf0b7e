"""The flags, made from the fields of the configs, and the configs made from flags. The one library module that
knows flags."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from absl import flags

from albert import app, files
from albert.config import (
  Config,
  ModelConfig,
  OptimizerConfig,
  RunConfig,
  TrainConfig,
  from_dict,
  load_model_config,
  named_model,
)
from albert.errors import UserError
from albert.tasks import registry

if TYPE_CHECKING:
  from albert.tasks.base import Task

# What a recipe (a file of configs/) may set.
_SECTIONS: dict[str, type[Config]] = {"model": ModelConfig, "optimizer": OptimizerConfig, "train": TrainConfig}


def _define(config_class: type[Config]) -> None:
  define: dict[str, Callable[..., Any]] = {
    "int": flags.DEFINE_integer,
    "float": flags.DEFINE_float,
    "bool": flags.DEFINE_boolean,
    "str": flags.DEFINE_string,
  }
  for field in dataclasses.fields(config_class):
    if not field.metadata:
      continue  # a config of its own
    shown = field.default if field.default != "" else "none"
    text = f"{field.metadata['help']} (default: {shown})"
    if field.metadata["choices"]:
      flags.DEFINE_enum(field.name, None, list(field.metadata["choices"]), text, module_name=sys.argv[0])
    else:
      define[str(field.type)](field.name, None, text, module_name=sys.argv[0])


def define_flags(task_name: str) -> None:
  """Defines the flags of a task's script. A flag left out is None: the recipe's or the field's default holds."""
  main = sys.argv[0]  # --help lists the flags of this module
  flags.DEFINE_string("model", None, "named model, such as albert_base (default: albert_base)", module_name=main)
  flags.DEFINE_string(
    "albert_config_file", None, "albert_config.json of the model, instead of --model", module_name=main
  )
  flags.DEFINE_string("recipe", None, "JSON file with defaults for flags (see configs/)", module_name=main)
  for config_class in (RunConfig, TrainConfig, OptimizerConfig, ModelConfig, registry.TASKS[task_name].config_class):
    _define(config_class)


def _given(config_class: type[Config]) -> dict[str, Any]:
  """The flags of `config_class` that the command line gives."""
  names = [field.name for field in dataclasses.fields(config_class) if field.metadata]
  return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].value is not None}


def _recipe(task_name: str) -> dict[str, Any]:
  path = flags.FLAGS.recipe
  if not path:
    return {}
  values = files.read_json(path)
  unknown = set(values) - {"task", "data", "model", *_SECTIONS}
  if unknown:
    raise UserError(f"{path}: unknown section {min(unknown)!r}; known: task, model, optimizer, train, data")
  if values.get("task", task_name) != task_name:
    raise UserError(f"{path}: is a recipe for {values['task']}, this script runs {task_name}")
  return values


def _section(config_class: type[Config], values: dict[str, Any], **nested: Any) -> Any:
  base = from_dict(config_class, values, source=flags.FLAGS.recipe or "recipe") if values else None
  given = _given(config_class) | nested
  if base is None:
    return config_class(**given)
  return dataclasses.replace(base, **given)


def _model_config(recipe: dict[str, Any]) -> ModelConfig:
  """--albert_config_file, --model, the recipe's, or that of the run in output_dir; single flags override."""
  values = flags.FLAGS
  if values.model and values.albert_config_file:
    raise UserError("--model and --albert_config_file are both given: give one")
  run_config = files.join(values.output_dir, "config.json") if values.output_dir else ""
  if values.albert_config_file:
    base = load_model_config(values.albert_config_file)
  elif values.model:
    base = named_model(values.model)
  elif isinstance(recipe.get("model"), dict):
    base = from_dict(ModelConfig, recipe["model"], source=values.recipe)
  elif recipe.get("model"):
    base = named_model(recipe["model"])
  elif run_config and files.exists(run_config):
    base = from_dict(ModelConfig, files.read_json(run_config).get("model", {}), source=run_config)
  else:
    base = named_model("albert_base")
  return dataclasses.replace(base, **_given(ModelConfig))


def task_and_config(task_name: str) -> tuple[Task, RunConfig]:
  """What the flags ask for.

  Raises:
    UserError: a value out of range, an unknown model, a recipe that is not one, data that does not fit.
  """
  recipe = _recipe(task_name)
  config = _section(
    RunConfig,
    {},
    optimizer=_section(OptimizerConfig, recipe.get("optimizer", {})),
    train=_section(TrainConfig, recipe.get("train", {})),
  )
  data_config = _section(registry.TASKS[task_name].config_class, recipe.get("data", {}))
  model_config = _model_config(recipe)
  return registry.make_task(task_name, model_config, data_config), config


def run(task_name: str, main: Callable[[], None]) -> None:
  """Starts a script: defines its flags, then runs `main`, with TensorFlow's own start-up chatter off."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  define_flags(task_name)
  app.run(main)
