"""Runs in stages end in the same bits as runs without stages put together by hand, also after a kill at any step."""

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

from albert.config.model import ModelConfig
from albert.errors import Stopped, UserError
from albert.runs import log_lines
from albert.runs.metrics_log import read_metrics
from albert.training.loop import Trainer
from tests.golden.make_tiny_albert import random_weights
from tests.models.built import pretraining_model
from tests.synthetic import NUM_PREDICTIONS
from tests.training.staged_runs import (
  ALBERT,
  BERT,
  DROPOUT,
  SHALLOW,
  SHORT_LENGTH,
  STEPS,
  claim,
  estimator_of,
)

MODELS = {
  "groups": dataclasses.replace(ALBERT, num_hidden_groups=2),
  "none": BERT,
  "attention": dataclasses.replace(BERT, sharing="attention"),
}

State = dict[str, np.ndarray]

# One test uses traced_steps instead.
pytestmark = pytest.mark.usefixtures("all_steps_eager")


def read_checkpoint(directory: Path, step: int = STEPS) -> State:
  """Returns the weights and moments of a checkpoint of a run."""
  reader = tf.train.load_checkpoint(str(directory / "checkpoints" / f"step-{step}" / "weights"))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_identical(state: State, expected: State) -> None:
  assert state.keys() == expected.keys()
  assert any(name.endswith("adam_v") for name in state)
  for name, value in expected.items():
    assert state[name].tobytes() == value.tobytes(), name


def write_npz(path: Path, weights: dict[str, np.ndarray]) -> str:
  """Writes the file, and returns its path."""
  np.savez(path, **weights)
  return str(path)


def stack_layers(state: State, model: ModelConfig, depth: int) -> State:
  """Stacks the layers of a shallow model: layer i of the deep model is a copy of layer i mod depth.

  Args:
    state: the weights and moments of the shallow model.
    model: the deep model.
    depth: number of layers of the shallow model.
  """
  deep_state = {}
  for name, value in state.items():
    is_attention = "/attention_1/" in name or "/LayerNorm/" in name
    is_shared = {"all": True, "none": False, "attention": is_attention}[model.sharing]
    if is_shared or "/group_" not in name:
      deep_state[name] = value
    elif "/group_0/" in name:  # the other layers have the same names apart from the number of the group
      for layer in range(model.num_hidden_layers):
        copied_layer = state[name.replace("/group_0/", f"/group_{layer % depth}/")]
        deep_state[name.replace("/group_0/", f"/group_{layer}/")] = copied_layer
  return deep_state


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["groups", "none", "attention"])
def test_two_stages_are_two_runs_put_together_by_hand(kind, shards, tmp_path):
  """The run with two stages ends in the same weights and moments as two runs without stages.

  The first of these has two layers. Its checkpoint, stacked by NumPy, is resumed by the second with all layers.
  """
  model = MODELS[kind]
  shallow = dataclasses.replace(model, num_hidden_layers=2, **DROPOUT)
  weights = random_weights(shallow, 1)
  settings, options = {"input_file": shards["long"]}, {"num_train_steps": 4, "save_checkpoints_steps": 2}

  stages = [{"until": 0.5, "num_hidden_layers": 2, **DROPOUT}, {"until": 1}]
  start = write_npz(tmp_path / "deep.npz", stack_layers(weights, model, 2))
  estimator_of(tmp_path / "staged", model, {**settings, "stages": stages}, init_checkpoint=start, **options).train()

  start = write_npz(tmp_path / "shallow.npz", weights)
  estimator_of(tmp_path / "first", shallow, settings, init_checkpoint=start, **options).train()
  by_hand = stack_layers(read_checkpoint(tmp_path / "first", 2), model, 2)
  assert_identical(read_checkpoint(tmp_path / "staged", 2), by_hand)
  if kind != "groups":  # the copied layers differ from each other, and their moments are not zero
    moments = [by_hand[f"bert/encoder/transformer/group_{i}/inner_group_0/LayerNorm_1/gamma/adam_v"] for i in range(2)]
    assert (moments[0] != moments[1]).any()
    assert moments[0].any()

  second = estimator_of(tmp_path / "second", model, settings, **options)
  second.claim_output_dir()
  second.checkpoints.save(2, by_hand)
  second.train()
  assert_identical(read_checkpoint(tmp_path / "staged", 4), read_checkpoint(tmp_path / "second", 4))


