"""Every recipe in configs/ is valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert.config.base import from_dict
from albert.config.model import ModelConfig, named_model
from albert.config.recipes import config_names, read_recipe
from albert.config.run import OptimizerConfig, TrainConfig
from albert.tasks import registry
from albert.tasks.pretraining.flags import PretrainingConfig, format_stages, read_stages

RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.json"))


def test_the_folder_of_recipes_is_found():
  assert RECIPES


def test_recipes_are_listed_without_the_folder_of_experiments():
  assert config_names() == [path.stem for path in RECIPES]
  assert "sentence_loss" in config_names("experiments")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_in_every_section(path: Path):
  recipe = json.loads(path.read_text())
  assert set(recipe) <= {"task", "weights", "model", "optimizer", "train", "data", "stages"}
  if "weights" in recipe:
    assert recipe["weights"]["other_recipe"] in config_names()
  registered_task = registry.TASKS[recipe["task"]]
  model = recipe["model"]
  model_config = named_model(model) if isinstance(model, str) else from_dict(ModelConfig, model, source=path.name)
  optimizer = from_dict(OptimizerConfig, recipe["optimizer"], source=path.name)
  train = from_dict(TrainConfig, recipe["train"], source=path.name)
  data = recipe.get("data", {})
  if "stages" in recipe:
    data |= {"stages": format_stages(recipe["stages"])}
    assert read_stages(from_dict(PretrainingConfig, data, source=path.name), model_config)
  from_dict(registered_task.config_class, data, source=path.name)
  assert optimizer.num_warmup_steps < train.num_train_steps


def test_a_directory_with_the_name_of_a_recipe_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  (tmp_path / "race").mkdir()
  monkeypatch.chdir(tmp_path)
  assert read_recipe("race", "race").sections["task"] == "race"


def test_the_papers_pretraining_recipe_has_the_papers_numbers():
  # The numbers are those of ALBERT, section 4.1.
  recipe = json.loads(next(path for path in RECIPES if path.stem == "pretraining_albert").read_text())
  assert recipe["optimizer"]["optimizer"] == "lamb"
  assert recipe["optimizer"]["learning_rate"] == 0.00176
  assert (recipe["train"]["train_batch_size"], recipe["train"]["num_train_steps"]) == (4096, 125000)
