"""Writes the metrics of a run: metrics.jsonl, TensorBoard events and lines on the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from albert.io import files, json_values, local_files
from albert.runs import log_lines, output_files

if TYPE_CHECKING:
  import tensorflow as tf


def read_metrics(output_dir: str) -> list[dict[str, Any]]:
  """Reads metrics.jsonl.

  Args:
    output_dir: the directory of the run.
  Returns:
    A dict for each line. Numbers that are not finite are None. A last line that is incomplete, because the run was
    killed, is left out.
  Raises:
    UserError: a line is damaged.
  """
  return log_lines.read(files.join(output_dir, output_files.METRICS))


class MetricsLog:
  """Appends metrics to metrics.jsonl and TensorBoard's events, and shows the progress on the terminal.

  A run that resumes at a step removes the later lines of metrics.jsonl.

  Args:
    output_dir: the directory of the run.
    first_step: the step that training starts or resumes at.
    total_steps: the last step, for the progress bar and the estimate of the time left.
  """

  def __init__(self, output_dir: str, *, first_step: int, total_steps: int):
    self._path = files.join(output_dir, output_files.METRICS)
    self._events = _TensorBoardEvents(files.join(output_dir, "tensorboard"))
    self._evaluation_events: _TensorBoardEvents | None = None
    self._evaluation_directory = files.join(output_dir, "tensorboard", "eval")
    self._total_steps = total_steps
    self._start_time = time.monotonic()
    self._first_step = first_step
    self._bar = tqdm(total=total_steps, initial=first_step, unit="step", disable=not sys.stderr.isatty())
    earlier_lines = [line for line in read_metrics(output_dir) if line["step"] <= first_step]
    files.write_atomically(self._path, "".join(json_values.dumps(line) + "\n" for line in earlier_lines))

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Writes and logs the metrics of a step."""
    with files.open_file(self._path, "ab") as file:
      file.write((json_values.dumps({"step": step, **metrics}) + "\n").encode("utf-8"))
    self._events.write(step, metrics)
    log(f"step {step}/{self._total_steps}  {format_metrics(metrics)}  {self._time_left(step)}")

  def write_evaluation(self, step: int, metrics: dict[str, float]) -> None:
    """Writes the metrics of an evaluation to TensorBoard, which shows them beside those of training as the run eval."""
    if self._evaluation_events is None:
      self._evaluation_events = _TensorBoardEvents(self._evaluation_directory)
    self._evaluation_events.write(step, metrics)

  def advance(self, step: int) -> None:
    """Moves the progress bar, which is shown if stderr is a terminal, to `step`."""
    self._bar.update(step - self._bar.n)

  def _time_left(self, step: int) -> str:
    """The estimated time until the last step; empty if the progress bar shows it."""
    num_steps_done = step - self._first_step
    if not self._bar.disable or num_steps_done <= 0 or step >= self._total_steps:
      return ""
    seconds = (time.monotonic() - self._start_time) / num_steps_done * (self._total_steps - step)
    return f"left {int(seconds // 3600)}:{int(seconds % 3600 // 60):02d}:{int(seconds % 60):02d}"

  def close(self) -> None:
    """Flushes TensorBoard's events and closes the progress bar."""
    self._bar.close()
    self._events.close()
    if self._evaluation_events is not None:
      self._evaluation_events.close()


class _TensorBoardEvents:
  """Writes TensorBoard's events. An error becomes a warning, because metrics.jsonl has the same numbers."""

  def __init__(self, directory: str):
    import tensorflow as tf  # imported here, because commands that read or log no metrics import this module, too

    self._tf = tf
    self._directory = directory
    self._writer: tf.summary.SummaryWriter | None = None
    with self._errors_as_warnings():
      self._writer = tf.summary.create_file_writer(directory)

  @contextlib.contextmanager
  def _errors_as_warnings(self) -> Iterator[None]:
    """Turns an error into a warning, and stops writing, because TensorBoard reads nothing after an incomplete event."""
    try:
      yield
    except (OSError, self._tf.errors.OpError) as error:
      reason = local_files.describe_error(error)
      self._writer = None
      log(
        f"warning: {self._directory}: cannot write TensorBoard's events ({reason}): training continues without "
        f"them until it is started again; {output_files.METRICS} has the same numbers"
      )

  def write(self, step: int, metrics: dict[str, float]) -> None:
    if self._writer is not None:
      # as_default flushes the events at its end, so that an error of the disk is raised here and not in a later call.
      with self._errors_as_warnings(), self._writer.as_default(step=step):
        for name, value in metrics.items():
          self._tf.summary.scalar(name, value)

  def close(self) -> None:
    if self._writer is not None:
      with self._errors_as_warnings():
        self._writer.close()


# Metric -> its name in log lines.
_SHORT_NAMES = {
  "masked_lm_loss": "mlm_loss",
  "masked_lm_accuracy": "mlm_acc",
  "masked_lm_perplexity": "mlm_ppl",
  "sentence_order_loss": "sop_loss",
  "sentence_order_accuracy": "sop_acc",
  "learning_rate": "lr",
  "examples_per_second": "ex/s",
}


def format_metrics(metrics: dict[str, float]) -> str:
  """Returns `name value` pairs with four digits and short names, for a line on the terminal."""
  return "  ".join(f"{_SHORT_NAMES.get(name, name)} {value:.4g}" for name, value in metrics.items())


def log(line: str) -> None:
  """Writes a line to stderr, above the progress bar if there is one. Standard output is for results."""
  tqdm.write(line.rstrip(), file=sys.stderr)
  sys.stderr.flush()


def print_metrics(metrics: Mapping[str, float]) -> None:
  """Prints the metrics of a finished evaluation on standard output, one on each line."""
  for name, value in metrics.items():
    print(f"{name} = {value:.6g}", flush=True)
