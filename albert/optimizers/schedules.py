"""The learning-rate schedule, linear warm-up and then polynomial decay, and the time limit that may set its length."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.command_flags import as_float32
from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.gradients import make_replica_variable

# Names of the variables of a time limit in checkpoints.
_SECONDS, _COUNTED_STEPS, _PLANNED_STEPS = "time_limit_seconds", "time_limit_counted_steps", "time_limit_planned_steps"


@keras.saving.register_keras_serializable("albert")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
  """A learning-rate schedule with linear warm-up and polynomial decay.

  Before update t, counted from 0, the rate is

      peak * t / warmup_steps                               if t < warmup_steps
      end + (peak - end) * (1 - t / total_steps) ** power   otherwise

  The decay starts at step 0, as in the original. The rate therefore drops at the end of the warm-up. With end = 0 and
  power = 1, it drops from nearly peak to peak * (1 - warmup_steps / total_steps).

  Args:
    peak: the highest rate.
    warmup_steps: updates with a rising rate; 0 for no warm-up.
    total_steps: updates after which the rate is `end`; at least 1.
    end: the last rate.
    power: exponent of the decay; 1 for a linear one.

  Raises:
    UserError: total_steps is less than 1, or warmup_steps is greater than total_steps.

  Example:
    >>> import albert
    >>> schedule = albert.optimizers.WarmupPolynomialDecay(peak=0.5, warmup_steps=10, total_steps=100)
    >>> [float(schedule(step)) for step in (0, 5, 50, 100)]
    [0.0, 0.25, 0.25, 0.0]
  """

  def __init__(self, peak: float, warmup_steps: int, total_steps: int, end: float = 0.0, power: float = 1.0):
    super().__init__()
    if total_steps < 1:
      raise UserError(f"num_train_steps ({total_steps}) must be at least 1: give the number of updates")
    if warmup_steps > total_steps:
      raise UserError(f"num_warmup_steps={warmup_steps} > {total_steps} steps: give fewer, or warmup_proportion=0.1")
    self.peak = peak
    self.warmup_steps = warmup_steps
    self.total_steps = total_steps
    self.end = end
    self.power = power

  def __call__(self, step: tf.Tensor) -> tf.Tensor:
    """Returns the rate, a float32 scalar, of the update that follows `step` (a scalar) updates."""
    t = tf.cast(step, tf.float32)
    remaining = 1.0 - tf.minimum(t / self.decay_steps(), 1.0)
    decayed = self.end + (self.peak - self.end) * tf.pow(remaining, self.power)
    if self.warmup_steps == 0:
      return decayed
    return tf.where(t < self.warmup_steps, self.peak * t / self.warmup_steps, decayed)

  def decay_steps(self) -> int | tf.Tensor:
    """Returns the number of updates after which the rate is `end`. A subclass may return a float32 scalar."""
    return self.total_steps

  def get_config(self) -> dict[str, Any]:
    """Returns the constructor's arguments, for Keras' serialization."""
    return {name: getattr(self, name) for name in ("peak", "warmup_steps", "total_steps", "end", "power")}


def make_schedule(config: OptimizerConfig, num_train_steps: int, train_batch_size: int) -> WarmupPolynomialDecay:
  """Makes the schedule of a run.

  Args:
    config: learning rate, warm-up and decay.
    num_train_steps: updates of the run.
    train_batch_size: examples of an update, over all replicas.

  Raises:
    UserError: the scaled learning rate overflows float32, or the warm-up is longer than the run.
  """
  peak = config.peak_learning_rate(train_batch_size)
  if config.scale_learning_rate and math.isinf(as_float32(peak)):
    raise UserError(
      f"--learning_rate={config.learning_rate:g} with --scale_learning_rate and a batch of {train_batch_size}: the "
      f"product {peak:g} overflows float32"
    )
  warmup_steps = config.num_warmup_steps
  if config.warmup_proportion:
    warmup_steps = round(config.warmup_proportion * num_train_steps)
  return WarmupPolynomialDecay(
    peak, warmup_steps, num_train_steps, end=config.end_learning_rate, power=config.decay_power
  )


class TimeLimit:
  """The time that a run has used, and the step at which it ends. Make it in the strategy's scope.

  During the warm-up the rate does not depend on the length of the run, and the speed is measured. Then the number of
  steps that fit into the time is decided, once. The rate decays to its last value at that step, as in a run with this
  number of steps. Training ends there, or earlier if the steps become slower and the time is over.

  Only these two numbers depend on the clock. They are in the checkpoints, with the seconds used so far, so a resumed
  run computes the same updates as an uninterrupted one.

  Args:
    max_seconds: seconds of training steps. Start-up, evaluations and checkpoints do not count, nor does the first step
      after a start, which builds the graph.
    warmup_steps: updates with a rising learning rate. The number of steps is decided after them.
    max_steps: the run ends at this step at the latest.
  """

  def __init__(self, max_seconds: float, *, warmup_steps: int, max_steps: int):
    self.max_seconds = max_seconds
    self.warmup_steps = warmup_steps
    self._max_steps = max_steps
    self._has_started = False
    self._seconds = make_replica_variable(0.0, tf.float64, _SECONDS)
    self._counted_steps = make_replica_variable(0, tf.int64, _COUNTED_STEPS)
    # 0 until the number of steps is decided.
    self._planned_steps = make_replica_variable(0, tf.int64, _PLANNED_STEPS)

  def state(self) -> dict[str, tf.Variable]:
    """Returns the variables that a checkpoint holds, by name."""
    return {_SECONDS: self._seconds, _COUNTED_STEPS: self._counted_steps, _PLANNED_STEPS: self._planned_steps}

  @property
  def seconds(self) -> float:
    """The seconds of training steps so far, in all calls of the run."""
    return float(self._seconds.read_value())

  @property
  def planned_steps(self) -> int:
    """The number of steps of the run, decided at the end of the warm-up; 0 before that."""
    return int(self._planned_steps.read_value())

  def total_steps(self) -> tf.Tensor:
    """Returns the number of steps that the learning rate decays over, float32 scalar."""
    planned_steps = tf.convert_to_tensor(self._planned_steps)
    return tf.cast(tf.where(planned_steps > 0, planned_steps, self._max_steps), tf.float32)

  def last_step(self, step: int) -> int:
    """Returns the last step of the run as it is known after `step` updates; `step` if the time is over."""
    return step if self.seconds >= self.max_seconds else self.planned_steps or self._max_steps

  def next_stop(self, step: int) -> int:
    """Returns the step at which the host must look at the clock again, after `step` updates."""
    if self.planned_steps:
      return self._max_steps
    return self.warmup_steps if step < self.warmup_steps else step + 1

  def add(self, step: int, num_steps: int, seconds_per_step: float) -> None:
    """Counts steps, except those of the first call. Decides the number of steps of the run if the warm-up is over.

    Call it on the host.

    Args:
      step: updates done so far.
      num_steps: how many of them are counted now.
      seconds_per_step: their mean time. With several processes all must give the same value.
    """
    if not self._has_started:  # these steps include the time to build the graph
      self._has_started = True
      return
    self._seconds.assign(self.seconds + num_steps * seconds_per_step)
    counted_steps = int(self._counted_steps.read_value()) + num_steps
    self._counted_steps.assign(counted_steps)
    if self.planned_steps or step < self.warmup_steps:
      return
    num_fitting = (self.max_seconds - self.seconds) * counted_steps / max(self.seconds, 1e-9)
    self._planned_steps.assign(min(self._max_steps, step + max(0, int(num_fitting))))


class TimedDecay(WarmupPolynomialDecay):
  """A schedule that decays over the number of steps which a TimeLimit decides.

  Args:
    schedule: the warm-up, the rates and the power. Its total_steps are not used.
    limit: the time limit of the run.
  """

  def __init__(self, schedule: WarmupPolynomialDecay, limit: TimeLimit):
    super().__init__(**schedule.get_config())
    self._limit = limit

  def decay_steps(self) -> tf.Tensor:
    """Returns the number of steps that fit into the time; before it is decided, the largest allowed number."""
    return self._limit.total_steps()
