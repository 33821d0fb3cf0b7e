"""The tasks there are. Their modules (and TensorFlow) are imported when one is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from albert.config.base import Config
from albert.config.model import ModelConfig
from albert.config.run import PretrainingConfig
from albert.tasks.glue import specs
from albert.tasks.race import data as race_data
from albert.tasks.squad import data as squad_data

if TYPE_CHECKING:
  from albert.tasks.base import Task


def _no_recipe(config: Any) -> str:
  del config
  return ""


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
  recipe: Callable[[Any], str] = _no_recipe
  ensemble: str = ""

  @property
  def has_recipes(self) -> bool:
    """Whether the task's flags decide on a recipe."""
    return self.recipe is not _no_recipe


TASKS: dict[str, Entry] = {
  "pretraining": Entry(
    PretrainingConfig,
    "albert.tasks.pretraining:PretrainingTask",
  ),
  "classifier": Entry(
    specs.ClassifierConfig,
    "albert.tasks.glue.task:make_task",
    recipe=specs.recipe_name,
    ensemble="albert.tasks.glue.results:ensemble",
  ),
  "squad": Entry(
    squad_data.SquadConfig,
    "albert.tasks.squad.task:make_task",
    recipe=squad_data.recipe_name,
    ensemble="albert.tasks.squad.results:ensemble",
  ),
  "race": Entry(
    race_data.RaceConfig,
    "albert.tasks.race.task:RaceTask",
    recipe=lambda config: "race",
    ensemble="albert.tasks.race.results:ensemble",
  ),
}


def load(location: str) -> Any:
  """What "module:name" names."""
  module, name = location.split(":")
  return getattr(importlib.import_module(module), name)


def make_task(name: str, model_config: ModelConfig, config: Config) -> Task:
  """The task `name` on a model."""
  return load(TASKS[name].location)(model_config, config)
