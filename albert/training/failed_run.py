"""Recognizes runs that have not learned more than guessing, and makes the error of runs that are not finite.

Large models on small data often do not learn, for some seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from albert.errors import RunError
from albert.io import files
from albert.runs import output_files
from albert.runs.logs import read_metrics
from albert.tasks.base import LOSS, Task
from albert.weights.checkpoints import CheckpointManager

# A loss above this share of the loss of guessing is not better than guessing.
_GUESSING_SHARE = 0.95
# An accuracy is better than guessing if it is greater by more than this.
_ACCURACY_MARGIN = 0.02
# The training loss is the mean over the last quarter of the logged lines.
_PARTS_OF_LOG = 4

_REMEDY = (
  "give another --seed, a lower --learning_rate or a longer warm-up (--num_warmup_steps), in a new --output_dir; or "
  "--num_runs=5 trains with five seeds and keeps the best"
)


class TrainingLoss(msgspec.Struct):
  """The content of training_loss.json, which records that training has ended.

  Attributes:
    step: the last step.
    loss: the mean training loss in the last quarter of the logged lines; None if it was not finite or not logged.
    guessing_loss: the loss of always guessing; None if it is not known.
    num_lines: the number of logged lines.
  """

  step: int
  loss: float | None
  guessing_loss: float | None
  num_lines: int


def write_training_loss(task: Task, results_dir: str, step: int) -> None:
  """Writes training_loss.json from metrics.jsonl.

  Args:
    task: the task.
    results_dir: the directory of the logs.
    step: the last step.
  """
  lines = read_metrics(results_dir)
  last_lines = lines[-max(1, len(lines) // _PARTS_OF_LOG) :]
  losses = [loss for line in last_lines if (loss := line.get(LOSS)) is not None]
  mean = math.fsum(losses) / len(losses) if losses and len(losses) == len(last_lines) else None
  content = {"step": step, "loss": mean, "guessing_loss": task.guessing_loss(), "num_lines": len(lines)}
  files.write_json(files.join(results_dir, output_files.TRAINING_LOSS), content)


def read_training_loss(output_dir: str) -> TrainingLoss | None:
  """Reads training_loss.json; None if the training in output_dir has not ended.

  Raises:
    UserError: the file is damaged.
  """
  path = files.join(output_dir, output_files.TRAINING_LOSS)
  remedy = "delete it, and the command that trained the run writes it again"
  return files.read_json(path, TrainingLoss, remedy, nan_is_null=True) if files.exists(path) else None


def find_failure(output_dir: str, metrics: Mapping[str, float], loss_name: str = LOSS) -> str | None:
  """Compares a run with guessing.

  A run has failed if its training loss is that of guessing, and so are its loss and its accuracy on the development
  set. Without an evaluation, only the training loss counts.

  Args:
    output_dir: the directory of the run.
    metrics: the metrics of its evaluation, with guessing_loss; {} if there was none.
    loss_name: the name of the loss in them: "loss", or SPLIT_loss with several evaluation sets.
  Returns: what shows the failure, as a part of a sentence; None if the run has learned something, or if this is not
    known.
  """
  training = read_training_loss(output_dir)
  if training is None or training.loss is None or training.guessing_loss is None:
    return None
  if training.loss <= _GUESSING_SHARE * training.guessing_loss:
    return None
  reason = f"its training loss is {training.loss:.4g}, that of guessing {training.guessing_loss:.4g}"
  if not metrics:
    # A short log also has the losses before the run learned.
    return reason if training.num_lines >= _PARTS_OF_LOG else None
  prefix = loss_name.removesuffix(LOSS)
  loss, guess = metrics.get(loss_name), metrics.get(f"{prefix}guessing_loss")
  if loss is None or guess is None or loss <= _GUESSING_SHARE * guess:
    return None
  accuracy, majority = metrics.get(f"{prefix}accuracy"), metrics.get(f"{prefix}majority_accuracy")
  if accuracy is None or majority is None:
    return f"{reason}; on the development set {loss:.4g} and {guess:.4g}"
  if accuracy > majority + _ACCURACY_MARGIN:
    return None
  return f"{reason}; accuracy on the development set {accuracy:.4g}, of the most frequent label {majority:.4g}"


def failure_warning(failure: str) -> str:
  """Returns the line for the log about a failure that `find_failure` has found."""
  return f"warning: this run has not learned more than guessing: {failure}: {_REMEDY}"


def not_finite_error(problem: str, checkpoints: CheckpointManager, saved_step: int) -> RunError:
  """Makes the error for values that are not finite. It names the last good checkpoint, `saved_step`, if it exists."""
  is_saved = saved_step in checkpoints.steps()
  last_good = f"the last good checkpoint is step-{saved_step}" if is_saved else "no checkpoint was saved yet"
  return RunError(
    f"{problem}; stopped, {last_good} in {checkpoints.directory}. "
    "Lower --learning_rate (or --scale_learning_rate for a smaller batch), lengthen --num_warmup_steps, or "
    "train in --precision=float32"
  )
