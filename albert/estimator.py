"""The Estimator trains, evaluates and predicts with one task. Every script and notebook uses it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from albert.config.run import RunConfig, TrainConfig
from albert.data.dataset import Dataset
from albert.errors import RunError, UserError
from albert.io import files
from albert.io.lost_processes import is_lost_process
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import make_schedule
from albert.runs import curves, output_files, run_directory
from albert.runs.directory_lock import DirectoryLock
from albert.runs.evaluation_log import EvaluationLog
from albert.runs.metrics_log import MetricsLog, format_metrics, log
from albert.tasks.base import DatasetOutputs, Task
from albert.training import claim
from albert.training.cluster import Cluster
from albert.training.distributed_batches import distribute_training_batches
from albert.training.evaluator import Evaluator
from albert.training.global_state import deterministic_ops, dtype_policy, initializer_seed
from albert.training.loop import Trainer, is_evaluation_due, make_learning_rate_reader
from albert.training.model_weights import load_initial_weights, load_trained_weights
from albert.training.prediction_sources import PredictionSource, hash_weights, prediction_sources_of
from albert.training.run_plan import TrainingPlan, plan_run, plan_training
from albert.training.strategy import check_batches, check_memory
from albert.weights.checkpoint_files import Checkpoint, restore
from albert.weights.checkpoints import CheckpointManager


class Estimator:
  """Trains, evaluates and predicts with one task in one output_dir.

  A call of train() continues from the newest checkpoint of output_dir. The run ends with the same weights, bit for
  bit, whether or not it was interrupted.

  Construction and training leave the process as they found it: the global seeds of Python, NumPy, TensorFlow and
  Keras, Keras' global dtype policy and TensorFlow's op determinism are the same afterwards.

  Args:
    task: defines the data, the model, the losses and the metrics.
    config: the settings. Its do_train, do_eval and do_predict say which files are checked here, and what run() does;
      train(), evaluate() and predict() may be called in any case.

  Attributes:
    plan: the devices, the precision and the settings in force.
    model: the built model, with newly initialized weights until train(), evaluate() or predict() loads others.
    evaluator: computes metrics and outputs of `model`.
    checkpoints: the checkpoints of output_dir.
    results_dir: the directory for metrics and predictions: output_dir, or a temporary one in a worker process that is
      not the chief.

  Raises:
    UserError: a file is missing or cannot be used, there is no such device, or settings do not fit together.
    RunError: the other processes cannot be reached.

  Example:

    task = PretrainingTask(albert.config.model.MODELS["albert_tiny"], PretrainingConfig(input_file="shards/*.tfrecord"))
    config = RunConfig(output_dir="run", train=TrainConfig(train_batch_size=32, num_train_steps=1000))
    estimator = Estimator(task, config)
    estimator.train()
    metrics = estimator.evaluate()  # {"loss": 2.31, "masked_lm_loss": 1.92, ...}
  """

  def __init__(self, task: Task, config: RunConfig):
    self.task = task
    self.config = config
    # Files are checked before the devices are set up, which may take minutes.
    self._check_files(train=config.do_train, evaluate=config.do_eval, predict=config.do_predict)
    self.plan = plan_run(config)
    self.config = self.plan.config
    self.strategy = self.plan.strategy
    self._check_batches(train=config.do_train, evaluate=config.do_eval, predict=config.do_predict)
    check_memory(task.model_config, self.strategy, trains=config.do_train)
    self.cluster = Cluster(self.strategy)
    # Every process writes metrics and predictions, but only the files of the chief are kept.
    self._scratch_dir = None if self.cluster.is_chief else tempfile.TemporaryDirectory()
    self.results_dir = self._scratch_dir.name if self._scratch_dir else config.output_dir
    self.checkpoints = CheckpointManager(
      files.join(config.output_dir, output_files.CHECKPOINTS),
      keep=config.train.keep_checkpoints,
      model_config=task.model_config,
    )
    with (
      self._running(),
      self.strategy.scope(),
      dtype_policy(self.plan.precision),
      initializer_seed(config.train.seed),
    ):
      self.model = task.build_model()
      self.model.encoder.recompute_grad = config.train.recompute_grad
      self.evaluator = Evaluator(task, self.model, self.strategy, config.train.eval_batch_size)

  @contextlib.contextmanager
  def _running(self) -> Iterator[None]:
    """Uses deterministic kernels, and reports the loss of another process or of the TPU as a RunError."""
    with self.cluster.report_lost_processes(self._advice_after_loss), deterministic_ops():
      yield

  def _check_files(self, *, train: bool = False, evaluate: bool = False, predict: bool = False) -> None:
    """Reads the input files that these actions need, and checks that results can be written.

    Raises:
      UserError: a file is missing or cannot be used, or a file that would be overwritten holds other predictions.
    """
    if train and self.task.needs_initial_weights and not (self.config.init_checkpoint or self.config.from_scratch):
      raise UserError(
        "--do_train needs --init_checkpoint, the weights to start from; for random weights give --from_scratch"
      )
    evaluate = evaluate or (train and self.config.train.eval_every_steps > 0)
    self.task.check_inputs(train=train, evaluate=evaluate, predict=predict)
    if train or evaluate or predict:
      run_directory.check_writable(self.config.output_dir)
    if predict:
      sources = prediction_sources_of(self.task, self.config)
      sources.check_writable()
      sources.check()

  def _check_batches(self, *, train: bool = False, evaluate: bool = False, predict: bool = False) -> None:
    """Checks the batch sizes that these actions use (see check_batches)."""
    evaluate = evaluate or (train and self.config.train.eval_every_steps > 0)
    evaluate = evaluate or (predict and self.task.predicts_in_batches)
    check_batches(self.config.train, self.strategy, trains=train, evaluates=evaluate)

  def run(self) -> None:
    """Trains, evaluates and predicts, in this order, as do_train, do_eval and do_predict of the config say.

    Raises:
      UserError, RunError, Stopped: see train, evaluate and predict.
    """
    if self.config.do_train:
      self.train()
    if self.config.do_eval:
      self.evaluate()
    if self.config.do_predict:
      self.predict()

  def train(self) -> None:
    """Trains until num_train_steps are done, and writes checkpoints, metrics and curves to output_dir.

    Training starts from the newest checkpoint of output_dir. If there is none, it starts from init_checkpoint, or from
    newly initialized weights if that is empty too.

    Raises:
      UserError: the data, the settings or output_dir cannot be used, for example because output_dir belongs to a run
        with other settings.
      RunError: a loss or a weight is not finite, or another process was lost.
      Stopped: SIGTERM or SIGINT was received; the state has been saved.
    """
    self._check_files(train=True)
    self._check_batches(train=True)
    with self._running(), self._locked():
      self._train()

  @contextlib.contextmanager
  def _locked(self) -> Iterator[None]:
    """Holds the lock of output_dir, so that no other run trains there. Only the chief takes the lock.

    Every process must call it.
    """
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
        raise error or RunError(f"the chief process cannot train in {self.config.output_dir}: see its error message")
      yield
    finally:
      self.checkpoints.lock = None
      lock.release()

  def _train(self) -> None:
    data = self.task.training_data()
    # If all checkpoints are damaged, this raises an error before anything is written to output_dir.
    newest = self._latest_to_resume()
    plan = self.claim_output_dir(data)
    schedule = make_schedule(plan.optimizer, plan.train.num_train_steps, plan.train.train_batch_size)
    with self.strategy.scope():
      trainer = Trainer(self.task, self.model, make_optimizer(plan.optimizer, schedule), plan, self.cluster)
      self._load_state(trainer, newest)
    first_step = trainer.step
    evaluations = self._open_evaluation_log(first_step) if plan.train.eval_every_steps else None
    if evaluations is not None:
      is_due = first_step > 0 and is_evaluation_due(plan.train, first_step)
      # The run was killed after it saved this step and before it evaluated it.
      if self.cluster.is_true_in_chief(is_due and not evaluations.has_step(first_step)):
        self._evaluate_during_training(first_step, evaluations)
    if first_step >= plan.train.num_train_steps or self._stops_early(evaluations):
      log(f"{self.config.output_dir} has all {first_step} steps already: nothing to train")
      if self.cluster.is_chief:
        self.checkpoints.prune(first_step)  # a signal at the last step saves without deleting old checkpoints
        if curves.are_outdated(self.results_dir):
          curves.draw_curves(self.results_dir)
      return
    if self.config.do_predict:
      prediction_sources_of(self.task, self.config).check_before_training()
    self._log_run(data, plan)
    self._run_loop(trainer, data, evaluations, make_learning_rate_reader(schedule))
    self._finish(trainer.step, plan.train)

  def _run_loop(
    self,
    trainer: Trainer,
    data: Dataset,
    evaluations: EvaluationLog | None,
    learning_rate: Callable[[int], float],
  ) -> None:
    """Runs the training loop from the trainer's step on. A reading error names the file and the record."""
    train = trainer.plan.train
    metrics_log = MetricsLog(self.results_dir, first_step=trainer.step, total_steps=train.num_train_steps)

    def evaluate(step: int) -> bool:
      assert evaluations is not None
      self._evaluate_during_training(step, evaluations)
      return self._stops_early(evaluations)

    try:
      batches = iter(distribute_training_batches(self.strategy, train, data, trainer.step))
      trainer.train(
        batches, self.checkpoints, metrics_log, learning_rate, evaluate if evaluations is not None else None
      )
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
      if not is_lost_process(error):
        data.explain_failure()
      raise
    finally:
      metrics_log.close()

  def _finish(self, step: int, train: TrainConfig) -> None:
    """Draws the learning curves, and logs where they are and whether training stopped early."""
    picture = curves.draw_curves(self.results_dir)
    early = f", stopped early ({self.task.best_metric} did not improve)" if step < train.num_train_steps else ""
    log(f"trained {step} steps{early}" + (f"; curves in {picture}" if picture else ""))

  def claim_output_dir(self, data: Dataset) -> TrainingPlan:
    """Makes output_dir the directory of this run: writes config.json, environment.json and the task's files.

    Args:
      data: the training data. It decides the number of steps if the config gives a number of epochs.
    Returns: the plan of the training.
    Raises:
      UserError: output_dir belongs to a run with other settings, or the weights to start from do not fit.
    """
    plan = plan_training(self.plan, data)
    claim.claim_output_dir(self.task, self.plan, plan.train, data, self.checkpoints, is_chief=self.cluster.is_chief)
    return plan

  def evaluate(self) -> dict[str, float]:
    """Evaluates the newest or the best checkpoint, as select_checkpoint says; without one, init_checkpoint.

    It prints the metrics and writes them to eval_results.json, and the task may write more files, such as predictions.

    Returns: the metrics by name. With several evaluation sets, `SPLIT_` starts each name.
    Raises:
      UserError: there are no weights to evaluate, or they belong to other settings of the task.
      RunError: another process was lost.
    """
    self._check_batches(evaluate=True)
    with self._running():
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
    """Predicts with the newest or the best checkpoint, as select_checkpoint says; without one, with init_checkpoint.

    Returns: the paths of the files that it wrote.
    Raises:
      UserError: there are no weights to predict with, or a predictions file already exists that was not made from the
        same input with the same weights.
      RunError: another process was lost.
    """
    self._check_files(predict=True)
    self._check_batches(predict=True)
    step, checkpoint = self._load_trained_weights("predicting")
    sources = prediction_sources_of(self.task, self.config)
    weights_sha256 = hash_weights(self.model.named_weights())
    sources.check(weights_sha256)
    predictions_file = self.config.predictions_file
    if self.cluster.is_chief:
      sources.write(PredictionSource(checkpoint, step, weights_sha256, sources.inputs))
    elif predictions_file:
      predictions_file = files.join(self.results_dir, os.path.basename(predictions_file))

    def compute_outputs(data: Dataset) -> DatasetOutputs:
      return self.evaluator.run(data)[1]

    with self._running():
      paths = list(self.task.predict(self.model, compute_outputs, self.results_dir, predictions_file))
    for path in paths:
      log(f"wrote {path}")
    return paths

  def _latest_to_resume(self) -> Checkpoint | None:
    """The newest intact checkpoint, or None if there is no checkpoint.

    Raises:
      UserError: all checkpoints are damaged, and the config does not say start_over.
    """
    newest, skipped = self.checkpoints.latest_to_resume(start_over=self.config.start_over)
    for line in skipped:
      log(f"warning: {line}")
    self.cluster.any(False)  # waits until every process has read the directory; then the chief may change it
    return newest

  def _load_state(self, trainer: Trainer, newest: Checkpoint | None) -> None:
    """Restores `newest`, or loads init_checkpoint into the weights if there is no checkpoint.

    Raises:
      RunError: another process found another checkpoint.
    """
    if self.cluster.is_chief:
      self.checkpoints.remove_leftovers()
      if newest is None:
        self.checkpoints.rename_damaged()  # there are damaged ones only if start_over is given
      files.remove_leftovers(self.config.output_dir)
    if newest is not None:
      restore(newest, trainer.state())
      log(f"resumed from {newest.path}")
    elif self.config.init_checkpoint:
      load_initial_weights(self.task, self.model, self.config)
    if self.cluster.sum(trainer.step)[0] != trainer.step * self.cluster.num_processes:
      raise RunError(
        f"this process found step {trainer.step} in {self.checkpoints.directory}, and another process did not: give "
        "all processes the same --output_dir, on a file system that they share"
      )

  def _advice_after_loss(self) -> str:
    """Says how to continue the run after another process or the TPU was lost."""
    try:
      steps = self.checkpoints.steps()
    except (OSError, tf.errors.OpError):  # the file system of output_dir does not answer either
      steps = []
    newest = f"from step-{steps[-1]}" if steps else "from the last checkpoint, if there is one"
    if self.cluster.num_processes > 1:
      return f"start all processes again with the same command, and they continue {newest}"
    return f"start it again with the same command, and it continues {newest}"

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
    # Only the chief has read the whole log.
    return self.cluster.is_true_in_chief(evaluations.evaluations_since_best >= patience)

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

  def _log_run(self, data: Dataset, plan: TrainingPlan) -> None:
    """Logs the sizes of the model and of the data, the number of steps, and how the step is computed."""
    train = plan.train
    parameters = sum(int(np.prod(v.shape)) for v in self.model.named_weights().values())
    epochs = train.num_train_steps * train.train_batch_size / data.num_examples
    is_compiled = plan.jit_compile or isinstance(self.strategy, tf.distribute.TPUStrategy)
    log(
      f"{parameters:,} parameters, {data.describe()}, {train.num_train_steps} steps ({epochs:.2f} epochs), "
      f"{self.plan.precision}, {'with' if is_compiled else 'without'} XLA, "
      f"{self.strategy.num_replicas_in_sync} replica(s)"
    )
