"""--help shows the defaults that the command would use; every recipe in configs/ is valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert.cli import script_help
from albert.command_help import render
from albert.config.base import GROUPS, from_dict
from albert.config.model import ModelConfig, named_model
from albert.config.recipes import config_names
from albert.config.run import OptimizerConfig, PretrainingConfig, TrainConfig
from albert.config.stages import format_stages, read_stages
from albert.tasks import registry

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


def test_the_papers_pretraining_recipe_has_the_papers_numbers():
  # The numbers are those of ALBERT, section 4.1.
  recipe = json.loads(next(path for path in RECIPES if path.stem == "pretraining_albert").read_text())
  assert recipe["optimizer"]["optimizer"] == "lamb"
  assert recipe["optimizer"]["learning_rate"] == 0.00176
  assert (recipe["train"]["train_batch_size"], recipe["train"]["num_train_steps"]) == (4096, 125000)


def shown_defaults(task: str, **given_flags: object) -> dict[str, str]:
  """Flag -> the default that --help shows if these flags are also given."""
  return {flag.name: flag.default for flag in script_help.make_page(task, given_flags).flags}


@pytest.mark.parametrize(
  ("task", "given_flags", "expected"),
  [
    ("squad", {}, {"optimizer": "adamw", "learning_rate": "5e-05", "train_batch_size": "48", "recipe": "squad_v1"}),
    ("squad", {"version_2_with_negative": True}, {"learning_rate": "3e-05", "num_train_steps": "8144"}),
    ("squad", {"recipe": "none"}, {"optimizer": "lamb", "learning_rate": "0.00176"}),
    ("race", {}, {"num_warmup_steps": "1000", "select_checkpoint": "best", "hidden_size": "the model's"}),
    ("classifier", {"task_name": "RTE"}, {"num_train_steps": "800", "max_seq_length": "512"}),
    ("classifier", {"task_name": "custom"}, {"num_train_steps": "from --num_train_epochs", "num_train_epochs": "3.0"}),
    ("classifier", {"task_name": "custom"}, {"num_warmup_steps": "from --warmup_proportion"}),
    ("classifier", {}, {"optimizer": "from the task's recipe", "num_train_steps": "from the task's recipe"}),
    ("classifier", {"task_name": "unknown"}, {"learning_rate": "from the task's recipe"}),
    ("classifier", {"model": "albert_large"}, {"hidden_size": "1024", "train_batch_size": "from the task's recipe"}),
    ("pretraining", {}, {"optimizer": "lamb", "num_train_steps": "125000", "hidden_size": "768"}),
    ("pretraining", {"recipe": "pretraining_demo"}, {"learning_rate": "0.004", "hidden_size": "128"}),
  ],
)
def test_help_shows_the_defaults_that_the_command_would_use(task, given_flags, expected):
  defaults = shown_defaults(task, **given_flags)
  assert {name: defaults[name] for name in expected} == expected


def test_help_of_finetuning_shows_no_default_of_pretraining():
  for task in ("classifier", "squad", "race", "tagging"):
    assert not {"0.00176", "4096", "125000", "3125"} & set(shown_defaults(task).values())


def test_help_shows_the_settings_of_the_run_in_output_dir(tmp_path):
  (tmp_path / "checkpoints" / "step-7").mkdir(parents=True)
  run_config = {"task": "race", "optimizer": {"learning_rate": 0.25}, "train": {"num_train_steps": 7}}
  (tmp_path / "config.json").write_text(json.dumps(run_config))
  assert shown_defaults("race", output_dir=str(tmp_path))["learning_rate"] == "0.25"
  page = script_help.make_page("race", {"output_dir": str(tmp_path)})
  assert f"Defaults are the values of the run in {tmp_path}." in page.notes


@pytest.mark.parametrize("task", registry.TASKS)
def test_every_flag_is_listed_once_and_under_a_heading(task):
  page = script_help.make_page(task, {})
  assert len({flag.name for flag in page.flags}) == len(page.flags)
  help_text = render("run_x.py", "", page)
  assert [line[:-1] for line in help_text.splitlines() if line[:-1] in GROUPS] == list(GROUPS)
