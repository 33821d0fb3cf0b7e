"""Tests of the stages of pretraining: their settings, and stages that are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from albert.config.base import from_dict
from albert.config.recipes import read_recipe
from albert.errors import UserError
from albert.tasks.pretraining.flags import PretrainingConfig, Stage, read_stages
from tests.synthetic import TINY_MODEL

MODEL = dataclasses.replace(TINY_MODEL, num_hidden_layers=12)


def parse_stages(stages: Any, model: Any = MODEL, **config_fields: Any) -> tuple[Stage, ...]:
  """Reads stages that are given as JSON."""
  return read_stages(PretrainingConfig(stages=json.dumps(stages), **config_fields), model)


def test_stages_have_the_fields_of_their_json():
  first_stage, second_stage = parse_stages(
    [
      {"until": 0.25, "num_hidden_layers": 3, "input_file": "short/*", "train_batch_size": 8, "hidden_dropout_prob": 0},
      {"until": 1, "masked_lm_prob": 0.2, "attention_probs_dropout_prob": 0.1},
    ]
  )
  assert first_stage == Stage(
    until=0.25, num_hidden_layers=3, input_file="short/*", train_batch_size=8, hidden_dropout_prob=0.0
  )
  assert second_stage == Stage(until=1.0, masked_lm_prob=0.2, attention_probs_dropout_prob=0.1)
  assert parse_stages([]) == ()
  assert read_stages(PretrainingConfig(), MODEL) == ()


# Name of the case -> (the stages, a part of the error).
BAD_STAGES: dict[str, tuple[Any, str]] = {
  "falling until": (
    [{"until": 0.5}, {"until": 0.4}, {"until": 1}],
    "stages, stage 2 of 3: until is 0.4, not above the 0.5 before it: give rising shares",
  ),
  "equal until": ([{"until": 0.5}, {"until": 0.5}, {"until": 1}], "stage 2 of 3: until is 0.5, not above the 0.5"),
  "an end before the last step": (
    [{"until": 0.5}, {"until": 0.9}],
    "stages, stage 2 of 2: until is 0.9, and the last stage must end at 1, the last step: give 1, or add a stage",
  ),
  "until 0": ([{"until": 0}, {"until": 1}], "stage 1 of 2: until must be above 0, got 0"),
  "until over 1": ([{"until": 0.5}, {"until": 2}], "stage 2 of 2: until must be at most 1, got 2"),
  "no until": ([{"num_hidden_layers": 3}, {"until": 1}], "stage 1 of 2: until is missing: give the share of the steps"),
  "unknown key": (
    [{"until": 0.5, "depth": 3}, {"until": 1}],
    "stages, stage 1 of 2: unknown key 'depth'; known: until, num_hidden_layers, hidden_dropout_prob, ",
  ),
  "wrong type": (
    [{"until": 0.5, "num_hidden_layers": "3"}, {"until": 1}],
    "stages, stage 1 of 2: num_hidden_layers must be of type int, got '3'",
  ),
  "no layers": ([{"until": 0.5, "num_hidden_layers": 0}, {"until": 1}], "num_hidden_layers must be at least 1, got 0"),
  "empty batch": ([{"until": 0.5, "train_batch_size": 0}, {"until": 1}], "train_batch_size must be at least 1, got 0"),
  "deeper than the model": (
    [{"until": 0.5, "num_hidden_layers": 13}, {"until": 1}],
    "stages, stage 1 of 2: num_hidden_layers is 13, the model has 12: give at most 12",
  ),
  "falling depth": (
    [{"until": 0.2, "num_hidden_layers": 6}, {"until": 0.5, "num_hidden_layers": 3}, {"until": 1}],
    "stages, stage 2 of 3: num_hidden_layers is 3, less than the 6 of the stage before it: a model only grows",
  ),
  "a shallow end": (
    [{"until": 0.5, "num_hidden_layers": 3}, {"until": 1, "num_hidden_layers": 6}],
    "stages, stage 2 of 2: num_hidden_layers is 6, and the last stage must train all 12 layers of the model: leave it",
  ),
}


@pytest.mark.parametrize("case", BAD_STAGES)
def test_bad_stages_are_refused_in_one_line(case):
  stages, message = BAD_STAGES[case]
  with pytest.raises(UserError) as error:
    parse_stages(stages)
  assert message in str(error.value)
  assert "\n" not in str(error.value)


def test_the_number_of_layers_of_a_stage_is_a_multiple_of_the_number_of_groups():
  four_groups = dataclasses.replace(MODEL, num_hidden_groups=4)
  with pytest.raises(UserError, match=r"num_hidden_layers is 6, which 4 groups .* give a multiple of 4"):
    parse_stages([{"until": 0.5, "num_hidden_layers": 6}, {"until": 1}], four_groups)
  assert len(parse_stages([{"until": 0.5, "num_hidden_layers": 8}, {"until": 1}], four_groups)) == 2
  without_sharing = dataclasses.replace(MODEL, sharing="none")
  assert len(parse_stages([{"until": 0.5, "num_hidden_layers": 5}, {"until": 1}], without_sharing)) == 2


def test_an_input_file_that_no_stage_reads_is_refused():
  own_files = [{"until": 0.5, "input_file": "a"}, {"until": 1, "input_file": "b"}]
  with pytest.raises(UserError, match=r"--input_file=c: no stage reads it, because each has its own"):
    parse_stages(own_files, input_file="c")
  assert len(parse_stages(own_files, input_file="b")) == 2


@pytest.mark.parametrize("text", ["0.5", "[1]", '{"until": 1}', "[", '[{"until": NaN}]'])
def test_json_that_is_no_list_of_stages_is_refused(text):
  with pytest.raises(UserError, match=r"--stages") as error:
    read_stages(PretrainingConfig(stages=text), MODEL)
  assert "\n" not in str(error.value)


def test_the_stages_of_a_recipe_are_one_of_its_sections(tmp_path: Path):
  stages = [{"until": 0.5, "num_hidden_layers": 3}, {"until": 1}]
  path = tmp_path / "recipe.json"
  path.write_text(json.dumps({"task": "pretraining", "data": {"ngram": 2}, "stages": stages}))
  data_fields = read_recipe(str(path), "pretraining").sections["data"]
  config = from_dict(PretrainingConfig, data_fields, source="recipe")
  assert config.ngram == 2
  assert read_stages(config, MODEL) == parse_stages(stages)
  with pytest.raises(UserError, match="is a recipe for pretraining, but this script runs squad"):
    read_recipe(str(path), "squad")
  path.write_text(json.dumps({"stages": {"until": 1}}))
  with pytest.raises(UserError, match=r"recipe\.json: \$\.stages must be a list, it is "):
    read_recipe(str(path), "pretraining")
