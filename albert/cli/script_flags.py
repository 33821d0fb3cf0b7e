"""Defines the flags of the run_* scripts, one for each config field."""

from __future__ import annotations

import sys
from typing import Any

from absl import flags

from albert.config import command_flags
from albert.config.base import Config, define_field_flag, option_fields
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.tasks import registry

# Name -> help of the flags that are not fields of a config.
MODEL_FLAGS = {
  "model": "name of a predefined model, such as albert_base",
  "albert_config_file": "albert_config.json that describes the model, instead of --model",
}


def define_flags(task_name: str) -> None:
  """Defines the flags of a task's script. The default of each is None, which means that the flag is not given."""
  for name, text in MODEL_FLAGS.items():
    command_flags.define("str", name, None, text)
  for config_class in _configs(task_name):
    for field in option_fields(config_class).values():
      define_field_flag(field, None)
  # Data preparation calls its seed --random_seed.
  flags.DEFINE_alias("random_seed", "seed", module_name=sys.argv[0])


def _configs(task_name: str) -> list[type[Config]]:
  """The classes of the configs whose fields are flags of a task's script."""
  return [RunConfig, TrainConfig, OptimizerConfig, ModelConfig, registry.TASKS[task_name].config_class]


def given_flags(task_name: str) -> dict[str, Any]:
  """Name -> value of the flags that the command line gives."""
  names = [*MODEL_FLAGS, *(name for config in _configs(task_name) for name in option_fields(config))]
  return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].value is not None}
