"""The tasks there are. Their modules (and TensorFlow) are imported when one is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from albert.config import Config, ModelConfig, PretrainingConfig
from albert.tasks import glue_specs, squad_data

if TYPE_CHECKING:
  from albert.tasks.base import Task


@dataclasses.dataclass(frozen=True)
class Entry:
  """Where a task is found.

  Attributes:
    config_class: of its flags.
    location: "module:name" of the task's class, or of a function that makes the task.
    recipe: config -> name of the recipe in configs/ that holds unless --recipe names another; "" for none.
    ensemble: "module:function" that makes one prediction of those of several runs (see albert.ensemble); "" for none.
  """

  config_class: type[Config]
  location: str
  recipe: Callable[[Any], str] = lambda config: ""
  ensemble: str = ""


TASKS: dict[str, Entry] = {
  "pretraining": Entry(PretrainingConfig, "albert.tasks.pretraining:PretrainingTask"),
  "classifier": Entry(
    glue_specs.ClassifierConfig,
    "albert.tasks.glue:make_task",
    recipe=glue_specs.recipe_name,
    ensemble="albert.tasks.glue_files:ensemble",
  ),
  "squad": Entry(
    squad_data.SquadConfig,
    "albert.tasks.squad:make_task",
    recipe=squad_data.recipe_name,
    ensemble="albert.tasks.squad_files:ensemble",
  ),
}


def load(location: str) -> Any:
  """What "module:name" names."""
  module, name = location.split(":")
  return getattr(importlib.import_module(module), name)


def make_task(name: str, model_config: ModelConfig, config: Config) -> Task:
  """The task `name` on a model."""
  return load(TASKS[name].location)(model_config, config)
