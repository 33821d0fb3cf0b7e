"""The logs of a run: metrics.jsonl, eval_metrics.jsonl, TensorBoard's events, and lines on the terminal.

A log in a file has one JSON object per line. A run that resumes at a step removes the later lines. TensorFlow is
imported only to write events, so that a report starts fast.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.io import files, json_text, json_values, local_files
from albert.io.progress import Progress, log
from albert.runs import output_files

if TYPE_CHECKING:
  import tensorflow as tf

# An integer that is at least 0, as a type of msgspec.
Step = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# Called with a step and its metrics. The names of the metrics of an evaluation begin with "eval_".
MetricsCallback = Callable[[int, dict[str, float]], object]
# The key of the number of the stage, in lines of a run that is divided into stages.
STAGE_KEY = "stage"
# The keys of texts in metrics.jsonl: an event that albert.runs.watch has found, and a sentence about the progress.
EVENT_KEY, STATUS_KEY = "event", "status"
# The ends of the names of metrics that are the results of guessing -> what a picture calls them.
_GUESSES = {
  "guessing_loss": "guessing",
  "guessing_accuracy": "guessing",
  "majority_accuracy": "most frequent",
  "baseline_accuracy": "most frequent",
}


class _Line(msgspec.Struct):
  step: Step


def read(path: str, schema: type[msgspec.Struct] = _Line) -> list[dict[str, Any]]:
  """Reads the lines of a log.

  Args:
    path: path of the log.
    schema: the keys that every line must have.
  Returns:
    A dict for each line; an empty list if the file does not exist. Numbers that are not finite, which a run that
    diverges may log, are None. A last line that is incomplete, because the process was killed, is left out.
  Raises:
    UserError: a line is not a JSON object with these keys. The message names file and line.
  """
  if not files.exists(path):
    return []
  lines = files.read(path).split(b"\n")
  parsed_lines = []
  for number, line in enumerate(lines, start=1):
    try:
      values = json_values.parse(f"{path}, line {number}", line, dict[str, Any], "delete the line", nan_is_null=True)
      json_values.convert(f"{path}, line {number}", values, schema, "delete the line")
    except UserError:
      if number == len(lines):  # no newline follows the line: it is empty, or the process was killed
        break
      raise
    parsed_lines.append(values)
  return parsed_lines


def kind_of(event: str) -> str:
  """Returns the first word of an event: PLATEAU, COLLAPSE or SPIKE of albert.runs.watch."""
  return event.partition(":")[0]


def find_marks(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
  """Finds the steps that pictures mark: the ends of the stages of a run, and the events that the watch has found.

  Args:
    lines: the lines of metrics.jsonl, in the order of the steps.
  Returns: step and label of each event, and of the last step of each stage except the last stage.
  """
  events = [(line["step"], kind_of(str(line[EVENT_KEY]))) for line in lines if EVENT_KEY in line]
  return events + [
    (line["step"], f"end of stage {line[STAGE_KEY]}")
    for line, next_line in itertools.pairwise(lines)
    if isinstance(line.get(STAGE_KEY), int) and line[STAGE_KEY] != next_line.get(STAGE_KEY)
  ]


def lines_with_speed(run: str) -> list[dict[str, Any]]:
  """Returns the lines of metrics.jsonl in the output_dir of a run that have a speed."""
  return [line for line in read_metrics(run) if isinstance(line.get("examples_per_second"), int | float)]


def median_speed(lines: Sequence[Mapping[str, Any]]) -> float:
  """Returns the median of the speeds in one or more lines of metrics.jsonl, in examples per second."""
  # The first line includes the time to build the graph.
  return statistics.median(line["examples_per_second"] for line in lines[1:] or lines)


def training_seconds(run: str) -> float:
  """Returns the time of the training steps of a run: the examples of each stage, divided by its median speed.

  Start-up and evaluations do not count, and a few slow steps do not change the median.

  Args:
    run: the output_dir of a finished run.
  Raises:
    UserError: the run has logged no speed, or has not ended.
  """
  lines = lines_with_speed(run)
  if not lines or not files.exists(files.join(run, output_files.TRAINING_LOSS)):
    problem = "training has not ended" if lines else f"{output_files.METRICS} has no examples_per_second"
    raise UserError(f"{run}: {problem}: repeat the command that trains it, or delete it to train it again")
  config = output_files.read_config(files.join(run, output_files.CONFIG))
  num_steps = lines[-1]["step"]
  whole_run = {"first_step": 0, "last_step": num_steps, "train_batch_size": config["train"]["train_batch_size"]}
  seconds = 0.0
  for number, stage in enumerate(config.get("stages") or [whole_run], start=1):
    # A stage that is too short to be logged has the speed of the whole run.
    of_stage = [line for line in lines if line.get(STAGE_KEY, number) == number] or lines
    steps = max(0, min(stage["last_step"], num_steps) - stage["first_step"])  # the run may have stopped early
    seconds += steps * float(stage["train_batch_size"]) / median_speed(of_stage)
  return seconds


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
  return read(files.join(output_dir, output_files.METRICS))


def _keep_lines(path: str, last_step: int) -> list[dict[str, Any]]:
  """Removes the lines of later steps from a log, and returns the others."""
  lines = [line for line in read(path) if line["step"] <= last_step]
  files.write_atomically(path, "".join(json_text.dumps(line) + "\n" for line in lines))
  return lines


def _append(path: str, line: dict[str, Any]) -> None:
  with files.open_file(path, "ab") as file:
    file.write((json_text.dumps(line) + "\n").encode("utf-8"))


class MetricsLog:
  """Appends metrics to metrics.jsonl and TensorBoard's events, and shows the progress.

  Args:
    output_dir: the directory of the run.
    first_step: the step that training starts or resumes at.
    train: the settings of the training, such as the number of steps.
    callbacks: are called with the metrics that are written.
    annotate: returns texts for a line of metrics.jsonl and the seconds left, by their keys.
    cost: returns what the first steps cost, in any unit. The time left follows it.
  """

  def __init__(
    self,
    output_dir: str,
    first_step: int,
    train: TrainConfig,
    callbacks: Sequence[MetricsCallback] = (),
    annotate: Callable[[dict[str, Any], float], Mapping[str, str]] = lambda line, seconds_left: {},
    cost: Callable[[int], float] = float,
  ):
    self._path = files.join(output_dir, output_files.METRICS)
    self._events = _TensorBoardEvents(files.join(output_dir, "tensorboard"))
    self._evaluation_events = _TensorBoardEvents(files.join(output_dir, "tensorboard", "eval"))
    self._train, self._callbacks, self._annotate, self._cost = train, callbacks, annotate, cost
    self._progress: Progress | None = None  # until the first step, which takes longer than the others
    _keep_lines(self._path, first_step)

  def write(self, step: int, metrics: dict[str, float]) -> None:
    """Moves the progress to `step`, and writes and logs its metrics."""
    line = {"step": step, **metrics}
    seconds_left = self.advance(step, metrics.get("loss"))
    _append(self._path, {**line, **self._annotate(line, seconds_left)})
    self._events.write(step, metrics)
    log(f"step {step}: {format_metrics(metrics)}", is_detail=True)
    for callback in self._callbacks:
      callback(step, dict(metrics))

  def write_evaluation(self, step: int, metrics: dict[str, float]) -> None:
    """Writes the metrics of an evaluation for TensorBoard, which shows them as a run "eval" beside the training."""
    self._evaluation_events.write(step, metrics)
    for callback in self._callbacks:
      callback(step, {f"eval_{name}": value for name, value in metrics.items()})

  def advance(self, step: int, loss: float | None = None) -> float:
    """Moves the progress to `step`, shows the loss if it is given, and returns the estimated seconds left."""
    if self._progress is None:
      self._progress = Progress(self._train.num_train_steps, " steps", "training", done=step)
      self._progress.cost, self._progress.pause_every = self._cost, self._train.eval_every_steps
    if loss is not None:
      self._progress.note = f"loss {loss:.4g}"
    self._progress.update(step - self._progress.done)
    return self._progress.seconds_left()

  def evaluation(self) -> contextlib.AbstractContextManager[None]:
    """A context manager for an evaluation. Its time does not count as time of steps in the progress."""
    return self._progress.pause() if self._progress else contextlib.nullcontext()

  def close(self) -> None:
    """Flushes TensorBoard's events and ends the progress."""
    if self._progress is not None:
      self._progress.close()
    self._events.close()
    self._evaluation_events.close()


