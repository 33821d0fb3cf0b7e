"""The training loop: batches -> losses -> gradients summed over replicas -> clipping -> optimizer.

The loop does not depend on a particular task: a Task computes the losses and metrics.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.run import TrainConfig
from albert.errors import RunError, Stopped
from albert.io.progress import elapsed_time
from albert.io.text import counted
from albert.models.layers import fold_in
from albert.optimizers.factory import layerwise_factors
from albert.optimizers.gradients import (
  Gradient,
  LossScale,
  Sharding,
  are_finite,
  clip_by_global_norm,
  densify,
  make_replica_variable,
)
from albert.optimizers.schedules import TimeLimit
from albert.runs.logs import STAGE_KEY, MetricsLog
from albert.tasks.base import Batch, Task, WeightedSum
from albert.training.distribution import Cluster
from albert.training.evaluator import Accumulator
from albert.training.run_plan import StagePlan, TrainingPlan, is_evaluation_due
from albert.weights.checkpoints import GLOBAL_STEP, CheckpointManager
from albert.weights.initial_weights import stacked_sources

# Name of a weight that the losses depend on -> its gradient, and metric -> its sum.
_GradientsAndSums = tuple[dict[str, Gradient], dict[str, WeightedSum]]


class BatchGradients:
  """Computes the gradients of a model's weights. Call it in the step of each replica.

  A weight that the losses do not depend on, such as the pooler's without a sentence objective, has no gradient. It must
  not be updated, as in the original: with a gradient of zeros, weight decay and LAMB's trust ratio would shrink it.

  Args:
    task: computes the losses and metrics.
    model: a built model. The weights of task.trained_weights(model) are trained.
    plan: the number of micro-batches and the clipping norm.
    loss_scale: the scale of the loss, for float16; None for other precisions.
    sharding: the division of the gradients among the replicas; None if every replica gets whole gradients.
  """

  def __init__(
    self, task: Task, model: keras.Model, plan: TrainingPlan, loss_scale: LossScale | None, sharding: Sharding | None
  ):
    self._task, self._model, self._plan = task, model, plan
    self._weights = task.trained_weights(model)
    self._loss_scale = loss_scale
    self._sharding = sharding
    self._accumulate: Callable[..., _GradientsAndSums] = self._accumulate_gradients

  def compile(self) -> None:
    """Lets XLA compile what a replica computes, without the sums over replicas."""
    self._accumulate = tf.function(self._accumulate_gradients, jit_compile=True, autograph=False)

  def __call__(
    self, batch: Batch, loss_weights: dict[str, tf.Tensor], seed: tf.Tensor
  ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor, dict[str, WeightedSum]]:
    """Computes the gradients of the mean loss of the batch of all replicas.

    Args:
      batch: features of this replica, each [B / replicas, ...].
      loss_weights: name of a loss -> its total weight in the batch of all replicas, float32 scalar.
      seed: int64 [2], different for each replica and step.

    Returns:
      Name of a weight that the losses depend on -> its clipped gradient; with a sharding, this replica's part of it.
      The global norm before clipping and the sum of the losses, float32 scalars. The sums of metrics over this
      replica's examples.
    """
    replica, clip_norm = tf.distribute.get_replica_context(), self._plan.optimizer.clip_norm
    gradients, sums = self._accumulate(batch, loss_weights, seed)
    losses = tf.stack([sums[name].total for name in loss_weights])
    if self._sharding is None:
      *flat_gradients, losses = replica.all_reduce("SUM", [*tf.nest.flatten(gradients), losses])
      gradients = tf.nest.pack_sequence_as(gradients, flat_gradients)
      clipped, norm = clip_by_global_norm(gradients, clip_norm)
    else:
      if not self._sharding.reduce_scatter:
        gradients = self._sharding.sum_gradients(gradients, self._weights)
      clipped, norm = clip_by_global_norm(gradients, clip_norm, lambda squares: replica.all_reduce("SUM", squares))
      losses = replica.all_reduce("SUM", losses)
    return clipped, norm, tf.reduce_sum(losses), sums

  def _accumulate_gradients(
    self, batch: Batch, loss_weights: dict[str, tf.Tensor], seed: tf.Tensor
  ) -> _GradientsAndSums:
    """Computes the gradients and the sums of metrics over this replica's examples.

    The examples are divided into gradient_accumulation_steps micro-batches, whose results are summed.
    """
    num_micro_batches = self._plan.train.gradient_accumulation_steps
    if num_micro_batches == 1:
      return self._compute_gradients(batch, loss_weights, seed)
    # The batch size is static. The other dimensions, such as the length of the sequences, may be dynamic.
    micro_batches = {
      name: tf.reshape(
        value, tf.concat([[num_micro_batches, value.shape[0] // num_micro_batches], tf.shape(value)[1:]], axis=0)
      )
      for name, value in batch.items()
    }

    def micro_batch_gradients(index: tf.Tensor) -> _GradientsAndSums:
      micro_batch = {name: value[index] for name, value in micro_batches.items()}
      return self._compute_gradients(micro_batch, loss_weights, fold_in(seed, index))

    def add(index: tf.Tensor, accumulated: Any) -> tuple[tf.Tensor, Any]:
      return index + 1, tf.nest.map_structure(tf.add, accumulated, micro_batch_gradients(index))

    # By default ten iterations may run in parallel, which would take the memory of ten micro-batches.
    start = (tf.constant(1), micro_batch_gradients(tf.constant(0)))
    _, gradients_and_sums = tf.while_loop(lambda index, _: index < num_micro_batches, add, start, parallel_iterations=1)
    return gradients_and_sums

  def _compute_gradients(self, batch: Batch, loss_weights: dict[str, tf.Tensor], seed: tf.Tensor) -> _GradientsAndSums:
    """Computes the sums of metrics of some examples, and the gradients of their share of the batch's loss.

    With XLA's reduce-scatter, the gradients are already summed over the replicas, and are parts (see Sharding).
    """
    with tf.GradientTape() as tape:
      sums = self._task.forward(self._model, batch, training=True, seed=seed).sums
      loss = tf.add_n([tf.math.divide_no_nan(sums[name].total, loss_weights[name]) for name in loss_weights])
      if self._loss_scale is not None:
        loss = self._loss_scale.scale(loss)
    gradients = {name: value for name, value in tape.gradient(loss, self._weights).items() if value is not None}
    if self._loss_scale is not None:
      gradients = {name: self._loss_scale.unscale(value) for name, value in gradients.items()}
    dense_gradients = {name: densify(value) for name, value in gradients.items()}
    if self._sharding is not None and self._sharding.reduce_scatter:
      dense_gradients = self._sharding.sum_gradients(dense_gradients, self._weights)
    return dense_gradients, sums


GRAD_NORM = "grad_norm"
# One call of the loop on the device takes about this long at most, because signals are handled between the calls.
_SECONDS_PER_LOOP = 5.0
# By default a run has at least this number of log lines, and less than twice as many.
_LOG_LINES = 25
# By default a killed run loses at most a tenth of its steps, or the first number of seconds if that is more. A long run
# loses at most the second number of seconds, or the steps that one call runs on the devices, if they take longer.
_MIN_SECONDS_UNSAVED, _MAX_SECONDS_UNSAVED = 120.0, 1800.0


class Trainer:
  """Trains one model on the replicas of a strategy. Make it in the strategy's scope.

  Each replica computes the gradients of its part of a batch, in micro-batches if gradient_accumulation_steps > 1.
  Gradients are summed over the replicas, clipped to a global norm and given to the optimizer. So the update does not
  depend, except for rounding, on how the batch was divided. Dropout is a function of (seed, step, replica), so a
  resumed run computes the same as an uninterrupted one.

  Args:
    task: computes the losses and metrics.
    model: a built model. Of task.trained_weights(model), those that the losses depend on are trained.
    optimizer: an optimizer of albert.optimizers.factory.make_optimizer.
    plan: strategy, batch size, seed, clipping norm, layer-wise decay, and whether XLA compiles the step.
    cluster: the processes that train together; by default those of the plan's strategy.
    stage: the stage of the plan to train; None for all steps. Each stage has a trainer of its own, with the same model
      and optimizer, which compiles the step for its depth, its dropout and its batches. The trainer of one stage is
      made after the previous stage has ended.
    loss_scale: the scale of the loss, for float16; None for other precisions. A step whose loss or gradient is not
      finite is then skipped: it changes neither weights nor moments. All stages share one.
    time_limit: ends training by the clock; None to train num_train_steps.

  Raises:
    UserError: the layer-wise decay of the learning rate overflows float32.

  Example:

    plan = TrainingPlan(strategy=tf.distribute.OneDeviceStrategy("CPU:0"), train=TrainConfig(train_batch_size=8))
    with plan.strategy.scope():
      model = task.build_model()
      trainer = Trainer(task, model, make_optimizer(OptimizerConfig(), learning_rate=1e-4), plan)
    trainer.train_steps(iter(batches), tf.constant(10))
  """

  def __init__(
    self,
    task: Task,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    plan: TrainingPlan,
    cluster: Cluster | None = None,
    stage: StagePlan | None = None,
    loss_scale: LossScale | None = None,
    time_limit: TimeLimit | None = None,
  ):
    self.cluster = cluster or Cluster(plan.strategy)
    self.task = task
    self.model = model
    self.optimizer = optimizer
    self.plan = plan
    self.stage = stage
    self.loss_scale = loss_scale
    self.time_limit = time_limit
    self.strategy = plan.strategy
    self.weights = task.trained_weights(model)
    sharding = getattr(optimizer, "sharding", None)  # tensorflow-addons' LAMB has no such attribute
    self._gradients = BatchGradients(task, model, plan, loss_scale, sharding)
    self.accumulator = Accumulator([*task.metric_names(), GRAD_NORM])
    # The first step whose loss or gradient was not finite; -1 if there is none.
    self.first_bad_step = make_replica_variable(-1, tf.int64)
    self._replica_step = self.replica_step
    if plan.jit_compile and self.strategy.num_replicas_in_sync == 1:
      self._replica_step = tf.function(self.replica_step, jit_compile=True, autograph=False)
    elif plan.jit_compile:  # XLA cannot compile the sums over replicas of these strategies
      self._gradients.compile()
    optimizer.build(list(self.weights.values()))
    layerwise_decay = plan.optimizer.layerwise_learning_rate_decay
    if layerwise_decay != 1.0:
      factors = layerwise_factors(self.weights, layerwise_decay)
      optimizer.scale_rates([(variable, factors[name]) for name, variable in self.weights.items()])
    # Name of a weight of an upper layer -> the weight from which `stack_layers` copies it.
    self._stacked_sources: dict[str, str] = {}
    if stage is not None and stage.is_of_divided_run:
      model.encoder.train_as(stage.model_config)
      depth = stage.model_config.num_hidden_layers
      self._stacked_sources = stacked_sources(self.state(), model.encoder.config, depth)

  @property
  def step(self) -> int:
    """The number of updates done so far."""
    return int(tf.convert_to_tensor(self.optimizer.iterations))

  def state(self) -> dict[str, tf.Variable]:
    """Returns what a checkpoint holds by name: weights, moments (variables or ShardedMoments) and the step."""
    state = self.task.saved_variables(self.model)
    for name, variable in self.weights.items():
      state |= {f"{name}/{slot}": value for slot, value in self.optimizer.slots(variable).items()}
    if self.loss_scale is not None:
      state |= self.loss_scale.state()
    if self.time_limit is not None:
      state |= self.time_limit.state()
    return state | {GLOBAL_STEP: self.optimizer.iterations}

  def stack_layers(self) -> None:
    """Copies the layers that this stage trains, with their moments, to the layers above them, if there are any.

    Then the whole network can be saved and evaluated, and the next stage can begin with it.
    """
    state = self.state()
    for name, source in self._stacked_sources.items():
      state[name].assign(tf.convert_to_tensor(state[source]))

  @tf.function(autograph=False)
  def _is_finite(self) -> Any:
    """Returns for each floating-point variable of `state` whether all of its elements are finite, bool [variables]."""
    variables = [variable for variable in self.state().values() if variable.dtype.is_floating]
    return self.strategy.run(lambda: are_finite(variables))

  @tf.function(reduce_retracing=True, autograph=False)
  def train_steps(self, batches: Iterator[Batch], num_steps: tf.Tensor) -> None:
    """Runs several updates on the devices, without returning to Python between them.

    Args:
      batches: an iterator over distributed batches.
      num_steps: number of updates, int32 scalar.
    """

    def update(index: tf.Tensor) -> list[tf.Tensor]:
      self.strategy.run(self._replica_step, args=(next(batches),))
      return [index + 1]

    tf.while_loop(lambda index: index < num_steps, update, [tf.constant(0)])

  def replica_step(self, batch: Batch) -> None:
    """Does one update. Every replica runs this function on its part of the batch.

    Args:
      batch: features of this replica, each [B / replicas, ...].
    """
    replica = tf.distribute.get_replica_context()
    # A replica divides its sum of each loss by the total weight of the whole batch. The sum of these quotients over the
    # replicas is the mean loss of the batch.
    replica_weights = self.task.loss_weights(batch)
    loss_weights = {name: replica.all_reduce("SUM", weight) for name, weight in replica_weights.items()}
    step = self.optimizer.iterations
    seed = tf.stack([tf.constant(self.plan.train.seed, tf.int64), step])
    seed = fold_in(seed, replica.replica_id_in_sync_group)
    gradients, norm, loss, sums = self._gradients(batch, loss_weights, seed)
    sums |= {GRAD_NORM: WeightedSum(norm, tf.constant(1.0))}
    is_bad = tf.logical_not(tf.math.is_finite(norm + loss))
    if self.loss_scale is not None:
      # The optimizer skips an update whose gradients are all NaN, and the means of metrics leave the step out.
      gradients = {name: gradient * tf.where(is_bad, math.nan, 1.0) for name, gradient in gradients.items()}
      sums = tf.nest.map_structure(lambda value: tf.where(is_bad, 0.0, tf.cast(value, tf.float32)), sums)
      is_bad = self.loss_scale.update(is_bad)
    is_first_bad_step = tf.logical_and(is_bad, self.first_bad_step < 0)
    self.first_bad_step.assign(tf.where(is_first_bad_step, step, tf.cast(self.first_bad_step, tf.int64)))
    self.optimizer.apply_gradients(
      [(gradient, self.weights[name]) for name, gradient in gradients.items()], experimental_aggregate_gradients=False
    )
    self.accumulator.add(sums)

  def train(
    self,
    batches: Iterator[Batch],
    checkpoints: CheckpointManager,
    metrics_log: MetricsLog,
    *,
    learning_rate: Callable[[int], float],
    stop: StopRequest,
    evaluate: Callable[[int], bool] | None = None,
  ) -> None:
    """Trains until the last step of the stage is done, with logging, checkpoints and evaluations at their intervals.

    Args:
      batches: an iterator over distributed batches, from the current step on.
      checkpoints: saves the state every save_checkpoints_steps, before each evaluation and at the end of the run. If
        the setting is 0, Pace decides when.
      metrics_log: receives the metrics every log_every_steps and at the end of the stage.
      learning_rate: maps the number of updates done so far to the learning rate of the next one, for the log.
      stop: receives the signals. Several stages share one.
      evaluate: called with the step every eval_every_steps and at the end. Training stops early if it returns True.
    Raises:
      RunError: a loss, a gradient or an updated weight is not finite. Nothing is saved after it.
      Stopped: SIGTERM or SIGINT was received; the state has been saved.
    """
    config = self.plan.train
    step = saved_step = first_step = self.step  # updates done so far, and updates in the newest checkpoint
    speed = Speedometer(step, self.stage.train.train_batch_size if self.stage is not None else config.train_batch_size)
    steps_per_call = 1
    pace = Pace(config, self.time_limit)
    while step < (last_step := self.last_step(step)):
      # Each call ends at the latest at the next step that is logged, saved or evaluated.
      target_step = min(last_step, step + steps_per_call, pace.next_stop(step))
      # The first call also traces and compiles the step.
      with elapsed_time("building the graph of the first step") if step == first_step else contextlib.nullcontext():
        seconds = self._time_steps(batches, target_step - step, checkpoints, saved_step)
      # All processes must make the same decisions: whether to stop, after a signal to any of them or when the time is
      # over, and how many steps the next call has.
      num_signaled, sum_of_seconds = self.cluster.sum(float(stop.signal_number > 0), seconds / (target_step - step))
      seconds_per_step = sum_of_seconds / self.cluster.num_processes
      # Up to twice as many steps as before, if they do not take too long.
      steps_per_call = max(1, min(config.steps_per_loop, 2 * steps_per_call, int(_SECONDS_PER_LOOP / seconds_per_step)))
      is_over = self._count_seconds(target_step, target_step - step, seconds_per_step)
      step = target_step
      must_evaluate = evaluate is not None and is_evaluation_due(config, step, is_over=is_over)
      is_save_due = pace.is_save_due(step, step - saved_step, seconds_per_step, is_end=step == last_step)
      must_save = must_evaluate or is_over or num_signaled > 0 or is_save_due
      if must_save or step == last_step:
        self.stack_layers()
      if must_save:
        self._check_state(checkpoints, saved_step, step)
      if pace.is_log_due(step) or step == last_step or is_over:
        checkpoints.check_lock()
        metrics_log.write(step, self._metrics(learning_rate(step - 1), speed.read(step)))
      else:
        metrics_log.advance(step)
      if must_save:
        self._save(checkpoints, step, is_stopping=num_signaled > 0)
        saved_step = step
      if num_signaled:
        raise stop.error(step)
      if evaluate is not None and must_evaluate:
        with speed.paused(), metrics_log.evaluation():
          must_stop_early = evaluate(step)
        if must_stop_early:
          break
    self._stop_at_end(stop, checkpoints, saved_step, step)

  def _stop_at_end(self, stop: StopRequest, checkpoints: CheckpointManager, saved_step: int, step: int) -> None:
    """Stops if a signal was received after the last step, while the state was saved or evaluated."""
    if self.cluster.any(stop.signal_number > 0):
      if saved_step < step:  # at the end of a stage that is not the last one
        self._check_state(checkpoints, saved_step, step)
        self._save(checkpoints, step, is_stopping=True)
      raise stop.error(step)

  def last_step(self, step: int) -> int:
    """Returns the last step of the stage, as it is known after `step` updates."""
    last_step = self.stage.last_step if self.stage is not None else self.plan.train.num_train_steps
    return last_step if self.time_limit is None else min(last_step, self.time_limit.last_step(step))

  def _count_seconds(self, step: int, num_steps: int, seconds_per_step: float) -> bool:
    """Counts the time of steps, the last of which is `step`. Returns whether they end the run."""
    if self.time_limit is None:
      return step == self.plan.train.num_train_steps
    self.time_limit.add(step, num_steps, seconds_per_step)
    return step == self.last_step(step)

  def _time_steps(
    self, batches: Iterator[Batch], num_steps: int, checkpoints: CheckpointManager, saved_step: int
  ) -> float:
    """Runs `num_steps` updates, checks their losses, and returns the seconds that they took."""
    started = time.monotonic()
    self.train_steps(batches, tf.constant(num_steps))
    bad_step = int(self.first_bad_step.read_value())  # waits for the devices
    if bad_step >= 0:
      raise _not_finite_error(f"step {bad_step}: the loss or its gradient is not finite", checkpoints, saved_step)
    return time.monotonic() - started

  def _save(self, checkpoints: CheckpointManager, step: int, *, is_stopping: bool) -> None:
    """Saves the state. After a signal the process may be killed soon, so old checkpoints are not deleted then."""
    if self.cluster.is_chief:
      checkpoints.save(step, self.state(), prune=not is_stopping)

  def _metrics(self, learning_rate: float, examples_per_second: float) -> dict[str, float]:
    """Returns the means of the metrics since the last call, the learning rate and the speed, for the log."""
    means = self.accumulator.result_and_reset()
    if self.loss_scale is not None and not means[GRAD_NORM]:  # all steps were skipped
      means = dict.fromkeys(means, math.nan)
    means = self.task.with_loss(means)
    if self.stage is not None and self.stage.num_stages > 1:
      means = {STAGE_KEY: self.stage.number, **means}
    if self.loss_scale is not None:
      means |= self.loss_scale.metrics()
    return means | {"learning_rate": learning_rate, "examples_per_second": examples_per_second}

  def _check_state(self, checkpoints: CheckpointManager, saved_step: int, step: int) -> None:
    """Raises RunError if a variable that is about to be saved is not finite. Every process must call it."""
    are_finite = self.strategy.experimental_local_results(self._is_finite())[0].numpy()
    names = [name for name, variable in self.state().items() if variable.dtype.is_floating]
    bad_names = [name for name, is_finite in zip(names, are_finite, strict=True) if not is_finite]
    if bad_names:
      more = f" and {counted(len(bad_names) - 1, 'other variable')} are" if len(bad_names) > 1 else " is"
      problem = f"after {step} updates {bad_names[0]}{more} not finite, though the loss of the last step was"
      raise _not_finite_error(problem, checkpoints, saved_step)


def _not_finite_error(problem: str, checkpoints: CheckpointManager, saved_step: int) -> RunError:
  """Makes the error for values that are not finite. It names the last good checkpoint, `saved_step`, if it exists."""
  is_saved = saved_step in checkpoints.steps()
  last_good = f"the last good checkpoint is step-{saved_step}" if is_saved else "no checkpoint was saved yet"
  return RunError(
    f"{problem}; stopped, {last_good} in {checkpoints.directory}. "
    "Lower --learning_rate (or --scale_learning_rate for a smaller batch), lengthen --num_warmup_steps, or "
    "train in --precision=float32"
  )


class Pace:
  """Decides when a run is logged and saved: at the intervals of flags, or by the length and the speed of the run.

  Args:
    config: the intervals; 0 if no flag gives one.
    time_limit: the time limit of the run, if it has one.
  """

  def __init__(self, config: TrainConfig, time_limit: TimeLimit | None):
    self._config, self._time_limit = config, time_limit

  def _num_steps(self) -> int:
    limit = self._time_limit
    return self._config.num_train_steps if limit is None else limit.planned_steps or limit.warmup_steps

  def _intervals(self) -> tuple[int, int]:
    """Returns the steps between log lines, and between possible checkpoints, which are at log lines by default."""
    default = max(1, self._num_steps() // _LOG_LINES)
    log_interval = self._config.log_every_steps or default
    return log_interval, self._config.save_checkpoints_steps or min(log_interval, default)

  def next_stop(self, step: int) -> int:
    """Returns the next step after `step` that may be logged, saved or evaluated, or at which the time is checked."""
    intervals = [*self._intervals(), self._config.eval_every_steps]
    stops = [(step // interval + 1) * interval for interval in intervals if interval]
    return min(stops if self._time_limit is None else [*stops, self._time_limit.next_stop(step)])

  def is_log_due(self, step: int) -> bool:
    """Whether the metrics are logged after `step` updates."""
    return step % self._intervals()[0] == 0

  def is_save_due(self, step: int, num_unsaved: int, seconds_per_step: float, *, is_end: bool) -> bool:
    """Whether a checkpoint is saved after `step` updates, `num_unsaved` of them since the last checkpoint.

    By default, the end of a stage (`is_end`) is saved, because each stage counts its unsaved steps from its start.
    """
    given, interval = self._config.save_checkpoints_steps, self._intervals()[1]
    if is_end and not given:
      return True
    limit = min(max(self._num_steps() / 10 * seconds_per_step, _MIN_SECONDS_UNSAVED), _MAX_SECONDS_UNSAVED)
    interval = 1 if not given and interval * seconds_per_step > limit else interval  # a run of more than half a day
    return step % interval == 0 and (given > 0 or (num_unsaved + interval) * seconds_per_step > limit)


class Speedometer:
  """Measures the examples per second between log lines. The time of evaluations is not counted."""

  def __init__(self, step: int, batch_size: int):
    self._step = step
    self._batch_size = batch_size
    self._started = time.monotonic()

  def read(self, step: int) -> float:
    """Returns the number of examples per second since the last call, and starts a new measurement."""
    seconds = max(time.monotonic() - self._started, 1e-9)
    examples = (step - self._step) * self._batch_size
    self._step, self._started = step, time.monotonic()
    return examples / seconds

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """A context manager. The time within the context is not counted."""
    pause_started = time.monotonic()
    yield
    self._started += time.monotonic() - pause_started


class StopRequest:
  """A context manager that turns the first SIGTERM or SIGINT into a request to save and stop.

  The first signal only sets `signal_number`, which the training loop reads. A second one has its usual effect. The
  handler writes past sys.stderr, since it may interrupt a write to it, which then raises an error. If C code, such as R
  or a program that embeds Python, has installed a handler of a signal, this handler stays, because Python could not
  restore it.

  Attributes:
    signal_number: the number of the signal that was received; 0 if none was.
  """

  def __init__(self) -> None:
    self.signal_number = 0
    self._previous_handlers: dict[int, Any] = {}

  def __enter__(self) -> StopRequest:
    for signal_number in (signal.SIGTERM, signal.SIGINT):
      if signal.getsignal(signal_number) is None:
        continue
      try:
        self._previous_handlers[signal_number] = signal.signal(signal_number, self._handle)
      except ValueError:  # Python allows signal handlers in the main thread only
        break
    return self

  def _handle(self, signal_number: int, frame: FrameType | None) -> None:
    del frame
    self.signal_number = signal_number
    with contextlib.suppress(OSError):
      os.write(2, b"a signal was received: stopping after this step or evaluation; another one stops at once\n")
    signal.signal(signal_number, self._previous_handlers[signal_number])

  def error(self, step: int) -> Stopped:
    """Makes the error that ends a run that was stopped and saved at `step`."""
    # If another process received the signal, its number is not known here.
    signal_number = self.signal_number or signal.SIGTERM
    return Stopped(f"stopped at step {step} and saved; the same command resumes there", signal_number)

  def __exit__(self, *unused: object) -> None:
    for signal_number, handler in self._previous_handlers.items():
      signal.signal(signal_number, handler)
