"""Runs that have not learned more than guessing are recognized and counted, and runs that have learned are not."""

from __future__ import annotations

import dataclasses
import json
import math
import types
from pathlib import Path
from typing import Any

import pytest

import albert
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.estimator import Estimator
from albert.multi_seed import run_seeds
from albert.tasks.base import Task
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.run import failure_warning, find_failure

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


def make_estimator(
  spm_model: str,
  output_dir: Path,
  learning_rate: float,
  task: albert.tasks.TaskDefinition | None = None,
  num_train_steps: int = 12,
) -> albert.Estimator:
  return albert.Estimator(
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


def train(*arguments: Any, **options: Any) -> dict[str, float]:
  estimator = make_estimator(*arguments, **options)
  estimator.train()
  return estimator.evaluate()


def warnings_of(printed: str) -> list[str]:
  return [line for line in printed.splitlines() if "more than guessing" in line]


@pytest.mark.usefixtures("eager_steps")
def test_a_run_that_cannot_learn_is_reported_with_the_remedy(
  spm_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  metrics = train(spm_model, tmp_path / "run", learning_rate=1e-9)
  assert metrics["guessing_loss"] == pytest.approx(0.6931, abs=1e-4)
  (line,) = warnings_of(capsys.readouterr().err)
  assert "guessing has 0.6931" in line
  assert "seed=2 or another seed" in line
  assert "--" not in line
  assert find_failure(str(tmp_path / "run"), metrics)


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.thorough
def test_several_runs_that_cannot_learn_are_reported_once(
  spm_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  estimator = make_estimator(spm_model, tmp_path / "runs", learning_rate=1e-9)
  run_seeds(estimator.task, dataclasses.replace(estimator.config, num_runs=2))
  printed = capsys.readouterr()
  assert {"loss", "accuracy"} <= {line.partition(": median")[0] for line in printed.out.splitlines()}
  assert "majority_accuracy" not in printed.out  # the same in all runs
  (line,) = warnings_of(printed.err)
  steps = "--num_train_steps=200 (it had 12 steps; at least 200 are usual for 64 examples)"
  assert f"give, in a new --output_dir, {steps}" in line


def settings(steps: dict[str, Any], learning_rate: float = 2e-5, **further: Any) -> RunConfig:
  optimizer = OptimizerConfig(optimizer="adamw", learning_rate=learning_rate)
  train = TrainConfig(train_batch_size=10, **steps)
  return RunConfig(output_dir="run", do_train=True, optimizer=optimizer, train=train, **further)


def pretraining(learning_rate: float, **optimizer: Any) -> RunConfig:
  config = OptimizerConfig(learning_rate=learning_rate, **optimizer)
  return RunConfig(output_dir="run", do_train=True, optimizer=config, train=TrainConfig(train_batch_size=32))


@pytest.mark.parametrize(
  ("config", "step", "num_examples", "remedies"),
  [
    (settings({"num_train_epochs": 1}), 10, 100, ["num_train_epochs=20 (it had 10 steps; at", "num_runs=5, which"]),
    (settings({"num_train_epochs": 1}), 1, 2, ["num_train_steps=200 instead of --num_train_epochs (it", "num_runs=5"]),
    (settings({"num_train_steps": 300}), 300, 5000, ["num_train_steps=1500 (it", "num_runs=5, which"]),
    (settings({}), 300, 100, ["num_runs=5, which"]),
    (settings({}, learning_rate=1e-3), 300, 100, ["learning_rate=2e-05 (it had 0.001; 1e-05 to 5e-05", "num_runs=5"]),
    (settings({}, from_scratch=True), 1, 9, ["num_train_steps=200", "learning_rate=0.0003 (", "num_runs=5"]),
    (settings({}, num_runs=5), 300, 100, ["num_runs=10, which"]),
    (settings({}, num_runs=5, init_checkpoint="w"), 300, 100, ["init_checkpoint with other weights than w"]),
    (pretraining(1.6e-4), 2000, 90_000, ["learning_rate=0.003 (it had 0.00016; 0.0005 to", "num_runs=5"]),
    (pretraining(3e-3), 1000, 90_000, ["num_train_steps=2000 (it had 1000", "num_runs=5"]),
    (
      pretraining(1.76e-3, scale_learning_rate=True),
      2000,
      90_000,
      ["learning_rate=0.003 --scale_learning_rate=false (it had 0.000156; ", "num_runs=5"],
    ),
  ],
)
def test_the_advice_is_more_steps_then_another_rate_then_more_seeds(
  config: RunConfig, step: int, num_examples: int, remedies: list[str], tmp_path: Path
) -> None:
  content = {"step": step, "loss": 1.0, "guessing_loss": 1.0, "num_lines": 4, "num_examples": num_examples}
  (tmp_path / "training_loss.json").write_text(json.dumps(content))
  task: Any = PretrainingTask if config.optimizer.optimizer == "lamb" else Task
  usual = {name: getattr(task, name) for name in ("usual_steps", "usual_epochs", "usual_rates")}
  model_config = types.SimpleNamespace(hidden_size=768)
  task = types.SimpleNamespace(model_config=model_config, **usual)
  warning = failure_warning("it guesses", str(tmp_path), task, config)
  advice = warning.partition("it guesses: give, in a new --output_dir, ")[2]
  parts = advice.split("; if that is not enough, ")
  assert len(parts) == len(remedies)
  assert all(part.startswith(f"--{remedy}") for part, remedy in zip(parts, remedies, strict=True))


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
  # Of few examples, more than the most frequent answer may be right by chance.
  assert find_failure(str(tmp_path / "run"), metrics | {"accuracy": 0.0})


def test_a_run_that_learns_is_not_reported(
  spm_model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr("albert.config.run._MANY_TIMES", 0.1)
  metrics = train(spm_model, tmp_path / "run", learning_rate=5e-4, num_train_steps=30)
  assert metrics["accuracy"] > 0.9
  printed = capsys.readouterr().err
  assert "more than guessing" not in printed
  assert "warning: 8 epochs, since 30 steps are for more examples: to train less, give num_train_epochs=50" in printed
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
    ({}, {"loss": 1.4, "guessing_loss": 1.386, "accuracy": 1.0, "guessing_accuracy": 0.25}, False),  # RACE
    ({}, {"loss": 2.0, "guessing_loss": 1.9, "pearson": 0.1}, True),  # a regression
    ({}, {"loss": 2.0, "guessing_loss": 1.9, "masked_lm_accuracy": 0.07, "masked_lm_baseline_accuracy": 0.06}, True),
    ({}, {"loss": 2.0, "guessing_loss": 1.9, "masked_lm_accuracy": 0.15, "masked_lm_baseline_accuracy": 0.06}, False),
    ({}, {"loss": 2.0, "f1": 0.1}, False),  # the loss of guessing is not known
    ({"guessing_loss": None}, {"loss": 2.0, "f1": 50.1, "no_answers_f1": 50.0}, True),  # SQuAD 2.0
    ({"guessing_loss": None}, {"loss": 2.0, "f1": 60.1, "no_answers_f1": 50.0}, False),
    ({"guessing_loss": None}, {"loss": 2.0, "f1": 45.0, "best_f1": 95.0, "no_answers_f1": 50.0}, False),
    ({"guessing_loss": None}, {"loss": 2.0, "f1": 9.0, "random_span_f1": 4.0, "first_sentence_f1": 14.0}, True),
  ],
)
def test_a_run_has_failed_if_training_and_evaluation_are_no_better_than_guessing(
  training: dict[str, Any], metrics: dict[str, float], has_failed: bool, tmp_path: Path
) -> None:
  assert find_failure(str(tmp_path), metrics) is None  # no training
  content = {"step": 9, "loss": 0.69, "guessing_loss": 0.6931, "num_lines": 4} | training
  (tmp_path / "training_loss.json").write_text(json.dumps(content))
  assert bool(find_failure(str(tmp_path), metrics)) == has_failed
  if {"accuracy", "loss"} <= metrics.keys() and metrics["accuracy"] < 1:  # of 20 examples 0.6 may be chance
    assert bool(find_failure(str(tmp_path), metrics, num_examples=20)) == (metrics["loss"] > 0.5)
  if {"no_answers_f1", "random_span_f1", "masked_lm_accuracy"} & metrics.keys():
    return  # SQuAD and pretraining have one development set
  several_splits = {f"matched_{name}": value for name, value in metrics.items()}
  assert bool(find_failure(str(tmp_path), several_splits, "matched_loss")) == has_failed


@pytest.mark.parametrize(
  ("loss", "earlier", "is_memorized"), [(7.065, [], True), (6.4, [], False), (7.065, [6.9], True), (7.065, [8], False)]
)
def test_pretraining_that_has_memorized_its_text_is_reported(
  loss: float, earlier: list[float], is_memorized: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  (tmp_path / "eval_metrics.jsonl").write_text(
    "".join(f'{{"step": 1, "masked_lm_loss": {value}}}\n' for value in earlier)
  )
  task = types.SimpleNamespace(best_loss="loss")
  config = types.SimpleNamespace(do_train=True)
  run: Any = types.SimpleNamespace(has_logged_failure=False, results_dir=str(tmp_path), task=task, config=config)
  Estimator._log_failure(run, {"masked_lm_loss": loss, "masked_lm_guessing_loss": 6.568})
  line = "warning: the held-out masked_lm_loss is 7.065, worse than that of guessing, 6.568: if the training loss is "
  assert (line in capsys.readouterr().err) == is_memorized
