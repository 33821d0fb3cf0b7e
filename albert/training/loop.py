"""The training loop: batches -> losses -> gradients summed over replicas -> clipping -> optimizer.

The loop does not depend on a particular task: a Task computes the losses and metrics.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.errors import Stopped
from albert.io.progress import ElapsedTime, log
from albert.models.layers import fold_in
from albert.optimizers.factory import layerwise_factors
from albert.optimizers.loss_scale import LossScale
from albert.optimizers.schedules import TimeLimit
from albert.optimizers.sharding import are_finite, make_replica_variable
from albert.runs.logs import STAGE_KEY, MetricsLog
from albert.tasks.base import Batch, Task, WeightedSum
from albert.training.distribution.cluster import Cluster
from albert.training.evaluator import Accumulator
from albert.training.failed_run import not_finite_error
from albert.training.gradients import BatchGradients
from albert.training.run_plan import StagePlan, TrainingPlan, is_evaluation_due, is_save_due
from albert.weights.checkpoints import GLOBAL_STEP, CheckpointManager
from albert.weights.initial_weights import stacked_sources

GRAD_NORM = "grad_norm"
# One call of the loop on the device takes about this long at most, because signals are handled between the calls.
_SECONDS_PER_LOOP = 5.0


class Trainer:
  """Trains one model on the replicas of a strategy. Make it in the strategy's scope.

  Each replica computes the gradients of its part of a batch, in micro-batches if gradient_accumulation_steps > 1.
  Gradients are summed over the replicas, clipped to a global norm and given to the optimizer. So the update does not
  depend, except for rounding, on how the batch was divided. Dropout is a function of (seed, step, replica), so a
  resumed run computes the same as an uninterrupted one.

  Args:
    task: computes the losses and metrics.
    model: a built model with a method `named_weights()`. Those that the losses depend on are trained.
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
    self.weights = model.named_weights()
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
    state = dict(self.weights)
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
      sums = _zero_if(is_bad, sums)
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
      checkpoints: saves the state every save_checkpoints_steps, before each evaluation and at the end of the run.
      metrics_log: receives the metrics every log_every_steps and at the end of the stage.
      learning_rate: maps the number of updates done so far to the learning rate of the next one, for the log.
      stop: receives the signals. Several stages share one.
      evaluate: called with the step every eval_every_steps and at the end. Training stops early if it returns True.
    Raises:
      RunError: a loss, a gradient or an updated weight is not finite. Nothing is saved after it.
      Stopped: SIGTERM or SIGINT was received; the state has been saved.
    """
    config = self.plan.train
    intervals = (config.log_every_steps, config.save_checkpoints_steps, config.eval_every_steps)
    step = saved_step = first_step = self.step  # updates done so far, and updates in the newest checkpoint
    speed = Speedometer(step, self.stage.train.train_batch_size if self.stage is not None else config.train_batch_size)
    steps_per_call = 1
    while step < (last_step := self.last_step(step)):
      # Each call ends at the latest at the next step that is logged, saved or evaluated.
      limits = [_next_multiple(step, interval) for interval in intervals if interval]
      limits += [] if self.time_limit is None else [self.time_limit.next_stop(step)]
      target_step = min(last_step, step + steps_per_call, *limits)
      # The first call also traces and compiles the step.
      with ElapsedTime("first step") if step == first_step else contextlib.nullcontext():
        seconds = self._time_steps(batches, target_step - step, checkpoints, saved_step)
      if step == first_step:
        log(f"the first step took {seconds:.1f} seconds")
      # All processes must make the same decisions: whether to stop, after a signal to any of them or when the time is
      # over, and how many steps the next call has.
      num_signaled, sum_of_seconds = self.cluster.sum(float(stop.signal_number > 0), seconds / (target_step - step))
      seconds_per_step = sum_of_seconds / self.cluster.num_processes
      steps_per_call = next_steps_per_call(steps_per_call, seconds_per_step, config.steps_per_loop)
      is_over = self._count_seconds(target_step, target_step - step, seconds_per_step)
      step = target_step
      metrics_log.advance(step)
      must_evaluate = evaluate is not None and is_evaluation_due(config, step, is_over=is_over)
      must_save = must_evaluate or is_save_due(config, step) or is_over or num_signaled > 0
      if must_save or step == last_step:
        self.stack_layers()
      if must_save:
        self._check_state(checkpoints, saved_step, step)
      if step % config.log_every_steps == 0 or step == last_step or is_over:
        checkpoints.check_lock(read=False)
        metrics_log.write(step, self._metrics(learning_rate(step - 1), speed.read(step)))
      if must_save:
        self._save(checkpoints, step, is_stopping=num_signaled > 0)
        saved_step = step
      if num_signaled:
        raise stop.error(step)
      if evaluate is not None and must_evaluate:
        with speed.paused():
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
    """Counts the time of steps, the last of which is `step`. Returns whether they end a run with a time limit."""
    if self.time_limit is None:
      return False
    self.time_limit.add(step, num_steps, seconds_per_step)
    return step == self.last_step(step)

  def _time_steps(
    self, batches: Iterator[Batch], num_steps: int, checkpoints: CheckpointManager, saved_step: int
  ) -> float:
    """Runs `num_steps` updates, checks their losses, and returns the seconds that they took."""
    started = time.monotonic()
    self.train_steps(batches, tf.constant(num_steps))
    self._check_losses(checkpoints, saved_step)  # reads a variable, and so waits for the devices
    return time.monotonic() - started

  def _save(self, checkpoints: CheckpointManager, step: int, *, is_stopping: bool) -> None:
    """Saves the state. After a signal the process may be killed soon, so old checkpoints are not deleted then."""
    if self.cluster.is_chief:
      if is_stopping:
        log(f"a signal was received: saving step {step}")
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

  def _check_losses(self, checkpoints: CheckpointManager, saved_step: int) -> None:
    """Checks that the losses and gradients of all steps were finite.

    Raises:
      RunError: the loss or gradient of a step was not finite.
    """
    bad_step = int(self.first_bad_step.read_value())
    if bad_step >= 0:
      raise not_finite_error(f"step {bad_step}: the loss or its gradient is not finite", checkpoints, saved_step)

  def _check_state(self, checkpoints: CheckpointManager, saved_step: int, step: int) -> None:
    """Checks that the variables that are about to be saved are finite. Every process must call it.

    Raises:
      RunError: a variable is not finite after `step` updates.
    """
    are_finite = self.strategy.experimental_local_results(self._is_finite())[0].numpy()
    names = [name for name, variable in self.state().items() if variable.dtype.is_floating]
    bad_names = [name for name, is_finite in zip(names, are_finite, strict=True) if not is_finite]
    if bad_names:
      more = f" and {len(bad_names) - 1} other variables are" if len(bad_names) > 1 else " is"
      problem = f"after {step} updates {bad_names[0]}{more} not finite, though the loss of the last step was"
      raise not_finite_error(problem, checkpoints, saved_step)


def _zero_if(condition: tf.Tensor, sums: dict[str, WeightedSum]) -> dict[str, WeightedSum]:
  """Returns the sums, in float32, or sums and weights of 0 if the condition, bool scalar, is true."""

  def zero(value: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, 0.0, tf.cast(value, tf.float32))

  return {name: WeightedSum(zero(total), zero(weight)) for name, (total, weight) in sums.items()}


def _next_multiple(step: int, interval: int) -> int:
  """The first multiple of `interval` after `step`."""
  return (step // interval + 1) * interval


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


def next_steps_per_call(steps_per_call: int, seconds_per_step: float, max_steps: int) -> int:
  """Returns the number of steps of the next call: up to twice as many as before, if they do not take too long."""
  return max(1, min(max_steps, 2 * steps_per_call, int(_SECONDS_PER_LOOP / seconds_per_step)))


class StopRequest:
  """A context manager that turns the first SIGTERM or SIGINT into a request to save and stop.

  The first signal only sets `signal_number`, which the training loop reads. A second one has its usual effect. The
  handler prints nothing: it may interrupt a write to the same stream, which then raises an error. If C code, such as R
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
    signal.signal(signal_number, self._previous_handlers[signal_number])

  def error(self, step: int) -> Stopped:
    """Makes the error that ends a run that was stopped and saved at `step`."""
    # If another process received the signal, its number is not known here.
    signal_number = self.signal_number or signal.SIGTERM
    return Stopped(f"stopped at step {step} and saved; the same command resumes there", signal_number)

  def __exit__(self, *unused: object) -> None:
    for signal_number, handler in self._previous_handlers.items():
      signal.signal(signal_number, handler)
