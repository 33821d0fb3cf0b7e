"""Rows with any number of labels (--multi_label): their labels as matrices, and the thresholds of the probabilities.

N examples, C labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from albert.data.label_columns import split_labels
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tasks.glue.config import ClassifierConfig
from albert.tasks.glue.specs import CUSTOM

# The values of --thresholds that choose thresholds on the development set.
ONE, PER_LABEL = "one", "per_label"
# The threshold if none was chosen.
DEFAULT_THRESHOLD = 0.5
# Separators that labels are searched for without --multi_label.
_USUAL_SEPARATORS = (",", ";", "|")


def check_multi_label(config: ClassifierConfig, task_name: str, labels: Sequence[str]) -> None:
  """Checks --multi_label, --label_separator and --thresholds.

  Args:
    config: the flags.
    task_name: the canonical name of the task.
    labels: the labels of the task; () if they are not known yet.
  Raises:
    UserError: a flag does not fit the others.
  """
  fixed_threshold(config.thresholds)  # raises an error for a wrong value
  if not config.multi_label:
    return
  if task_name != CUSTOM:
    raise UserError(f"--multi_label is for --task_name={CUSTOM}: a row of {task_name} has one label")
  if config.regression:
    raise UserError("--multi_label and --regression are both given: a regression predicts numbers: leave one out")
  separator = config.label_separator
  if not separator.strip() or separator != separator.strip():
    raise UserError(f"--label_separator={separator!r}: give a text without whitespace at its ends, such as ';'")
  for label in labels:
    if separator in label:
      raise UserError(
        f"--labels: the label {label!r} contains --label_separator={separator}: give another separator, or the labels "
        "one by one"
      )


def combined_label_warning(labels: Sequence[str]) -> str | None:
  """Returns a warning if a label seems to consist of other labels: its rows may have several labels. None otherwise.

  A label seems so if each of its parts is a label, or a part of another label.
  """
  for separator in _USUAL_SEPARATORS:
    parts_of_labels = [list(dict.fromkeys(split_labels(label, separator))) for label in labels]
    counts = Counter(part for parts in parts_of_labels for part in parts)
    for label, parts in zip(labels, parts_of_labels, strict=True):
      if len(parts) > 1 and all(counts[part] > 1 for part in parts):
        flag = "" if separator == "," else f" --label_separator='{separator}'"
        return (
          f"the label {label!r} consists of the labels {', '.join(map(repr, parts))}, and is learned as a class of its "
          f"own: give --multi_label{flag} if a row may have several labels"
        )
  return None


def fixed_threshold(text: str) -> float | None:
  """Returns the number that --thresholds gives; None if thresholds are chosen on the development set.

  Raises:
    UserError: it is neither a number between 0 and 1 nor the name of a choice.
  """
  if text in (ONE, PER_LABEL):
    return None
  try:
    number = float(text)
  except ValueError:
    number = math.nan
  if not 0 < number < 1:
    raise UserError(f"--thresholds={text}: give {ONE}, {PER_LABEL}, or a number between 0 and 1")
  return number


def choose_thresholds(choice: str, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
  """Chooses the thresholds with the highest F1. A label is predicted if its probability is at least its threshold.

  Args:
    choice: ONE for the threshold with the highest micro F1, PER_LABEL for the highest F1 of each label.
    labels: int [N, C] of 0 and 1.
    scores: probabilities, float [N, C].
  Returns: float64 [C].
  """
  if choice == ONE:
    return np.full(labels.shape[1], _best_threshold(labels.ravel(), scores.ravel()))
  return np.array([_best_threshold(*columns) for columns in zip(labels.T, scores.T, strict=True)])


def _best_threshold(labels: np.ndarray, scores: np.ndarray) -> float:
  """Chooses the threshold with the highest F1 for N labels (0 or 1) and probabilities.

  The candidates are halfway between two neighboring probabilities. Of equally good ones, that closest to 0.5 is chosen.
  Without a positive label every F1 is 0, and the result is 0.5.
  """
  num_positive = labels.sum()
  if not num_positive:
    return DEFAULT_THRESHOLD
  order = np.argsort(-scores, kind="stable")
  sorted_scores = scores[order].astype(np.float64)
  lower_scores = np.append(sorted_scores[1:], 0.0)
  num_predicted = np.arange(1, len(scores) + 1)
  f1 = 2 * np.cumsum(labels[order]) / (num_predicted + num_positive)
  candidates = (sorted_scores + lower_scores) / 2
  f1[sorted_scores == lower_scores] = -1.0  # no threshold lies between equal probabilities
  best = np.flatnonzero(f1 >= f1.max() - 1e-12)
  return float(candidates[best[np.argmin(np.abs(candidates[best] - DEFAULT_THRESHOLD))]])


class ChosenThresholds(msgspec.Struct, frozen=True):
  """Thresholds that were chosen on a development set: the content of thresholds.json.

  Attributes:
    choice: ONE or PER_LABEL.
    split: the name of the development set.
    data_sha256: the hash of its files.
    thresholds: label -> threshold.
  """

  choice: str
  split: str
  data_sha256: str
  thresholds: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]

  def write(self, directory: str) -> None:
    """Writes thresholds.json."""
    files.write_json(files.join(directory, output_files.THRESHOLDS), msgspec.structs.asdict(self))


def read_thresholds(directory: str, labels: Sequence[str]) -> ChosenThresholds | None:
  """Reads thresholds.json of a run; None if there is none.

  Raises:
    UserError: the file is damaged, or does not have the labels of the task.
  """
  path = files.join(directory, output_files.THRESHOLDS)
  if not files.exists(path):
    return None
  remedy = "delete it, and evaluate the run again (--do_eval)"
  stored = files.read_json(path, ChosenThresholds, remedy)
  if set(stored.thresholds) != set(labels):
    raise UserError(f"{path}: its labels are not those of the task: {remedy}")
  return stored


def thresholds_of_run(directory: str, choice: str, labels: Sequence[str]) -> np.ndarray:
  """Returns the thresholds of a run: those of --thresholds, or of thresholds.json, or 0.5. float64 [C].

  Args:
    directory: the output_dir; "" if there is no run.
    choice: the value of --thresholds.
    labels: the labels of the task.
  """
  fixed = fixed_threshold(choice)
  stored = read_thresholds(directory, labels) if fixed is None and directory else None
  if stored is not None:
    return np.array([stored.thresholds[label] for label in labels])
  return np.full(len(labels), DEFAULT_THRESHOLD if fixed is None else fixed)
