"""Recipes: files of configs/ that give a script's flags their defaults. No TensorFlow."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from albert.config.base import Config, typed
from albert.config.model import MODELS, ModelConfig
from albert.config.run import OptimizerConfig, TrainConfig
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.json_values import shown

# What a recipe may hold, besides the task and its data.
SECTIONS: dict[str, type[Config]] = {"model": ModelConfig, "optimizer": OptimizerConfig, "train": TrainConfig}
_NO_RECIPE = "none"
_REMEDY = "see the recipes in configs/"


def configs_directory() -> str:
  """Where recipes and experiments are: configs/ beside the package, or where an installation puts it."""
  beside = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "configs")
  return beside if os.path.isdir(beside) else os.path.join(sys.prefix, "share", "albert-tf2", "configs")


def config_names(folder: str = "") -> list[str]:
  """Names of the JSON files in a folder of configs_directory(), without .json."""
  there = files.listdir(os.path.join(configs_directory(), folder))
  return sorted(name.removesuffix(".json") for name in there if name.endswith(".json"))


class _Sections(msgspec.Struct):
  """A recipe; the task checks the keys of `data`."""

  task: str = ""
  model: str | dict[str, Any] = {}
  optimizer: dict[str, Any] = {}
  train: dict[str, Any] = {}
  data: dict[str, Any] = {}


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
    UserError: no such recipe, a recipe for another script, or a section or key that is unknown or of another type.
  """
  if name in ("", _NO_RECIPE):
    return Recipe(name)
  path = name if files.exists(name) else os.path.join(configs_directory(), f"{name}.json")
  if not files.exists(path):
    raise UserError(f"--recipe={name}: no such file or recipe; recipes: {', '.join(config_names())}")
  sections = files.read_json(path, remedy=_REMEDY)
  unknown = set(sections) - {"task", "data", *SECTIONS}
  if unknown:
    raise UserError(f"{path}: unknown section {min(unknown)!r}; known: task, model, optimizer, train, data")
  json_values.convert(path, sections, _Sections, _REMEDY)
  model = sections.get("model")
  if isinstance(model, str) and model not in MODELS:
    raise UserError(f"{path}: model: unknown model {shown(model)}; known: {', '.join(MODELS)}")
  for section, config_class in SECTIONS.items():
    values = sections.get(section)
    if isinstance(values, dict):
      typed(config_class, values, source=f"{path}: {section}")
  if sections.get("task", task_name) != task_name:
    raise UserError(f"{path}: is a recipe for {sections['task']}, this script runs {task_name}")
  return Recipe(name, path, sections)
