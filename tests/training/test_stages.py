"""Training in stages: the same bits as runs put together by hand, also after a kill at any step."""

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
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.config.base import from_dict, option_fields
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, PretrainingConfig, RunConfig, TrainConfig
from albert.data.dataset import InputContext
from albert.errors import Stopped, UserError
from albert.estimator import Estimator
from albert.runs import log_lines
from albert.runs.metrics_log import read_metrics
from albert.tasks.pretraining import PretrainingTask
from albert.training.loop import Trainer
from albert.training.run_plan import plan_training
from tests.golden.make_tiny_albert import random_weights
from tests.models.built import pretraining_model
from tests.synthetic import PREDICTIONS, SEQ_LENGTH, TINY_MODEL, example_numbers, write_manifest, write_shards

STEPS = 8
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
ALBERT = dataclasses.replace(TINY_MODEL, num_hidden_layers=4)
SHALLOW = dataclasses.replace(ALBERT, num_hidden_layers=2, **DROPOUT)
BERT = dataclasses.replace(ALBERT, num_hidden_layers=3, sharing="none")
MODELS = {
  "groups": dataclasses.replace(ALBERT, num_hidden_groups=2),
  "none": BERT,
  "attention": dataclasses.replace(BERT, sharing="attention"),
}
SHORT = 12


