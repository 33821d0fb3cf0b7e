"""Estimator(task, config): train, evaluate, predict. What every script and notebook calls."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert import files
from albert.config import RunConfig
from albert.data import pipeline
from albert.errors import UserError
from albert.evaluation import Evaluator
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import make_schedule
from albert.tasks.base import Task
from albert.training import checkpoints, curves, strategy, warm_start
from albert.training.loop import Trainer, make_learning_rate_reader
from albert.training.metrics_log import MetricsLog, format_metrics, say


class Estimator:
  """One run of one task in one output_dir."""

  def __init__(self, task: Task, config: RunConfig):
    self.task = task
    self.config = config
    self.checkpoints = checkpoints.CheckpointManager(
      files.join(config.output_dir, "checkpoints"),
      keep=config.train.keep_checkpoints,
      model_config=task.model_config,
    )
    # Weights come from the global generator, dropout and the order of data from (seed, step). Deterministic
    # kernels make a resumed run end in the very same bits.
    keras.utils.set_random_seed(config.train.seed)
    tf.config.experimental.enable_op_determinism()
    self.strategy = strategy.make_strategy(config.train)
    self.precision = strategy.resolve_precision(config.train.precision, self.strategy)
    strategy.set_precision(self.precision)
    with self.strategy.scope():
      self.model = task.build_model()
    self._evaluator: Evaluator | None = None

  def run(self) -> None:
    """Does what the config asks for, in order: train, evaluate, predict."""
    if not (self.config.do_train or self.config.do_eval or self.config.do_predict):
      raise UserError("nothing to do: give --do_train, --do_eval or --do_predict")
    if self.config.do_train:
      self.train()
    if self.config.do_eval:
      self.evaluate()
    if self.config.do_predict:
      self.predict()

  def train(self) -> None:
    """Trains to num_train_steps from the newest checkpoint of output_dir, --init_checkpoint, or fresh weights."""
    config = self.config
    shards = self.task.training_shards()
    self._claim_output_dir()
    schedule = make_schedule(config.optimizer, config.train.num_train_steps, config.train.train_batch_size)
    with self.strategy.scope():
      optimizer = make_optimizer(config.optimizer, schedule)
      trainer = Trainer(self.task, self.model, optimizer, self.strategy, config.train, config.optimizer.clip_norm)
      self._start(trainer)
    first_step = trainer.step
    if first_step >= config.train.num_train_steps:
      say(f"{config.output_dir} has all {first_step} steps already: nothing to train")
      return
    self._describe(shards)
    log = MetricsLog(config.output_dir, first_step=first_step, total_steps=config.train.num_train_steps)
    evaluate = self._evaluate_during_training if config.train.eval_every_steps else None
    try:
      batches = iter(self._training_batches(shards, first_step))
      trainer.train(batches, self.checkpoints, log, make_learning_rate_reader(schedule), evaluate)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
      pipeline.explain_failure(shards, self.task.features())
      raise
    finally:
      log.close()
    picture = curves.draw_curves(config.output_dir)
    say(f"trained {config.train.num_train_steps} steps; curves in {picture}")

  def evaluate(self) -> dict[str, float]:
    """Evaluates the newest checkpoint and writes eval_results.json."""
    step = self._restore_newest()
    results = self._evaluate()
    files.makedirs(self.config.output_dir)
    files.write_json(files.join(self.config.output_dir, "eval_results.json"), {"step": step, **results})
    for name, value in results.items():
      print(f"{name} = {value:.6g}", flush=True)
    return results

  def predict(self) -> str:
    """Writes predictions.tsv with the newest checkpoint, prints it, and returns its path."""
    self._restore_newest()
    rows = list(self.task.predict(self.model))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = files.join(self.config.output_dir, "predictions.tsv")
    files.write_atomically(path, text.getvalue())
    print(text.getvalue(), end="", flush=True)
    return path

  def _training_batches(self, shards: pipeline.Shards, first_step: int) -> tf.distribute.DistributedDataset:
    train = self.config.train

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
      host_batch = train.train_batch_size // context.num_input_pipelines
      return pipeline.training_batches(
        shards.part(context.input_pipeline_id, context.num_input_pipelines),
        self.task.features(),
        batch_size=train.train_batch_size // self.strategy.num_replicas_in_sync,
        first_example=first_step * host_batch,
        seed=train.seed,
      )

    return self.strategy.distribute_datasets_from_function(make)

  def _start(self, trainer: Trainer) -> None:
    """Gives the trainer the state it starts from."""
    self.checkpoints.remove_leftovers()
    newest, skipped = self.checkpoints.latest()
    for line in skipped:
      say(f"warning: {line}")
    if newest is not None:
      checkpoints.restore(newest, trainer.state())
      say(f"resumed from {newest.path}")
    elif self.config.init_checkpoint:
      self._warm_start()

  def _warm_start(self) -> None:
    kept = warm_start.warm_start(
      self.config.init_checkpoint,
      self.model.named_weights(),
      fresh=self.task.fresh_weights,
      ignored=self.task.ignored_weights,
      from_shallower=self.config.init_from_shallower,
    )
    say(f"started from {self.config.init_checkpoint}" + (f"; fresh: {', '.join(kept)}" if kept else ""))

  def _restore_newest(self) -> int:
    newest, skipped = self.checkpoints.latest()
    for line in skipped:
      say(f"warning: {line}")
    if newest is not None:
      checkpoints.restore(newest, self.model.named_weights())
      return newest.step
    if not self.config.init_checkpoint:
      raise UserError(
        f"{self.checkpoints.directory} holds no checkpoint that verifies: train first (--do_train) or give "
        "--init_checkpoint"
      )
    self._warm_start()
    return 0

  def _evaluate(self) -> dict[str, float]:
    if self._evaluator is None:
      with self.strategy.scope():
        self._evaluator = Evaluator(self.task, self.model, self.strategy, self.config.train.eval_batch_size)
    return self._evaluator.evaluate(self.config.train.max_eval_steps)

  def _evaluate_during_training(self, step: int) -> None:
    results = self._evaluate()
    say(f"step {step} evaluation  {format_metrics(results)}")
    line = json.dumps({"step": step, **results}) + "\n"
    with files.open_file(files.join(self.config.output_dir, "eval_metrics.jsonl"), "ab") as f:
      f.write(line.encode("utf-8"))
    if step not in self.checkpoints.steps():
      return
    metric = self.task.best_metric
    if self.checkpoints.record_evaluation(step, metric, results[metric], higher_is_better=self.task.higher_is_better):
      say(f"step {step} is the best so far ({metric} {results[metric]:.5g})")

  def _identity(self) -> dict[str, Any]:
    config = self.config
    return {
      "task": self.task.name,
      "model": self.task.model_config.to_dict(),
      "optimizer": config.optimizer.identity(),
      "train": config.train.identity() | {"precision": self.precision},
      "data": self.task.settings(),
      "init_checkpoint": config.init_checkpoint,
      "init_from_shallower": config.init_from_shallower,
    }

  def _claim_output_dir(self) -> None:
    """Writes config.json and environment.json; refuses a directory that holds another run."""
    directory = self.config.output_dir
    files.makedirs(directory)
    path = files.join(directory, "config.json")
    identity = self._identity()
    if files.exists(path):
      for key, ours, theirs in _differences(identity, files.read_json(path)):
        raise UserError(
          f"{path}: this directory holds a run with {key} = {theirs!r}, this one has {ours!r}: give another "
          "--output_dir, or that value to resume it"
        )
    elif self.checkpoints.steps():
      raise UserError(f"{directory} has checkpoints but no config.json: give another --output_dir")
    train = self.config.train.to_dict() | {"precision": self.precision}
    files.write_json(path, identity | {"train": train})
    files.write_json(files.join(directory, "environment.json"), self._environment())

  def _environment(self) -> dict[str, Any]:
    return {
      "command": sys.argv,
      "python": platform.python_version(),
      "tensorflow": tf.__version__,
      "tf_keras": keras.__version__,
      "numpy": np.__version__,
      "platform": platform.platform(),
      "cpus": os.cpu_count(),
      "devices": [device.name for device in tf.config.list_logical_devices()],
      "replicas": self.strategy.num_replicas_in_sync,
      "strategy": type(self.strategy).__name__,
    }

  def _describe(self, shards: pipeline.Shards) -> None:
    parameters = sum(int(np.prod(v.shape)) for v in self.model.named_weights().values())
    epochs = self.config.train.num_train_steps * self.config.train.train_batch_size / shards.num_examples
    say(
      f"{parameters:,} parameters, {shards.num_examples:,} examples in {len(shards.paths)} shards, "
      f"{epochs:.2f} epochs, {self.precision}, {self.strategy.num_replicas_in_sync} replica(s)"
    )


def _differences(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
  """(key, ours, theirs) where two nested dicts differ; keys that only `theirs` has are not compared."""
  for key, value in ours.items():
    other = theirs.get(key)
    if isinstance(value, dict) and isinstance(other, dict):
      yield from _differences(value, other, f"{prefix}{key}.")
    elif value != other:
      yield f"{prefix}{key}", value, other
