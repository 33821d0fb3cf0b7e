"""Handles signals during training: after the first signal, the run is saved and stops."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from albert.errors import Stopped
from albert.runs.metrics_log import log


class StopRequest:
  """A context manager that turns the first SIGTERM or SIGINT into a request to save and stop.

  The first signal only sets `signal_number`, which the training loop reads. A second one has its usual effect.

  Attributes:
    signal_number: the number of the signal that was received; 0 if none was.
  """

  def __init__(self) -> None:
    self.signal_number = 0
    self._previous_handlers: dict[int, Any] = {}

  def __enter__(self) -> StopRequest:
    for number in (signal.SIGTERM, signal.SIGINT):
      try:
        self._previous_handlers[number] = signal.signal(number, self._handle)
      except ValueError:  # Python allows signal handlers in the main thread only
        break
    return self

  def _handle(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.signal_number = number
    log(f"{signal.Signals(number).name}: saving after the current step")
    signal.signal(number, self._previous_handlers[number])

  def error(self, step: int) -> Stopped:
    """Makes the error that ends a run that was stopped and saved at `step`."""
    # If another process received the signal, its number is not known here.
    number = self.signal_number or signal.SIGTERM
    return Stopped(f"stopped at step {step} and saved; the same command resumes there", number)

  def __exit__(self, *unused: object) -> None:
    for number, handler in self._previous_handlers.items():
      signal.signal(number, handler)