def three_stages(shards: dict[str, str]) -> dict[str, Any]:
  """Settings with three stages of 3, 3 and 2 steps. They differ in depth, dropout, shards and batch size."""
  stages = [
    {"until": 3 / STEPS, "num_hidden_layers": 1, "input_file": shards["short"], "train_batch_size": 4},
    {"until": 6 / STEPS, "num_hidden_layers": 2, **DROPOUT},
    {"until": 1, "train_batch_size": 16},
  ]
  return {"input_file": shards["long"], "stages": stages}


class FinishedRun(NamedTuple):
  """The output_dir of a run, and what it printed to stderr."""

  directory: Path
  log: str


@pytest.fixture(scope="module")
def uninterrupted(shards: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
  """The run of `three_stages` without interruptions. It is evaluated every two steps."""
  directory = tmp_path_factory.mktemp("uninterrupted")
  settings = {**three_stages(shards), "eval_input_file": shards["long"]}
  evaluation = {"eval_every_steps": 2, "max_eval_steps": 2, "eval_batch_size": 8}
  with contextlib.redirect_stderr(io.StringIO()) as printed:
    estimator_of(directory, BERT, settings, log_every_steps=1, **evaluation).train()
  return FinishedRun(directory, printed.getvalue())


class _Killed(BaseException):
  """Stands for SIGKILL: no code of the training handles it."""


@pytest.mark.thorough
def test_a_run_that_is_killed_ends_in_the_same_bits(shards, uninterrupted, tmp_path, monkeypatch):
  """It is killed before, at and after the ends of stages, which are steps 3 and 6. Steps 2, 4, 6 and 8 are saved."""
  settings, options = three_stages(shards), {"save_checkpoints_steps": 2, "steps_per_loop": 1}
  train_steps = Trainer.train_steps
  for kill_step in (2, 3, 6, 7):

    def run_until(trainer: Trainer, *arguments: Any, kill_step: int = kill_step) -> None:
      if trainer.step == kill_step:
        raise _Killed
      train_steps(trainer, *arguments)

    killed = estimator_of(tmp_path, BERT, settings, **options)
    with monkeypatch.context() as patch:
      patch.setattr(Trainer, "train_steps", run_until)
      with pytest.raises(_Killed):
        killed.train()
  estimator_of(tmp_path, BERT, settings, **options).train()
  assert_identical(read_checkpoint(tmp_path), read_checkpoint(uninterrupted.directory))
  # A line is written every three steps and at the end of each stage.
  assert [(line["step"], line["stage"]) for line in read_metrics(str(tmp_path))] == [(3, 1), (6, 2), (8, 3)]


@pytest.fixture
def traced_steps() -> Iterator[None]:
  """Traces the steps, as commands do."""
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
  estimator_of(tmp_path / "whole", model, settings, **options).train()
  shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
  shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "step-4")
  estimator_of(tmp_path / "resumed", model, settings, **options).train()
  assert_identical(read_checkpoint(tmp_path / "resumed", 4), read_checkpoint(tmp_path / "whole", 4))
  # The first stage has left the upper layer as a copy of the lower one, and the second stage has trained both.
  layer = "bert/encoder/transformer/group_{}/inner_group_0/ffn_1/intermediate/dense/kernel"
  for step, are_equal in ((2, True), (4, False)):
    state = read_checkpoint(tmp_path / "whole", step)
    assert (state[layer.format(0)] == state[layer.format(1)]).all() == are_equal


