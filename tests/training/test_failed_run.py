"""Runs that have not learned more than guessing are recognized and counted, and runs that have learned are not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import albert
from albert.training.run import find_failure

TEXTS = {"good": ["good", "very good", "so good", "good and good"], "bad": ["bad", "very bad", "so bad", "bad and bad"]}
DATA = {
  "text": [text for texts in TEXTS.values() for text in texts] * 8,
  "label": [label for label, texts in TEXTS.items() for _ in texts] * 8,
}


QUESTIONS = {
  "article": ["They drank the pub dry."] * 8,
  "question": ["What did they drink?"] * 8,
  "options": [["the pub", "the river"], ["the pub", "the river", "the ship", "nothing"]] * 4,
  "answer": [0, 1] * 4,
}
# A quarter of the words are names.
TAGGED_TEXTS = {"tokens": [["Anna", "met", "him", "there"]] * 8, "tags": [["B-PER", "O", "O", "O"]] * 8}


def train(
  spm_model: str,
  output_dir: Path,
  learning_rate: float,
  task: albert.tasks.TaskDefinition | None = None,
  num_train_steps: int = 12,
) -> dict[str, float]:
  estimator = albert.Estimator(
    task or albert.tasks.Classification(train=DATA, eval=DATA),
    model="albert_tiny",
    from_scratch=True,
    spm_model_file=spm_model,
    output_dir=output_dir,
    num_hidden_layers=1,
    num_train_steps=num_train_steps,
    train_batch_size=16,
    eval_batch_size=64,
    log_every_steps=2,
    learning_rate=learning_rate,
    num_warmup_steps=2,
    max_seq_length=16,
    initializer_range=0.1,
    precision="float32",
    seed=1,
  )
  estimator.train()
  return estimator.evaluate()


@pytest.mark.usefixtures("eager_steps")
def test_a_run_that_cannot_learn_is_reported_with_the_remedy(
  spm_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  metrics = train(spm_model, tmp_path / "run", learning_rate=1e-9)
  assert metrics["guessing_loss"] == pytest.approx(0.6931, abs=1e-4)
  lines = [line for line in capsys.readouterr().err.splitlines() if "more than guessing" in line]
  assert len(lines) == 1
  assert "that of guessing 0.6931" in lines[0]
  assert "another --seed, a lower --learning_rate or a longer warm-up" in lines[0]
  assert "--num_runs=5" in lines[0]
  assert find_failure(str(tmp_path / "run"), metrics)


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize(
  ("task_class", "data", "guessing_loss"),
  [
    # The mean of ln 2 and ln 4; the entropy of a quarter.
    (albert.tasks.MultipleChoice, QUESTIONS, (math.log(2) + math.log(4)) / 2),
    (albert.tasks.Tagging, TAGGED_TEXTS, -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))),
  ],
)
def test_questions_with_options_and_tags_are_compared_with_guessing_too(
  spm_model: str, tmp_path: Path, task_class: Any, data: dict[str, Any], guessing_loss: float
) -> None:
  metrics = train(spm_model, tmp_path / "run", learning_rate=1e-9, task=task_class(train=data, eval=data))
  assert metrics["guessing_loss"] == pytest.approx(guessing_loss, rel=1e-6)
  training_loss = json.loads((tmp_path / "run" / "training_loss.json").read_text())
  assert training_loss["guessing_loss"] == pytest.approx(guessing_loss, rel=1e-6)
  assert find_failure(str(tmp_path / "run"), metrics)


def test_a_run_that_learns_is_not_reported(spm_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  metrics = train(spm_model, tmp_path / "run", learning_rate=5e-4, num_train_steps=30)
  assert metrics["accuracy"] > 0.9
  assert "more than guessing" not in capsys.readouterr().err
  assert find_failure(str(tmp_path / "run"), metrics) is None


@pytest.mark.parametrize(
  ("training", "metrics", "has_failed"),
  [
    ({}, {}, True),  # without an evaluation, the training loss decides
    ({"num_lines": 2}, {}, False),  # too short a log
    ({"loss": 0.6}, {}, False),
    ({"loss": None}, {}, False),  # the run ended with an error about its loss
    ({}, {"loss": 0.69, "guessing_loss": 0.69, "accuracy": 0.5, "majority_accuracy": 0.5}, True),
    ({}, {"loss": 0.5, "guessing_loss": 0.69, "accuracy": 0.5, "majority_accuracy": 0.5}, False),
    ({}, {"loss": 0.69, "guessing_loss": 0.69, "accuracy": 0.6, "majority_accuracy": 0.5}, False),
    ({}, {"loss": 2.0, "guessing_loss": 1.9, "pearson": 0.1}, True),  # a regression
    ({}, {"loss": 2.0, "f1": 0.1}, False),  # the loss of guessing is not known
  ],
)
def test_a_run_has_failed_if_training_and_evaluation_are_no_better_than_guessing(
  training: dict[str, Any], metrics: dict[str, float], has_failed: bool, tmp_path: Path
) -> None:
  assert find_failure(str(tmp_path), metrics) is None  # no training
  content = {"step": 9, "loss": 0.69, "guessing_loss": 0.6931, "num_lines": 4} | training
  (tmp_path / "training_loss.json").write_text(json.dumps(content))
  assert bool(find_failure(str(tmp_path), metrics)) == has_failed
  several_splits = {f"matched_{name}": value for name, value in metrics.items()}
  assert bool(find_failure(str(tmp_path), several_splits, "matched_loss")) == has_failed
