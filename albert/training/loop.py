"""The training loop: batches -> losses -> gradients summed over replicas -> clip -> optimizer.

Reads top to bottom. It asks the task for losses and metrics and names none.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.run import TrainConfig
from albert.errors import RunError, Stopped
from albert.optimizers.clipping import Gradient, clip_by_global_norm, densify
from albert.optimizers.layerwise import layerwise_factors
from albert.runs.metrics_log import MetricsLog, log
from albert.tasks.base import Batch, Sum, Task
from albert.training.accumulators import Accumulator
from albert.training.cluster import Cluster
from albert.weights.checkpoints import GLOBAL_STEP, CheckpointManager

GRAD_NORM = "grad_norm"
# A call of the host on the device lasts about this long at most, so that a signal is soon heard.
_SECONDS_PER_LOOP = 5.0


class Trainer:
  """Trains one model. Make it in the strategy's scope."""

  def __init__(
    self,
    task: Task,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    strategy: tf.distribute.Strategy,
    config: TrainConfig,
    clip_norm: float,
    layerwise_decay: float = 1.0,
    cluster: Cluster | None = None,
    jit_compile: bool = False,
  ):
    self.cluster = cluster or Cluster(strategy)
    self.task = task
    self.model = model
    self.optimizer = optimizer
    self.strategy = strategy
    self.config = config
    self.clip_norm = clip_norm
    self.weights = model.named_weights()
    self.accumulator = Accumulator([*task.metric_names(), GRAD_NORM])
    self.first_bad_step = tf.Variable(
      -1,
      trainable=False,
      dtype=tf.int64,
      synchronization=tf.VariableSynchronization.ON_READ,
      aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    self._step = tf.function(self.replica_step, jit_compile=True) if jit_compile else self.replica_step
    optimizer.build(list(self.weights.values()))
    if layerwise_decay != 1.0:
      factors = layerwise_factors(self.weights, layerwise_decay)
      optimizer.scale_rates([(variable, factors[name]) for name, variable in self.weights.items()])

  @property
  def step(self) -> int:
    """Updates done."""
    return int(tf.convert_to_tensor(self.optimizer.iterations))

  def state(self) -> dict[str, tf.Variable]:
    """All that a resumed run needs: weights, the optimizer's moments, the step."""
    state = dict(self.weights)
    for name, variable in self.weights.items():
      state |= {f"{name}/{slot}": value for slot, value in self.optimizer.slots(variable).items()}
    return state | {GLOBAL_STEP: self.optimizer.iterations}

  @tf.function
  def _is_finite(self) -> Any:
    """A bool for each floating-point variable of `state`, in order: whether all its elements are finite."""
    floating = [variable for variable in self.state().values() if variable.dtype.is_floating]

    def on_replica() -> tf.Tensor:
      return tf.stack([tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(variable))) for variable in floating])

    return self.strategy.run(on_replica)

  @tf.function(reduce_retracing=True)
  def train_steps(self, batches: Iterator[Batch], num_steps: tf.Tensor) -> None:
    """Runs `num_steps` (int32 scalar) updates on the devices."""
    for _ in tf.range(num_steps):
      self.strategy.run(self._step, args=(next(batches),))

  def replica_step(self, batch: Batch) -> None:
    """One update, as each replica computes it on its part of the batch."""
    replica = tf.distribute.get_replica_context()
    weights = {name: replica.all_reduce("SUM", w) for name, w in self.task.loss_weights(batch).items()}
    step = self.optimizer.iterations
    seed = tf.stack([tf.constant(self.config.seed, tf.int64), step])
    seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(replica.replica_id_in_sync_group, tf.int64))
    own, sums = self._accumulated_gradients(batch, weights, seed)
    losses = tf.stack([sums[name].total for name in weights])
    *summed, losses = replica.all_reduce("SUM", [*tf.nest.flatten(own), losses])
    gradients, norm = clip_by_global_norm(tf.nest.pack_sequence_as(own, summed), self.clip_norm)
    is_bad = tf.logical_not(tf.math.is_finite(norm + tf.reduce_sum(losses)))
    first = self.first_bad_step
    first.assign(tf.where(tf.logical_and(is_bad, first < 0), step, tf.cast(first, tf.int64)))
    self.optimizer.apply_gradients(
      zip(gradients, self.weights.values(), strict=True), experimental_aggregate_gradients=False
    )
    self.accumulator.add(sums | {GRAD_NORM: Sum(norm, tf.constant(1.0))})

  def _accumulated_gradients(
    self, batch: Batch, weights: dict[str, tf.Tensor], seed: tf.Tensor
  ) -> tuple[list[Gradient], dict[str, Sum]]:
    """Gradients of the global loss from this replica's examples, in gradient_accumulation_steps parts."""
    parts = self.config.gradient_accumulation_steps
    if parts == 1:
      return self._gradients(batch, weights, seed)
    # The batch is of a size known beforehand; the rest, such as the length of the sequences, may not be.
    split = {
      k: tf.reshape(v, tf.concat([[parts, v.shape[0] // parts], tf.shape(v)[1:]], axis=0)) for k, v in batch.items()
    }

    def part(index: tf.Tensor) -> tuple[list[Gradient], dict[str, Sum]]:
      own_seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(index, tf.int64))
      return self._gradients({k: v[index] for k, v in split.items()}, weights, own_seed)

    def add(index: tf.Tensor, so_far: Any) -> tuple[tf.Tensor, Any]:
      return index + 1, tf.nest.map_structure(tf.add, so_far, part(index))

    # One part at a time: by default ten iterations may run at once, which would take the memory of ten parts.
    start = (tf.constant(1), part(tf.constant(0)))
    _, result = tf.while_loop(lambda index, _: index < parts, add, start, parallel_iterations=1)
    return result

  def _gradients(
    self, batch: Batch, weights: dict[str, tf.Tensor], seed: tf.Tensor
  ) -> tuple[list[Gradient], dict[str, Sum]]:
    with tf.GradientTape() as tape:
      sums = self.task.forward(self.model, batch, training=True, seed=seed).sums
      loss = tf.add_n([tf.math.divide_no_nan(sums[name].total, weights[name]) for name in weights])
    gradients = tape.gradient(loss, list(self.weights.values()), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return densify(gradients), sums

  def train(
    self,
    batches: Iterator[Batch],
    checkpoints: CheckpointManager,
    metrics_log: MetricsLog,
    learning_rate: Callable[[int], float],
    evaluate: Callable[[int], bool] | None = None,
  ) -> None:
    """Trains to num_train_steps, logging, saving and evaluating where a step is due.

    Args:
      batches, checkpoints, metrics_log: what to read, where to save, where to write metrics.
      learning_rate: step -> the rate to log.
      evaluate: called every eval_every_steps, after the step was saved; True stops the training.
    Raises:
      RunError: a loss, a gradient or an updated weight that is not finite; nothing is saved after it.
      Stopped: SIGTERM or SIGINT came; the run has been saved.
    """
    config = self.config
    evaluation = config.eval_every_steps if evaluate is not None else 0
    due = [every for every in (config.log_every_steps, config.save_checkpoints_steps, evaluation) if every]
    step, saved, logged, started = self.step, self.step, self.step, time.monotonic()
    loop_steps = 1  # the first step also compiles
    with _StopRequest() as stop:
      while step < config.num_train_steps:
        target = min(config.num_train_steps, step + loop_steps, *((step // n + 1) * n for n in due))
        called = time.monotonic()
        self.train_steps(batches, tf.constant(target - step))
        self._check_finite(checkpoints, saved)  # reads from the device, so it waits for the steps
        seconds_per_step = (time.monotonic() - called) / (target - step)
        # One process's signal stops all; and all take as many steps at a time, since they take them together.
        stops, seconds = self.cluster.sum(float(stop.requested > 0), seconds_per_step)
        seconds_per_step = seconds / self.cluster.num_processes
        loop_steps = max(1, min(config.steps_per_loop, 2 * loop_steps, int(_SECONDS_PER_LOOP / seconds_per_step)))
        step = target
        metrics_log.advance(step)
        is_last = step == config.num_train_steps
        is_evaluated = is_evaluation_due(config, step) and evaluate is not None
        is_saved = is_evaluated or step % config.save_checkpoints_steps == 0 or is_last or stops > 0
        if is_saved:
          self._check_state(checkpoints, saved, step)
        if step % config.log_every_steps == 0 or is_last:
          seconds = max(time.monotonic() - started, 1e-9)
          metrics = self.task.with_loss(self.accumulator.result_and_reset()) | {
            "learning_rate": learning_rate(step - 1),
            "examples_per_second": (step - logged) * config.train_batch_size / seconds,
          }
          checkpoints.check_lock(read=False)
          metrics_log.write(step, metrics)
          logged, started = step, time.monotonic()
        if is_saved:
          if self.cluster.is_chief:
            checkpoints.save(step, self.state(), prune=not stops)  # a stop is urgent; the next save prunes
          saved = step
        if stops:
          number = stop.requested or signal.SIGTERM
          raise Stopped(f"stopped at step {step} and saved; the same command resumes there", number)
        if evaluate is not None and is_evaluated:
          paused = time.monotonic()
          if evaluate(step):
            return
          started += time.monotonic() - paused  # examples_per_second is of training alone

  def _check_finite(self, checkpoints: CheckpointManager, saved: int) -> None:
    """RunError if the loss or gradient of a step was not finite. They were computed before the step's update."""
    bad = int(self.first_bad_step.read_value())
    if bad >= 0:
      raise _not_finite_error(f"step {bad}: the loss or its gradient is not finite", checkpoints, saved)

  def _check_state(self, checkpoints: CheckpointManager, saved: int, step: int) -> None:
    """RunError if what is about to be saved after `step` updates is not finite. Every process must call it."""
    flags = self.strategy.experimental_local_results(self._is_finite())[0].numpy()
    names = [name for name, variable in self.state().items() if variable.dtype.is_floating]
    bad = [name for name, is_finite in zip(names, flags, strict=True) if not is_finite]
    if bad:
      others = f" and {len(bad) - 1} other variables are" if len(bad) > 1 else " is"
      what = f"after {step} updates {bad[0]}{others} not finite, though the loss of the last step was"
      raise _not_finite_error(what, checkpoints, saved)


def _not_finite_error(what: str, checkpoints: CheckpointManager, saved: int) -> RunError:
  kept = f"the last good checkpoint is step-{saved}" if saved in checkpoints.steps() else "none was saved yet"
  return RunError(
    f"{what}; stopped, {kept} in {checkpoints.directory}. "
    "Lower --learning_rate (or --scale_learning_rate for a smaller batch), lengthen --num_warmup_steps, or "
    "train in --precision=float32"
  )


class _StopRequest:
  """Turns the first SIGTERM or SIGINT into a request to save and stop; a second one acts at once."""

  def __init__(self) -> None:
    self.requested = 0
    self._previous: dict[int, Any] = {}

  def __enter__(self) -> _StopRequest:
    for number in (signal.SIGTERM, signal.SIGINT):
      try:
        self._previous[number] = signal.signal(number, self._request)
      except ValueError:  # not the main thread: its owner handles signals
        break
    return self

  def _request(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.requested = number
    log(f"{signal.Signals(number).name}: saving after the step under way")
    signal.signal(number, self._previous[number])

  def __exit__(self, *unused: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)


def is_evaluation_due(config: TrainConfig, step: int) -> bool:
  """True if the run is evaluated after `step` updates: every eval_every_steps, and at the end."""
  return bool(config.eval_every_steps) and (step % config.eval_every_steps == 0 or step == config.num_train_steps)


def make_learning_rate_reader(schedule: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[int], float]:
  """step -> the rate of the update that follows `step` updates."""

  return lambda step: float(schedule(tf.constant(step)))
