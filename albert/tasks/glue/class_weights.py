"""The weights of the labels in the training loss: --class_weights.

N examples, C labels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from albert.config.ranges import as_float32
from albert.errors import UserError
from albert.io import json_values
from albert.io.json_values import format_value
from albert.io.wording import join_names
from albert.tasks.glue.config import RANKING, ClassifierConfig
from albert.tasks.glue.specs import TaskSpec

BALANCED = "balanced"
_REMEDY = 'give "balanced", LABEL:WEIGHT,LABEL:WEIGHT or a JSON object such as {"yes": 2, "no": 0.5}'


def check_class_weights(config: ClassifierConfig, spec: TaskSpec) -> None:
  """Raises UserError if --class_weights cannot be used with the task, or see parse_class_weights."""
  text = config.class_weights
  if not text:
    return
  if spec.is_regression or config.formulation == RANKING:
    problem = "a regression has no labels" if spec.is_regression else f"--formulation={RANKING} has no classes"
    raise UserError(f"--class_weights={text}: {problem}: leave the flag out")
  if text != BALANCED:
    parse_class_weights(text, spec.labels)


def parse_class_weights(text: str, labels: Sequence[str]) -> dict[str, float]:
  """Parses the value of --class_weights, unless it is "balanced".

  Args:
    text: pairs of a label and a weight, such as "yes:2,no:0.5", or a JSON object.
    labels: the labels of the task.
  Returns: label -> weight, for the labels that are given.
  Raises:
    UserError: a label is unknown or given twice, or a weight is not a positive number.
  """
  flag = f"--class_weights={text}"
  if text.startswith("{"):
    pairs = list(json_values.parse(flag, text, dict[str, float], _REMEDY).items())
  else:
    pairs = [_parse_pair(pair, flag) for pair in text.split(",")]
  weights: dict[str, float] = {}
  for label, weight in pairs:
    if label not in labels:
      raise UserError(f"{flag}: {label!r} is not a label of this task: {join_names(labels)}")
    if label in weights:
      raise UserError(f"{flag}: {label!r} is given twice: give each label one weight")
    if not (weight > 0 and 0 < as_float32(weight) < math.inf):
      raise UserError(f"{flag}: the weight of {label!r} is {format_value(weight)}: give a number above 0")
    weights[label] = weight
  return weights


def _parse_pair(pair: str, flag: str) -> tuple[str, float]:
  label, _, weight = pair.rpartition(":")
  try:
    return label.strip(), float(weight)
  except ValueError as error:
    raise UserError(f"{flag}: {pair.strip()!r} is not LABEL:WEIGHT: {_REMEDY}") from error


def make_class_weights(text: str, labels: Sequence[str], targets: np.ndarray) -> np.ndarray:
  """Computes the weight of each label. Labels that --class_weights does not name have weight 1.

  "balanced" gives a class N / (C n), where n of the N examples have it, as scikit-learn does: then all classes have the
  same total weight. C is the number of classes that occur. If rows may have several labels, it gives a label the number
  of the rows without it, divided by that of the rows with it; labels that all rows or none have get weight 1.

  Args:
    text: the value of --class_weights.
    labels: the labels of the task.
    targets: the classes of the training examples, int [N], or their labels, int [N, C] of 0 and 1.
  Returns: float32 [C].
  Raises:
    UserError: see parse_class_weights.
  """
  weights = np.ones(len(labels), np.float32)
  if text == BALANCED and targets.ndim == 2:
    counts = targets.sum(axis=0)
    differs = (counts > 0) & (counts < len(targets))
    weights[differs] = (len(targets) - counts[differs]) / counts[differs]
    return weights
  if text == BALANCED:
    counts = np.bincount(targets, minlength=len(labels))
    occurs = counts > 0
    weights[occurs] = len(targets) / (occurs.sum() * counts[occurs])
    return weights
  for label, weight in parse_class_weights(text, labels).items():
    weights[labels.index(label)] = weight
  return weights


def describe_class_weights(weights: np.ndarray, labels: Sequence[str]) -> str:
  """Returns the weights as text, such as "yes 2, no 0.5", for the log."""
  return join_names(f"{label} {weight:.4g}" for label, weight in zip(labels, weights, strict=True))


def format_class_weights(weights: str | Mapping[str, float]) -> str:
  """Converts weights of the Python API, "balanced" or label -> weight, to a value of --class_weights.

  Raises:
    UserError: a weight is not a number.
  """
  if isinstance(weights, str):
    return weights
  try:
    return json.dumps({label: float(weight) for label, weight in weights.items()}, ensure_ascii=False)
  except (TypeError, ValueError) as error:
    raise UserError(f"class_weights={weights}: {error}: give each label a number above 0") from error
