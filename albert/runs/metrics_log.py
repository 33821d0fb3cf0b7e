"""What a run tells while it trains: metrics.jsonl, TensorBoard events, and lines on the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tqdm import tqdm

from albert.io import files, json_values, local_files
from albert.runs import log_lines, output_files


def read_metrics(output_dir: str) -> list[dict[str, Any]]:
  """The lines of metrics.jsonl, None for numbers that are not finite; a last line cut off by a kill is left out."""
  return log_lines.read(files.join(output_dir, output_files.METRICS))


class MetricsLog:
  """Appends to metrics.jsonl and TensorBoard. Resuming at a step drops the lines after it."""

  def __init__(self, output_dir: str, *, first_step: int, total_steps: int):
    self._path = files.join(output_dir, output_files.METRICS)
    self._events = _Events(files.join(output_dir, "tensorboard"))
    self._total_steps = total_steps
    self._started = time.monotonic()
    self._first_step = first_step
    self._bar = tqdm(total=total_steps, initial=first_step, unit="step", disable=not sys.stderr.isatty())
    kept = [line for line in read_metrics(output_dir) if line["step"] <= first_step]
    files.write_atomically(self._path, "".join(json_values.dumps(line) + "\n" for line in kept))

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """One line of metrics at `step`."""
    with files.open_file(self._path, "ab") as f:
      f.write((json_values.dumps({"step": step, **metrics}) + "\n").encode("utf-8"))
    self._events.write(step, metrics)
    log(f"step {step}/{self._total_steps}  {format_metrics(metrics)}  {self._left(step)}")

  def advance(self, step: int) -> None:
    """Moves the bar of a terminal to `step`."""
    self._bar.update(step - self._bar.n)

  def _left(self, step: int) -> str:
    done = step - self._first_step
    if not self._bar.disable or done <= 0 or step >= self._total_steps:  # a bar says it itself
      return ""
    seconds = (time.monotonic() - self._started) / done * (self._total_steps - step)
    return f"left {int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d}"

  def close(self) -> None:
    """Flushes TensorBoard's events and ends the bar."""
    self._bar.close()
    self._events.close()


class _Events:
  """TensorBoard's events. A run goes on without them: metrics.jsonl has the same numbers."""

  def __init__(self, directory: str):
    self._directory = directory
    self._writer: tf.summary.SummaryWriter | None = None
    with self._warning():
      self._writer = tf.summary.create_file_writer(directory)

  @contextlib.contextmanager
  def _warning(self) -> Iterator[None]:
    """After an error nothing more is written: what follows half an event could not be read."""
    try:
      yield
    except (OSError, tf.errors.OpError) as error:
      found = local_files.system_error(error)
      reason = (found and found.strerror) or " ".join(str(error).split())[:300]
      self._writer = None
      log(
        f"warning: {self._directory}: cannot write TensorBoard's events ({reason}): training goes on without them "
        f"until it is started again; {output_files.METRICS} has the same numbers"
      )

  def write(self, step: int, metrics: dict[str, float]) -> None:
    if self._writer is not None:
      # Leaving as_default flushes: an error of the disk comes here, not later.
      with self._warning(), self._writer.as_default(step=step):
        for name, value in metrics.items():
          tf.summary.scalar(name, value)

  def close(self) -> None:
    if self._writer is not None:
      with self._warning():
        self._writer.close()


_SHORT = {
  "masked_lm_loss": "mlm_loss",
  "masked_lm_accuracy": "mlm_acc",
  "sentence_order_loss": "sop_loss",
  "sentence_order_accuracy": "sop_acc",
  "learning_rate": "lr",
  "examples_per_second": "ex/s",
}


def format_metrics(metrics: dict[str, float]) -> str:
  """`name value` pairs for a line of the terminal."""
  return "  ".join(f"{_SHORT.get(name, name)} {value:.4g}" for name, value in metrics.items())


def log(line: str) -> None:
  """A line for the person who watches: on stderr, so that standard output stays for results."""
  tqdm.write(line.rstrip(), file=sys.stderr)  # above a bar, if there is one
  sys.stderr.flush()
