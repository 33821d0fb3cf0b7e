"""Metrics of classification and regression, files for gluebenchmark.com, and averages of several runs' predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert.config.base import from_dict
from albert.io import files
from albert.metrics import classification
from albert.runs import output_files
from albert.tasks import predictions
from albert.tasks.calibration import calibration_errors_of_labels, calibration_of, draw_calibration
from albert.tasks.glue.config import ClassifierConfig
from albert.tasks.glue.data import make_spec
from albert.tasks.glue.own_data.multi_label import choose_thresholds, fixed_threshold, thresholds_of_run
from albert.tasks.glue.specs import Submission, TaskSpec
from albert.tasks.predictions import Predictions


def compute_metrics(spec: TaskSpec, split_predictions: Predictions) -> dict[str, float]:
  """Computes the metrics of a task.

  Args:
    spec: the task; spec.metrics names its metrics.
    split_predictions: predictions of at least one example, with labels.
  Returns: metric -> value. For classification there is also majority_accuracy, the accuracy of always predicting the
    most frequent label, or of the most frequent set of labels; and if each example has one label, calibration_error,
    the expected calibration error.
  """
  assert split_predictions.labels is not None
  metrics = classification.compute(
    spec.metrics, split_predictions.labels, split_predictions.predicted, spec.positive_class
  )
  if not spec.is_regression:
    _, counts = np.unique(split_predictions.labels, axis=0, return_counts=True)
    metrics["majority_accuracy"] = float(counts.max() / len(split_predictions.labels))
    if split_predictions.thresholds is None:
      metrics["calibration_error"] = calibration_of(split_predictions).error
  return metrics


def _with_thresholds(
  averages: Mapping[str, Predictions], labeled_splits: Sequence[str], choices: Mapping[str, str]
) -> dict[str, Predictions]:
  """Gives all splits the same thresholds: those that --thresholds chooses on the averages of the first split with
  labels, or else the mean of the runs' thresholds. `choices`: output_dir of each run -> its --thresholds."""
  first = next(iter(averages.values()))
  thresholds = np.mean([thresholds_of_run(run, choice, first.label_names) for run, choice in choices.items()], axis=0)
  choice = next(iter(choices.values()))
  if fixed_threshold(choice) is None and labeled_splits:
    labeled = averages[labeled_splits[0]]
    assert labeled.labels is not None
    thresholds = choose_thresholds(choice, labeled.labels, labeled.scores)
  return {split: average.with_thresholds(thresholds, average.separator) for split, average in averages.items()}


def write_class_scores(directory: str, split: str, split_predictions: Predictions) -> str:
  """Writes classes_SPLIT.tsv: label, precision, recall, F1, and the numbers of its examples and predictions.

  If an example may have several labels, also the calibration error of each label's probability, and its threshold.

  Args:
    directory: where to write.
    split: the name of the split.
    split_predictions: predictions of classes for at least one example, with labels.
  Returns: the path of the file.
  """
  assert split_predictions.labels is not None
  names = split_predictions.label_names
  scores = classification.scores_of_classes(split_predictions.labels, split_predictions.predicted, len(names))
  rows = [
    [name, *(f"{score:.6g}" for score in ratios), *map(str, counts)]
    for name, ratios, counts in zip(
      names,
      zip(scores.precision, scores.recall, scores.f1, strict=True),
      zip(scores.num_labels, scores.num_predictions, strict=True),
      strict=True,
    )
  ]
  header = ["label", "precision", "recall", "f1", "num_labels", "num_predictions"]
  if split_predictions.thresholds is not None:
    header += ["calibration_error", "threshold"]
    errors = calibration_errors_of_labels(split_predictions)
    values = zip(errors, split_predictions.thresholds, strict=True)
    rows = [[*row, f"{error:.6g}", f"{limit:.6g}"] for row, (error, limit) in zip(rows, values, strict=True)]
  path = files.join(directory, f"classes_{split}.tsv")
  predictions.write_table(path, header, rows)
  return path


def write_submission(
  directory: str, spec: TaskSpec, submission: Submission, split_predictions: Predictions, path: str = ""
) -> str:
  """Writes predictions in the form that gluebenchmark.com accepts: tab-separated columns, index and prediction.

  Args:
    directory: where to write.
    spec: the task. Labels are written as they are spelled in its files. Predicted numbers are clipped to its range.
    submission: gives the name of the file.
    split_predictions: the predictions.
    path: the file to write instead of the one in `directory`.
  Returns: the path of the file.
  """
  if spec.is_regression:
    numbers = np.clip(split_predictions.predicted.astype(np.float64), spec.low, spec.high)
    texts = [f"{number:.6f}" for number in numbers]
  else:
    texts = split_predictions.format_values(split_predictions.predicted)
  path = path or files.join(directory, submission.name)
  predictions.write_table(path, ["index", "prediction"], zip(split_predictions.ids, texts, strict=True))
  return path


def average_runs(
  run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
) -> dict[str, float]:
  """Averages the predictions of several runs, and writes the averages.

  For each split with labels, it also draws the pictures of an evaluation. For each test set, it also writes a file for
  gluebenchmark.com.

  Args, Returns, Raises: see albert.tasks.registry.RunAverager.
  """
  fields = {field.name for field in dataclasses.fields(ClassifierConfig)}
  settings = {name: value for name, value in settings_of_runs[0].items() if name in fields}
  config = from_dict(ClassifierConfig, settings, source=files.join(run_dirs[0], output_files.CONFIG))
  spec = make_spec(config)
  flag_of_split = dict.fromkeys(spec.dev, "--do_eval")
  for split, submission in spec.submissions.items():
    if not submission.is_optional:
      flag_of_split[split] = "--do_predict"
  averages = predictions.average_predictions_files(run_dirs, output_dir, flag_of_split, spec.label_separator)
  labeled_splits = [split for split, average in averages.items() if average.labels is not None]
  if spec.label_separator:
    choices = [settings.get("thresholds", config.thresholds) for settings in settings_of_runs]
    averages = _with_thresholds(averages, labeled_splits, dict(zip(run_dirs, choices, strict=True)))
    for split, average in averages.items():
      predictions.write_predictions(output_dir, split, average)
  metrics: dict[str, float] = {}
  for split, average in averages.items():
    if split in labeled_splits:
      predictions.draw_predictions(output_dir, split, average)
      if average.label_names and average.thresholds is None:
        draw_calibration(output_dir, split, average)
      prefix = f"{split}_" if len(labeled_splits) > 1 else ""
      metrics |= {prefix + name: value for name, value in compute_metrics(spec, average).items()}
    elif split in spec.submissions and spec.submissions[split].name:
      write_submission(output_dir, spec, spec.submissions[split], average)
  return metrics
