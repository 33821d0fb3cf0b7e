"""Training in stages: the weights of each stage, killed and resumed runs, evaluation, logs and recorded stages."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from albert.config.model import ModelConfig
from albert.errors import Stopped, UserError
from albert.runs import logs
from albert.runs.logs import read_metrics
from albert.training.loop import Trainer
from tests.golden.make_tiny_albert import random_weights
from tests.models.build_models import build_pretraining_model
from tests.run_outputs import assert_equal_bits, checkpoint_steps, read_checkpoint
from tests.synthetic import NUM_PREDICTIONS
from tests.training.staged_runs import (
  ALBERT,
  BERT,
  DROPOUT,
  SHALLOW_ALBERT,
  SHORT_LENGTH,
  STEPS,
  claim,
  make_estimator,
)

MODELS = {
  "groups": dataclasses.replace(ALBERT, num_hidden_groups=2),
  "none": BERT,
  "attention": dataclasses.replace(BERT, sharing="attention"),
}

State = dict[str, np.ndarray]

# Only one test traces the steps (traced_steps).
pytestmark = pytest.mark.usefixtures("all_steps_eager")


def assert_equal_states(state: State, expected: State) -> None:
  assert any(name.endswith("adam_v") for name in state)
  assert_equal_bits(state, expected)


def write_safetensors(path: Path, weights: dict[str, np.ndarray]) -> str:
  save_file(weights, str(path))
  return str(path)


def stack_layers(state: State, model: ModelConfig, depth: int) -> State:
  """Stacks the layers of a shallow model: layer i of the deep `model` is a copy of layer i mod depth."""
  deep_state = {}
  for name, tensor in state.items():
    is_attention = "/attention_1/" in name or "/LayerNorm/" in name
    is_shared = model.sharing == "all" or (model.sharing == "attention" and is_attention)
    if is_shared or "/group_" not in name:
      deep_state[name] = tensor
    elif "/group_0/" in name:  # the other layers have the same names apart from the number of the group
      for layer in range(model.num_hidden_layers):
        source_name = name.replace("/group_0/", f"/group_{layer % depth}/")
        deep_state[name.replace("/group_0/", f"/group_{layer}/")] = state[source_name]
  return deep_state


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["groups", "none", "attention"])
def test_a_run_with_two_stages_ends_in_the_same_bits_as_two_runs_without_stages(kind, shards, tmp_path):
  """The first of the two runs has two layers. The second one, with all layers, resumes from its stacked checkpoint."""
  model = MODELS[kind]
  shallow = dataclasses.replace(model, num_hidden_layers=2, **DROPOUT)
  weights = random_weights(shallow, 1)
  settings = {"input_file": shards["long"]}
  options: dict[str, Any] = {"num_train_steps": 4, "save_checkpoints_steps": 2}

  stages = [{"until": 0.5, "num_hidden_layers": 2, **DROPOUT}, {"until": 1}]
  options["init_checkpoint"] = write_safetensors(tmp_path / "deep.safetensors", stack_layers(weights, model, 2))
  make_estimator(tmp_path / "staged", model, {**settings, "stages": stages}, **options).train()

  options["init_checkpoint"] = write_safetensors(tmp_path / "shallow.safetensors", weights)
  make_estimator(tmp_path / "first", shallow, settings, **options).train()
  stacked_state = stack_layers(read_checkpoint(tmp_path / "first", 2), model, 2)
  assert_equal_states(read_checkpoint(tmp_path / "staged", 2), stacked_state)
  if kind != "groups":
    # A test in which all copied layers were equal, or all moments zero, would not show a wrong copy.
    name = "bert/encoder/transformer/group_{}/inner_group_0/LayerNorm_1/gamma/adam_v"
    moment_0, moment_1 = stacked_state[name.format(0)], stacked_state[name.format(1)]
    assert (moment_0 != moment_1).any()
    assert moment_0.any()

  del options["init_checkpoint"]
  second = make_estimator(tmp_path / "second", model, settings, **options)
  second.claim_output_dir()
  second.checkpoints.save(2, stacked_state)
  second.train()
  assert_equal_states(read_checkpoint(tmp_path / "staged", 4), read_checkpoint(tmp_path / "second", 4))


def three_stages(shards: dict[str, str]) -> dict[str, Any]:
  """Settings with three stages of 3, 3 and 2 steps. They differ in depth, dropout, shards and batch size."""
  stages = [
    {"until": 3 / STEPS, "num_hidden_layers": 1, "input_file": shards["short"], "train_batch_size": 4},
    {"until": 6 / STEPS, "num_hidden_layers": 2, **DROPOUT},
    {"until": 1, "train_batch_size": 16},
  ]
  return {"input_file": shards["long"], "stages": stages}


class FinishedRun(NamedTuple):
  """The output_dir of a run, and its output to stderr."""

  directory: Path
  log: str


@pytest.fixture(scope="module")
def uninterrupted(shards: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
  """The run of `three_stages` without interruptions. It is evaluated every two steps."""
  directory = tmp_path_factory.mktemp("uninterrupted")
  settings = {**three_stages(shards), "eval_input_file": shards["long"]}
  evaluation = {"eval_every_steps": 2, "max_eval_steps": 2, "eval_batch_size": 8}
  with contextlib.redirect_stderr(io.StringIO()) as printed:
    make_estimator(directory, BERT, settings, log_every_steps=1, **evaluation).train()
  return FinishedRun(directory, printed.getvalue())


class _Killed(BaseException):
  """Simulates SIGKILL: no code of the training catches this exception."""


@pytest.mark.thorough
def test_a_run_that_is_killed_ends_in_the_same_bits(shards, uninterrupted, tmp_path, monkeypatch):
  """It is killed before, at and after the ends of stages, which are steps 3 and 6. Steps 2, 4, 6 and 8 are saved."""
  settings, options = three_stages(shards), {"save_checkpoints_steps": 2, "steps_per_loop": 1}
  train_steps = Trainer.train_steps
  for kill_step in (2, 3, 6, 7):

    def train_steps_until_killed(trainer: Trainer, *arguments: Any, kill_step: int = kill_step) -> None:
      if trainer.step == kill_step:
        raise _Killed
      train_steps(trainer, *arguments)

    estimator = make_estimator(tmp_path, BERT, settings, **options)
    with monkeypatch.context() as patch:
      patch.setattr(Trainer, "train_steps", train_steps_until_killed)
      with pytest.raises(_Killed):
        estimator.train()
  make_estimator(tmp_path, BERT, settings, **options).train()
  assert_equal_states(read_checkpoint(tmp_path), read_checkpoint(uninterrupted.directory))
  # A line is written every three steps and at the end of each stage.
  assert [(line["step"], line["stage"]) for line in read_metrics(str(tmp_path))] == [(3, 1), (6, 2), (8, 3)]


@pytest.fixture
def traced_steps() -> Iterator[None]:
  tf.config.run_functions_eagerly(False)
  yield
  tf.config.run_functions_eagerly(True)


@pytest.mark.thorough
@pytest.mark.usefixtures("traced_steps")
def test_the_step_is_traced_for_each_stage(shards, tmp_path):
  """A run that is resumed at the end of the first stage traces only the second stage, and ends in the same bits."""
  stages = [{"until": 0.5, "num_hidden_layers": 1, "input_file": shards["short"]}, {"until": 1, **DROPOUT}]
  settings = {"input_file": shards["long"], "stages": stages}
  model = dataclasses.replace(BERT, num_hidden_layers=2)
  options = {"num_train_steps": 4, "save_checkpoints_steps": 2}
  uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
  make_estimator(uninterrupted, model, settings, **options).train()
  shutil.copytree(uninterrupted, resumed)
  shutil.rmtree(resumed / "checkpoints" / "step-4")
  make_estimator(resumed, model, settings, **options).train()
  assert_equal_states(read_checkpoint(resumed, 4), read_checkpoint(uninterrupted, 4))
  # After the first stage the upper layer is a copy of the lower one. The second stage trains both.
  kernel = "bert/encoder/transformer/group_{}/inner_group_0/ffn_1/intermediate/dense/kernel"
  for step, are_equal in ((2, True), (4, False)):
    state = read_checkpoint(uninterrupted, step)
    assert (state[kernel.format(0)] == state[kernel.format(1)]).all() == are_equal


@pytest.mark.thorough
def test_a_signal_at_the_end_of_a_stage_saves_it(shards, uninterrupted, tmp_path, monkeypatch, capsys):
  settings = three_stages(shards)
  compute_metrics = Trainer._metrics

  def signal_and_compute_metrics(trainer: Trainer, *arguments: Any) -> dict[str, float]:
    if trainer.step == 3:  # the end of the first stage
      os.kill(os.getpid(), signal.SIGTERM)
    return compute_metrics(trainer, *arguments)

  estimator = make_estimator(tmp_path, BERT, settings, save_checkpoints_steps=100)
  with monkeypatch.context() as patch:
    patch.setattr(Trainer, "_metrics", signal_and_compute_metrics)
    with pytest.raises(Stopped, match="stopped at step 3 and saved"):
      estimator.train()
  assert os.listdir(tmp_path / "checkpoints") == ["step-3"]
  capsys.readouterr()
  make_estimator(tmp_path, BERT, settings, save_checkpoints_steps=100).train()
  log = capsys.readouterr().err
  assert "stage 1 of 3" not in log
  stage = "stage 2 of 3: steps 4 to 6, 2 of 3 layers (evaluations use all, so they look bad), batches of 8, "
  assert f"{stage}sequences of 16 tokens, dropout 0.1" in log
  assert_equal_states(read_checkpoint(tmp_path), read_checkpoint(uninterrupted.directory))


def test_by_default_each_stage_is_saved_at_its_end(shards, tmp_path):
  make_estimator(tmp_path, BERT, three_stages(shards), log_every_steps=0, save_checkpoints_steps=0).train()
  assert checkpoint_steps(tmp_path) == [3, 6, 8]


def test_evaluation_uses_all_layers_and_the_full_length(shards, uninterrupted, tmp_path):
  """An evaluation during a stage gives the same metrics as an evaluation of the saved weights without stages."""
  lines = logs.read(str(uninterrupted.directory / "eval_metrics.jsonl"))
  assert [line["step"] for line in lines] == [2, 4, 6, 8]
  # The evaluations at steps 2 and 4 are in the first two stages, which train with fewer layers than the model has.
  for line in lines[:2]:
    checkpoint = str(uninterrupted.directory / "checkpoints" / f"step-{line['step']}")
    options = {"init_checkpoint": checkpoint, "max_eval_steps": 2, "eval_batch_size": 8}
    settings = {"eval_input_file": shards["long"]}
    expected = make_estimator(tmp_path / f"eval-{line['step']}", BERT, settings, **options).evaluate()
    assert {name: line[name] for name in expected} == expected


def test_with_shared_layers_training_uses_the_layers_of_the_stage_and_evaluation_all_layers():
  weights = random_weights(ALBERT, 3)
  staged, deep = build_pretraining_model(ALBERT, weights), build_pretraining_model(ALBERT, weights)
  shallow = build_pretraining_model(SHALLOW_ALBERT, weights)
  staged.encoder.train_as(SHALLOW_ALBERT)
  ids = tf.constant([[2, 17, 23, 11, 3]])
  inputs = {
    "input_ids": ids,
    "input_mask": tf.ones_like(ids),
    "segment_ids": tf.zeros_like(ids),
    "masked_lm_positions": tf.constant([[2, 2]]),
  }

  def logits(model: Any, *, training: bool) -> np.ndarray:
    return model(inputs, training=training, seed=tf.constant([1, 2])).masked_lm_logits.numpy()

  assert (logits(staged, training=False) == logits(deep, training=False)).all()
  assert (logits(staged, training=True) == logits(shallow, training=True)).all()
  assert (logits(shallow, training=False) != logits(deep, training=False)).any()
  assert (logits(shallow, training=True) != logits(shallow, training=False)).any()


def test_logs_show_the_stages_and_one_schedule_over_all_steps(uninterrupted):
  # 3 steps with batches of 4 from 40 examples are 0.3 epochs. With batches from 80 examples, 3 steps of 8 are 0.3 and
  # 2 steps of 16 are 0.4.
  assert "training on 3 stages: 8 steps (1 epoch) from random weights; " in uninterrupted.log
  stage = "stage 1 of 3: steps 1 to 3, 1 of 3 layers (evaluations use all, so they look bad), batches of 4, "
  assert f"{stage}sequences of 12 tokens, 40 examples in 2 shards (0.30 epochs)" in uninterrupted.log
  lines = read_metrics(str(uninterrupted.directory))
  assert [line["stage"] for line in lines] == [1, 1, 1, 2, 2, 2, 3, 3]
  # Two steps of warm-up to 0.01, and then a linear decay to 0.
  rates = [0.01 * (step / 2 if step < 2 else 1 - step / STEPS) for step in range(STEPS)]
  assert [line["learning_rate"] for line in lines] == pytest.approx(rates)
  config = json.loads((uninterrupted.directory / "config.json").read_text())
  assert [stage["last_step"] for stage in config["stages"]] == [3, 6, 8]
  assert config["stages"][0] == {
    "first_step": 0,
    "last_step": 3,
    "num_hidden_layers": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "train_batch_size": 4,
    "num_files": 2,
    "max_seq_length": SHORT_LENGTH,
    "max_predictions_per_seq": NUM_PREDICTIONS,
    "masking": "static",
    "masked_lm_prob": 0.0,
    "ngram": 0,
  }
  assert config["training_data"]["num_examples"] == 120


def test_a_resumed_run_must_have_the_same_stages(shards, uninterrupted, tmp_path):
  shutil.copytree(uninterrupted.directory, tmp_path / "run")
  settings = three_stages(shards)
  first_stage, *later_stages = settings["stages"]
  with_other_batches = {**settings, "stages": [{**first_stage, "train_batch_size": 2}, *later_stages]}
  with pytest.raises(UserError, match=r"this directory holds a run with stages = .*'train_batch_size': 2"):
    claim(tmp_path / "run", BERT, with_other_batches)
  shutil.copytree(Path(shards["short"]).parent, tmp_path / "moved")
  with_moved_shards = {**settings, "stages": [{**first_stage, "input_file": f"{tmp_path}/moved/*"}, *later_stages]}
  claim(tmp_path / "run", BERT, with_moved_shards)
  (tmp_path / "moved" / "part-01.tfrecord").unlink()
  with pytest.raises(UserError, match=r"trained on other data .*\(1 of its 5 files missing: part-01\.tfrecord"):
    claim(tmp_path / "run", BERT, with_moved_shards)
