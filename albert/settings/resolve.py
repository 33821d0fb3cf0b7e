"""Makes the task and the config of a run from the settings that a command line or a Python call gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from albert.config.run import RunConfig
from albert.settings.sources import Settings
from albert.tasks import registry

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