class _TensorBoardEvents:
  """Writes TensorBoard's events. An error becomes a warning, because metrics.jsonl has the same numbers."""

  def __init__(self, directory: str):
    import tensorflow as tf  # imported here, because commands that read or log no metrics import this module, too

    self._tf = tf
    self._directory = directory
    self._writer: tf.summary.SummaryWriter | None = None  # until the first event
    self._has_failed = False

  @contextlib.contextmanager
  def _errors_as_warnings(self) -> Iterator[None]:
    """Turns an error into a warning, and stops writing, because TensorBoard reads nothing after an incomplete event."""
    try:
      yield
    except (OSError, self._tf.errors.OpError) as error:
      reason = local_files.describe_error(error)
      self._has_failed = True
      log(
        f"warning: {self._directory}: cannot write TensorBoard's events ({reason}): training continues without "
        f"them until it is started again; {output_files.METRICS} has the same numbers"
      )

  def write(self, step: int, metrics: dict[str, float]) -> None:
    if self._has_failed:
      return
    with self._errors_as_warnings():
      self._writer = self._writer or self._tf.summary.create_file_writer(self._directory)
      # as_default flushes the events at its end, so that an error of the disk is raised here and not in a later call.
      with self._writer.as_default(step=step):
        for name, value in metrics.items():
          self._tf.summary.scalar(name, value)

  def close(self) -> None:
    if self._writer is not None and not self._has_failed:
      with self._errors_as_warnings():
        self._writer.close()


