"""Progress of long computations on stderr: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 10.0


def _format_duration(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def _format_amount(value: float) -> str:
  return str(tqdm.format_sizeof(value)) if value >= 1000 else f"{value:.4g}"


class Progress:
  """Shows the progress of a computation on stderr; a context manager.

  Args:
    total: the amount of work, in units.
    unit: name of the unit, such as "B" or " examples"; it is printed directly after a number.
    description: what is done; lines and the bar begin with it.
    interval: seconds between lines if stderr is not a terminal.
  """

  def __init__(self, total: int, unit: str, description: str, *, interval: float = _SECONDS_BETWEEN_LINES):
    self.total, self.unit, self.description = total, unit, description
    self.done = 0
    self._interval = interval
    self._start_time = self._last_line_time = time.monotonic()
    self._bar = (
      tqdm(total=total, unit=unit, desc=description, unit_scale=True, dynamic_ncols=True)
      if sys.stderr.isatty()
      else None
    )

  def update(self, amount: int) -> None:
    """Adds `amount` units of finished work."""
    self.done += amount
    if self._bar is not None:
      self._bar.update(amount)
    elif time.monotonic() - self._last_line_time >= self._interval:
      self._print_line()

  def _print_line(self) -> None:
    now = self._last_line_time = time.monotonic()
    elapsed = max(now - self._start_time, 1e-9)
    rate = self.done / elapsed
    duration = _format_duration(elapsed)
    amount, total = _format_amount(self.done), _format_amount(self.total)
    percent = f"{100 * self.done / self.total:.0f}%" if self.total else "100%"
    remaining = f", {_format_duration((self.total - self.done) / rate)} left" if 0 < self.done < self.total else ""
    print(
      f"{self.description}: {percent}, {amount} of {total}{self.unit} in {duration} "
      f"({_format_amount(rate)}{self.unit}/s){remaining}",
      file=sys.stderr,
      flush=True,
    )

  def close(self) -> None:
    """Prints the final state; leaving the context calls it."""
    if self._bar is not None:
      self._bar.close()
    else:
      self._print_line()

  def __enter__(self) -> Progress:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self.close()
