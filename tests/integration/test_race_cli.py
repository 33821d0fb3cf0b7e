"""Tests of run_race.py from its flags: RACE's folders, JSON lines, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from albert.errors import UserError
from tests.integration.conftest import script_fixture
from tests.run_outputs import read_json, read_tsv
from tests.script_flags import from_scratch_flags, run_script
from tests.tasks.race.folders import write_made_up_race

_defined_flags = script_fixture("race")

STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
  """The folder RACE. Each of its three sets has 5 passages of each level, with two questions each."""
  return write_made_up_race(tmp_path_factory.mktemp("race"), 5)


@pytest.fixture(scope="module")
def training_flags(spm_model: str) -> list[str]:
  return [
    *from_scratch_flags(spm_model),
    "--max_position_embeddings=64",
    "--max_seq_length=64",
    "--max_qa_length=24",
    "--train_batch_size=4",
    "--eval_batch_size=8",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=1",
    "--eval_every_steps=0",
    "--log_every_steps=2",
    "--learning_rate=0.002",
  ]


def run(*argv: str) -> None:
  run_script("race", *argv)


def accuracy(prediction_rows: list[dict[str, str]]) -> float:
  return float(np.mean([row["label"] == row["prediction"] for row in prediction_rows]))


@pytest.mark.thorough
def test_training_evaluation_and_prediction_from_folders(
  folder: str, training_flags: list[str], tmp_path: Path
) -> None:
  output_dir = tmp_path / "run"
  # --data_dir is the folder that holds RACE, as in the original scripts.
  run(f"--data_dir={Path(folder).parent}", f"--output_dir={output_dir}", *training_flags, "--do_eval", "--do_predict")
  config = read_json(output_dir / "config.json")
  assert (config["optimizer"]["optimizer"], config["model"]["hidden_dropout_prob"]) == ("adamw", 0.1)  # of the recipe

  dev_rows, results = read_tsv(output_dir / "predictions_dev.tsv"), read_json(output_dir / "eval_results.json")
  assert len(dev_rows) == 20  # 2 levels, 5 passages, 2 questions
  assert results["accuracy"] == accuracy(dev_rows)
  assert results["middle_accuracy"] == accuracy([row for row in dev_rows if row["id"].startswith("middle")])
  assert results["high_accuracy"] == accuracy([row for row in dev_rows if row["id"].startswith("high")])
  assert results["guessing_accuracy"] == 1 / 4
  for row in dev_rows:
    passage_name, question_number = row["id"].split("-")
    level = "middle" if passage_name.startswith("middle") else "high"
    passage = read_json(Path(folder) / "dev" / level / passage_name.removeprefix(level))
    assert row["label"] == passage["answers"][int(question_number)]
    probabilities = {letter: float(row[f"probability_{letter}"]) for letter in "ABCD"}
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert row["prediction"] == max(probabilities, key=lambda letter: probabilities[letter])
  mistakes = read_tsv(output_dir / "mistakes_dev.tsv")
  assert {row["id"] for row in mistakes} == {row["id"] for row in dev_rows if row["label"] != row["prediction"]}
  assert all(row["options"].count(" | ") == 3 for row in mistakes)

  test_predictions = read_tsv(output_dir / "predictions_test.tsv")
  assert len(test_predictions) == 20
  assert "label" not in test_predictions[0]

  # Later, prediction needs only the run and questions without answers.
  question_file, predictions_file = tmp_path / "new.jsonl", output_dir / "predictions_new.tsv"
  question = {"article": "nobody sold the letter.", "question": "who?", "options": ["nobody", "the captain", "a child"]}
  question_with_two_options = question | {"options": ["a", "b"]}
  question_file.write_text(json.dumps(question | {"id": "three"}) + "\n" + json.dumps(question_with_two_options) + "\n")
  run("--do_predict", f"--output_dir={output_dir}", f"--predict_file={question_file}")
  assert read_tsv(output_dir / "predictions_test.tsv") == test_predictions
  row_of_three_options, row_of_two_options = read_tsv(predictions_file)
  assert (row_of_three_options["id"], row_of_two_options["id"]) == ("three", "new.jsonl-2")
  assert row_of_three_options["probability_C"] != ""
  assert row_of_two_options["probability_C"] == ""
  probabilities_of_two = [float(row_of_two_options[f"probability_{letter}"]) for letter in "AB"]
  assert sum(probabilities_of_two) == pytest.approx(1, abs=1e-6)


def test_the_folder_must_be_given(training_flags: list[str], tmp_path: Path) -> None:
  with pytest.raises(UserError, match="--train_file or --data_dir is missing: the train set, or the folder RACE"):
    run(*training_flags, f"--output_dir={tmp_path / 'run'}")
