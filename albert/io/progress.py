"""What is printed on stderr: log lines, warnings, and the progress of long computations.

Progress is a bar on a terminal, otherwise a line every few seconds.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

from albert.errors import in_words_of_caller
from albert.startup import NORMAL, QUIET, VERBOSE, verbosity

# Seconds between lines: the least, the most, and the share of the elapsed time. The interval grows, so that the log of
# a long computation stays short.
_FIRST_INTERVAL, _LONGEST_INTERVAL, _INTERVAL_SHARE = 4.0, 60.0, 1 / 30
_SECONDS_BEFORE_BAR = 1.0
# Larger amounts are printed as 12.3k, 12.3M, and so on.
_SCALED_AMOUNT = 10_000


def log(line: str, *, is_detail: bool = False) -> None:
  """Writes a line to stderr, above the progress bar if there is one. Standard output is for results.

  Args:
    line: the line. One that begins with "warning: " is always written.
    is_detail: whether the line is only written if the verbosity is "verbose".
  """
  if line.startswith("warning: ") or verbosity() == VERBOSE or (verbosity() == NORMAL and not is_detail):
    tqdm.write(in_words_of_caller(line.rstrip()), file=sys.stderr)
    sys.stderr.flush()


def _interval(elapsed: float, share: float = _INTERVAL_SHARE) -> float:
  """Returns the seconds between lines after `elapsed` seconds: a share of them, within limits."""
  return min(max(_FIRST_INTERVAL, elapsed * share), _LONGEST_INTERVAL)


def _format_amount(value: float) -> str:
  return str(tqdm.format_sizeof(value)) if value >= _SCALED_AMOUNT else f"{value:.4g}"


class Progress:
  """Shows the progress of a computation on stderr; a context manager. A short computation shows nothing.

  Args:
    total: the amount of work, in units.
    unit: name of the unit, such as "B" or " examples"; it is printed directly after a number.
    description: what is done; lines and the bar begin with it.
    done: the amount that was done before.

  Attributes:
    note: a text at the end of lines and of the bar, such as "loss 0.5".
    cost: returns what the first `amount` units cost, in any unit. The time left follows it.
    pause_every: number of units after which there is other work, such as an evaluation, as also at the end; 0: never.
  """

  def __init__(self, total: int, unit: str, description: str, *, done: int = 0):
    self.total, self.unit, self.description = total, unit, description
    self.done = self._done_before = done
    self.note = ""
    self.cost: Callable[[int], float] = float
    self.pause_every = self._num_pauses = 0
    self._pause_seconds = 0.0  # of all pauses so far
    self._start_time = self._last_line_time = time.monotonic()
    self._shown: int | None = -1 if verbosity() == VERBOSE else None  # the amount in the last line; -1: before it
    self._bar = None
    if sys.stderr.isatty() and verbosity() != QUIET:
      options = {"unit_scale": total >= _SCALED_AMOUNT, "delay": _SECONDS_BEFORE_BAR, "dynamic_ncols": True}
      self._bar = tqdm(total=total, initial=done, unit=unit, desc=description, **options)

  def update(self, amount: int) -> None:
    """Adds `amount` units of finished work."""
    self.done += amount
    if self._bar is not None:
      self._bar.set_postfix_str(self.note, refresh=False)
      self._bar.update(amount)
    else:
      now = time.monotonic()
      if now - self._last_line_time >= _interval(now - self._start_time):
        self._print_line()

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Context of other work: the rate leaves it out, and the time left has it for each pause to come."""
    start = time.monotonic()
    yield
    self._num_pauses += 1
    self._pause_seconds += time.monotonic() - start

  def _work_seconds(self) -> float:
    return max(time.monotonic() - self._start_time - self._pause_seconds, 1e-9)

  def seconds_left(self) -> float:
    """Estimates the seconds until the end; infinity before the first unit is done."""
    first, done, last = map(self.cost, (self._done_before, self.done, self.total))
    if done <= first:
      return math.inf
    pauses = math.ceil(self.total / self.pause_every) - self.done // self.pause_every if self.pause_every else 0
    seconds_of_pauses = pauses * self._pause_seconds / max(1, self._num_pauses)
    return self._work_seconds() * (last - done) / (done - first) + seconds_of_pauses

  def _print_line(self) -> None:
    self._shown = self.done
    now = self._last_line_time = time.monotonic()
    elapsed, rate = now - self._start_time, (self.done - self._done_before) / self._work_seconds()
    duration = tqdm.format_interval(round(elapsed))
    amount, total = _format_amount(self.done), _format_amount(self.total)
    percent = f"{100 * self.done / self.total:.0f}%" if self.total else "100%"
    remaining = ""
    if rate > 0 and self.done < self.total:
      remaining = f", {tqdm.format_interval(round(self.seconds_left()))} left"
    line = f"{self.description}: {percent}, {amount} of {total}{self.unit} in {duration}"
    line += f" ({_format_amount(rate)}{self.unit}/s){remaining}{', ' if self.note else ''}{self.note}"
    log(line)

  def close(self) -> None:
    """Shows the final state, if the progress was shown before, but not this state."""
    if self._bar is not None:
      self._bar.close()
    elif self._shown is not None and self._shown != self.done:
      self._print_line()

  def __enter__(self) -> Progress:
    return self

  def __exit__(self, *error: object) -> None:
    """Shows the final state."""
    self.close()


@contextlib.contextmanager
def elapsed_time(description: str) -> Iterator[None]:
  """Context that shows how long a computation has run that does not tell how far it is.

  On a terminal it is one line that changes and vanishes at the end, otherwise a line after 4, 8, 16 seconds and so on,
  at least each minute. The computation must release the GIL.

  Args:
    description: what is done; lines begin with it.
  """
  if verbosity() == QUIET:
    yield
    return
  ended = threading.Event()

  def show() -> None:
    if sys.stderr.isatty():
      with tqdm(desc=description, bar_format="{desc}: {elapsed}", dynamic_ncols=True, leave=False) as bar:
        while not ended.wait(0.5):
          bar.refresh()
      return
    start = time.monotonic()
    while not ended.wait(_interval(time.monotonic() - start, share=1.0)):
      log(f"{description}: {tqdm.format_interval(time.monotonic() - start)}")

  thread = threading.Thread(target=show, daemon=True)
  thread.start()
  try:
    yield
  finally:
    ended.set()
    thread.join()
