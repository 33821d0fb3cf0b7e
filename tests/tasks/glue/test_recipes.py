"""Tests that the recipes of GLUE have the settings of the paper, and that each task uses its recipe."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from albert.tasks.glue.flags import ClassifierConfig
from albert.tasks.glue.specs import SPECS, recipe_name

CONFIGS = Path(__file__).parents[3] / "configs"


# The hyperparameters for downstream tasks in ALBERT's appendix: learning rate, batch size, dropout of ALBERT and of the
# classifier, training steps, warm-up steps and maximum sequence length.
PAPER_SETTINGS = {
  "CoLA": (1e-5, 16, 0, 0.1, 5336, 320, 512),
  "STS-B": (2e-5, 16, 0, 0.1, 3598, 214, 512),
  "SST-2": (1e-5, 32, 0, 0.1, 20935, 1256, 512),
  "MNLI": (3e-5, 128, 0, 0.1, 10000, 1000, 512),
  "QNLI": (1e-5, 32, 0, 0.1, 33112, 1986, 512),
  "QQP": (5e-5, 128, 0.1, 0.1, 14000, 1000, 512),
  "RTE": (3e-5, 32, 0.1, 0.1, 800, 200, 512),
  "MRPC": (2e-5, 32, 0, 0.1, 800, 200, 512),
  "WNLI": (2e-5, 16, 0.1, 0.1, 2000, 250, 512),
}


@pytest.mark.parametrize("task_name", PAPER_SETTINGS)
def test_the_recipe_of_a_task_has_the_papers_numbers(task_name: str) -> None:
  recipe = json.loads((CONFIGS / f"{recipe_name(ClassifierConfig(task_name=task_name))}.json").read_text())
  model, optimizer, train = recipe["model"], recipe["optimizer"], recipe["train"]
  assert optimizer["optimizer"] == "adamw"
  assert recipe["data"]["task_name"] == task_name
  assert model["attention_probs_dropout_prob"] == model["hidden_dropout_prob"]
  assert PAPER_SETTINGS[task_name] == (
    optimizer["learning_rate"],
    train["train_batch_size"],
    model["hidden_dropout_prob"],
    model["classifier_dropout_prob"],
    train["num_train_steps"],
    optimizer["num_warmup_steps"],
    recipe["data"]["max_seq_length"],
  )


def test_other_tasks_have_the_recipe_of_another_task(monkeypatch: pytest.MonkeyPatch) -> None:
  assert set(SPECS) == {*PAPER_SETTINGS, "AX"}
  monkeypatch.setitem(SPECS, "Tone", dataclasses.replace(SPECS["RTE"], name="Tone"))
  names = {"AX": "glue_mnli", "custom": "glue_custom", "tone": "glue_custom", "": ""}
  assert {task: recipe_name(ClassifierConfig(task_name=task)) for task in names} == names
  assert (CONFIGS / "glue_custom.json").exists()
