"""Estimator(task, config): train, evaluate, predict. What every script and notebook calls."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.run import RunConfig, TrainConfig
from albert.data.dataset import Dataset, InputContext
from albert.errors import RunError, UserError
from albert.io import files
from albert.io.lost_processes import is_lost_process
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import make_schedule
from albert.runs import curves, output_files, run_directory
from albert.runs.directory_lock import DirectoryLock
from albert.runs.evaluation_log import EvaluationLog
from albert.runs.metrics_log import MetricsLog, format_metrics, log
from albert.tasks.base import Outputs, Task
from albert.training import strategy
from albert.training.cluster import Cluster
from albert.training.evaluator import Evaluator
from albert.training.loop import Trainer, is_evaluation_due, make_learning_rate_reader
from albert.training.model_weights import load_initial_weights, load_trained_weights
from albert.training.prediction_sources import PredictionSource, hash_weights, prediction_sources_of
from albert.weights import checkpoints
from albert.weights.initial_weights import claim as claim_weights


class Estimator:
  """One run of one task in one output_dir."""

  def __init__(self, task: Task, config: RunConfig):
    """Builds the model, after a check of all files that the config's do_train, do_eval and do_predict need.

    Raises:
      UserError: a file that is missing or cannot be used, no device, values that do not fit each other.
    """
    self.task = task
    self.config = config
    self._check_files(train=config.do_train, evaluate=config.do_eval, predict=config.do_predict)
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
    self.config = config = dataclasses.replace(config, train=strategy.with_input_parts(config.train, self.strategy))
    self._check_batches(trains=config.do_train, evaluates=config.do_eval, predicts=config.do_predict)
    self.cluster = Cluster(self.strategy)
    # What several processes all write, such as metrics and predictions, only the chief's remains of.
    self._elsewhere = None if self.cluster.is_chief else tempfile.TemporaryDirectory()
    self.results_dir = self._elsewhere.name if self._elsewhere else config.output_dir
    self.precision = strategy.resolve_precision(config.train.precision, self.strategy)
    strategy.set_precision(self.precision)
    strategy.check_memory(task.model_config, self.strategy, trains=config.do_train)
    with self.cluster.watched(self._how_to_go_on), self.strategy.scope():
      self.model = task.build_model()
      self.model.encoder.recompute_grad = config.train.recompute_grad
      self.evaluator = Evaluator(task, self.model, self.strategy, config.train.eval_batch_size)

  def _check_files(self, *, train: bool = False, evaluate: bool = False, predict: bool = False) -> None:
    """Reads the files that what is to be done needs, and looks whether results can be written."""
    if train and self.task.needs_initial_weights and not (self.config.init_checkpoint or self.config.from_scratch):
      raise UserError(
        "--do_train needs --init_checkpoint, the weights to start from; to train from random weights say --from_scratch"
      )
    evaluate = evaluate or (train and self.config.train.eval_every_steps > 0)
    self.task.check_inputs(train=train, evaluate=evaluate, predict=predict)
    if train or evaluate or predict:
      run_directory.check_writable(self.config.output_dir)
    if predict:
      sources = prediction_sources_of(self.task, self.config)
      sources.check_writable()
      sources.check()

  def _check_batches(self, *, trains: bool = False, evaluates: bool = False, predicts: bool = False) -> None:
    evaluates = evaluates or (trains and self.config.train.eval_every_steps > 0)
    evaluates = evaluates or (predicts and self.task.predicts_in_batches)
    strategy.check_batches(self.config.train, self.strategy, trains=trains, evaluates=evaluates)

  def run(self) -> None:
    """Does what the config asks for, in order: train, evaluate, predict."""
    if self.config.do_train:
      self.train()
    if self.config.do_eval:
      self.evaluate()
    if self.config.do_predict:
      self.predict()

  def train(self) -> None:
    """Trains to num_train_steps from the newest checkpoint of output_dir, --init_checkpoint, or fresh weights."""
    self._check_files(train=True)
    self._check_batches(trains=True)
    with self.cluster.watched(self._how_to_go_on), self._locked():
      self._train()

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    """Keeps another run from training in output_dir. The chief alone holds the lock; all processes must call it."""
    lock = DirectoryLock(self.config.output_dir, "training")
    error: UserError | RunError | None = None
    if self.cluster.is_chief:
      try:
        lock.acquire()
        self.checkpoints.lock = lock
      except (UserError, RunError) as caught:
        error = caught
    try:
      if self.cluster.any(error is not None):
        raise error or RunError(f"the chief process cannot train in {self.config.output_dir}: its message says why")
      yield
    finally:
      self.checkpoints.lock = None
      lock.release()

  def _train(self) -> None:
    config = self.config
    data = self.task.training_data()
    # Before anything is written: a directory whose checkpoints are all damaged stays as it is.
    newest = self._latest_to_resume()
    train = self.claim_output_dir(data)
    schedule = make_schedule(config.optimizer, train.num_train_steps, train.train_batch_size)
    jit_compile = strategy.resolve_jit_compile(
      train.jit_compile, self.strategy, lambda: self._element_spec(data, train)
    )
    with self.strategy.scope():
      trainer = self._make_trainer(train, schedule, jit_compile)
      self._start(trainer, newest)
    first_step = trainer.step
    evaluations = None
    if train.eval_every_steps:
      evaluations = self._open_evaluation_log(first_step)
      is_missing = first_step > 0 and is_evaluation_due(train, first_step) and not evaluations.has(first_step)
      if self.cluster.chief_says(is_missing):
        self._evaluate_during_training(first_step, evaluations)  # killed between saving and evaluating
    if first_step >= train.num_train_steps or self._stops_early(evaluations):
      log(f"{config.output_dir} has all {first_step} steps already: nothing to train")
      if self.cluster.is_chief and curves.are_outdated(self.results_dir):
        curves.draw_curves(self.results_dir)
      return
    if config.do_predict:
      prediction_sources_of(self.task, config).check_before_training()
    self._describe(data, train, jit_compile)
    metrics_log = MetricsLog(self.results_dir, first_step=first_step, total_steps=train.num_train_steps)

    def evaluate(step: int) -> bool:
      assert evaluations is not None
      self._evaluate_during_training(step, evaluations)
      return self._stops_early(evaluations)

    try:
      batches = iter(self._training_batches(data, train, first_step))
      trainer.train(
        batches, self.checkpoints, metrics_log, make_learning_rate_reader(schedule), evaluate if evaluations else None
      )
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
      if not is_lost_process(error):
        data.explain_failure()
      raise
    finally:
      metrics_log.close()
    self._finish(trainer.step, train)

  def _make_trainer(self, train: TrainConfig, schedule: Any, jit_compile: bool) -> Trainer:
    optimizer = self.config.optimizer
    return Trainer(
      self.task,
      self.model,
      make_optimizer(optimizer, schedule),
      self.strategy,
      train,
      optimizer.clip_norm,
      optimizer.layerwise_learning_rate_decay,
      cluster=self.cluster,
      jit_compile=jit_compile,
    )

  def _finish(self, step: int, train: TrainConfig) -> None:
    """Draws the curves and says where they are."""
    picture = curves.draw_curves(self.results_dir)
    early = f", stopped early ({self.task.best_metric} got no better)" if step < train.num_train_steps else ""
    log(f"trained {step} steps{early}" + (f"; curves in {picture}" if picture else ""))

  def claim_output_dir(self, data: Dataset) -> TrainConfig:
    """Writes config.json and environment.json, and what the task keeps there.

    Returns: the training config, with its number of steps.
    Raises:
      UserError: another run has begun in output_dir, or the weights do not fit.
    """
    config, directory = self.config, self.config.output_dir
    train = strategy.with_train_steps(config.train, data.num_examples)
    is_started = bool(self.checkpoints.steps()) or self._has_results()
    initial_weights = claim_weights(
      directory,
      config.init_checkpoint,
      self.task.vocabulary(),
      from_scratch=config.from_scratch,
      is_started=is_started,
      is_chief=self.cluster.is_chief,
    )
    run_directory.claim(
      directory,
      self._identity() | {"train": train.training_settings() | {"precision": self.precision}},
      {
        **initial_weights,
        "train": train.to_dict() | {"precision": self.precision},
        "data": self.task.all_settings(),
        "recipe": config.recipe,
      },
      is_started=is_started,
      is_chief=self.cluster.is_chief,
      content=data.content if data.content.files else None,
    )
    if self.cluster.is_chief:
      run_directory.write_environment(directory, self.strategy)
      self._keep_files(overwrite=not is_started)
    return train

  def _keep_files(self, *, overwrite: bool) -> None:
    """Copies what the task needs for a later evaluation, such as its vocabulary, into output_dir.

    A run that begins replaces what an earlier attempt with another vocabulary left there.
    """
    for name, source in self.task.files_to_keep().items():
      target = files.join(self.config.output_dir, name)
      if overwrite or not files.exists(target):
        with files.open_file(source) as f:
          files.write_atomically(target, f.read())

  def evaluate(self) -> dict[str, float]:
    """Evaluates a checkpoint (see select_checkpoint), writes eval_results.json and what the task adds to it."""
    self._check_batches(evaluates=True)
    with self.cluster.watched(self._how_to_go_on):
      step, _ = self._load_trained_weights("evaluating")
      results, outputs = self.evaluator.evaluate(self.config.train.max_eval_steps)
    files.makedirs(self.results_dir)
    for split, values in outputs.items():
      self.task.write_evaluation(split, values, self.results_dir)
    files.write_json(files.join(self.results_dir, output_files.EVAL_RESULTS), {"step": step, **results})
    for name, value in results.items():
      print(f"{name} = {value:.6g}", flush=True)
    return results

  def predict(self) -> list[str]:
    """Writes the task's predictions with a checkpoint (see select_checkpoint), and returns their paths.

    Raises:
      UserError: a file is there already that was not predicted from the same input with the same weights.
    """
    self._check_files(predict=True)
    self._check_batches(predicts=True)
    step, checkpoint = self._load_trained_weights("predicting")
    sources = prediction_sources_of(self.task, self.config)
    weights_sha256 = hash_weights(self.model.named_weights())
    sources.check(weights_sha256)
    predictions_file = self.config.predictions_file
    if self.cluster.is_chief:
      sources.write(PredictionSource(checkpoint, step, weights_sha256, sources.inputs))
    elif predictions_file:
      predictions_file = files.join(self.results_dir, os.path.basename(predictions_file))

    def run(data: Dataset) -> Outputs:
      return self.evaluator.run(data)[1]

    with self.cluster.watched(self._how_to_go_on):
      paths = list(self.task.predict(self.model, run, self.results_dir, predictions_file))
    for path in paths:
      log(f"wrote {path}")
    return paths

  def _training_batches(self, data: Dataset, train: TrainConfig, first_step: int) -> tf.distribute.DistributedDataset:
    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
      batches = data.training_batches(
        batch_size=train.train_batch_size,
        first_step=first_step,
        seed=train.seed,
        context=InputContext(
          context.input_pipeline_id,
          context.num_input_pipelines,
          self.strategy.num_replicas_in_sync,
          train.input_parts,
        ),
      )
      if isinstance(self.strategy, tf.distribute.TPUStrategy):
        strategy.check_static_shapes(batches.element_spec)
        strategy.check_host(train.tpu, needs_python=data.needs_python)
      return batches

    return self.strategy.distribute_datasets_from_function(make)

  def _element_spec(self, data: Dataset, train: TrainConfig) -> Mapping[str, tf.TensorSpec]:
    """The shapes of the batches to train on."""
    replicas = self.strategy.num_replicas_in_sync
    context = InputContext(0, strategy.num_hosts(self.strategy), replicas, train.input_parts)
    batches = data.training_batches(batch_size=train.train_batch_size, first_step=0, seed=train.seed, context=context)
    return cast("Mapping[str, tf.TensorSpec]", batches.element_spec)

  def _latest_to_resume(self) -> checkpoints.Checkpoint | None:
    """The newest checkpoint that verifies, None in a new output_dir. UserError if all of them are damaged."""
    newest, skipped = self.checkpoints.latest_to_resume(start_over=self.config.start_over)
    for line in skipped:
      log(f"warning: {line}")
    self.cluster.any(False)  # every process has read the directory before the chief changes it
    return newest

  def _start(self, trainer: Trainer, newest: checkpoints.Checkpoint | None) -> None:
    """Gives the trainer the state it starts from."""
    if self.cluster.is_chief:
      self.checkpoints.remove_leftovers()
      if newest is None:
        self.checkpoints.rename_damaged()  # with --start_over; else there are none
      files.remove_leftovers(self.config.output_dir)
    if newest is not None:
      checkpoints.restore(newest, trainer.state())
      log(f"resumed from {newest.path}")
    elif self.config.init_checkpoint:
      load_initial_weights(self.task, self.model, self.config)
    if self.cluster.sum(trainer.step)[0] != trainer.step * self.cluster.num_processes:
      raise RunError(
        f"this process found step {trainer.step} in {self.checkpoints.directory}, another one did not: give all of "
        "them the same --output_dir, on a file system that they share"
      )

  def _how_to_go_on(self) -> str:
    """What to do when another process or a TPU is lost."""
    try:
      steps = self.checkpoints.steps()
    except (OSError, tf.errors.OpError):  # their file system does not answer either
      steps = []
    newest = f"from step-{steps[-1]}" if steps else "from the last checkpoint, if there is one"
    if self.cluster.num_processes > 1:
      return f"start all of them again with the same command, and they go on {newest}"
    return f"start it again with the same command, and it goes on {newest}"

  def _load_trained_weights(self, purpose: str) -> tuple[int, str]:
    return load_trained_weights(self.task, self.model, self.checkpoints, self.config, purpose)

  def _open_evaluation_log(self, first_step: int) -> EvaluationLog:
    return EvaluationLog(
      self.results_dir,
      first_step=first_step,
      metric=self.task.best_metric,
      higher_is_better=self.task.higher_is_better,
    )

  def _stops_early(self, evaluations: EvaluationLog | None) -> bool:
    patience = self.config.train.early_stopping_patience
    if not patience or evaluations is None:
      return False
    return self.cluster.chief_says(evaluations.evaluations_since_best >= patience)  # it has the whole log

  def _evaluate_during_training(self, step: int, evaluations: EvaluationLog) -> None:
    results, _ = self.evaluator.evaluate(self.config.train.max_eval_steps)
    log(f"step {step} evaluation  {format_metrics(results)}")
    metric = self.task.best_metric
    self.checkpoints.check_lock()
    if self.cluster.is_chief and self.checkpoints.record_evaluation(
      step, metric, results[metric], higher_is_better=self.task.higher_is_better
    ):
      log(f"step {step} is the best so far ({metric} {results[metric]:.5g})")
    evaluations.add(step, results)

  def _identity(self) -> dict[str, Any]:
    config = self.config
    return {
      "task": self.task.name,
      "model": self.task.model_config.to_dict(),
      "optimizer": config.optimizer.training_settings(),
      "train": config.train.training_settings() | {"precision": self.precision},
      "data": self.task.settings(),
      "init_from_shallower": config.init_from_shallower,
    }

  def _has_results(self) -> bool:
    """True for a run of several whose checkpoints are deleted, not for a directory where weights were evaluated."""
    names = (output_files.EVAL_RESULTS, output_files.CONFIG)
    return all(files.exists(files.join(self.config.output_dir, name)) for name in names)

  def _describe(self, data: Dataset, train: TrainConfig, jit_compile: bool) -> None:
    parameters = sum(int(np.prod(v.shape)) for v in self.model.named_weights().values())
    epochs = train.num_train_steps * train.train_batch_size / data.num_examples
    is_compiled = jit_compile or isinstance(self.strategy, tf.distribute.TPUStrategy)
    log(
      f"{parameters:,} parameters, {data.describe()}, {train.num_train_steps} steps ({epochs:.2f} epochs), "
      f"{self.precision}, {'with' if is_compiled else 'without'} XLA, {self.strategy.num_replicas_in_sync} replica(s)"
    )
