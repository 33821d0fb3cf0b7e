"""run_race.py end to end: RACE's folders, JSON lines, resuming, averages of runs, and bad input."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from albert.ensemble import ensemble_runs
from albert.errors import UserError
from albert.weights.checkpoints import CheckpointManager
from tests.script_flags import run_script, script_flags
from tests.synthetic import TINY_MODEL, TINY_MODEL_FLAGS
from tests.tasks.race.folders import made_up_race

STEPS = 4


@pytest.fixture(scope="module", autouse=True)
def _flags(all_steps_eager: None) -> Iterator[None]:
  with script_flags("race"):
    yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
  return made_up_race(tmp_path_factory.mktemp("race"), 5)


@pytest.fixture(scope="module")
def common(spm_model: str) -> list[str]:
  """The flags of a short run of a small model from random weights."""
  size = sentencepiece.SentencePieceProcessor(model_file=spm_model).get_piece_size()
  return [
    "--do_train",
    "--from_scratch",
    f"--spm_model_file={spm_model}",
    *TINY_MODEL_FLAGS,
    f"--vocab_size={size}",
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


def read(path: Path) -> dict[str, Any]:
  values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
  return values


def table(path: Path) -> list[dict[str, str]]:
  with path.open(encoding="utf-8") as file:
    return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def weights(output_dir: Path) -> dict[str, np.ndarray]:
  newest, _ = CheckpointManager(str(output_dir / "checkpoints"), keep=1, model_config=TINY_MODEL).latest()
  assert newest is not None
  reader = tf.train.load_checkpoint(newest.prefix)
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.thorough
def test_training_evaluation_and_prediction_from_folders(folder: str, common: list[str], tmp_path: Path) -> None:
  output = tmp_path / "run"
  # --data_dir is the folder that holds RACE, as in the original scripts.
  run(f"--data_dir={Path(folder).parent}", f"--output_dir={output}", *common, "--do_eval", "--do_predict")
  config = read(output / "config.json")
  assert (config["optimizer"]["optimizer"], config["model"]["hidden_dropout_prob"]) == ("adamw", 0.1)  # of the recipe
  rows, results = table(output / "predictions_dev.tsv"), read(output / "eval_results.json")
  assert len(rows) == 20
  for name, chosen in {
    "accuracy": rows,
    "middle_accuracy": [row for row in rows if row["id"].startswith("middle")],
    "high_accuracy": [row for row in rows if row["id"].startswith("high")],
  }.items():
    assert results[name] == np.mean([row["label"] == row["prediction"] for row in chosen])
  assert results["guessing_accuracy"] == 0.25
  for row in rows:
    passage, number = row["id"].split("-")
    level = "middle" if passage.startswith("middle") else "high"
    values = read(Path(folder) / "dev" / level / passage.removeprefix(level))
    assert row["label"] == values["answers"][int(number)]
    probabilities = {letter: float(row[f"probability_{letter}"]) for letter in "ABCD"}
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert row["prediction"] == max(probabilities, key=lambda letter: probabilities[letter])
  wrong = {row["id"] for row in rows if row["label"] != row["prediction"]}
  mistakes = table(output / "mistakes_dev.tsv")
  assert {row["id"] for row in mistakes} == wrong
  assert all(row["options"].count(" | ") == 3 for row in mistakes)
  predicted = table(output / "predictions_test.tsv")
  assert len(predicted) == 20
  assert "label" not in predicted[0]
  # Prediction needs only the run and the questions, without answers.
  lines = tmp_path / "new.jsonl"
  row = {"article": "nobody sold the letter.", "question": "who?", "options": ["nobody", "the captain", "a child"]}
  lines.write_text(json.dumps(row | {"id": "three"}) + "\n" + json.dumps(row | {"options": ["a", "b"]}) + "\n")
  new = output / "predictions_new.tsv"
  run("--do_predict", f"--output_dir={output}", f"--predict_file={lines}", f"--predictions_file={new}")
  assert table(output / "predictions_test.tsv") == predicted
  three, two = table(new)
  assert (three["id"], two["id"]) == ("three", "new.jsonl-2")
  assert (three["probability_C"] != "", two["probability_C"]) == (True, "")
  assert float(two["probability_A"]) + float(two["probability_B"]) == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
def test_json_lines_with_different_numbers_of_options_and_averaged_runs(common: list[str], tmp_path: Path) -> None:
  rng = np.random.default_rng(0)
  rows = [
    {
      "article": f"the letter of {n}",
      "question": "which _?",
      "options": ["a"] * size,
      "answer": int(rng.integers(size)),
    }
    for n, size in enumerate(rng.integers(2, 7, 24))
  ]
  lines = tmp_path / "own.jsonl"
  lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
  outputs = []
  for seed in (1, 2):
    outputs.append(str(tmp_path / f"run-{seed}"))
    flags = [f"--train_file={lines}", f"--eval_file={lines}", f"--output_dir={outputs[-1]}", f"--seed={seed}"]
    run(*common, *flags, "--do_eval", "--gradient_accumulation_steps=2", "--pad_to_max_length")
  results = read(Path(outputs[0]) / "eval_results.json")
  assert results["guessing_accuracy"] == pytest.approx(np.mean([1 / len(row["options"]) for row in rows]))
  assert math.isfinite(results["loss"])
  metrics = ensemble_runs(outputs, str(tmp_path / "both"))
  tables = [table(Path(path) / "predictions_dev.tsv") for path in [*outputs, str(tmp_path / "both")]]
  for one, two, mean in zip(*tables, strict=True):
    assert float(mean["probability_A"]) == pytest.approx(
      (float(one["probability_A"]) + float(two["probability_A"])) / 2, abs=1e-6
    )
  assert metrics["accuracy"] == np.mean([row["label"] == row["prediction"] for row in tables[2]])


@pytest.mark.slow
def test_a_resumed_run_ends_with_identical_weights(
  folder: str, common: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  flags = [*common, f"--data_dir={folder}", "--do_eval", "--save_checkpoints_steps=1", "--keep_checkpoints=9"]
  flags += ["--precision=bfloat16"]
  run(*flags, f"--output_dir={tmp_path / 'whole'}")
  run(*flags, f"--output_dir={tmp_path / 'stopped'}")
  for step in range(3, STEPS + 1):  # then the directory is as if the run was killed after step 2
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / f"step-{step}")
  capsys.readouterr()
  run(*flags, f"--output_dir={tmp_path / 'stopped'}")
  assert "resumed from" in capsys.readouterr().err
  whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
  assert whole.keys() == resumed.keys()
  for name, value in whole.items():
    assert value.tobytes() == resumed[name].tobytes(), name
  assert read(tmp_path / "whole" / "eval_results.json") == read(tmp_path / "stopped" / "eval_results.json")


BAD_INPUT = {
  "no folder": ([], "--data_dir is missing: the folder RACE with its train set"),
  "another folder": (["--data_dir={folder}/train"], r"--data_dir: .*train holds neither middle/\*\.txt"),
  "missing": (["--train_file=absent.jsonl"], "--train_file: 'absent.jsonl' matches no file"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_gives_an_error_of_one_line(folder: str, common: list[str], tmp_path: Path, case: str) -> None:
  argv, message = BAD_INPUT[case]
  with pytest.raises(UserError, match=message) as caught:
    run(*common, f"--output_dir={tmp_path / 'run'}", *(word.format(folder=folder) for word in argv))
  assert "\n" not in str(caught.value)
