"""Progress of long computations on stderr: a bar on a terminal, otherwise a line every few seconds; and log lines."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

from tqdm import tqdm

# Seconds between lines in the first two minutes, and later, so that the log of a long computation stays short.
_FIRST_INTERVAL, _LATER_INTERVAL, _FIRST_SECONDS = 4.0, 10.0, 120.0


def log(line: str) -> None:
  """Writes a line to stderr, above the progress bar if there is one. Standard output is for results."""
  tqdm.write(line.rstrip(), file=sys.stderr)
  sys.stderr.flush()


def _interval(elapsed: float) -> float:
  """Returns the seconds between lines after `elapsed` seconds."""
  return _FIRST_INTERVAL if elapsed < _FIRST_SECONDS else _LATER_INTERVAL


def _format_amount(value: float) -> str:
  return str(tqdm.format_sizeof(value)) if value >= 1000 else f"{value:.4g}"


class Progress:
  """Shows the progress of a computation on stderr; a context manager.

  Args:
    total: the amount of work, in units.
    unit: name of the unit, such as "B" or " examples"; it is printed directly after a number.
    description: what is done; lines and the bar begin with it.
  """

  def __init__(self, total: int, unit: str, description: str):
    self.total, self.unit, self.description = total, unit, description
    self.done = 0
    self._start_time = self._last_line_time = time.monotonic()
    self._bar = None
    if sys.stderr.isatty():
      self._bar = tqdm(total=total, unit=unit, desc=description, unit_scale=True, dynamic_ncols=True)

  def update(self, amount: int) -> None:
    """Adds `amount` units of finished work."""
    self.done += amount
    if self._bar is not None:
      self._bar.update(amount)
    else:
      now = time.monotonic()
      if now - self._last_line_time >= _interval(now - self._start_time):
        self._print_line()

  def _print_line(self) -> None:
    now = self._last_line_time = time.monotonic()
    elapsed = max(now - self._start_time, 1e-9)
    rate = self.done / elapsed
    duration = tqdm.format_interval(round(elapsed))
    amount, total = _format_amount(self.done), _format_amount(self.total)
    percent = f"{100 * self.done / self.total:.0f}%" if self.total else "100%"
    speed, remaining = f"{_format_amount(rate)}{self.unit}/s", ""
    if 0 < self.done < self.total:
      remaining = f", {tqdm.format_interval(round((self.total - self.done) / rate))} left"
    line = f"{self.description}: {percent}, {amount} of {total}{self.unit} in {duration} ({speed}){remaining}"
    print(line, file=sys.stderr, flush=True)

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *error: object) -> None:
    """Prints the final state."""
    if self._bar is not None:
      self._bar.close()
    else:
      self._print_line()


@contextlib.contextmanager
def elapsed_time(description: str) -> Iterator[None]:
  """Context that shows how long a computation has run that does not tell how far it is.

  On a terminal it is one line that changes and vanishes at the end, otherwise a line every few seconds. The
  computation must release the GIL.

  Args:
    description: what is done; lines begin with it.
  """
  ended = threading.Event()

  def show() -> None:
    if sys.stderr.isatty():
      with tqdm(desc=description, bar_format="{desc}: {elapsed}", dynamic_ncols=True, leave=False) as bar:
        while not ended.wait(0.5):
          bar.refresh()
      return
    start = time.monotonic()
    while not ended.wait(_interval(time.monotonic() - start)):
      print(f"{description}: {tqdm.format_interval(time.monotonic() - start)}", file=sys.stderr, flush=True)

  thread = threading.Thread(target=show, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
