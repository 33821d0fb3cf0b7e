"""Recipes: files of configs/ that give a script's flags their defaults. No TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from albert import files
from albert.config import Config, ModelConfig, OptimizerConfig, TrainConfig, config_names, configs_directory
from albert.errors import UserError

# What a recipe may hold, besides the task and its data.
SECTIONS: dict[str, type[Config]] = {"model": ModelConfig, "optimizer": OptimizerConfig, "train": TrainConfig}
_NO_RECIPE = "none"


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A file of configs/.

  Attributes:
    name: as the flag or the task gives it; "" if the task has none.
    path: of the file; "" for no recipe.
    sections: what it holds.
  """

  name: str = ""
  path: str = ""
  sections: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def read_recipe(name: str, task_name: str) -> Recipe:
  """The recipe `name`: a path, or the name of a file in configs/.

  Raises:
    UserError: no such recipe, an unknown section, or a recipe for another script.
  """
  if name in ("", _NO_RECIPE):
    return Recipe(name)
  path = name if files.exists(name) else os.path.join(configs_directory(), f"{name}.json")
  if not files.exists(path):
    raise UserError(f"--recipe={name}: no such file or recipe; recipes: {', '.join(config_names())}")
  sections = files.read_json(path)
  unknown = set(sections) - {"task", "data", *SECTIONS}
  if unknown:
    raise UserError(f"{path}: unknown section {min(unknown)!r}; known: task, model, optimizer, train, data")
  if sections.get("task", task_name) != task_name:
    raise UserError(f"{path}: is a recipe for {sections['task']}, this script runs {task_name}")
  return Recipe(name, path, sections)
