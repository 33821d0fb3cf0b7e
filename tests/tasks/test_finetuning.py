"""Tests of what all fine-tuning tasks share: batches by length, early stopping, best checkpoint, seeds, files.

They train a small classifier of made-up tokens (tests/tasks/toy.py) for a few steps.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert import multi_seed
from albert.config.run import FinetuningConfig, RunConfig
from albert.data import manifest
from albert.data.manifest import file_sha256
from albert.errors import UserError
from albert.estimator import Estimator
from albert.export.checkpoint import find_checkpoint
from albert.settings.resolve import check_actions
from albert.training.evaluator import Evaluator
from albert.training.model_weights import load_initial_weights
from albert.training.run import EvaluationsInTraining
from albert.weights import checkpoints
from tests.run_outputs import assert_equal_bits, read_checkpoint, read_json, read_json_lines
from tests.tasks.conftest import pieces_of_two_letters
from tests.tasks.toy import MODEL, ToyData, ToyTask, run_config, toy_task

pytestmark = pytest.mark.usefixtures("eager_steps")


def test_short_batches_and_full_padding_give_equal_losses(tmp_path, spm_file):
  # "short": a batch is as long as its longest example.
  short = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "run"))
  padded = Estimator(toy_task(tmp_path, spm_file, pad_to_max_length=True), run_config(tmp_path / "run"))
  for name, variable in padded.model.named_weights().items():
    variable.assign(short.model.named_weights()[name])
  short_metrics, short_outputs = short.evaluator.evaluate()
  padded_metrics, padded_outputs = padded.evaluator.evaluate()
  losses = short_outputs["dev"]["losses"]
  np.testing.assert_allclose(losses, padded_outputs["dev"]["losses"], atol=1e-5)
  np.testing.assert_array_equal(short_outputs["dev"]["example_index"], np.arange(64))
  assert short_metrics["loss"] == pytest.approx(float(losses.mean()), rel=1e-5)
  assert short_metrics["loss"] == pytest.approx(padded_metrics["loss"], abs=1e-5)
  assert short_metrics["accuracy"] == padded_metrics["accuracy"]


def test_ids_and_segments_without_an_embedding_are_refused(tmp_path, spm_file):
  task = toy_task(tmp_path, spm_file)
  path = tmp_path / "data" / "dev.txt"
  path.write_text(path.read_text() + "1 10 61 12\n")  # label 1, then three ids; the vocabulary has the ids 0 to 60
  with pytest.raises(UserError, match=r"dev.txt: the dev set has ids from 2 to 61, the model has 61"):
    task.sets.dataset("dev")
  path.write_text("1 10 3 12\n")  # [SEP] between two texts
  with pytest.raises(UserError, match=r"dev.txt: the dev set has pairs .*one type of segment"):
    toy_task(tmp_path, spm_file, dataclasses.replace(MODEL, type_vocab_size=1)).sets.dataset("dev")
  assert (
    toy_task(tmp_path, spm_file, dataclasses.replace(MODEL, type_vocab_size=1)).sets.dataset("train").num_examples == 64
  )


def test_example_index_says_which_examples_were_evaluated_in_two_batches(tmp_path, spm_file):
  config = run_config(tmp_path / "run")
  task = toy_task(tmp_path, spm_file)
  estimator = Estimator(task, config)
  _, all_outputs = estimator.evaluator.evaluate()
  _, outputs_of_two_batches = estimator.evaluator.evaluate(max_steps=2)
  indices = outputs_of_two_batches["dev"]["example_index"]
  assert len(indices) == 2 * config.train.eval_batch_size
  logits = outputs_of_two_batches["dev"]["logits"]
  np.testing.assert_allclose(logits, all_outputs["dev"]["logits"][indices], atol=1e-6)
  # They are a random sample, and not the longest examples.
  lengths = task.sets.dataset("dev").examples.longest_sequences
  assert abs(lengths[indices].mean() - lengths.mean()) < 2 * lengths.std() / len(indices) ** 0.5
  np.testing.assert_array_equal(estimator.evaluator.evaluate(max_steps=2)[1]["dev"]["example_index"], indices)


def test_training_evaluates_and_keeps_the_best_checkpoint(tmp_path, spm_file):
  output_dir = tmp_path / "run"
  options: dict[str, Any] = {"num_train_steps": 7, "eval_every_steps": 2, "keep_checkpoints": 1}
  config = run_config(output_dir, select_checkpoint="best", **options)
  estimator = Estimator(toy_task(tmp_path, spm_file), config)
  estimator.train()
  evaluations = read_json_lines(output_dir / "eval_metrics.jsonl")
  assert [line["step"] for line in evaluations] == [2, 4, 6, 7]
  best = max(evaluations, key=lambda line: (line["accuracy"], -line["loss"]))
  assert estimator.checkpoints.steps() == sorted({7, best["step"]})
  last_files = [output_dir / "curves.png", output_dir / "training_loss.json"]
  contents = [path.read_bytes() for path in last_files]
  for path in last_files:
    path.unlink()  # as if the process had been killed after the last save
  estimator.train()
  assert [path.read_bytes() for path in last_files] == contents
  results = estimator.evaluate()
  assert read_json(output_dir / "eval_results.json")["step"] == best["step"]
  assert results["loss"] == pytest.approx(best["loss"], rel=1e-5)
  assert (output_dir / "spiece.model").read_bytes() == Path(spm_file).read_bytes()
  assert estimator.write_predictions() == [str(output_dir / "predictions.tsv")]
  assert len((output_dir / "predictions.tsv").read_text().splitlines()) == 1 + 64  # the header and 64 examples


def test_the_former_best_checkpoint_is_deleted_if_the_last_one_is_better(tmp_path, spm_file, monkeypatch):
  accuracies = iter([0.9, 0.5, 0.95])
  monkeypatch.setattr(Evaluator, "evaluate", lambda self, max_steps: ({"loss": 1.0, "accuracy": next(accuracies)}, {}))
  config = run_config(tmp_path / "run", keep_checkpoints=1, num_train_steps=3, eval_every_steps=1)
  estimator = Estimator(toy_task(tmp_path, spm_file), config)
  estimator.train()
  assert estimator.checkpoints.steps() == [3]


def test_a_run_without_progress_stops_early_and_stays_stopped(tmp_path, spm_file, capsys):
  # With a learning rate of nearly 0 no prediction changes, so no evaluation is better than the first one.
  config = run_config(
    tmp_path / "run",
    num_train_steps=40,
    log_every_steps=100,
    eval_every_steps=1,
    early_stopping_patience=2,
    optimizer={"learning_rate": 1e-12},
  )
  Estimator(toy_task(tmp_path, spm_file), config).train()
  assert [line["step"] for line in read_json_lines(tmp_path / "run" / "eval_metrics.jsonl")] == [1, 2, 3]
  assert "stopped early (accuracy did not improve); curves in " in capsys.readouterr().err
  Estimator(toy_task(tmp_path, spm_file), config).train()
  assert "nothing to train" in capsys.readouterr().err
  assert [line["step"] for line in read_json_lines(tmp_path / "run" / "eval_metrics.jsonl")] == [1, 2, 3]


class Killed(BaseException):
  """Simulates a killed process: no code catches this exception."""


def train_to_first_checkpoint(task: ToyTask, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
  save = checkpoints.CheckpointManager.save

  def save_and_kill(*arguments: Any, **keywords: Any) -> None:
    save(*arguments, **keywords)
    raise Killed

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints.CheckpointManager, "save", save_and_kill)
    with pytest.raises(Killed):
      Estimator(task, config).train()


def test_training_and_evaluation_do_not_depend_on_an_interrupted_call(tmp_path, spm_file, monkeypatch):
  options: dict[str, Any] = {"num_train_steps": 2, "eval_every_steps": 0}
  whole = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "whole", **options))
  whole.train()
  estimator = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "run", **options))
  with monkeypatch.context() as patch:
    patch.setattr(checkpoints.CheckpointManager, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
      estimator.train()
  estimator.train()
  assert_equal_bits(read_checkpoint(tmp_path / "run"), read_checkpoint(tmp_path / "whole"))
  with monkeypatch.context() as patch:  # the first batch is evaluated, and its sums are added
    patch.setattr(estimator.strategy, "gather", interrupt)
    with pytest.raises(KeyboardInterrupt):
      estimator.evaluate()
  assert estimator.evaluate() == whole.evaluate()


def interrupt(*unused: object, **unused_keywords: object) -> None:
  raise KeyboardInterrupt


@pytest.mark.thorough
def test_a_run_killed_between_saving_and_evaluating_resumes_to_the_same_result(tmp_path, spm_file, monkeypatch):
  options: dict[str, Any] = {"num_train_steps": 6, "eval_every_steps": 2}
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "uninterrupted", **options)).train()
  evaluate = EvaluationsInTraining.evaluate

  def kill_at_step_4(self: EvaluationsInTraining, step: int) -> dict[str, float]:
    if step == 4:
      raise Killed
    return evaluate(self, step)

  killed_estimator = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "killed", **options))
  with monkeypatch.context() as patch:
    patch.setattr(EvaluationsInTraining, "evaluate", kill_at_step_4)
    with pytest.raises(Killed):
      killed_estimator.train()
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "killed", **options)).train()
  assert_equal_bits(read_checkpoint(tmp_path / "killed"), read_checkpoint(tmp_path / "uninterrupted"))
  for name in ("eval_metrics.jsonl", "checkpoints/best.json"):
    assert (tmp_path / "killed" / name).read_text() == (tmp_path / "uninterrupted" / name).read_text()


def test_a_resumed_run_of_epochs_is_not_evaluated_at_num_train_steps(tmp_path, spm_file, monkeypatch):
  options: dict[str, Any] = {"num_train_epochs": 0.75, "num_train_steps": 4, "eval_every_steps": 5}
  config = run_config(tmp_path / "run", **options, save_checkpoints_steps=4)
  train_to_first_checkpoint(toy_task(tmp_path, spm_file), config, monkeypatch)
  Estimator(toy_task(tmp_path, spm_file), config).train()
  assert [line["step"] for line in read_json_lines(tmp_path / "run" / "eval_metrics.jsonl")] == [5, 6]


def test_several_runs_are_summarized_and_a_second_start_does_nothing(tmp_path, spm_file, capsys):
  config = run_config(
    tmp_path / "runs", num_train_steps=2, num_runs=2, do_train=True, do_eval=True, do_predict=True, seed=5
  )
  multi_seed.run_seeds(toy_task(tmp_path, spm_file), config)
  summary = read_json(tmp_path / "runs" / "runs.json")
  run_dirs = {seed: tmp_path / "runs" / f"run-{seed}" for seed in (5, 6)}
  results = {seed: read_json(run_dir / "eval_results.json") for seed, run_dir in run_dirs.items()}
  accuracies = [run_results["accuracy"] for run_results in results.values()]
  assert summary["metrics"]["accuracy"] == {
    "values": accuracies,
    "median": np.median(accuracies),
    "mean": pytest.approx(np.mean(accuracies)),
    "standard_deviation": pytest.approx(np.std(accuracies, ddof=1)),
    "minimum": min(accuracies),
    "maximum": max(accuracies),
  }
  assert len({run_results["loss"] for run_results in results.values()}) == 2  # the seeds matter
  best_seed = max(results, key=lambda seed: results[seed]["accuracy"])
  assert summary["best_run"] == f"run-{best_seed}"
  assert [seed for seed, run_dir in run_dirs.items() if (run_dir / "checkpoints").exists()] == [best_seed]
  predictions = {seed: run_dir / "predictions.tsv" for seed, run_dir in run_dirs.items()}
  assert all(path.exists() for path in predictions.values())  # written before the checkpoints were deleted

  # The best run still has its checkpoints and can predict again. Earlier versions did not record the end of training.
  predictions[best_seed].unlink()
  for run_dir in run_dirs.values():
    (run_dir / "training_loss.json").unlink()
  capsys.readouterr()
  multi_seed.run_seeds(toy_task(tmp_path, spm_file), config)
  assert capsys.readouterr().err.count("is done") == 2
  assert predictions[best_seed].exists()
  assert read_json(tmp_path / "runs" / "runs.json") == summary

  # Other settings are refused.
  other_config = dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=0.004))
  with pytest.raises(UserError, match=r"optimizer.learning_rate = 0.003, this one has 0.004"):
    multi_seed.run_seeds(toy_task(tmp_path, spm_file), other_config)
  with pytest.raises(UserError, match=r"--predictions_file=x\.tsv names one file, but each of the 2 runs writes"):
    check_actions(dataclasses.replace(config, predictions_file="x.tsv"))

  # A run without checkpoints cannot predict again. This is found out before a third run is trained.
  other_seed = next(seed for seed in run_dirs if seed != best_seed)
  predictions[other_seed].unlink()
  message = rf"run-{other_seed} is done, but has no predictions\.tsv, and its checkpoints are deleted"
  with pytest.raises(UserError, match=message):
    multi_seed.run_seeds(toy_task(tmp_path, spm_file), dataclasses.replace(config, num_runs=3))
  assert not (tmp_path / "runs" / "run-7").exists()


def test_a_run_that_was_evaluated_before_its_end_is_not_finished(tmp_path, spm_file, monkeypatch, capsys):
  task = toy_task(tmp_path, spm_file)
  options: dict[str, Any] = {"num_train_steps": 4, "eval_every_steps": 0, "save_checkpoints_steps": 2}
  config = run_config(tmp_path / "runs", num_runs=2, do_train=True, do_eval=True, seed=5, **options)
  config_of_seed = run_config(tmp_path / "runs" / "run-6", seed=6, **options)
  train_to_first_checkpoint(task, config_of_seed, monkeypatch)
  Estimator(task, config_of_seed).evaluate()
  assert read_json(tmp_path / "runs" / "run-6" / "eval_results.json")["step"] == 2
  assert not multi_seed._is_finished(task, config_of_seed)
  Estimator(task, config_of_seed).train()  # then it has ended, but the evaluation is that of an earlier step
  assert not multi_seed._is_finished(task, config_of_seed)
  multi_seed.run_seeds(task, config)
  assert "is done" not in capsys.readouterr().err
  assert read_json(tmp_path / "runs" / "run-6" / "eval_results.json")["step"] == 4
  assert multi_seed._is_finished(task, config_of_seed)

  # Of the seeds 5 and 6 one has no checkpoints now. It must not become the best of other seeds.
  other_seeds = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=6))
  with pytest.raises(UserError, match=r"runs\.json: has runs of the seeds 5 to 6, .* give --seed=5 --num_runs=3"):
    multi_seed.run_seeds(task, other_seeds)


def test_a_resumed_run_compares_the_content_of_its_data(tmp_path, spm_file, capsys):
  config = run_config(tmp_path / "run", num_train_steps=2, eval_every_steps=0)
  Estimator(toy_task(tmp_path, spm_file), config).train()
  shutil.copytree(tmp_path / "data", tmp_path / "moved")

  def claim_with_moved_files() -> None:
    task_config = FinetuningConfig(spm_model_file=spm_file, max_seq_length=32, cache_dir=str(tmp_path / "features"))
    task = ToyTask(MODEL, ToyData(task_config, str(tmp_path / "moved")))
    Estimator(task, config).claim_output_dir()

  (tmp_path / "moved" / "dev.txt").write_text("1 7\n")  # the development set may change
  claim_with_moved_files()
  path = tmp_path / "moved" / "train.txt"
  path.write_text(path.read_text().replace("7", "8", 1))
  with pytest.raises(UserError, match=r"trained on other data .*1 of its 1 files changed: file 1 is train\.txt"):
    claim_with_moved_files()
  assert "has no hashes" not in capsys.readouterr().err
  config_file = tmp_path / "run" / "config.json"
  config_file.write_text(
    json.dumps({name: value for name, value in read_json(config_file).items() if "data" not in name})
  )
  claim_with_moved_files()
  assert f"warning: {config_file} has no hashes of the training data" in capsys.readouterr().err


def test_training_without_weights_needs_from_scratch(tmp_path, spm_file):
  config = run_config(tmp_path / "run", from_scratch=False)
  with pytest.raises(UserError, match=r"--init_checkpoint.*--from_scratch"):
    Estimator(toy_task(tmp_path, spm_file), config).train()
  assert not (tmp_path / "run").exists()
  missing = run_config(tmp_path / "run", from_scratch=False, init_checkpoint=str(tmp_path / "nothing"))
  with pytest.raises(UserError, match="no checkpoint there"):
    Estimator(toy_task(tmp_path, spm_file), missing).train()
  # After these errors the right command can use the directory.
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "run", num_train_steps=2, eval_every_steps=0)).train()


def test_a_head_is_reused_unless_fresh_head_is_given(tmp_path, spm_file):
  first_estimator = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2))
  first_estimator.train()
  options: dict[str, Any] = {"from_scratch": False, "init_checkpoint": str(tmp_path / "first"), "seed": 77}
  head = first_estimator.model.named_weights()["output_weights"].numpy()
  pooler = first_estimator.model.named_weights()["bert/pooler/dense/kernel"].numpy()
  for fresh_head in (False, True):
    config = run_config(tmp_path / f"second-{fresh_head}", **options)
    estimator = Estimator(toy_task(tmp_path, spm_file, fresh_head=fresh_head), config)
    load_initial_weights(estimator.task, estimator.model, config)
    weights = estimator.model.named_weights()
    is_head_reused = np.array_equal(weights["output_weights"].numpy(), head)
    assert is_head_reused == (not fresh_head)
    assert "cls/squad/output_weights" in estimator.task.ignored_weights  # so a model may start from one of SQuAD
    np.testing.assert_array_equal(weights["bert/pooler/dense/kernel"].numpy(), pooler)


@pytest.mark.parametrize(
  ("optimizer", "options"),
  [("lamb", {"gradient_accumulation_steps": 2}), pytest.param("adamw", {}, marks=pytest.mark.thorough)],
)
def test_a_frozen_encoder_keeps_its_bits_and_the_norm_is_that_of_the_trained_weights(
  tmp_path, spm_file, optimizer, options
):
  config = run_config(
    tmp_path / "run", optimizer={"optimizer": optimizer}, train_batch_size=64, num_train_steps=2, eval_every_steps=0,
    log_every_steps=1, precision="float32", **options,
  )  # fmt: skip
  model = dataclasses.replace(MODEL, classifier_dropout_prob=0.0)
  estimator = Estimator(toy_task(tmp_path, spm_file, model, freeze_encoder=True), config)
  weights = estimator.model.named_weights()
  before = {name: variable.numpy() for name, variable in weights.items()}
  batch = next(iter(estimator.task.training_data().evaluation_batches(batch_size=64)))
  with tf.GradientTape() as tape:
    loss = estimator.task.forward(estimator.model, batch, training=False).sums["loss"]
    mean = loss.total / loss.weight
  trained = {"bert/pooler/dense/kernel", "bert/pooler/dense/bias", "output_weights", "output_bias"}
  gradients = tape.gradient(mean, [weights[name] for name in trained])
  estimator.train()
  state = read_checkpoint(tmp_path / "run", 2)
  assert {name for name in before if not np.array_equal(before[name], state[name])} == trained
  assert {name.removesuffix("/adam_m") for name in state if name.endswith("/adam_m")} == trained
  norm = read_json_lines(tmp_path / "run" / "metrics.jsonl")[0]["grad_norm"]
  assert norm == pytest.approx(float(tf.linalg.global_norm(gradients)), rel=1e-5)
  with pytest.raises(UserError, match="freeze_encoder"):
    Estimator(toy_task(tmp_path, spm_file, model), config).train()


def test_weights_of_another_vocabulary_are_refused_to_train_and_to_evaluate(tmp_path, spm_file, save_model):
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2, eval_every_steps=0)).train()
  options: dict[str, Any] = {"from_scratch": False, "init_checkpoint": str(tmp_path / "first"), "num_train_steps": 2}
  other_vocabulary = save_model(pieces_of_two_letters(string.ascii_lowercase[::-1]))
  estimator = Estimator(toy_task(tmp_path, other_vocabulary), run_config(tmp_path / "second", **options))
  for action in (estimator.train, estimator.evaluate):
    message = r"--init_checkpoint=.*/first.*: its vocabulary is .*spiece\.model .* --spm_model_file=.* is a different"
    with pytest.raises(UserError, match=message):
      action()
  assert not (tmp_path / "second" / "spiece.model").exists()
  with pytest.raises(UserError, match=r"--checkpoint=.*its vocabulary is .*spiece\.model"):
    find_checkpoint(str(tmp_path / "first"), spm_model_file=other_vocabulary)


@pytest.mark.thorough
def test_a_resumed_run_compares_the_content_of_its_initial_weights(tmp_path, spm_file):
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2, eval_every_steps=0)).train()
  manager = checkpoints.CheckpointManager(str(tmp_path / "other" / "checkpoints"), keep=1, model_config=MODEL)
  manager.save(2, {name: value * 2 for name, value in read_checkpoint(tmp_path / "first").items()})

  def make_estimator(**options: Any) -> Estimator:
    options = {"from_scratch": False, "num_train_steps": 2, "eval_every_steps": 0, **options}
    return Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "run", **options))

  def claim(**options: Any) -> None:
    make_estimator(**options).claim_output_dir()

  make_estimator(init_checkpoint=str(tmp_path / "first")).train()
  (tmp_path / "first").rename(tmp_path / "moved")
  claim(init_checkpoint=str(tmp_path / "first"))  # the weights need not exist any more
  claim(init_checkpoint=str(tmp_path / "moved"))
  with pytest.raises(UserError, match=r"this run started from .*moved \(SHA-256 .*other holds different weights"):
    claim(init_checkpoint=str(tmp_path / "other"))
  with pytest.raises(UserError, match=r"started from .*moved, not from random weights"):
    claim(from_scratch=True)
  config = read_json(tmp_path / "run" / "config.json")
  del config["init_checkpoint_sha256"]  # earlier versions did not write it
  (tmp_path / "run" / "config.json").write_text(json.dumps(config))
  with pytest.raises(UserError, match=r"this run started from .*moved \(SHA-256 .*other holds different weights"):
    claim(init_checkpoint=str(tmp_path / "other"))


@pytest.mark.thorough
def test_a_directory_where_weights_were_evaluated_can_be_trained_in(tmp_path, spm_file):
  Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "first", num_train_steps=2, eval_every_steps=0)).train()
  options: dict[str, Any] = {"from_scratch": False, "init_checkpoint": str(tmp_path / "first"), "eval_every_steps": 0}
  estimator = Estimator(toy_task(tmp_path, spm_file), run_config(tmp_path / "second", num_train_steps=2, **options))
  estimator.evaluate()
  estimator.train()
  assert estimator.checkpoints.steps() == [2]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"spm_model_file": ""}, "--spm_model_file is missing.*: give --init_checkpoint, or the vocabulary"),
    ({"max_seq_length": 33}, "--max_seq_length=33: the model has 32 positions"),
    ({"model": dataclasses.replace(MODEL, vocab_size=60)}, "has 61 pieces, the model has vocab_size 60"),
  ],
)
def test_settings_that_the_model_cannot_take_are_refused(tmp_path, spm_file, options, message):
  with pytest.raises(UserError, match=message):
    toy_task(tmp_path, spm_file, **options)


PREDICTION_OPTIONS: dict[str, Any] = {
  "num_train_steps": 4,
  "eval_every_steps": 0,
  "save_checkpoints_steps": 2,
  "do_predict": True,
}


def train_and_predict(tmp_path: Path, spm_file: str) -> Estimator:
  """Trains a run that saves checkpoints at steps 2 and 4, and writes predictions with the weights of step 4."""
  config = run_config(tmp_path / "run", do_train=True, **PREDICTION_OPTIONS)
  estimator = Estimator(toy_task(tmp_path, spm_file), config)
  estimator.run()
  return estimator


@pytest.mark.thorough
def test_a_command_that_trains_and_predicts_replaces_earlier_predictions(tmp_path, spm_file, capsys, monkeypatch):
  hashed_files = []

  def record_and_hash(path: str) -> str:
    hashed_files.append(path)
    return file_sha256(path)

  monkeypatch.setattr(manifest, "file_sha256", record_and_hash)
  estimator = train_and_predict(tmp_path, spm_file)
  path = tmp_path / "run" / "predictions.tsv"
  predictions = path.read_bytes()
  assert f"predicting with {tmp_path}/run/checkpoints/step-4 (step 4, the newest, float32)" in capsys.readouterr().err
  assert hashed_files.count(str(tmp_path / "data" / "test.txt")) == 1

  # Without step-4 the newest checkpoint is step-2. The run continues from there to the same step 4.
  (tmp_path / "run" / "checkpoints" / "step-4").rename(tmp_path / "step-4")
  path.write_text("of other weights")
  estimator.write_predictions()
  assert path.read_bytes().count(b"\n") == predictions.count(b"\n")
  assert "step-2 (step 2, the newest, float32)" in capsys.readouterr().err
  path.write_text("of other weights")
  estimator.run()
  assert path.read_bytes() == predictions


@pytest.mark.thorough
def test_another_content_of_the_file_to_predict_replaces_earlier_predictions(tmp_path, spm_file):
  train_and_predict(tmp_path, spm_file)
  path = tmp_path / "run" / "predictions.tsv"
  predictions = path.read_bytes()
  # The test file now has only five of its examples.
  lines = (tmp_path / "data" / "test.txt").read_text().splitlines(keepends=True)
  (tmp_path / "data" / "test.txt").write_text("".join(lines[:5]))
  predict_config = run_config(tmp_path / "run", **PREDICTION_OPTIONS)
  new_file_config = dataclasses.replace(predict_config, predictions_file=str(tmp_path / "new.tsv"))
  assert Estimator(toy_task(tmp_path, spm_file), new_file_config).write_predictions() == [str(tmp_path / "new.tsv")]
  assert len((tmp_path / "new.tsv").read_text().splitlines()) == 1 + 5
  assert path.read_bytes() == predictions
  (tmp_path / "run" / "prediction_sources.json").write_text("{")  # of an earlier version, and ignored
  assert Estimator(toy_task(tmp_path, spm_file), predict_config).write_predictions() == [str(path)]
  assert path.read_bytes() == (tmp_path / "new.tsv").read_bytes()
  with pytest.raises(UserError, match=r"--predictions_file=new\.csv: give a name that ends in \.tsv"):
    Estimator(toy_task(tmp_path, spm_file), dataclasses.replace(predict_config, predictions_file="new.csv"))
  (tmp_path / "file").write_text("")
  with pytest.raises(UserError, match="file is not a directory"):
    Estimator(
      toy_task(tmp_path, spm_file), dataclasses.replace(predict_config, predictions_file=f"{tmp_path}/file/new.tsv")
    )


def test_public_tasks_reading_and_tokenizing_need_no_tensorflow():
  folders = ("glue", "squad", "race", "tagging")
  modules = [f"albert.tasks.{folder}.{name}" for folder in folders for name in ("files", "features", "results")]
  code = f"import sys, {', '.join(modules)}, albert.tasks as t\n"
  code += (
    "[getattr(t, name) for name in dir(t)]; sys.exit('tensorflow' in sys.modules)"  # a public name is imported late
  )
  assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_vocabulary_that_cannot_be_exported_is_reported_once_at_the_start(tmp_path, spm_file, save_model, capsys):
  for vocabulary, num_warnings in ((save_model([("▁", -1.0), (",", -2.0)]), 0), (spm_file, 1)):
    task = toy_task(tmp_path, vocabulary)
    task.check_inputs(train=True, evaluate=False, predict=False)
    task.data.read(train=True, evaluate=False, predict=False)
    assert capsys.readouterr().err.count('"," is not a piece of this vocabulary') == num_warnings
