"""Ends training after a time, and fits the decay of the learning rate to it.

During the warm-up the rate does not depend on the length of the run, and the speed is measured. Then the number of
steps that fit into the time is decided, once. The rate decays to its last value at that step, as in a run with this
number of steps. Training ends there, or earlier if the steps become slower and the time is over.

Only these two numbers depend on the clock. They are in the checkpoints, with the seconds used so far, so a resumed run
computes the same updates as an uninterrupted one.
"""

from __future__ import annotations

import tensorflow as tf

from albert.optimizers.replica_variables import make_replica_variable
from albert.optimizers.schedules import WarmupPolynomialDecay

# Names of the variables in checkpoints.
_SECONDS, _COUNTED_STEPS, _PLANNED_STEPS = "time_limit_seconds", "time_limit_counted_steps", "time_limit_planned_steps"


class TimeLimit:
  """The time that a run has used, and the step at which it ends. Make it in the strategy's scope.

  Args:
    max_seconds: seconds of training steps. Start-up, evaluations and checkpoints do not count, nor does the first step
      after a start, which builds the graph.
    warmup_steps: updates with a rising learning rate. The number of steps is decided after them.
    max_steps: the run ends at this step at the latest.
  """

  def __init__(self, max_seconds: float, *, warmup_steps: int, max_steps: int):
    self.max_seconds = max_seconds
    self._warmup_steps = warmup_steps
    self._max_steps = max_steps
    self._has_started = False
    self._seconds = make_replica_variable(0.0, tf.float64, _SECONDS)
    self._counted_steps = make_replica_variable(0, tf.int64, _COUNTED_STEPS)
    # 0 until the number of steps is decided.
    self._planned_steps = make_replica_variable(0, tf.int64, _PLANNED_STEPS)

  def state(self) -> dict[str, tf.Variable]:
    """Returns the variables that a checkpoint holds, by name."""
    return {
      _SECONDS: self._seconds,
      _COUNTED_STEPS: self._counted_steps,
      _PLANNED_STEPS: self._planned_steps,
    }

  @property
  def seconds(self) -> float:
    """The seconds of training steps so far, in all calls of the run."""
    return float(self._seconds.read_value())

  @property
  def planned_steps(self) -> int:
    """The decided number of steps of the run; 0 before the end of the warm-up."""
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
    return self._warmup_steps if step < self._warmup_steps else step + 1

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
    if self.planned_steps or step < self._warmup_steps:
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
