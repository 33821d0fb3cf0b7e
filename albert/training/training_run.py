"""One training of a model in an output_dir: resumes it, trains, evaluates during training, and saves checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.run import TrainConfig
from albert.data.dataset import Dataset
from albert.errors import RunError
from albert.io import files
from albert.io.parallel.lost_processes import is_lost_process
from albert.io.progress import ElapsedTime
from albert.optimizers.factory import make_optimizer
from albert.optimizers.loss_scale import LossScale
from albert.optimizers.schedules import WarmupPolynomialDecay, make_schedule
from albert.optimizers.sharding import Sharding
from albert.optimizers.time_limit import TimedDecay, TimeLimit
from albert.runs import curves, output_files
from albert.runs.evaluation_log import EvaluationLog
from albert.runs.metrics_log import MetricsLog, format_metrics, log
from albert.tasks.base import Task
from albert.training.claim import claim_output_dir
from albert.training.distribution.cluster import Cluster
from albert.training.distribution.distributed_batches import distribute_training_batches
from albert.training.evaluator import Evaluator
from albert.training.failed_run import read_training_loss, write_training_loss
from albert.training.loop import Trainer
from albert.training.model_weights import ModelWeights
from albert.training.run_plan import RunPlan, TrainingPlan, is_evaluation_due
from albert.training.stage_plan import StagePlan
from albert.training.stop_request import StopRequest
from albert.weights.checkpoint_files import Checkpoint
from albert.weights.checkpoints import CheckpointManager


class TrainingRun:
  """Trains a model in an output_dir. The caller must hold the lock of the output_dir.

  Args:
    task: defines the data, the losses and the metrics.
    weights: the model and its weights.
    plan: the devices, the precision and the settings of the run.
    cluster: the processes that train together.
    checkpoints: the checkpoints of output_dir.
    evaluator: computes metrics of `model`.
    results_dir: the directory for metrics and curves.
  """

  def __init__(
    self,
    task: Task,
    weights: ModelWeights,
    plan: RunPlan,
    *,
    cluster: Cluster,
    checkpoints: CheckpointManager,
    evaluator: Evaluator,
    results_dir: str,
  ):
    self.task = task
    self.weights = weights
    self.model = weights.model
    self.config = plan.config
    self.strategy = plan.strategy
    self.cluster = cluster
    self.checkpoints = checkpoints
    self.evaluator = evaluator
    self.results_dir = results_dir
    self._run_plan = plan

  def train(self) -> int:
    """Trains from the newest checkpoint of output_dir on, or from the initial weights.

    Returns: the number of updates that the weights have now.
    Raises:
      UserError, RunError, Stopped: see Estimator.train.
    """
    # If all checkpoints are damaged, this raises an error before anything is written to output_dir.
    newest = self._latest_to_resume()
    plan = claim_output_dir(self.task, self._run_plan, self.checkpoints, is_chief=self.cluster.is_chief)
    schedule, time_limit = self._make_schedule(plan)
    with self.strategy.scope():
      stage = plan.stages_after(newest.step if newest else 0)[0]
      optimizer = make_optimizer(plan.optimizer, schedule)
      if plan.train.shard_optimizer_state:
        optimizer.sharding = Sharding.of_strategy(self.strategy)
      loss_scale = None
      if self._run_plan.precision == "float16":
        loss_scale = LossScale()
        optimizer.skips_not_finite = True
      trainer = self._make_trainer(plan, optimizer, stage, loss_scale, time_limit)
      self._load_state(trainer, newest)
    first_step = trainer.step
    evaluation_log = self._open_evaluation_log(first_step) if plan.train.eval_every_steps else None
    if evaluation_log is not None:
      self._evaluate_if_missing(
        first_step, plan.train, evaluation_log, is_over=trainer.last_step(first_step) == first_step
      )
    if first_step >= trainer.last_step(first_step) or self._stops_early(evaluation_log):
      log(f"{self.config.output_dir} has all {first_step} steps already: nothing to train")
      self._finish_interrupted_run(first_step)
      return first_step
    self._log_run(plan)
    record = files.join(self.results_dir, output_files.TRAINING_LOSS)
    if files.exists(record):  # the run has ended before, and its checkpoints were lost
      files.remove(record)
    last_step = self._run_loop(trainer, evaluation_log, _make_learning_rate_reader(schedule))
    self._finish(last_step, plan.train, time_limit)
    return last_step

  def _make_schedule(self, plan: TrainingPlan) -> tuple[WarmupPolynomialDecay, TimeLimit | None]:
    """Makes the schedule of the learning rate. If the run has a time limit, returns it, too."""
    schedule = make_schedule(plan.optimizer, plan.train.num_train_steps, plan.train.train_batch_size)
    max_seconds = plan.train.max_train_seconds
    if not max_seconds:
      return schedule, None
    with self.strategy.scope():
      limit = TimeLimit(max_seconds, warmup_steps=schedule.warmup_steps, max_steps=plan.train.num_train_steps)
    return TimedDecay(schedule, limit), limit

  def _make_trainer(
    self,
    plan: TrainingPlan,
    optimizer: keras.optimizers.Optimizer,
    stage: StagePlan,
    loss_scale: LossScale | None,
    time_limit: TimeLimit | None = None,
  ) -> Trainer:
    with self.strategy.scope():
      return Trainer(self.task, self.model, optimizer, plan, self.cluster, stage, loss_scale, time_limit)

  def _evaluate_if_missing(
    self, step: int, train: TrainConfig, evaluation_log: EvaluationLog, *, is_over: bool
  ) -> None:
    """Evaluates a step whose evaluation is missing, because the run was killed between saving and evaluating it."""
    is_due = step > 0 and is_evaluation_due(train, step, is_over=is_over)
    if self.cluster.is_true_in_chief(is_due and not evaluation_log.has_step(step)):
      self._evaluate_during_training(step, evaluation_log)

  def _finish_interrupted_run(self, step: int) -> None:
    """Does what _finish does, as far as an interrupted run has not done it after its last step."""
    if self.cluster.is_chief:
      self.checkpoints.prune(step)
      if read_training_loss(self.results_dir) is None:
        write_training_loss(self.task, self.results_dir, step)
      if curves.are_outdated(self.results_dir):
        curves.draw_curves(self.results_dir)

  def _latest_to_resume(self) -> Checkpoint | None:
    """Returns the newest intact checkpoint, or None if there is no checkpoint.

    Raises:
      UserError: all checkpoints are damaged, and the config does not say start_over.
    """
    newest, skip_messages = self.checkpoints.latest_to_resume(start_over=self.config.start_over)
    for message in skip_messages:
      log(f"warning: {message}")
    self.cluster.any(False)  # waits until every process has read the directory; then the chief may change it
    return newest

  def _load_state(self, trainer: Trainer, newest: Checkpoint | None) -> None:
    """Restores the checkpoint `newest`. If it is None, loads the weights that a run starts from.

    Raises:
      RunError: another process found another checkpoint.
    """
    if self.cluster.is_chief:
      self.checkpoints.remove_leftovers()
      if newest is None:
        self.checkpoints.rename_damaged()  # there are damaged ones only if start_over is given
      files.remove_leftovers(self.config.output_dir)
    self.weights.start_training(newest, trainer.state())
    if self.cluster.sum(trainer.step)[0] != trainer.step * self.cluster.num_processes:
      raise RunError(
        f"this process found step {trainer.step} in {self.checkpoints.directory}, and another process did not: give "
        "all processes the same --output_dir, on a file system that they share"
      )

  def _run_loop(
    self, trainer: Trainer, evaluation_log: EvaluationLog | None, learning_rate: Callable[[int], float]
  ) -> int:
    """Runs the training loop from the trainer's step on, stage by stage.

    Args:
      trainer: the trainer of the first stage that has steps left.
      evaluation_log: the log of evaluations; None if there are none during training.
      learning_rate: see Trainer.train.
    Returns: the number of updates done.
    """
    plan = trainer.plan
    metrics_log = MetricsLog(self.results_dir, first_step=trainer.step, total_steps=plan.train.num_train_steps)
    evaluate = self._make_evaluate(evaluation_log, metrics_log) if evaluation_log is not None else None
    try:
      with StopRequest() as stop:
        for stage in plan.stages_after(trainer.step):
          if stage is not trainer.stage:
            trainer = self._make_trainer(plan, trainer.optimizer, stage, trainer.loss_scale)
          if stage.num_stages > 1:
            log(stage.describe())
          num_skipped_steps = trainer.step - stage.first_step  # steps of the stage that were done before resuming
          with _explain_reading_errors(stage.data):
            batches = iter(distribute_training_batches(self.strategy, stage.train, stage.data, num_skipped_steps))
            trainer.train(batches, self.checkpoints, metrics_log, learning_rate, evaluate, stop)
          if trainer.step < stage.last_step or self._stops_early(evaluation_log):
            break
    finally:
      metrics_log.close()
    return trainer.step

  def _make_evaluate(self, evaluation_log: EvaluationLog, metrics_log: MetricsLog) -> Callable[[int], bool]:
    """Returns the function that the training loop calls to evaluate a step. It returns whether training must end."""

    def evaluate(step: int) -> bool:
      metrics_log.write_evaluation(step, self._evaluate_during_training(step, evaluation_log))
      return self._stops_early(evaluation_log)

    return evaluate

  def _finish(self, step: int, train: TrainConfig, time_limit: TimeLimit | None) -> None:
    """Deletes old checkpoints, draws the curves, and logs where they are and whether training stopped early."""
    if self.cluster.is_chief:
      self.checkpoints.prune(step)  # if the last evaluation found a new best checkpoint, the former best is deleted
    write_training_loss(self.task, self.results_dir, step)
    picture = curves.draw_curves(self.results_dir)
    early_note = ""
    if time_limit is not None:
      early_note = f" in {time_limit.seconds:.0f} of {time_limit.max_seconds:g} seconds"
      if not time_limit.planned_steps:
        early_note += ", before the end of the warm-up, so that the learning rate never decayed"
    elif step < train.num_train_steps:
      early_note = f", stopped early ({self.task.best_metric} did not improve)"
    curves_note = f"; curves in {picture}" if picture else ""
    log(f"trained {step} steps{early_note}{curves_note}")

  def _open_evaluation_log(self, first_step: int) -> EvaluationLog:
    return EvaluationLog(
      self.results_dir,
      first_step=first_step,
      metric=self.task.best_metric,
      higher_is_better=self.task.higher_is_better,
    )

  def _stops_early(self, evaluation_log: EvaluationLog | None) -> bool:
    """Whether training must end because the last evaluations were not better than an earlier one."""
    patience = self.config.train.early_stopping_patience
    if not patience or evaluation_log is None:
      return False
    # Only the chief has read the whole log.
    return self.cluster.is_true_in_chief(evaluation_log.evaluations_since_best >= patience)

  def _evaluate_during_training(self, step: int, evaluation_log: EvaluationLog) -> dict[str, float]:
    """Evaluates the model, logs the metrics, and records whether this is the best checkpoint so far."""
    log(f"step {step}: evaluating")
    with ElapsedTime(f"step {step}: evaluating"):
      metrics, _ = self.evaluator.evaluate(self.config.train.max_eval_steps)
    log(f"step {step} evaluation  {format_metrics(metrics)}")
    metric, loss = self.task.best_metric, metrics.get(self.task.best_loss)
    self.checkpoints.check_lock()
    if self.cluster.is_chief and self.checkpoints.record_evaluation(
      step, metric, metrics[metric], higher_is_better=self.task.higher_is_better, loss=loss
    ):
      log(f"step {step} is the best so far ({metric} {metrics[metric]:.5g})")
    evaluation_log.add(step, metrics)
    return metrics

  def _log_run(self, plan: TrainingPlan) -> None:
    """Logs the sizes of the model and of the data, the number of steps, and how the step is computed."""
    num_parameters = sum(int(np.prod(variable.shape)) for variable in self.model.named_weights().values())
    num_stages = len(plan.stages)
    data = plan.stages[0].data.describe() if num_stages == 1 else f"{num_stages} stages"
    epochs = sum(stage.num_epochs for stage in plan.stages)
    is_compiled = plan.jit_compile or isinstance(self.strategy, tf.distribute.TPUStrategy)
    log(
      f"{num_parameters:,} parameters, {data}, {plan.train.num_train_steps} steps ({epochs:.2f} epochs), "
      f"{self._run_plan.precision}, {'with' if is_compiled else 'without'} XLA, "
      f"{self.strategy.num_replicas_in_sync} replica(s)"
      f"{'' if self._run_plan.deterministic else ', not deterministic'}"
    )
    log(f"building the graph of the training step{', and compiling it' if is_compiled else ''}: the first step is slow")


@contextlib.contextmanager
def _explain_reading_errors(data: Dataset) -> Iterator[None]:
  """In this context, TensorFlow's errors about a damaged record become a UserError that names its file and number."""
  try:
    yield
  except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
    if not is_lost_process(error):
      data.explain_failure()  # raises a UserError if it finds a damaged record
    raise


def _make_learning_rate_reader(schedule: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[int], float]:
  """Returns a function that maps the number of updates done so far to the learning rate of the next one.

  Args:
    schedule: the same function, which takes and returns tensors.
  """
  return lambda step: float(schedule(tf.constant(step)))
