"""Recipes: every file of configs/ is one that its script takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert.config import ModelConfig, OptimizerConfig, TrainConfig, config_names, from_dict, named_model
from albert.tasks import registry

RECIPES = sorted((Path(__file__).parents[1] / "configs").glob("*.json"))


def test_there_are_recipes():
  assert RECIPES


def test_recipes_are_listed_without_the_folder_of_experiments():
  assert config_names() == [path.stem for path in RECIPES]
  assert "sentence_loss" in config_names("experiments")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_valid_in_every_section(path: Path):
  recipe = json.loads(path.read_text())
  assert set(recipe) <= {"task", "model", "optimizer", "train", "data"}
  entry = registry.TASKS[recipe["task"]]
  model = recipe["model"]
  if isinstance(model, str):
    named_model(model)
  else:
    from_dict(ModelConfig, model, source=path.name)
  optimizer = from_dict(OptimizerConfig, recipe["optimizer"], source=path.name)
  train = from_dict(TrainConfig, recipe["train"], source=path.name)
  from_dict(entry.config_class, recipe.get("data", {}), source=path.name)
  assert optimizer.num_warmup_steps < train.num_train_steps


def test_the_papers_pretraining_recipe_has_the_papers_numbers():
  # ALBERT, section 4.1: LAMB, learning rate 0.00176, batch 4096, 125,000 steps.
  recipe = json.loads(next(p for p in RECIPES if p.stem == "pretraining_albert").read_text())
  assert recipe["optimizer"]["optimizer"] == "lamb"
  assert recipe["optimizer"]["learning_rate"] == 0.00176
  assert (recipe["train"]["train_batch_size"], recipe["train"]["num_train_steps"]) == (4096, 125000)