def test_a_signal_at_the_end_of_a_stage_saves_it(shards, uninterrupted, tmp_path, monkeypatch, capsys):
  settings = three_stages(shards)
  metrics = Trainer._metrics

  def signal_at_the_end(trainer: Trainer, *arguments: Any) -> dict[str, float]:
    if trainer.step == 3:
      os.kill(os.getpid(), signal.SIGTERM)
    return metrics(trainer, *arguments)

  stopped = estimator_of(tmp_path, BERT, settings, save_checkpoints_steps=100)
  with monkeypatch.context() as patch:
    patch.setattr(Trainer, "_metrics", signal_at_the_end)
    with pytest.raises(Stopped, match="stopped at step 3 and saved"):
      stopped.train()
  assert os.listdir(tmp_path / "checkpoints") == ["step-3"]
  capsys.readouterr()
  estimator_of(tmp_path, BERT, settings, save_checkpoints_steps=100).train()
  printed = capsys.readouterr().err
  assert "stage 1 of 3" not in printed
  assert "stage 2 of 3: steps 4 to 6, 2 layers, batches of 8, sequences of 16 tokens, dropout 0.1" in printed
  assert_identical(read_checkpoint(tmp_path), read_checkpoint(uninterrupted.directory))


def test_evaluation_uses_all_layers_and_the_full_length(shards, uninterrupted, tmp_path):
  """An evaluation during a stage gives the same metrics as one of the saved weights without stages."""
  lines = log_lines.read(str(uninterrupted.directory / "eval_metrics.jsonl"))
  assert [line["step"] for line in lines] == [2, 4, 6, 8]
  for line in lines[:2]:  # of the first two stages, which train with fewer layers; the third trains all
    weights = str(uninterrupted.directory / "checkpoints" / f"step-{line['step']}")
    options = {"init_checkpoint": weights, "max_eval_steps": 2, "eval_batch_size": 8}
    settings = {"eval_input_file": shards["long"]}
    expected = estimator_of(tmp_path / f"eval-{line['step']}", BERT, settings, **options).evaluate()
    assert {name: line[name] for name in expected} == expected


def test_evaluation_of_shared_layers_applies_them_as_often_as_the_model_does():
  """A training pass has the depth of the stage; a pass for evaluation that of the model."""
  weights = random_weights(ALBERT, 3)
  staged, shallow, deep = (pretraining_model(config, weights) for config in (ALBERT, SHALLOW, ALBERT))
  staged.encoder.train_as(SHALLOW)
  ids = tf.constant([[2, 17, 23, 11, 3]])
  inputs = {
    "input_ids": ids,
    "input_mask": tf.ones_like(ids),
    "segment_ids": tf.zeros_like(ids),
    "masked_lm_positions": ids[:, :2] * 0 + 2,
  }

  def logits(model: Any, *, training: bool) -> np.ndarray:
    return model(inputs, training=training, seed=tf.constant([1, 2])).masked_lm_logits.numpy()

  assert (logits(staged, training=False) == logits(deep, training=False)).all()
  assert (logits(staged, training=True) == logits(shallow, training=True)).all()
  assert (logits(shallow, training=False) != logits(deep, training=False)).any()
  assert (logits(shallow, training=True) != logits(shallow, training=False)).any()


def test_logs_show_the_stages_and_one_schedule_over_all_steps(uninterrupted):
  # 3 steps of 4 of 40 examples, then 3 of 8 and 2 of 16 of 80 examples.
  assert "3 stages, 8 steps (1.00 epochs)" in uninterrupted.log
  assert (
    "stage 1 of 3: steps 1 to 3, 1 layer, batches of 4, sequences of 12 tokens, 40 examples in 2 shards (0.30 epochs)"
    in uninterrupted.log
  )
  lines = read_metrics(str(uninterrupted.directory))
  assert [line["stage"] for line in lines] == [1, 1, 1, 2, 2, 2, 3, 3]
  rates = [0.01 * (t / 2 if t < 2 else 1 - t / STEPS) for t in range(STEPS)]
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
  first, *later = settings["stages"]
  with pytest.raises(UserError, match=r"this directory holds a run with stages = .*'train_batch_size': 2"):
    claim(tmp_path / "run", BERT, {**settings, "stages": [{**first, "train_batch_size": 2}, *later]})
  shutil.copytree(Path(shards["short"]).parent, tmp_path / "moved")
  moved = {**settings, "stages": [{**first, "input_file": f"{tmp_path}/moved/*"}, *later]}
  claim(tmp_path / "run", BERT, moved)
  (tmp_path / "moved" / "part-01.tfrecord").unlink()
  with pytest.raises(UserError, match=r"trained on other data .*\(1 of its 5 files missing: part-01\.tfrecord"):
    claim(tmp_path / "run", BERT, moved)