def format_metrics(metrics: Mapping[str, float]) -> str:
  """Returns `name value` pairs with four digits, for a line on the terminal."""
  return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())


def guessed_metric(name: str) -> tuple[str, str]:
  """Returns ("accuracy", "most frequent") for "majority_accuracy", and ("", "") for metrics of models."""
  end = next((end for end in _GUESSES if name.endswith(end)), "")
  return (name.removesuffix(end) + end.rpartition("_")[2], _GUESSES[end]) if end else ("", "")


def format_evaluation(metrics: Mapping[str, float], *names: str) -> str:
  """Returns the main metrics of an evaluation, for a line on the terminal: "accuracy 0.86 (guessing 0.5)".

  Args:
    metrics: all metrics. A metric is shown if they also have its value for guessing, and the error of a regression.
    *names: further metrics to show.
  """
  guesses = {guessed_metric(name)[0]: f" (guessing {value:.4g})" for name, value in metrics.items()}
  shown = {name: value for name, value in metrics.items() if name in (*names, "rmse") or name in guesses}
  return ", ".join(f"{name} {value:.4g}{guesses.get(name, '')}" for name, value in shown.items())


def rank_evaluation(value: float | None, loss: float | None, *, higher_is_better: bool) -> tuple[float, float]:
  """Returns a key by which evaluations are compared: the larger key is better. Equal metrics: the lower loss is better.

  Args:
    value: the metric. None and NaN are worse than any number.
    loss: the loss. None and NaN are worse than any number.
    higher_is_better: whether the metric is a score, and not a loss or an error.
  """

  def rank(number: Any, sign: float) -> float:
    return sign * number if isinstance(number, int | float) and not math.isnan(number) else -math.inf

  return rank(value, 1.0 if higher_is_better else -1.0), rank(loss, -1.0)


class EvaluationLog:
  """Appends a line for each evaluation. A run that resumes at a step removes the later lines.

  Args:
    output_dir: the directory of the run.
    first_step: the step that training starts or resumes at.
    metric: the metric that evaluations are compared by.
    higher_is_better: whether a higher value of the metric is better.
  Raises:
    UserError: a line of the log is damaged.
  """

  def __init__(self, output_dir: str, *, first_step: int, metric: str, higher_is_better: bool):
    self._path = files.join(output_dir, output_files.EVALUATIONS)
    self._metric = metric
    self._higher_is_better = higher_is_better
    self._lines = _keep_lines(self._path, first_step)

  def has_step(self, step: int) -> bool:
    """Whether the log has the evaluation of a step."""
    return any(line["step"] == step for line in self._lines)

  def add(self, step: int, metrics: dict[str, float]) -> None:
    """Appends the metrics of an evaluation after `step` updates."""
    line = {"step": step, **metrics}
    self._lines.append(line)
    _append(self._path, line)

  @property
  def evaluations_since_best(self) -> int:
    """Number of evaluations after the first one with the best metric. Losses do not count here."""
    scores = [
      rank_evaluation(line.get(self._metric), None, higher_is_better=self._higher_is_better) for line in self._lines
    ]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0