@pytest.fixture(scope="module", autouse=True)
def _eager(all_steps_eager: None) -> None:
  """Steps are traced in one test, which uses traced_steps."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
  directory = tmp_path_factory.mktemp("shards")
  write_shards(directory / "long", [30, 20, 30])
  write_shards(directory / "short", [25, 15], length=SHORT, seed=9)
  return {name: f"{directory}/{name}/*" for name in ("long", "short")}


State = dict[str, np.ndarray]


def estimator_of(directory: Path, model: ModelConfig, data: dict[str, Any], **options: Any) -> Estimator:
  if "stages" in data:
    data = {**data, "stages": json.dumps(data["stages"])}
  run = {name: options.pop(name) for name in ("init_checkpoint", "do_eval") if name in options}
  train = {"train_batch_size": 8, "num_train_steps": STEPS, "log_every_steps": 3, "save_checkpoints_steps": 1}
  config = RunConfig(
    output_dir=str(directory),
    optimizer=OptimizerConfig(num_warmup_steps=2, learning_rate=0.01),
    train=TrainConfig(**{**train, "keep_checkpoints": 100, **options}),
    **run,
  )
  return Estimator(PretrainingTask(model, PretrainingConfig(**data)), config)


def saved(directory: Path, step: int = STEPS) -> State:
  reader = tf.train.load_checkpoint(str(directory / "checkpoints" / f"step-{step}" / "weights"))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_identical(state: State, expected: State) -> None:
  assert state.keys() == expected.keys()
  assert any(name.endswith("adam_v") for name in state)
  for name, value in expected.items():
    assert state[name].tobytes() == value.tobytes(), name


def npz(path: Path, weights: dict[str, np.ndarray]) -> str:
  np.savez(path, **weights)
  return str(path)


def stacked(state: State, model: ModelConfig, depth: int) -> State:
  """The state of the deeper network in NumPy: layer i is layer i mod depth, where layers do not share weights."""
  result = {}
  for name, value in state.items():
    is_attention = "/attention_1/" in name or "/LayerNorm/" in name
    is_shared = {"all": True, "none": False, "attention": is_attention}[model.sharing]
    if is_shared or "/group_" not in name:
      result[name] = value
    elif "/group_0/" in name:
      for layer in range(model.num_hidden_layers):
        source = state[name.replace("/group_0/", f"/group_{layer % depth}/")]
        result[name.replace("/group_0/", f"/group_{layer}/")] = source
  return result


@pytest.mark.parametrize("kind", MODELS)
def test_two_stages_are_two_runs_put_together_by_hand(kind, shards, tmp_path):
  """The first run has two layers. Its checkpoint, stacked by NumPy, is resumed by a run with three or four layers."""
  model = MODELS[kind]
  shallow = dataclasses.replace(model, num_hidden_layers=2, **DROPOUT)
  weights = random_weights(shallow, 1)
  data, options = {"input_file": shards["long"]}, {"num_train_steps": 4, "save_checkpoints_steps": 2}

  stages = [{"until": 0.5, "num_hidden_layers": 2, **DROPOUT}, {"until": 1}]
  start = npz(tmp_path / "deep.npz", stacked(weights, model, 2))
  estimator_of(tmp_path / "staged", model, {**data, "stages": stages}, init_checkpoint=start, **options).train()

  start = npz(tmp_path / "shallow.npz", weights)
  first = estimator_of(tmp_path / "first", shallow, data, init_checkpoint=start, **options)
  first.train()
  by_hand = stacked(saved(tmp_path / "first", 2), model, 2)
  assert_identical(saved(tmp_path / "staged", 2), by_hand)
  if kind != "groups":  # the layers that train differ from each other, with moments that are not zero
    layers = [by_hand[f"bert/encoder/transformer/group_{i}/inner_group_0/LayerNorm_1/gamma/adam_v"] for i in range(2)]
    assert (layers[0] != layers[1]).any()
    assert layers[0].any()

  second = estimator_of(tmp_path / "second", model, data, **options)
  second.claim_output_dir()
  second.checkpoints.save(2, by_hand)
  second.train()
  assert_identical(saved(tmp_path / "staged", 4), saved(tmp_path / "second", 4))


def everything(shards: dict[str, str]) -> dict[str, Any]:
  """Stages that differ in all that a stage may set for shards with masks."""
  stages = [
    {"until": 3 / STEPS, "num_hidden_layers": 1, "input_file": shards["short"], "train_batch_size": 4},
    {"until": 6 / STEPS, "num_hidden_layers": 2, **DROPOUT},
    {"until": 1, "train_batch_size": 16},
  ]
  return {"input_file": shards["long"], "stages": stages}


@pytest.fixture(scope="module")
def whole(shards: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
  """The directory and the log of a run without interruptions. It is evaluated every two steps."""
  directory = tmp_path_factory.mktemp("whole")
  data = {**everything(shards), "eval_input_file": shards["long"]}
  evaluation = {"eval_every_steps": 2, "max_eval_steps": 2, "eval_batch_size": 8}
  with contextlib.redirect_stderr(io.StringIO()) as printed:
    estimator_of(directory, BERT, data, log_every_steps=1, **evaluation).train()
  return directory, printed.getvalue()


class _Killed(BaseException):
  """Stands for SIGKILL: no code of the training handles it."""


def test_a_run_that_is_killed_ends_in_the_same_bits(shards, whole, tmp_path, monkeypatch):
  """Killed before, at and after the edges of the stages, which are 3 and 6; steps 2, 4, 6 and 8 are saved."""
  data, options = everything(shards), {"save_checkpoints_steps": 2, "steps_per_loop": 1}
  train_steps = Trainer.train_steps
  for last in (2, 3, 6, 7):

    def run_until(trainer: Trainer, *arguments: Any, last: int = last) -> None:
      if trainer.step == last:
        raise _Killed
      train_steps(trainer, *arguments)

    killed = estimator_of(tmp_path, BERT, data, **options)
    with monkeypatch.context() as patch:
      patch.setattr(Trainer, "train_steps", run_until)
      with pytest.raises(_Killed):
        killed.train()
  estimator_of(tmp_path, BERT, data, **options).train()
  assert_identical(saved(tmp_path), saved(whole[0]))
  # There is a line at the end of each stage, besides those every three steps.
  assert [(line["step"], line["stage"]) for line in read_metrics(str(tmp_path))] == [(3, 1), (6, 2), (8, 3)]


@pytest.fixture
def traced_steps() -> Iterator[None]:
  """Traces the steps, as commands do."""
  tf.config.run_functions_eagerly(False)
  yield
  tf.config.run_functions_eagerly(True)


@pytest.mark.usefixtures("traced_steps")
def test_the_step_is_traced_for_each_stage(shards, tmp_path):
  """A run that is resumed at the edge traces only the second stage, and ends in the same bits."""
  stages = [{"until": 0.5, "num_hidden_layers": 1, "input_file": shards["short"]}, {"until": 1, **DROPOUT}]
  data = {"input_file": shards["long"], "stages": stages}
  model = dataclasses.replace(BERT, num_hidden_layers=2)
  options = {"num_train_steps": 4, "save_checkpoints_steps": 2}
  estimator_of(tmp_path / "whole", model, data, **options).train()
  shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
  shutil.rmtree(tmp_path / "resumed" / "checkpoints" / "step-4")
  estimator_of(tmp_path / "resumed", model, data, **options).train()
  assert_identical(saved(tmp_path / "resumed", 4), saved(tmp_path / "whole", 4))
  # The first stage has left the upper layer as a copy of the lower one, and the second stage has trained both.
  layer = "bert/encoder/transformer/group_{}/inner_group_0/ffn_1/intermediate/dense/kernel"
  for step, are_equal in ((2, True), (4, False)):
    state = saved(tmp_path / "whole", step)
    assert (state[layer.format(0)] == state[layer.format(1)]).all() == are_equal


def test_a_signal_at_the_end_of_a_stage_saves_it(shards, whole, tmp_path, monkeypatch, capsys):
  data = everything(shards)
  metrics = Trainer._metrics

  def signal_at_the_edge(trainer: Trainer, *arguments: Any) -> dict[str, float]:
    if trainer.step == 3:
      os.kill(os.getpid(), signal.SIGTERM)
    return metrics(trainer, *arguments)

  stopped = estimator_of(tmp_path, BERT, data, save_checkpoints_steps=100)
  with monkeypatch.context() as patch:
    patch.setattr(Trainer, "_metrics", signal_at_the_edge)
    with pytest.raises(Stopped, match="stopped at step 3 and saved"):
      stopped.train()
  assert os.listdir(tmp_path / "checkpoints") == ["step-3"]
  capsys.readouterr()
  estimator_of(tmp_path, BERT, data, save_checkpoints_steps=100).train()
  printed = capsys.readouterr().err
  assert "stage 1 of 3" not in printed
  assert "stage 2 of 3: steps 4 to 6, 2 layers, batches of 8, sequences of 16 tokens, dropout 0.1" in printed
  assert_identical(saved(tmp_path), saved(whole[0]))


def test_evaluation_uses_all_layers_and_the_full_length(shards, whole, tmp_path):
  """The evaluations during each stage are those of the saved weights in an unstaged run of the whole model."""
  directory, _ = whole
  lines = log_lines.read(str(directory / "eval_metrics.jsonl"))
  assert [line["step"] for line in lines] == [2, 4, 6, 8]
  for line in lines[:2]:
    weights = str(directory / "checkpoints" / f"step-{line['step']}")
    options = {"init_checkpoint": weights, "max_eval_steps": 2, "eval_batch_size": 8}
    data = {"eval_input_file": shards["long"]}
    expected = estimator_of(tmp_path / f"eval-{line['step']}", BERT, data, **options).evaluate()
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


def test_a_stage_goes_on_in_the_same_shards_and_begins_new_ones_at_their_start(shards, tmp_path):
  stages = [
    {"until": 0.25},
    {"until": 0.5, "input_file": shards["short"]},
    {"until": 0.75, "train_batch_size": 4},
    {"until": 1, "input_file": shards["long"], "train_batch_size": 16},
  ]
  estimator = estimator_of(tmp_path, ALBERT, {"input_file": shards["long"], "stages": stages})
  plan = plan_training(estimator.plan, estimator.task.training_stages())
  context = InputContext(0, 1, 1, 1)

  def numbers(stage: Any) -> list[int]:
    batches = stage.data.training_batches(
      batch_size=stage.train.train_batch_size, first_step=0, seed=plan.train.seed, context=context
    )
    taken = list(batches.take(stage.last_step - stage.first_step).as_numpy_iterator())
    assert {len(batch["input_ids"]) for batch in taken} == {stage.train.train_batch_size}
    return [n for batch in taken for n in example_numbers(batch["input_ids"], batch["input_mask"])]

  def stream(globs: str, count: int) -> list[int]:
    data = PretrainingTask(ALBERT, PretrainingConfig(input_file=globs)).training_data()
    batches = data.training_batches(batch_size=1, first_step=0, seed=plan.train.seed, context=context)
    return [
      n
      for batch in batches.take(count).as_numpy_iterator()
      for n in example_numbers(batch["input_ids"], batch["input_mask"])
    ]

  long, short = stream(shards["long"], 16 + 8 + 32), stream(shards["short"], 16)
  assert [numbers(stage) for stage in plan.stages] == [long[:16], short, long[16:24], long[24:]]
  assert [(stage.first_step, stage.last_step) for stage in plan.stages] == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_logs_show_the_stages_and_one_schedule_over_all_steps(whole):
  directory, printed = whole
  # 3 steps of 4 of 40 examples, then 3 of 8 and 2 of 16 of 80 examples.
  assert "3 stages, 8 steps (1.00 epochs)" in printed
  assert (
    "stage 1 of 3: steps 1 to 3, 1 layer, batches of 4, sequences of 12 tokens, 40 examples in 2 shards (0.30 epochs)"
    in printed
  )
  lines = read_metrics(str(directory))
  assert [line["stage"] for line in lines] == [1, 1, 1, 2, 2, 2, 3, 3]
  rates = [0.01 * (t / 2 if t < 2 else 1 - t / STEPS) for t in range(STEPS)]
  assert [line["learning_rate"] for line in lines] == pytest.approx(rates)
  config = json.loads((directory / "config.json").read_text())
  assert [stage["last_step"] for stage in config["stages"]] == [3, 6, 8]
  assert config["stages"][0] == {
    "first_step": 0,
    "last_step": 3,
    "num_hidden_layers": 1,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "train_batch_size": 4,
    "num_files": 2,
    "max_seq_length": SHORT,
    "max_predictions_per_seq": PREDICTIONS,
    "masking": "static",
    "masked_lm_prob": 0.0,
    "ngram": 0,
  }
  assert config["training_data"]["num_examples"] == 120


def test_epochs_are_counted_in_the_shards_of_each_stage(shards, tmp_path):
  data = {
    "input_file": shards["long"],
    "stages": [{"until": 0.5, "input_file": shards["short"], "train_batch_size": 4}, {"until": 1}],
  }
  estimator = estimator_of(tmp_path, ALBERT, data, num_train_epochs=1.5)
  plan = plan_training(estimator.plan, estimator.task.training_stages())
  # Half of the steps take 4 of 40 examples, the others 8 of 80: a tenth of an epoch each.
  assert plan.train.num_train_steps == 15
  assert sum(stage.num_epochs for stage in plan.stages) == pytest.approx(1.5)


def claim(directory: Path, model: ModelConfig, data: dict[str, Any]) -> None:
  estimator_of(directory, model, data).claim_output_dir()


def test_a_run_without_stages_cannot_be_resumed_with_stages(shards, tmp_path):
  data = {"input_file": shards["long"]}
  claim(tmp_path, ALBERT, data)
  (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["stages"] == []
  for recorded in (config, {name: value for name, value in config.items() if name != "stages"}):  # an earlier version
    (tmp_path / "config.json").write_text(json.dumps(recorded))
    with pytest.raises(UserError, match=r"a run with stages = \[\], this one has \[\{'first_step': 0, 'last_step': 4"):
      claim(tmp_path, ALBERT, {**data, "stages": [{"until": 0.5}, {"until": 1}]})


def test_a_resumed_run_must_have_the_same_stages(shards, whole, tmp_path):
  shutil.copytree(whole[0], tmp_path / "run")
  data = everything(shards)
  first, *later = data["stages"]
  with pytest.raises(UserError, match=r"this directory holds a run with stages = .*'train_batch_size': 2"):
    claim(tmp_path / "run", BERT, {**data, "stages": [{**first, "train_batch_size": 2}, *later]})
  shutil.copytree(Path(shards["short"]).parent, tmp_path / "moved")
  moved = {**data, "stages": [{**first, "input_file": f"{tmp_path}/moved/*"}, *later]}
  claim(tmp_path / "run", BERT, moved)
  (tmp_path / "moved" / "part-01.tfrecord").unlink()
  with pytest.raises(UserError, match=r"trained on other data .*\(1 of its 5 files missing: part-01\.tfrecord"):
    claim(tmp_path / "run", BERT, moved)


def bad_data(shards: dict[str, str], tmp_path: Path) -> dict[str, tuple[dict[str, Any], str]]:
  """Stages that are refused because of their data: the settings, and a part of the message."""
  write_shards(tmp_path / "too long", [4], length=TINY_MODEL.max_position_embeddings + 1)
  for name, sha256 in (("described", "0"), ("other", "1")):
    paths = write_shards(tmp_path / name, [9], seed=ord(sha256))
    write_manifest(tmp_path / name, paths, [9], vocab_sha256=64 * sha256)
  long = shards["long"]

  def first(**values: Any) -> list[dict[str, Any]]:
    return [{"until": 0.5, **values}, {"until": 1}]

  return {
    "too long": (
      {"input_file": long, "stages": first(input_file=f"{tmp_path}/too long/*")},
      "stage 1 of 2: {tmp_path}/too long/part-00.tfrecord holds sequences of 33 tokens, the model has 32 positions: "
      "write shorter shards or raise max_position_embeddings",
    ),
    "no such shards": (
      {"input_file": long, "stages": first(input_file="missing/*")},
      "stage 1 of 2: --input_file: 'missing/*' matches no file",
    ),
    "another vocabulary": (
      {"input_file": f"{tmp_path}/described/*.tfrecord", "stages": first(input_file=f"{tmp_path}/other/*.tfrecord")},
      "stage 1 of 2: --input_file={tmp_path}/other/*.tfrecord: these shards were made with another vocabulary (SHA-256 "
      "111111111111...) than those of the last stage (000000000000...): give shards of one vocabulary",
    ),
    "masks of the shards": (
      {"input_file": long, "stages": first(masked_lm_prob=0.2)},
      "stage 1 of 2: --masked_lm_prob=0.2 has an effect only on dynamic masks: also give --masking=dynamic",
    ),
    "a batch for other micro-batches": (
      {"input_file": long, "stages": first(train_batch_size=3)},
      "stage 1 of 2: train_batch_size must be a multiple of gradient_accumulation_steps (2), got 3",
    ),
    "a stage without steps": (
      {"input_file": long, "stages": [{"until": 0.5}, {"until": 0.51}, {"until": 1}]},
      "stages, stage 2 of 3: until 0.51 of 8 steps is step 4, where the stage before it ends: give the stage a larger",
    ),
    "no shards": ({"stages": first(input_file=long)}, "stage 2 of 2: --do_train needs --input_file: the shards to"),
  }


@pytest.mark.parametrize(
  "case",
  ["too long", "no such shards", "another vocabulary", "masks of the shards", "a batch for other micro-batches",
   "a stage without steps", "no shards"],
)  # fmt: skip
def test_stages_with_bad_data_are_refused_before_the_first_step(case, shards, tmp_path, monkeypatch):
  data, message = bad_data(shards, tmp_path)[case]
  monkeypatch.setattr(Trainer, "train_steps", lambda *unused: pytest.fail("a step was computed"))
  with pytest.raises(UserError) as error:
    estimator_of(tmp_path / "run", TINY_MODEL, data, gradient_accumulation_steps=2).train()
  assert message.format(tmp_path=tmp_path) in str(error.value)
  assert "\n" not in str(error.value)
  assert not (tmp_path / "run" / "config.json").exists()


def test_only_stages_without_shards_of_their_own_read_input_file(shards):
  """Also when the run is resumed with what config.json has recorded."""
  stages = [{"until": 0.5}, {"until": 1, "input_file": shards["short"]}]
  config = PretrainingConfig(input_file=shards["long"], stages=json.dumps(stages))
  for _ in range(2):
    task = PretrainingTask(ALBERT, config)
    assert [stage.data.num_examples for stage in task.training_stages()] == [80, 40]
    assert task.max_seq_length == SHORT
    assert task.training_data().num_examples == 40
    values = {name: value for name, value in task.all_settings().items() if name in option_fields(PretrainingConfig)}
    config = from_dict(PretrainingConfig, values, source="config.json")


def test_sequences_of_the_last_stage_may_be_shorter(shards):
  data = {"input_file": shards["short"], "stages": [{"until": 0.5, "input_file": shards["long"]}, {"until": 1}]}
  task = PretrainingTask(ALBERT, PretrainingConfig(**{**data, "stages": json.dumps(data["stages"])}))
  assert task.max_seq_length == SHORT
  assert [stage.settings["max_seq_length"] for stage in task.training_stages()] == [SEQ_LENGTH, SHORT]
