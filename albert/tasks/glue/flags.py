"""The flags of run_classifier.py, and the values of those that are texts with a form of their own."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from albert.config.base import EVALUATION, TRAINING, changeable_option, evaluation_option, form_option, option
from albert.config.command_flags import as_float32
from albert.config.run import FinetuningConfig
from albert.data.tables import parse_number
from albert.errors import UserError
from albert.io import json_values
from albert.io.text import format_value, join_names, label_name
from albert.tasks.splits import EVAL_SEED

PLAIN, RANKING = "plain", "ranking"
TRUNCATE, WINDOWS = "truncate", "windows"
# The values of --thresholds that choose thresholds on the development set.
ONE, PER_LABEL = "one", "per_label"
BALANCED = "balanced"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(FinetuningConfig):
  """The flags of run_classifier.py that describe the task and its files."""

  task_name: str = option(
    "",
    "task of GLUE (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, AX), or custom for your own files",
    resets=("labels", "positive_label"),
  )
  data_dir: str = changeable_option(
    "",
    "folder of the task's files, or the folder that GLUE's archives were unpacked into",
    resets=("train_file", "eval_file", "predict_file"),
  )
  train_file: str = changeable_option(
    "", "TSV, CSV, JSONL or Parquet file to train on, instead of that in data_dir; or several, with commas or as a glob"
  )
  eval_file: str = changeable_option(
    "",
    "file or files to evaluate on, instead of those in data_dir",
    resets=("eval_share", "folds", "fold", "group_column"),
  )
  eval_share: float = option(
    0.0,
    "share of --train_file that is held out and evaluated on; see eval_split.json (task custom)",
    minimum=0,
    below=1,
  )
  eval_seed: int = option(
    EVAL_SEED, "seed of the choice of the rows of --eval_share and of --folds (task custom)", minimum=0
  )
  folds: int = option(
    0,
    "cross-validation: --train_file is divided into this many folds, and each is evaluated by a model of its own that "
    "is trained on the others; 0: none (task custom)",
    minimum=0,
  )
  fold: int = option(0, "train and evaluate for this fold of --folds alone, from 1; 0: for each of them", minimum=0)
  predict_file: str = changeable_option("", "file or files to predict, instead of those in data_dir")
  formulation: str = option(
    PLAIN,
    "plain: each row by itself; ranking (QNLI only): the sentences of a question are compared with each other",
    choices=(PLAIN, RANKING),
  )
  text_columns: str = form_option(
    "",
    "name of the text's column; for pairs of texts, two names separated by a comma. A name that has a comma is "
    "enclosed in double quotes, or give a JSON list (task custom)",
  )
  label_column: str = form_option(
    "label",
    "name of the label's column; or several columns that hold 1 for each row with the label of their name, else 0, "
    "written as --text_columns (task custom)",
  )
  id_column: str = form_option("", "name of the column of ids; if not given, rows are numbered from 0 (task custom)")
  group_column: str = option(
    "",
    "column, such as that of the author: --eval_share and --folds keep rows of one value together (task custom)",
  )
  column_names: str = form_option(
    "", "names of all columns of files whose first line does not name them, written as --text_columns (task custom)"
  )
  separator: str = form_option(
    "",
    "what separates the fields of CSV and TSV files: a comma, a semicolon, a vertical bar or tab; if not given, it is "
    "recognized (task custom)",
  )
  labels: str = option(
    "",
    "labels, separated by commas or as a JSON list; if not given, those of the training file, sorted (task custom)",
    resets=("positive_label",),
  )
  regression: bool = option(False, "predict numbers instead of classes (task custom)")
  multi_label: bool = option(False, "a row may have several labels, or none (task custom)")
  label_separator: str = form_option(",", "separates the labels in the label column (--multi_label)")
  thresholds: str = evaluation_option(
    "one",
    "probability from which on a label is predicted (--multi_label): one: the same for all labels, chosen on the "
    "development set for the highest micro_f1; per_label: chosen for the highest F1 of each; or a number such as 0.5",
  )
  long_texts: str = form_option(
    TRUNCATE,
    "truncate: a text that is longer than max_seq_length loses its end; windows: it is read in overlapping windows, "
    "whose logits are pooled (single texts only)",
    choices=(TRUNCATE, WINDOWS),
  )
  doc_stride: int = form_option(
    128, "tokens between the starts of successive windows (--long_texts=windows)", minimum=1
  )
  pooling: str = form_option("mean", "pooling of the logits of windows (--long_texts)", choices=("mean", "max"))
  max_windows: int = form_option(
    8, "maximum windows of a text, which bounds the memory; the rest is cut off", minimum=1
  )
  class_weights: str = option(
    "",
    "weights of the labels in the training loss: balanced (rare labels count more, all labels the same in total), "
    "LABEL:WEIGHT,LABEL:WEIGHT or a JSON object; labels that are not listed have weight 1",
  )
  label_smoothing: float = option(
    0.0,
    "share of each label that the training loss divides evenly among all labels, such as 0.1 (one label in a row)",
    minimum=0,
    below=1,
    group=TRAINING,
  )
  positive_label: str = evaluation_option(
    "", "label that f1, precision and recall are computed for; if not given, the second of two labels"
  )
  best_metric: str = option(
    "",
    "metric by which checkpoints and runs are compared: one of eval_results.json, such as macro_f1, rmse or loss. Of "
    "equal values, the one with the lower loss is better. If not given, the first metric of the task",
    group=EVALUATION,
  )


def parse_labels(text: str, *, minimum: int = 2) -> tuple[str, ...]:
  """Parses the value of --labels.

  Args:
    text: labels separated by commas, or a JSON list.
    minimum: the smallest number of labels.
  Returns: the labels; () if the text is empty.
  Raises:
    UserError: there are fewer labels than `minimum`, or one is empty, occurs twice, or contains a tab or a line end.
  """
  if not text:
    return ()
  source = f"--labels={text[:200]}"
  if text.startswith("["):
    values = json_values.parse(source, text, list[str | int | float], "give a JSON list of texts")
    labels = [str(value).strip() for value in values]
  else:
    labels = [label.strip() for label in text.split(",")]
  if any(character in label for label in labels for character in "\t\r\n"):
    raise UserError(f"{source}: a label has a tab or a line end, which predictions files cannot hold: remove it")
  if len({*map(label_name, labels)}) < max(len(labels), minimum) or "" in labels:
    raise UserError(f"{source}: give at least {minimum} different labels, separated by commas")
  return tuple(labels)


def format_labels(labels: Sequence[str]) -> str:
  """Converts labels to a value of --labels, from which parse_labels gets the same labels."""
  text = ",".join(labels)
  needs_json = text.startswith("[") or any("," in label for label in labels)
  return json.dumps(list(labels)) if needs_json else text


def parse_columns(text: str, flag: str = "text_columns") -> tuple[str, ...]:
  """Parses the value of --text_columns, --label_column or --column_names.

  Args:
    text: names separated by commas, like a line of a CSV file: a name that contains a comma or begins with a quote or
      a bracket is enclosed in quotes, and quotes inside of quotes are doubled. Or a JSON list of names.
    flag: the name of the flag, for messages.
  Returns: the names, without spaces at their ends.
  Raises:
    UserError: the text is neither of these.
  """
  source = f"--{flag}={text}"
  if text.lstrip().startswith("["):
    names = json_values.parse(source, text, list[str], 'give a JSON list of names, such as ["a","b"]')
  else:
    reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
      names = [name for row in reader for name in row]
    except csv.Error as error:
      raise UserError(f"{source}: {error}: double a quote inside of quotes, and close them") from error
  return tuple(name.strip() for name in names if name.strip())


def format_columns(names: Sequence[str]) -> str:
  """Converts names to a value of --text_columns, from which parse_columns gets the same names."""
  needs_json = any(character in name for name in names for character in ',"[\r\n')
  return json.dumps(list(names), ensure_ascii=False) if needs_json else ",".join(names)


_WEIGHTS_REMEDY = 'give "balanced", LABEL:WEIGHT,LABEL:WEIGHT or a JSON object such as {"yes": 2, "no": 0.5}'


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
    pairs = list(json_values.parse(flag, text, dict[str, float], _WEIGHTS_REMEDY).items())
  else:
    pairs = []
    for pair in text.split(","):
      label, _, weight_text = pair.rpartition(":")
      try:
        pairs.append((label.strip(), float(weight_text)))
      except ValueError as error:
        raise UserError(f"{flag}: {pair.strip()!r} is not LABEL:WEIGHT: {_WEIGHTS_REMEDY}") from error
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
  elif text == BALANCED:
    counts = np.bincount(targets, minlength=len(labels))
    occurs = counts > 0
    weights[occurs] = len(targets) / (occurs.sum() * counts[occurs])
  else:
    for label, weight in parse_class_weights(text, labels).items():
      weights[labels.index(label)] = weight
  return weights


def format_class_weights(weights: Mapping[str, float]) -> str:
  """Converts label -> weight to a value of --class_weights. Raises UserError if a weight is not a number."""
  try:
    return json.dumps({label: float(weight) for label, weight in weights.items()}, ensure_ascii=False)
  except (TypeError, ValueError) as error:
    raise UserError(f"class_weights={weights}: {error}: give each label a number above 0") from error


def fixed_threshold(text: str) -> float | None:
  """Returns the number that --thresholds gives; None if thresholds are chosen on the development set.

  Raises:
    UserError: it is neither a number between 0 and 1 nor the name of a choice.
  """
  if text in (ONE, PER_LABEL):
    return None
  if not 0 < parse_number(text) < 1:
    raise UserError(f"--thresholds={text}: give {ONE}, {PER_LABEL}, or a number between 0 and 1")
  return float(text)
