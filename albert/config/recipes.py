"""Recipes: files in configs/ with default values for the flags of a script. Imports no TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from albert.config.base import Config, check_types
from albert.config.model import ModelConfig, named_model
from albert.config.run import OptimizerConfig, TrainConfig
from albert.errors import UserError
from albert.io import files, json_text, json_values

# Section of a recipe -> the config that it holds. A recipe may also have `task`, `weights`, `data` and `stages`.
SECTIONS: dict[str, type[Config]] = {"model": ModelConfig, "optimizer": OptimizerConfig, "train": TrainConfig}
_NO_RECIPE = "none"
_FOLDER = "configs"
_REMEDY = "see the recipes in configs/; the sections are task, weights, model, optimizer, train, data and stages"


def configs_directory() -> str:
  """Returns the directory of the recipes and experiments.

  In a checkout of the source it is configs/ beside albert/. setup.py installs it as configs/ in albert/.
  """
  package_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
  in_package = os.path.join(package_dir, _FOLDER)
  in_checkout = os.path.join(os.path.dirname(package_dir), _FOLDER)
  return in_package if os.path.isdir(in_package) else in_checkout


def config_names(folder: str = "") -> list[str]:
  """Returns the names, without .json, of the recipes or experiments.

  Args:
    folder: a folder of configs_directory(), such as "experiments"; "" for the directory itself, which has the recipes.
  """
  names = files.listdir(os.path.join(configs_directory(), folder))
  return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))


class RecipeWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """The section `weights` of a recipe: the initial weights that its values are for.

  Attributes:
    with_dropout: whether they were pretrained with dropout. Those of ALBERT v2 were not.
    other_recipe: name of the recipe for other weights.
  """

  with_dropout: bool
  other_recipe: str


class _Sections(msgspec.Struct, forbid_unknown_fields=True):
  """The types of a recipe's sections. What `data` may contain depends on the task, which checks it later."""

  task: str = ""
  weights: RecipeWeights | None = None
  model: str | dict[str, Any] = {}
  optimizer: dict[str, Any] = {}
  train: dict[str, Any] = {}
  data: dict[str, Any] = {}
  stages: list[dict[str, Any]] = []


@dataclasses.dataclass(frozen=True)
class Recipe:
  """Default values for the flags of a script.

  Attributes:
    name: the name or path of the recipe, as given by --recipe or by the task. It is "none" for --recipe=none, and "" if
      --recipe is not given and the task has no recipe.
    path: the path of the file; "" if there is no recipe.
    sections: the content of the file; empty if there is no recipe. The section `stages` of the file is here a value of
      the section `data`, as the flag --stages has it.
    weights: the initial weights that the recipe is for; None if the file does not say.
  """

  name: str = ""
  path: str = ""
  sections: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  weights: RecipeWeights | None = None

  def better_recipe_for(self, model: ModelConfig) -> str:
    """Returns the name of the recipe that is for the given weights, if this one is for others.

    Returns "" if this recipe is for these weights, or if its file does not say for which weights it is.

    Args:
      model: the config beside the weights. Its dropout tells whether they were pretrained with dropout.
    """
    has_dropout = model.hidden_dropout_prob > 0
    return "" if self.weights is None or self.weights.with_dropout == has_dropout else self.weights.other_recipe


def read_recipe(name: str, task_name: str) -> Recipe:
  """Reads a recipe.

  Args:
    name: a path, or the name of a file in configs/ without .json. configs/NAME.json is found from any directory. ""
      and "none" mean no recipe.
    task_name: the task of the script, which the recipe must be for.
  Raises:
    UserError: there is no such recipe, it is for another script, or it has an unknown section or key or a value of a
      wrong type.
  """
  if name in ("", _NO_RECIPE):
    return Recipe(name)
  path = name
  if not files.exists(path) or files.is_dir(path):  # a directory may be the output_dir of a run
    path = os.path.join(configs_directory(), f"{name.removeprefix(f'{_FOLDER}/').removesuffix('.json')}.json")
  if not files.exists(path):
    raise UserError(f"--recipe={name}: no such file or recipe; recipes: {', '.join(config_names())}")
  sections = files.read_json(path, remedy=_REMEDY)
  weights = json_values.convert(path, sections, _Sections, _REMEDY).weights
  model = sections.get("model")
  if isinstance(model, str):
    named_model(model, f"{path}: model")
  for section, config_class in SECTIONS.items():
    values = sections.get(section)
    if isinstance(values, dict):
      check_types(config_class, values, source=f"{path}: {section}")
  if sections.get("task", task_name) != task_name:
    raise UserError(f"{path}: is a recipe for {sections['task']}, but this script runs {task_name}")
  stages = sections.pop("stages", None)
  if stages is not None:
    sections["data"] = {**sections.get("data", {}), "stages": json_text.dumps(stages, ensure_ascii=False)}
  return Recipe(name, path, sections, weights)
