"""The training of a run in an output_dir, from top to bottom.

What comes before `train_run`, in the order of time, is done by the command or the Estimator:

    settings                 albert.settings.resolve.resolve_settings
    read the files once      albert.settings.resolve.ResolvedSettings.read_inputs, which imports no TensorFlow
    choose devices           albert.training.run_plan.plan_run
    build the model          albert.training.model_weights.ModelWeights
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.config.run import RunConfig, TrainConfig
from albert.errors import RunError, UserError
from albert.io import files
from albert.io.progress import elapsed_time, log
from albert.io.text import counted
from albert.metrics.squad import THRESHOLD_GAIN
from albert.optimizers.factory import make_optimizer
from albert.optimizers.gradients import LossScale, Sharding
from albert.optimizers.schedules import TimedDecay, TimeLimit, WarmupPolynomialDecay, make_schedule
from albert.runs import figures, logs, output_files
from albert.runs.directory_lock import DirectoryLock
from albert.runs.logs import (
  EVENT_KEY,
  STATUS_KEY,
  EvaluationLog,
  MetricsCallback,
  MetricsLog,
  format_evaluation,
  format_metrics,
  guessed_metric,
  kind_of,
  read_metrics,
)
from albert.runs.watch import ACCURACY_MARGIN, COLLAPSE, GUESSING_SHARE, PLATEAU, SPIKE, WATCHED_METRICS, Watch
from albert.tasks.base import LOSS, Task
from albert.training.distribution import Cluster, distribute_training_batches, explain_reading_errors
from albert.training.evaluator import Evaluator
from albert.training.loop import StopRequest, Trainer
from albert.training.model_weights import ModelWeights
from albert.training.run_plan import RunPlan, TrainingPlan, is_evaluation_due, joint_content, plan_training
from albert.weights import initial_weights
from albert.weights.checkpoints import Checkpoint, CheckpointManager
from albert.weights.files import RESUME_FLAG, open_weights

# A sentence about the progress is logged at every multiple of this number of steps, and after this number of seconds.
_STEPS_BETWEEN_STATUS, _SECONDS_BETWEEN_STATUS = 1000, 3600


def train_run(
  task: Task,
  weights: ModelWeights,
  run_plan: RunPlan,
  *,
  cluster: Cluster,
  checkpoints: CheckpointManager,
  evaluator: Evaluator,
  results_dir: str,
  callbacks: Sequence[MetricsCallback] = (),
) -> int:
  """Trains from the newest checkpoint of output_dir on, or from the initial weights.

  Args:
    task: defines the data, the losses and the metrics.
    weights: the model and its weights.
    run_plan: the devices, the precision and the settings of the run.
    cluster: the processes that train together.
    checkpoints: the checkpoints of output_dir.
    evaluator: computes metrics of the model.
    results_dir: the directory for metrics and curves.
    callbacks: are called with the metrics of each logged step and of each evaluation.
  Returns: the number of updates that the weights have now.
  """
  config, strategy = run_plan.config, run_plan.strategy

  # Tokenize the training data, or read its cached features.
  task.tokenize()

  # Plan the steps: the number of examples decides how many there are.
  plan = plan_training(run_plan, task.training_stages())

  # Lock output_dir, and claim it for this run.
  claim = functools.partial(claim_output_dir, task, run_plan, plan, checkpoints)
  with training_lock(config.output_dir, cluster, checkpoints, claim):
    # If all checkpoints are damaged, this raises an error before config.json or a checkpoint is written.
    newest = checkpoints.latest_to_resume(start_over=config.start_over)
    start = newest or _find_start(task, run_plan, plan)
    cluster.any(False)  # waits until every process has read the directory; then the chief may change it
    claim(is_chief=cluster.is_chief)

    # Make the optimizer of the model.
    with strategy.scope():
      schedule, time_limit = _make_schedule(plan)
      optimizer, loss_scale = _make_optimizer(plan, run_plan.precision, schedule)
      stages = plan.stages_after(start.step if start else 0)
      trainer = Trainer(task, weights.model, optimizer, plan, cluster, stages[0], loss_scale, time_limit)

    # Restore the newest checkpoint, or that of --resume_from, or load the initial weights.
    _tidy_output_dir(checkpoints, config.output_dir, has_checkpoint=newest is not None, is_chief=cluster.is_chief)
    weights.start_training(start, trainer.state())
    step = trainer.step
    _check_same_step(step, cluster, checkpoints)

    # A run that was killed between saving and evaluating a step lacks the evaluation. A finished run has nothing to do.
    is_over = step >= trainer.last_step(step)
    evaluations = EvaluationsInTraining(task, evaluator, checkpoints, cluster, plan.train, results_dir, step)
    evaluations.evaluate_if_missing(step if newest else 0, is_over=is_over)
    if is_over or evaluations.must_stop():
      log(f"{config.output_dir} has all {step} steps already: nothing to train")
      _finish(task, checkpoints, cluster, results_dir, step)
      return step

    # Train, stage by stage.
    watch = RunWatch(task, run_plan, plan, cluster, checkpoints, results_dir, step, schedule)
    _begin(task, weights.model, run_plan, plan, results_dir, step)
    metrics_log = MetricsLog(results_dir, step, plan.train, [*callbacks, watch.check], watch.annotate, plan.cost)
    with contextlib.closing(metrics_log), StopRequest() as stop:
      for stage in stages:
        if stage is not trainer.stage:
          with strategy.scope():
            trainer = Trainer(task, weights.model, optimizer, plan, cluster, stage, loss_scale)
        if stage.num_stages > 1:
          log(stage.describe(task.model_config.num_hidden_layers))
        with explain_reading_errors(stage.data):
          # The batches of the steps that were done before resuming are skipped.
          data = distribute_training_batches(strategy, stage.train, stage.data, trainer.step - stage.first_step)
          trainer.train(
            iter(data),
            checkpoints,
            metrics_log,
            learning_rate=lambda step: float(schedule(tf.constant(step))),
            stop=stop,
            evaluate=functools.partial(evaluations.evaluate_step, metrics_log),
          )
        if trainer.step < stage.last_step or evaluations.must_stop():
          break

    # Finish: old checkpoints are deleted, and curves are drawn.
    _log_end(task, plan, time_limit, trainer.step, _finish(task, checkpoints, cluster, results_dir, trainer.step))
    return trainer.step


@contextlib.contextmanager
def training_lock(
  output_dir: str, cluster: Cluster, checkpoints: CheckpointManager, claim: Callable[..., None]
) -> Iterator[None]:
  """Within this context, the chief process holds the lock of output_dir, so that no other run trains there.

  Every process must enter it.

  Args:
    output_dir: the directory to lock.
    cluster: the processes of the run.
    checkpoints: the checkpoints of output_dir. In the chief process they check the lock before they write.
    claim: called with is_chief=False, checks that this run may use output_dir; see claim_output_dir.
  Raises:
    UserError: another run trains in output_dir, or output_dir is remote and belongs to a run with other settings.
    RunError: the lock cannot be used, or the chief process could not get it.
  """
  lock = DirectoryLock(output_dir, "training")
  chief_error: UserError | RunError | None = None
  if cluster.is_chief:
    try:
      if files.is_remote(output_dir):  # where the lock is taken from a running process, which a mistake must not stop
        claim(is_chief=False)
      lock.acquire()
      checkpoints.lock = lock
    except (UserError, RunError) as error:
      chief_error = error
  try:
    if cluster.any(chief_error is not None):
      raise chief_error or RunError(f"the chief process cannot train in {output_dir}: see its error message")
    yield
  finally:
    checkpoints.lock = None
    lock.release()


def claim_output_dir(
  task: Task, run_plan: RunPlan, plan: TrainingPlan, checkpoints: CheckpointManager, *, is_chief: bool
) -> None:
  """Writes config.json, environment.json and the task's files. If a run has started there, it must be the same run.

  Args:
    task: the task of the run.
    run_plan: the run's devices, precision and settings.
    plan: the plan of the training.
    checkpoints: the checkpoints of the output_dir.
    is_chief: whether this process writes the files. Other processes only check the settings.
  Raises:
    UserError: the output_dir belongs to a run with other settings or data, or the weights to start from do not fit.
  """
  config, precision = run_plan.config, {"precision": run_plan.precision}
  directory, content = config.output_dir, joint_content(plan.stages)
  # The checkpoints of a run that has ended may be deleted (see albert.multi_seed).
  is_started = bool(checkpoints.steps()) or files.exists(files.join(directory, output_files.TRAINING_LOSS))
  weights_settings = initial_weights.claim_initial_weights(
    directory,
    config.init_checkpoint,
    task.vocabulary(),
    from_scratch=config.from_scratch,
    is_started=is_started,
    is_chief=is_chief,
  )
  output_files.claim_directory(
    directory,
    # The settings that must stay the same when a run is resumed.
    training_settings={
      "task": task.name,
      "model": task.model_config.to_dict(),
      "optimizer": plan.optimizer.training_settings(),
      "train": plan.train.training_settings() | precision,
      "stages": [stage.to_dict() for stage in plan.stages if stage.is_of_divided_run],
      "data": task.settings(),
      "init_from_shallower": config.init_from_shallower,
      "resume_from": config.resume_from,
    },
    recorded_sections={
      **weights_settings,
      "train": plan.train.to_dict() | precision,
      "data": task.all_settings(),
      "recipe": config.recipe,
    },
    is_started=is_started,
    is_chief=is_chief,
    content=content if content.files else None,
  )
  if is_chief:
    output_files.write_environment(directory, run_plan.strategy)
    # Write the files that later commands need, such as the vocabulary. A new run replaces those of an earlier attempt,
    # which may have had another vocabulary.
    sources, records = task.files_to_keep(), task.data_records()
    for name in (*sources, *records):
      target = files.join(directory, name)
      if not is_started or not files.exists(target):
        files.write_atomically(target, files.read(sources[name]) if name in sources else records[name])


def _make_schedule(plan: TrainingPlan) -> tuple[WarmupPolynomialDecay, TimeLimit | None]:
  """Makes the schedule of the learning rate. If the run has a time limit, returns it, too."""
  schedule = make_schedule(plan.optimizer, plan.train.num_train_steps, plan.train.train_batch_size)
  max_seconds = plan.train.max_train_seconds
  if not max_seconds:
    return schedule, None
  limit = TimeLimit(max_seconds, warmup_steps=schedule.warmup_steps, max_steps=plan.train.num_train_steps)
  return TimedDecay(schedule, limit), limit


def _make_optimizer(
  plan: TrainingPlan, precision: str, schedule: WarmupPolynomialDecay
) -> tuple[keras.optimizers.Optimizer, LossScale | None]:
  """Makes the optimizer. For float16, returns the scale of the loss, too."""
  optimizer = make_optimizer(plan.optimizer, schedule)
  if plan.train.shard_optimizer_state:
    optimizer.sharding = Sharding.of_strategy(plan.strategy)
  if precision != "float16":
    return optimizer, None
  optimizer.skips_not_finite = True
  return optimizer, LossScale()


def _tidy_output_dir(checkpoints: CheckpointManager, output_dir: str, *, has_checkpoint: bool, is_chief: bool) -> None:
  """Removes what an interrupted run has left, and renames damaged checkpoints if the run starts over."""
  if not is_chief:
    return
  checkpoints.remove_leftovers()
  if not has_checkpoint:
    checkpoints.rename_damaged()  # there are damaged ones only if start_over is given
  files.remove_leftovers(output_dir)


def _check_same_step(step: int, cluster: Cluster, checkpoints: CheckpointManager) -> None:
  """Raises RunError if another process found another checkpoint."""
  if cluster.sum(step)[0] != step * cluster.num_processes:
    raise RunError(
      f"this process found step {step} in {checkpoints.directory}, and another process did not: give all processes "
      "the same --output_dir, on a file system that they share"
    )


def _find_start(task: Task, run_plan: RunPlan, plan: TrainingPlan) -> Checkpoint | None:
  """Finds the checkpoint of --resume_from, which a new run starts from; None if it does not start from one.

  Logs the settings in which the new run differs from that of the checkpoint.

  Raises:
    UserError: the checkpoint is missing, damaged or of another model, has another vocabulary, or no steps are left.
  """
  if not run_plan.config.resume_from:
    return None
  weights = open_weights(run_plan.config.resume_from, flag=RESUME_FLAG)
  start = Checkpoint(weights.step_to_resume(plan.train.num_train_steps), weights.directory)
  remedy = "leave out the flags of the model"
  initial_weights.check_config(weights, task.model_config, initial_weights.FIELDS_NOT_IN_SHAPES, remedy)
  initial_weights.check_head(weights, task.head_settings())
  if vocabulary := task.vocabulary():
    weights.check_vocabulary(vocabulary.sha256, vocabulary.name)
  train = plan.train.training_settings() | {"precision": run_plan.precision}
  settings = {"train": train, "optimizer": plan.optimizer.training_settings(), "data": task.settings()}
  changes = [f"{key} {new!r} (was {old!r})" for key, new, old in output_files.differences(settings, weights.run)]
  if changes:
    log(f"{RESUME_FLAG}={weights.path}: settings that differ from its run: {', '.join(changes)}")
  return start


class RunWatch:
  """Watches the logged metrics of a run, reports what it finds, and stops a run that has collapsed.

  Only the chief has the lines from before a run was resumed, so it watches and decides.

  Args:
    task, run_plan, plan, cluster, checkpoints, results_dir: see train_run.
    first_step: the step that training starts or resumes at.
    schedule: the schedule of the learning rate.
  """

  def __init__(
    self,
    task: Task,
    run_plan: RunPlan,
    plan: TrainingPlan,
    cluster: Cluster,
    checkpoints: CheckpointManager,
    results_dir: str,
    first_step: int,
    schedule: WarmupPolynomialDecay,
  ):
    self._config, self._settings = run_plan.config, task.watch_settings(run_plan.config)
    self._cluster, self._checkpoints, self._results_dir = cluster, checkpoints, results_dir
    total_steps = plan.train.num_train_steps
    self._total_steps = 0 if isinstance(schedule, TimedDecay) else total_steps  # 0 if it is not known
    self._last_step, self._last_shown = first_step, time.monotonic()
    self._watch = Watch(self._settings.guess, total_steps=total_steps, warmup_steps=schedule.warmup_steps)
    self._events: list[str] = []
    for line in read_metrics(results_dir):
      if line["step"] <= first_step:
        self._find_event(line)

  def annotate(self, line: dict[str, Any], seconds_left: float) -> dict[str, str]:
    """Adds a line of metrics.jsonl to the watch. Returns and logs texts for it: an event, and at times the progress."""
    notes: dict[str, str] = {}
    if WATCHED_METRICS[0] not in line or not self._cluster.is_chief:
      return notes
    step, last_step, now = line["step"], self._last_step, time.monotonic()
    self._last_step = step
    if event := self._find_event(line):
      notes[EVENT_KEY] = event
      if not (kind_of(event) == COLLAPSE and self._settings.stops):  # else it becomes an error
        log(f"{'' if kind_of(event) == SPIKE else 'warning: '}{event}")
    is_due = step // _STEPS_BETWEEN_STATUS > last_step // _STEPS_BETWEEN_STATUS
    if is_due or now - self._last_shown >= _SECONDS_BETWEEN_STATUS:
      notes[STATUS_KEY], self._last_shown = self._status(line, seconds_left), now
      log(notes[STATUS_KEY])
    return notes

  def check(self, step: int, metrics: Mapping[str, float]) -> None:
    """A MetricsCallback: raises RunError if the run has collapsed and --on_collapse=stop."""
    del metrics
    if self._settings.stops and self._cluster.is_true_in_chief(self._watch.is_collapsed):
      if not self._cluster.is_chief:
        raise RunError("the run has collapsed: see the error of the chief process")
      figures.draw_curves(self._results_dir)
      event = next(event for event in reversed(self._events) if kind_of(event) == COLLAPSE)
      raise RunError(f"stopped at step {step}: {event}; or go on here with --on_collapse=warn")

  def _find_event(self, line: dict[str, Any]) -> str:
    """Adds a line to the watch. Returns what it shows, with the likely cause and the remedy; "" for no event."""
    event = self._watch.add(line)
    self._checkpoints.healthy_step = self._watch.healthy_step
    if event:
      event = line.get(EVENT_KEY) or event + self._advice(kind_of(event))
      self._events.append(event)
    return event

  def _advice(self, kind: str) -> str:
    """Returns the likely cause and the remedy."""
    if kind == SPIKE:
      return ""
    config, hazards = self._config, "; ".join(self._settings.hazards[:2])
    cause = f"; likely cause: {hazards or 'a learning rate that is too high for this seed and batch'}"
    steps = [step for step in self._checkpoints.steps() if step <= (self._watch.healthy_step or 0)]
    if kind == PLATEAU or not steps:
      return f"{cause}; start again with this changed, in a new --output_dir"
    without = " without --init_checkpoint," if config.init_checkpoint else ""
    return (
      f"{cause}; to go on from before it, give the same command{without} with "
      f"--resume_from={self._checkpoints.path(steps[-1])} --output_dir={config.output_dir.rstrip('/')}-2 "
      f"--seed={config.train.seed + 1} --learning_rate={config.optimizer.learning_rate / 2:.3g}"
    )

  def _status(self, line: dict[str, Any], seconds_left: float) -> str:
    """Returns how far the run is and what it has learned, for a person."""
    step, total, best = line["step"], self._total_steps, self._watch.best
    text = f"step {step:,}"
    if total:
      text += f" of {total:,} ({step / total:.1%})"
      text += f", {datetime.timedelta(seconds=round(seconds_left))} left" if math.isfinite(seconds_left) else ""
    for name, of_guessing in zip(WATCHED_METRICS, self._settings.guess, strict=True):
      text += f"; {name} {line[name]:.4g} (guessing {of_guessing:.4g})"
    text += f"; best smoothed loss {best[0]:.4g} at step {best[1]:,}" if math.isfinite(best[0]) else ""
    return f"{text}; found: {', '.join(map(kind_of, self._events)) or 'nothing unusual'}"


class EvaluationsInTraining:
  """Evaluates during training, records the best checkpoint, and decides whether training stops early.

  Args:
    task, evaluator, checkpoints, cluster, results_dir: see train_run.
    train: the settings of TrainingPlan. Without eval_every_steps, there are no evaluations.
    first_step: the step that training starts or resumes at.
  """

  def __init__(
    self,
    task: Task,
    evaluator: Evaluator,
    checkpoints: CheckpointManager,
    cluster: Cluster,
    train: TrainConfig,
    results_dir: str,
    first_step: int,
  ):
    self._task, self._evaluator, self._checkpoints, self._cluster = task, evaluator, checkpoints, cluster
    self._train = train
    self._log: EvaluationLog | None = None
    if train.eval_every_steps:
      self._log = EvaluationLog(
        results_dir, first_step=first_step, metric=task.best_metric, higher_is_better=task.higher_is_better
      )

  def evaluate(self, step: int) -> dict[str, float]:
    """Evaluates the model, logs the metrics, and records whether this is the best checkpoint so far."""
    assert self._log is not None
    with elapsed_time(f"step {step}: evaluating"):
      metrics, outputs = self._evaluator.evaluate(self._train.max_eval_steps)
    self._evaluator.latest = (step, metrics, outputs)
    metric, loss = self._task.best_metric, metrics.get(self._task.best_loss)
    self._checkpoints.check_lock()
    is_best = self._cluster.is_chief and self._checkpoints.record_evaluation(
      step, metric, metrics[metric], higher_is_better=self._task.higher_is_better, loss=loss
    )
    main_metrics = format_evaluation(metrics, metric, self._task.best_loss)
    log(f"evaluation at step {step}: {main_metrics}{f'; the best {metric} so far' if is_best else ''}")
    log(f"step {step}: {format_metrics(metrics)}", is_detail=True)
    self._log.add(step, metrics)
    return metrics

  def evaluate_step(self, metrics_log: MetricsLog, step: int) -> bool:
    """Evaluates a step of the training loop. Returns whether training must end."""
    metrics_log.write_evaluation(step, self.evaluate(step))
    return self.must_stop()

  def evaluate_if_missing(self, step: int, *, is_over: bool) -> None:
    """Evaluates a step whose evaluation is missing, because the run was killed between saving and evaluating it."""
    if self._log is None:
      return
    is_due = step > 0 and is_evaluation_due(self._train, step, is_over=is_over)
    if self._cluster.is_true_in_chief(is_due and not self._log.has_step(step)):
      self.evaluate(step)

  def must_stop(self) -> bool:
    """Whether training must end because the last evaluations were not better than an earlier one."""
    patience = self._train.early_stopping_patience
    if not patience or self._log is None:
      return False
    # Only the chief has read the whole log.
    return self._cluster.is_true_in_chief(self._log.evaluations_since_best >= patience)


def _begin(task: Task, model: keras.Model, run_plan: RunPlan, plan: TrainingPlan, results_dir: str, step: int) -> None:
  """Logs what is trained, from what, and on which devices. Removes the record of an earlier end."""
  num_parameters = sum(int(np.prod(variable.shape)) for variable in model.named_weights().values())
  num_stages = len(plan.stages)
  data = plan.stages[0].data.describe() if num_stages == 1 else f"{num_stages} stages"
  batch = f" of {counted(plan.train.train_batch_size, 'example', ',')}" if num_stages == 1 else ""
  epochs, num_steps = sum(stage.num_epochs for stage in plan.stages), plan.train.num_train_steps
  start = f"step {step}" if step else run_plan.config.init_checkpoint or "random weights"
  log(
    f"training on {data}: {counted(num_steps, 'step', ',')}{batch} "
    f"({epochs:,.4g} epoch{'' if epochs == 1 else 's'}) from {start}; {num_parameters:,} parameters; {run_plan.devices}"
  )
  for line in plan.train.length_warnings(plan.stages[0].data.num_examples) if task.usual_epochs else ():
    log(line)
  is_compiled = plan.jit_compile or isinstance(plan.strategy, tf.distribute.TPUStrategy)
  log(f"compiled by XLA: {is_compiled}; deterministic: {run_plan.deterministic}", is_detail=True)
  record = files.join(results_dir, output_files.TRAINING_LOSS)
  if files.exists(record):  # the run has ended before, and its checkpoints were lost
    files.remove(record)


def _finish(task: Task, checkpoints: CheckpointManager, cluster: Cluster, results_dir: str, step: int) -> str | None:
  """Deletes old checkpoints; records the end and draws curves if that is missing. Returns the path of new curves."""
  if cluster.is_chief:
    checkpoints.prune(step)  # if the last evaluation found a new best checkpoint, the former best is deleted
  if read_training_loss(results_dir) is None:
    write_training_loss(task, results_dir, step)
  return figures.draw_curves(results_dir) if figures.are_outdated(results_dir) else None


def _log_end(task: Task, plan: TrainingPlan, time_limit: TimeLimit | None, step: int, picture: str | None) -> None:
  """Logs the number of steps, whether training ended by the clock or early, and where the curves are."""
  note = ""
  if time_limit is not None:
    note = f" in {time_limit.seconds:.0f} of {time_limit.max_seconds:g} seconds"
  elif step < plan.train.num_train_steps:
    note = f", stopped early ({task.best_metric} did not improve)"
  log(f"trained {counted(step, 'step')}{note}{f'; curves in {picture}' if picture else ''}")


@dataclasses.dataclass(frozen=True)
class TrainingResult:
  """The state of a run after train().

  Attributes:
    step: the number of updates done so far, in all calls of train() with this output_dir.
    metrics: the last logged training metrics by name, such as loss, learning_rate and examples_per_second.
    history: the training metrics of each logged step, with the key "step", in order.
    evaluations: the metrics of each evaluation during training (eval_every_steps), with the key "step", in order.
    output_dir: the directory with the checkpoints and the logs.
  """

  step: int
  metrics: Mapping[str, float]
  history: Sequence[Mapping[str, float]]
  evaluations: Sequence[Mapping[str, float]]
  output_dir: str


def read_training_result(step: int, output_dir: str, results_dir: str) -> TrainingResult:
  """Reads the logs of a run.

  Args:
    step: the number of updates done so far.
    output_dir: the directory of the run.
    results_dir: the directory of the logs: output_dir, or a temporary directory in a process that is not the chief.
  Raises:
    UserError: a log is damaged.
  """
  lines = [line for line in read_metrics(results_dir) if line["step"] <= step]
  history = [{name: value for name, value in line.items() if name not in (EVENT_KEY, STATUS_KEY)} for line in lines]
  evaluations = logs.read(files.join(results_dir, output_files.EVALUATIONS))
  last_line = history[-1] if history else {}
  metrics = {name: value for name, value in last_line.items() if name != "step"}
  return TrainingResult(step, metrics, history, evaluations, output_dir)


_PARTS_OF_LOG = 4  # the training loss is the mean over the last of these
# The F1 of SQuAD, in percent, is better than guessing if it is greater than all of these by more than the margin.
_F1_OF_GUESSING = ("no_answers_f1", "random_span_f1", "first_sentence_f1")
_F1_MARGIN = 1.0
# The lowest, a good and the highest learning rate of AdamW: for pretrained weights, and for random or narrow ones.
_USUAL_RATES, _RATES_OF_SMALL = (1e-5, 2e-5, 5e-5), (1e-4, 3e-4, 1e-3)
_NARROW = 512
_MAX_ADVISED_EPOCHS = 100  # where more would be needed, or it is not known how many, a warning advises steps instead
_MANY_RUNS = 5  # if no seed of so many learns, the weights are at fault


class TrainingLoss(msgspec.Struct):
  """The content of training_loss.json, which records that training has ended.

  Attributes:
    step: the last step.
    loss: the mean training loss in the last quarter of the logged lines; None if it was not finite or not logged.
    guessing_loss: the loss of always guessing; None if it is not known.
    num_lines: the number of logged lines.
    num_examples: the number of training examples; 0 if an earlier version wrote the file.
  """

  step: int
  loss: float | None
  guessing_loss: float | None
  num_lines: int
  num_examples: int = 0


def write_training_loss(task: Task, results_dir: str, step: int) -> None:
  """Writes training_loss.json from metrics.jsonl.

  Args:
    task: the task.
    results_dir: the directory of the logs.
    step: the last step.
  """
  lines = read_metrics(results_dir)
  last_lines = lines[-max(1, len(lines) // _PARTS_OF_LOG) :]
  losses = [loss for line in last_lines if (loss := line.get(LOSS)) is not None]
  mean = math.fsum(losses) / len(losses) if losses and len(losses) == len(last_lines) else None
  numbers = {"num_lines": len(lines), "num_examples": task.training_data().num_examples}
  content = {"step": step, "loss": mean, "guessing_loss": task.guessing_loss(), **numbers}
  files.write_json(files.join(results_dir, output_files.TRAINING_LOSS), content)


def read_training_loss(output_dir: str) -> TrainingLoss | None:
  """Reads training_loss.json; None if the training in output_dir has not ended.

  Raises:
    UserError: the file is damaged.
  """
  path = files.join(output_dir, output_files.TRAINING_LOSS)
  remedy = "delete it, and the command that trained the run writes it again"
  return files.read_json(path, TrainingLoss, remedy, nan_is_null=True) if files.exists(path) else None


def find_failure(
  output_dir: str, metrics: Mapping[str, float], loss_name: str = LOSS, num_examples: int = 0
) -> str | None:
  """Compares a run with guessing.

  A run has failed if its training loss is that of guessing, and so are its loss and its accuracy on the development
  set. Without an evaluation, only the training loss counts. For SQuAD, only F1 on the development set counts.

  Args:
    output_dir: the directory of the run.
    metrics: the metrics of its evaluation, with guessing_loss; {} if there was none.
    loss_name: the name of the loss in them: "loss", or SPLIT_loss with several evaluation sets.
    num_examples: the number of examples of the development set; 0 if it is not known.
  Returns: what shows the failure, as a part of a sentence; None if the run has learned something, or if this is not
    known.
  """
  training = read_training_loss(output_dir)
  f1_of_guessing = {name: metrics[name] for name in _F1_OF_GUESSING if name in metrics}
  f1 = max(metrics.get("f1", 0.0), metrics.get("best_f1", 0.0) - THRESHOLD_GAIN)
  if training is not None and f1_of_guessing and f1 <= max(f1_of_guessing.values()) + _F1_MARGIN:
    return ", ".join(f"{key} is {metrics[key]:.4g}" for key in ("f1", "best_f1", *f1_of_guessing) if key in metrics)
  if training is None or training.loss is None or training.guessing_loss is None:
    return None
  if training.loss <= GUESSING_SHARE * training.guessing_loss:
    return None
  reason = f"its loss in the last quarter of training is {training.loss:.4g}, guessing has {training.guessing_loss:.4g}"
  if not metrics:
    # A short log also has the losses before the run learned.
    return reason if training.num_lines >= _PARTS_OF_LOG else None
  prefix = loss_name.removesuffix(LOSS)
  loss, guess = metrics.get(loss_name), metrics.get(f"{prefix}guessing_loss")
  if loss is None or guess is None or loss <= GUESSING_SHARE * guess:
    return None
  reason += f"; in the evaluation {loss:.4g} and {guess:.4g}"
  # The first accuracy is the main one, such as that of the masked tokens.
  guesses = {guessed_metric(name)[0]: value for name, value in metrics.items() if name.startswith(prefix)}
  accuracy = next((name for name in metrics if name in guesses and not name.endswith(LOSS)), None)
  if accuracy is None:
    return reason
  guessed = guesses[accuracy]
  # Of few examples, guessing itself may be right by chance up to two standard errors more often.
  standard_error = math.sqrt(guessed * (1 - guessed) / (num_examples or math.inf))
  if metrics[accuracy] > guessed + max(ACCURACY_MARGIN, 2 * standard_error):
    return None
  return f"{reason}, {accuracy} {metrics[accuracy]:.4g} (guessing {guessed:.4g})"


def failure_warning(failure: str, output_dir: str, task: Task, config: RunConfig, *, is_command: bool = True) -> str:
  """Returns the line for the log about a failure that `find_failure` has found, with remedies in the order to try.

  Args:
    failure: what `find_failure` returned.
    output_dir: the directory of the run.
    task: the task.
    config: the settings of the run, or of several runs of which the best has failed.
    is_command: whether --num_runs can be advised. The Python API lacks it, and --folds excludes it.
  """
  record = read_training_loss(output_dir)
  step, num_examples = (record.step, record.num_examples) if record else (0, 0)
  train, optimizer, remedies = config.train, config.optimizer, []
  steps, epochs = train.usual_length(num_examples, task.usual_steps, task.usual_epochs)
  if step < steps:
    flag = f"--num_train_steps={steps}"
    if train.num_train_epochs and epochs <= _MAX_ADVISED_EPOCHS:
      flag = f"--num_train_epochs={epochs}"
    elif train.num_train_epochs:
      flag += " instead of --num_train_epochs"
    of_examples = f" for {counted(num_examples, 'example', ',')}" if num_examples else ""
    remedies.append(f"{flag} (it had {counted(step, 'step')}; at least {steps} are usual{of_examples})")
  is_small = config.from_scratch or task.model_config.hidden_size < _NARROW
  rates = task.usual_rates or {"adamw": _RATES_OF_SMALL if is_small else _USUAL_RATES}
  rate = optimizer.peak_learning_rate(train.train_batch_size)
  low, good, high = rates.get(optimizer.optimizer, (rate, rate, rate))
  if not low <= rate <= high:
    flag = f"--learning_rate={good:g}{' --scale_learning_rate=false' if optimizer.scale_learning_rate else ''}"
    size = " for small models" if is_small and not task.usual_rates else ""
    remedies.append(f"{flag} (it had {rate:.3g}; {low:g} to {high:g} are usual{size})")
  runs = f"--num_runs={max(_MANY_RUNS, 2 * config.num_runs)}, which trains with as many seeds and keeps the best"
  if config.num_runs >= _MANY_RUNS and config.init_checkpoint:
    runs = f"--init_checkpoint with other weights than {config.init_checkpoint}"
  remedies.append(runs if is_command else f"--seed={train.seed + config.num_runs} or another seed")
  advice = "; if that is not enough, ".join(remedies)
  return f"warning: this run has not learned more than guessing: {failure}: give, in a new --output_dir, {advice}"
