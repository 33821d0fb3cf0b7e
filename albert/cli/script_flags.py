"""The flags of the scripts, made from the fields of the configs, and the task and config made from flags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

from albert.cli.settings import Settings
from albert.config import command_flags
from albert.config.base import Config, define_field, option_fields
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.tasks import registry

if TYPE_CHECKING:
  from albert.tasks.base import Task


# Flags that are no fields of a config.
_MODEL_FLAGS = {
  "model": "named model, such as albert_base",
  "albert_config_file": "albert_config.json of the model, instead of --model",
}


def define_flags(task_name: str) -> None:
  """Defines the flags of a task's script. A flag left out is None: the recipe's or the field's default holds."""
  for name, text in _MODEL_FLAGS.items():
    command_flags.define("str", name, None, text)
  for config_class in _configs(task_name):
    for field in option_fields(config_class).values():
      define_field(field, None)


def _configs(task_name: str) -> list[type[Config]]:
  """The configs whose fields are flags of a task's script."""
  return [RunConfig, TrainConfig, OptimizerConfig, ModelConfig, registry.TASKS[task_name].config_class]


def given_flags(task_name: str) -> dict[str, Any]:
  """The flags that the command line gives, by name."""
  names = [*_MODEL_FLAGS, *(name for config in _configs(task_name) for name in option_fields(config))]
  return {name: flags.FLAGS[name].value for name in names if flags.FLAGS[name].value is not None}


def task_and_config(task_name: str) -> tuple[Task, RunConfig]:
  """What the command asks for; see albert.cli.settings for where each value comes from.

  Raises:
    UserError: a value out of range, an unknown model, a recipe that is not one, data that does not fit, a flag that
      contradicts the run in output_dir.
  """
  settings = Settings(task_name, given_flags(task_name))
  config = settings.run_config()
  model_file = vocabulary = None
  if config.init_checkpoint and settings.run is None:
    from albert.weights.files import open_weights  # TensorFlow: late

    weights = open_weights(config.init_checkpoint)
    model_file, vocabulary = weights.config_file, weights.vocabulary
  task = registry.make_task(task_name, settings.model_config(model_file), settings.data_config(vocabulary))
  settings.check_data(task.settings())
  return task, config
