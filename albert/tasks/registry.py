"""The tasks there are. Their modules (and TensorFlow) are imported when one is asked for."""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING

from albert.config import Config, ModelConfig, PretrainingConfig

if TYPE_CHECKING:
  from albert.tasks.base import Task


@dataclasses.dataclass(frozen=True)
class Entry:
  """Where a task is found: its config, and "module:class" of the task."""

  config_class: type[Config]
  location: str


TASKS: dict[str, Entry] = {
  "pretraining": Entry(PretrainingConfig, "albert.tasks.pretraining:PretrainingTask"),
}


def make_task(name: str, model_config: ModelConfig, config: Config) -> Task:
  """The task `name` on a model."""
  module, cls = TASKS[name].location.split(":")
  return getattr(importlib.import_module(module), cls)(model_config, config)
