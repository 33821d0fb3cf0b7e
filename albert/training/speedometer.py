"""Measures the speed of training."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

# One call of the loop on the device takes about this long at most, because signals are handled between the calls.
_SECONDS_PER_LOOP = 5.0


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
