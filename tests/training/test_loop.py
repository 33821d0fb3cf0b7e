"""The training loop: equal results, numbers that are not finite, signals, and directories of other or damaged runs."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file
from tensorflow.python.framework import config as tf_config

from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.errors import RunError, Stopped, UserError
from albert.estimator import Estimator
from albert.io import progress
from albert.optimizers.factory import make_optimizer
from albert.runs.directory_lock import DirectoryLock
from albert.runs.logs import read_metrics
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.loop import Pace, Trainer
from albert.training.run_plan import TrainingPlan
from albert.weights.checkpoints import CheckpointManager
from albert.weights.files import open_weights
from albert.weights.names import POOLER
from tests.golden.make_tiny_albert import random_weights
from tests.models.build_models import build_pretraining_model
from tests.run_outputs import assert_equal_bits, checkpoint_steps, read_checkpoint
from tests.synthetic import TINY_MODEL, example, write_shards

MODEL = dataclasses.replace(TINY_MODEL, num_hidden_layers=1)


@pytest.fixture(scope="module")
def input_file(tmp_path_factory: pytest.TempPathFactory) -> str:
  """The pattern of shards with 80 examples."""
  directory = tmp_path_factory.mktemp("shards")
  write_shards(directory, [30, 20, 30])
  return str(directory / "*.tfrecord")


def train(
  input_file: str,
  output_dir: Path | str,
  *,
  optimizer: dict[str, Any] | None = None,
  model: Any = MODEL,
  sentence_prediction: str = "auto",
  init_checkpoint: str = "",
  start_over: bool = False,
  **train_options: Any,
) -> dict[str, np.ndarray]:
  """Trains for six steps and returns the final weights. `optimizer` has fields of OptimizerConfig."""
  train_fields = {
    "precision": "float32",
    "train_batch_size": 8,
    "num_train_steps": 6,
    "log_every_steps": 3,
    "save_checkpoints_steps": 3,
  }
  task = PretrainingTask(model, PretrainingConfig(input_file=input_file, sentence_prediction=sentence_prediction))
  config = RunConfig(
    output_dir=str(output_dir),
    init_checkpoint=init_checkpoint,
    start_over=start_over,
    optimizer=OptimizerConfig(**{"num_warmup_steps": 2, "learning_rate": 0.01, **(optimizer or {})}),
    train=TrainConfig(**{**train_fields, **train_options}),
  )
  estimator = Estimator(task, config)
  estimator.train()
  return {name: variable.numpy() for name, variable in estimator.model.named_weights().items()}


@pytest.fixture(scope="module")
def default_weights(input_file: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
  """The final weights of a run that computes all six steps in one call of the compiled loop."""
  return train(input_file, tmp_path_factory.mktemp("default"), steps_per_loop=100)


def largest_difference(weights: dict[str, np.ndarray], other_weights: dict[str, np.ndarray]) -> float:
  assert weights.keys() == other_weights.keys()
  return max(float(np.abs(weights[name] - other_weights[name]).max()) for name in weights)


@pytest.mark.usefixtures("eager_steps")
def test_gradient_accumulation_changes_only_the_rounding(input_file, tmp_path):
  weights = train(input_file, tmp_path / "one", num_train_steps=2)
  weights_of_accumulation = train(input_file, tmp_path / "four", num_train_steps=2, gradient_accumulation_steps=4)
  assert 0 < largest_difference(weights, weights_of_accumulation) < 2e-5


@pytest.mark.usefixtures("eager_steps")
def test_without_determinism_a_resumed_run_has_the_same_batches_and_steps(
  input_file, tmp_path, monkeypatch, verbose, capsys
):
  """Only the kernels, which may round differently, are not the same then."""
  seen: list[tuple[int, np.ndarray]] = []  # the step and the ids of each batch
  replica_step = Trainer.replica_step
  stops_at = -1

  def record(trainer: Trainer, batch: dict[str, tf.Tensor]) -> None:
    if trainer.step == stops_at:
      raise RuntimeError("killed")
    assert not tf_config.is_op_determinism_enabled()
    seen.append((trainer.step, batch["input_ids"].numpy()))
    replica_step(trainer, batch)

  monkeypatch.setattr(Trainer, "replica_step", record)
  tf_config.disable_op_determinism()  # another test may have enabled it
  options: dict[str, Any] = {"deterministic": "false", "num_train_steps": 4, "save_checkpoints_steps": 2}
  weights = train(input_file, tmp_path / "whole", **options)
  whole = seen.copy()
  seen.clear()
  stops_at = 2
  with pytest.raises(RuntimeError, match="killed"):
    train(input_file, tmp_path / "resumed", **options)
  stops_at = -1
  resumed_weights = train(input_file, tmp_path / "resumed", **options)
  assert [step for step, _ in seen] == [step for step, _ in whole] == [0, 1, 2, 3]
  for (_, ids), (_, resumed_ids) in zip(whole, seen, strict=True):
    np.testing.assert_array_equal(resumed_ids, ids)
  assert largest_difference(weights, resumed_weights) < 2e-5
  assert "deterministic: False" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
def test_a_run_that_ends_by_the_clock_resumes_exactly(input_file, tmp_path, monkeypatch, capsys):
  """Each step takes a second. The first after a start is not counted, two more end the warm-up, and six more fit."""
  run_steps, stops_at = Trainer._time_steps, 0

  def take_seconds(trainer: Trainer, batches: Any, num_steps: int, *rest: Any) -> float:
    if trainer.step == stops_at:
      raise RuntimeError("killed")
    run_steps(trainer, batches, num_steps, *rest)
    return float(num_steps)

  options: dict[str, Any] = {"num_train_steps": 99, "max_train_seconds": 8.0, "save_checkpoints_steps": 5}
  optimizer = {"num_warmup_steps": 3}
  with monkeypatch.context() as patch:
    stops_at = -1
    patch.setattr(Trainer, "_time_steps", take_seconds)
    weights = train(input_file, tmp_path / "whole", optimizer=optimizer, **options)
    assert "trained 9 steps in 8 of 8 seconds" in capsys.readouterr().err
    assert checkpoint_steps(tmp_path / "whole") == [5, 9]
    stops_at = 5
    with pytest.raises(RuntimeError, match="killed"):
      train(input_file, tmp_path / "resumed", optimizer=optimizer, **options)
    stops_at = -1
    resumed_weights = train(input_file, tmp_path / "resumed", optimizer=optimizer, **options)
    # Another command on the finished run has nothing to train.
    train(input_file, tmp_path / "whole", optimizer=optimizer, **options)
    assert "has all 9 steps already" in capsys.readouterr().err
  assert_equal_bits(resumed_weights, weights)
  weight_file = open_weights(str(tmp_path / "whole"), flag="--init_checkpoint")
  assert not any("time_limit" in name for name in weight_file.entries)
  assert_equal_bits(train(input_file, tmp_path / "known", optimizer=optimizer, num_train_steps=9), weights)
  with pytest.raises(UserError, match=r"max_train_seconds = 8\.0, this one has 7\.0"):
    train(input_file, tmp_path / "whole", optimizer=optimizer, **{**options, "max_train_seconds": 7.0})


def test_a_time_limit_needs_a_number_of_warmup_steps(tmp_path):
  with pytest.raises(UserError, match=r"--warmup_proportion=0.1 with --max_train_seconds: .* give --num_warmup_steps"):
    RunConfig(
      output_dir=str(tmp_path),
      optimizer=OptimizerConfig(warmup_proportion=0.1),
      train=TrainConfig(max_train_seconds=60),
    )


@pytest.mark.slow
def test_xla_changes_only_the_rounding(input_file, tmp_path, verbose, capsys):
  model = dataclasses.replace(MODEL, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)  # with the same masks
  weights_without_xla = train(input_file, tmp_path / "auto", model=model)  # "auto" means no XLA on a CPU
  assert "compiled by XLA: False" in capsys.readouterr().err
  weights_with_xla = train(input_file, tmp_path / "xla", model=model, jit_compile="true")
  assert "compiled by XLA: True" in capsys.readouterr().err
  assert 0 < largest_difference(weights_without_xla, weights_with_xla) < 2e-5


def make_batches(lengths: list[int]) -> tf.data.Dataset:
  """Makes batches of 8 sequences. Each batch has another length, which is not known when the step is traced."""
  rng = np.random.default_rng(5)
  batches = []
  for length in lengths:
    examples = [example(number, rng, length) for number in range(8)]
    batch: dict[str, np.ndarray] = {EXAMPLE_WEIGHT: np.ones(8, np.float32)}
    for name in examples[0]:
      feature = np.stack([row[name] for row in examples])
      batch[name] = feature if feature.dtype == np.float32 else feature.astype(np.int32)
    batches.append(batch)
  signature = {name: tf.TensorSpec([8, *[None] * (array.ndim - 1)], array.dtype) for name, array in batches[0].items()}
  return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)


def make_trainer(num_micro_batches: int = 1) -> Trainer:
  """Makes a trainer with fixed initial weights and several micro-batches per batch."""
  strategy = tf.distribute.OneDeviceStrategy("CPU:0")
  with strategy.scope():
    model = build_pretraining_model(TINY_MODEL, random_weights(TINY_MODEL, 1))
    task = PretrainingTask(TINY_MODEL, PretrainingConfig())
    config = TrainConfig(train_batch_size=8, gradient_accumulation_steps=num_micro_batches)
    plan = TrainingPlan(strategy=strategy, train=config)
    return Trainer(task, model, make_optimizer(OptimizerConfig(), 0.01), plan)


def train_on_batches(batches: tf.data.Dataset, num_steps: int, num_micro_batches: int) -> dict[str, np.ndarray]:
  """Trains with several micro-batches per batch. Returns the final weights."""
  trainer = make_trainer(num_micro_batches)
  trainer.train_steps(iter(batches), tf.constant(num_steps))
  return {name: variable.numpy() for name, variable in trainer.weights.items()}


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize(("optimizer", "num_micro_batches"), [("lamb", 1), ("lamb", 2), ("adamw", 1)])
def test_weights_that_the_losses_do_not_depend_on_keep_their_bits(input_file, tmp_path, optimizer, num_micro_batches):
  """The pooler and the sentence head have no gradient without a sentence objective. Zeros would let them decay."""
  initial_weights = random_weights(MODEL, 1)
  save_file(initial_weights, str(tmp_path / "init.safetensors"))
  weights = train(
    input_file,
    tmp_path / "run",
    sentence_prediction="none",
    init_checkpoint=str(tmp_path / "init.safetensors"),
    optimizer={"optimizer": optimizer},
    num_train_steps=2,
    gradient_accumulation_steps=num_micro_batches,
  )
  unchanged = {name for name, value in weights.items() if np.array_equal(value, initial_weights[name])}
  assert unchanged == {*POOLER, "cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias"}
  state = read_checkpoint(tmp_path / "run", 2)
  assert not any(state[f"{name}/{slot}"].any() for name in unchanged for slot in ("adam_m", "adam_v"))


@pytest.mark.slow
def test_gradient_accumulation_changes_only_the_rounding_with_dynamic_lengths():
  batches = make_batches([16, 12, 20])
  weights = train_on_batches(batches, num_steps=3, num_micro_batches=1)
  weights_of_accumulation = train_on_batches(batches, num_steps=3, num_micro_batches=4)
  assert largest_difference(weights, random_weights(TINY_MODEL, 1)) > 0.01
  assert 0 < largest_difference(weights, weights_of_accumulation) < 2e-5


@pytest.mark.slow
def test_runs_with_dropout_depend_only_on_the_seed(input_file, tmp_path):
  model = dataclasses.replace(MODEL, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
  weights = train(input_file, tmp_path / "first", model=model)
  assert_equal_bits(train(input_file, tmp_path / "second", model=model), weights)
  weights_of_other_seed = train(input_file, tmp_path / "other", model=model, seed=54321)
  assert largest_difference(weights, weights_of_other_seed) > 1e-3


@pytest.mark.usefixtures("eager_steps")
def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(input_file, tmp_path):
  # LayerNorm rescales large activations. So only an extreme learning rate makes the loss overflow within a few steps.
  optimizer = {"optimizer": "adamw", "learning_rate": 1e38, "num_warmup_steps": 4}
  with pytest.raises(RunError, match=r"step \d: the loss or its gradient is not finite.*learning_rate"):
    train(input_file, tmp_path, optimizer=optimizer)
  for step in checkpoint_steps(tmp_path):
    assert all(np.isfinite(tensor).all() for tensor in read_checkpoint(tmp_path, step).values())


@pytest.mark.usefixtures("eager_steps")
def test_the_error_about_weights_names_the_first_one_and_counts_the_others(tmp_path):
  trainer, checkpoints = make_trainer(), CheckpointManager(str(tmp_path), keep=1, model_config=TINY_MODEL)
  names = ("bert/embeddings/word_embeddings", "bert/pooler/dense/kernel", "bert/pooler/dense/bias")
  ends = (" is", " and 1 other variable are", " and 2 other variables are")
  for name, end in zip(names, ends, strict=True):
    trainer.weights[name].assign(np.nan * trainer.weights[name])
    with pytest.raises(RunError, match=f"^after 4 updates {names[0]}{end} not finite, though"):
      trainer._check_state(checkpoints, saved_step=0, step=4)


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
def test_weights_that_are_not_finite_after_an_update_are_not_saved(input_file, tmp_path):
  # AdamW's first update without bias correction is about 3.16 times the rate, (1 - 0.9) / sqrt(1 - 0.999). Float32
  # cannot hold it. The loss of the only step is finite, because it is computed before the update.
  optimizer = {"optimizer": "adamw", "learning_rate": 3e38, "num_warmup_steps": 0}
  with pytest.raises(RunError, match=r"after 1 updates .* not finite, .* no checkpoint was saved .*--learning_rate"):
    train(input_file, tmp_path / "run", optimizer=optimizer, num_train_steps=1)
  assert not list((tmp_path / "run" / "checkpoints").glob("*"))


@pytest.mark.usefixtures("eager_steps")
def test_a_signal_while_the_last_step_is_saved_stops_the_command(input_file, tmp_path, monkeypatch, capfd):
  """The training is finished then, but the command must not go on to evaluate and predict."""
  save, saved_steps = CheckpointManager.save, list[int]()

  def save_and_signal(manager: CheckpointManager, step: int, *arguments: Any, **options: Any) -> str:
    path = save(manager, step, *arguments, **options)
    saved_steps.append(step)
    if saved_steps == [2]:
      os.kill(os.getpid(), signal.SIGINT)
    return path

  monkeypatch.setattr(CheckpointManager, "save", save_and_signal)
  with pytest.raises(Stopped, match="stopped at step 2 and saved") as stopped:
    train(input_file, tmp_path, num_train_steps=2)
  assert stopped.value.signal_number == signal.SIGINT
  assert saved_steps == [2]  # not a second time
  assert "a signal was received: stopping after this step or evaluation; " in capfd.readouterr().err


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
def test_after_a_signal_at_the_last_step_the_repeated_command_deletes_older_checkpoints(
  input_file, tmp_path, monkeypatch
):
  """The signal makes the run save the last step without deleting older checkpoints."""
  train_steps = Trainer.train_steps

  def train_steps_and_signal(trainer: Trainer, *arguments: Any) -> None:
    train_steps(trainer, *arguments)
    if trainer.step == 2:
      os.kill(os.getpid(), signal.SIGTERM)

  options: dict[str, Any] = {"keep_checkpoints": 1, "num_train_steps": 2, "save_checkpoints_steps": 1}
  with monkeypatch.context() as patch:
    patch.setattr(Trainer, "train_steps", train_steps_and_signal)
    with pytest.raises(Stopped):
      train(input_file, tmp_path, **options)
  assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-1", "step-2"]
  train(input_file, tmp_path, **options)
  assert os.listdir(tmp_path / "checkpoints") == ["step-2"]


def test_a_run_whose_checkpoints_are_all_damaged_stops_unless_start_over_is_given(input_file, tmp_path, monkeypatch):
  directory = tmp_path / "run" / "checkpoints"
  CheckpointManager(str(directory), keep=1, model_config=TINY_MODEL).save(2, {"b": tf.zeros([7])})
  (directory / "step-2" / "weights.index").unlink()
  monkeypatch.setattr(Trainer, "train", lambda *unused, **unused_options: None)
  with pytest.raises(UserError, match=r"checkpoints: all of its 1 checkpoints are damaged \(step-2: .*--start_over"):
    train(input_file, tmp_path / "run")
  assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoints"]  # nothing was written
  (tmp_path / "run" / "config.json").write_text("{}")
  train(input_file, tmp_path / "run", start_over=True)
  assert not directory.exists()
  assert (tmp_path / "run" / "checkpoints.damaged" / "step-2" / "manifest.json").exists()


def test_a_directory_is_locked_while_a_process_trains_there(input_file, tmp_path, monkeypatch):
  monkeypatch.setattr(Trainer, "train", lambda *unused, **unused_options: None)
  with (
    DirectoryLock(str(tmp_path / "run"), "training"),
    pytest.raises(UserError, match=rf"run: process {os.getpid()} on host .* is training there since"),
  ):
    train(input_file, tmp_path / "run")
  assert not (tmp_path / "run").exists()
  train(input_file, tmp_path / "run")
  assert (tmp_path / "run" / "config.json").exists()
  assert not (tmp_path / "run" / ".lock").exists()


def test_a_wrong_command_does_not_take_a_remote_directory_from_the_process_that_trains_there(
  input_file, tmp_path, monkeypatch
):
  monkeypatch.setattr(Trainer, "train", lambda *unused, **unused_options: None)
  directory = f"ram://{tmp_path.name}/run"  # TensorFlow's in-memory file system, in place of an object store
  train(input_file, directory)
  with DirectoryLock(directory, "training") as lock:
    with pytest.raises(UserError, match=r"optimizer.learning_rate = .*, this one has 0.5"):
      train(input_file, directory, optimizer={"learning_rate": 0.5})
    lock.check()
    train(input_file, directory)
    with pytest.raises(RunError, match=r"somebody removed .*lock, so another process may be training there"):
      lock.check()


def test_only_the_chief_writes_the_files_of_a_run(input_file, tmp_path, monkeypatch):
  task = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=input_file))
  monkeypatch.setattr(task, "files_to_keep", lambda: {"kept.txt": __file__})
  estimator = Estimator(task, RunConfig(output_dir=str(tmp_path / "run"), train=TrainConfig(train_batch_size=8)))
  estimator.cluster.is_chief = False
  estimator.claim_output_dir()
  assert not list((tmp_path / "run").iterdir())
  estimator.cluster.is_chief = True
  estimator.claim_output_dir()
  assert {"config.json", "environment.json", "kept.txt"} <= {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.slow
def test_training_learns_the_examples_that_it_has_seen(input_file, tmp_path):
  task = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=input_file, eval_input_file=input_file))
  config = RunConfig(
    output_dir=str(tmp_path / "run"),
    optimizer=OptimizerConfig(optimizer="adamw", num_warmup_steps=20, learning_rate=0.01),
    train=TrainConfig(
      train_batch_size=40, num_train_steps=400, save_checkpoints_steps=400, log_every_steps=400, eval_batch_size=40
    ),
  )
  estimator = Estimator(task, config)
  estimator.train()
  results = estimator.evaluate()
  assert results["masked_lm_accuracy"] > 0.95
  assert results["sentence_order_accuracy"] == 1.0
  assert results["masked_lm_perplexity"] == pytest.approx(np.exp(results["masked_lm_loss"]))
  assert results["masked_lm_baseline_accuracy"] < 0.1
  assert results["sentence_order_baseline_accuracy"] == 0.5


@pytest.mark.parametrize("num_steps", [1, 3, 24, 25, 49, 50, 1234, 10**5, 10**6])
@pytest.mark.parametrize("seconds_per_step", [0.001, 0.5, 70.0])
@pytest.mark.parametrize("log_every_steps", [0, 7, 10**9])
def test_a_run_of_any_length_has_25_to_50_log_lines_and_loses_little_if_it_is_killed(
  num_steps, seconds_per_step, log_every_steps
):
  pace = Pace(TrainConfig(num_train_steps=num_steps, log_every_steps=log_every_steps), None)
  step, saved_step, num_lines, most_unsaved = 0, 0, 0, 0
  call, is_long = max(1, min(100, int(5 / seconds_per_step))), num_steps * seconds_per_step > 25 * 1800
  while (step := min(pace.next_stop(step), step + call)) < num_steps:
    num_lines += pace.is_log_due(step)
    most_unsaved = max(most_unsaved, step - saved_step)
    if pace.is_save_due(step, step - saved_step, seconds_per_step, is_end=False):
      saved_step = step
      # A run that resumes there has the same log lines, unless it is so long that they are far apart.
      assert pace.is_log_due(step) or log_every_steps > num_steps // 25 or is_long
  most_unsaved = max(most_unsaved, num_steps - saved_step)
  assert (most_unsaved - call * is_long) * seconds_per_step <= min(max(120, num_steps * seconds_per_step / 10), 1800)
  if not log_every_steps:
    assert min(num_steps, 25) <= num_lines + 1 <= 50  # the last step is always logged


def test_the_points_of_a_run_and_the_steps_of_a_call_change_no_bit(input_file, tmp_path, default_weights):
  options: dict[str, Any] = {"log_every_steps": 0, "save_checkpoints_steps": 0, "steps_per_loop": 1}
  assert_equal_bits(train(input_file, tmp_path, **options), default_weights)
  assert [line["step"] for line in read_metrics(str(tmp_path))] == [1, 2, 3, 4, 5, 6]
  assert checkpoint_steps(tmp_path) == [6]


@pytest.mark.thorough
def test_a_long_first_step_and_a_long_evaluation_show_that_they_go_on(
  input_file, tmp_path, monkeypatch, verbose, capsys
):
  monkeypatch.setattr(progress, "_FIRST_INTERVAL", 0.02)
  task = PretrainingTask(MODEL, PretrainingConfig(input_file=input_file, eval_input_file=input_file))
  train_config = TrainConfig(train_batch_size=8, num_train_steps=2, eval_every_steps=2)
  optimizer = OptimizerConfig(num_warmup_steps=1, learning_rate=0.01)
  Estimator(task, RunConfig(output_dir=str(tmp_path / "run"), optimizer=optimizer, train=train_config)).train()
  lines = capsys.readouterr().err.splitlines()
  assert len([line for line in lines if re.fullmatch(r"building the graph of the first step: \d\d:\d\d", line)]) > 1
  assert len([line for line in lines if re.fullmatch(r"step 2: evaluating: \d\d:\d\d", line)]) > 1
