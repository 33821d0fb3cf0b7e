"""The tasks there are. Their modules (and TensorFlow) are imported when one is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from albert.config import Config, ModelConfig, PretrainingConfig

if TYPE_CHECKING:
  from albert.tasks.base import Task


@dataclasses.dataclass(frozen=True)
class Entry:
  """Where a task is found.

  Attributes:
    config_class: of its flags.
    location: "module:class" of the task.
    recipe: config -> name of the recipe in configs/ that holds unless --recipe names another; "" for none.
  """

  config_class: type[Config]
  location: str
  recipe: Callable[[Any], str] = lambda config: ""


TASKS: dict[str, Entry] = {
  "pretraining": Entry(PretrainingConfig, "albert.tasks.pretraining:PretrainingTask"),
}


def make_task(name: str, model_config: ModelConfig, config: Config) -> Task:
  """The task `name` on a model."""
  module, cls = TASKS[name].location.split(":")
  return getattr(importlib.import_module(module), cls)(model_config, config)
