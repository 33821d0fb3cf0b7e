"""The results of classification and regression: metrics, thresholds, files, and averages of several runs.

N examples, C classes or labels. Needs no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from albert.config.base import from_dict, option_fields
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.metrics import classification
from albert.metrics.classification import NUM_INTERVALS, Calibration, measure_calibration
from albert.runs import figures, output_files
from albert.tasks import predictions
from albert.tasks.glue.flags import ONE, ClassifierConfig, fixed_threshold
from albert.tasks.glue.specs import TaskSpec, make_spec
from albert.tasks.predictions import Predictions

# The threshold if none was chosen.
DEFAULT_THRESHOLD = 0.5


def compute_metrics(spec: TaskSpec, split_predictions: Predictions) -> dict[str, float]:
  """Computes the metrics of a task.

  Args:
    spec: the task; spec.metrics names its metrics.
    split_predictions: predictions of at least one example, with labels.
  Returns: metric -> value. For classification there is also majority_accuracy, the accuracy of always predicting the
    most frequent label, or of the most frequent set of labels; and if each example has one label, calibration_error,
    the expected calibration error.
  """
  labels = split_predictions.labels
  assert labels is not None
  metrics = classification.compute(spec.metrics, labels, split_predictions.predicted, spec.positive_class)
  if not spec.is_regression:
    _, counts = np.unique(labels, axis=0, return_counts=True)
    metrics["majority_accuracy"] = float(counts.max() / len(labels))
    if split_predictions.thresholds is None:
      metrics["calibration_error"] = calibration_of(split_predictions).error
  return metrics


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
  """Chooses the threshold with the highest F1 for N labels (0 or 1) and probabilities."""
  num_positive = labels.sum()
  if not num_positive:  # every F1 is 0
    return DEFAULT_THRESHOLD
  order = np.argsort(-scores, kind="stable")
  sorted_scores = scores[order].astype(np.float64)
  lower_scores = np.append(sorted_scores[1:], 0.0)
  num_predicted = np.arange(1, len(scores) + 1)
  f1 = 2 * np.cumsum(labels[order]) / (num_predicted + num_positive)
  candidates = (sorted_scores + lower_scores) / 2  # of equally good ones, that closest to 0.5 is chosen
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
  """Returns the thresholds of a run, float64 [C]: the number that --thresholds gives, or thresholds.json, or 0.5.

  Args:
    directory: its output_dir; "" if there is no run.
    choice: the value of --thresholds.
    labels: the C labels.
  """
  return _threshold_values(choice, read_thresholds(directory, labels) if directory else None, labels)


def _threshold_values(choice: str, chosen: ChosenThresholds | None, labels: Sequence[str]) -> np.ndarray:
  """Returns float64 [C]: `choice`, the value of --thresholds, if it is a number; else `chosen`; without it, 0.5."""
  fixed = fixed_threshold(choice)
  if fixed is None and chosen is not None:
    return np.array([chosen.thresholds[label] for label in labels])
  return np.full(len(labels), DEFAULT_THRESHOLD if fixed is None else fixed)


class RunThresholds:
  """The thresholds of a run whose rows may have several labels.

  They are chosen on the development set, anew whenever it is evaluated. For other data, such as a test set, those in
  thresholds.json of the run are used.

  Args:
    choice: the value of --thresholds.
    spec: the task.

  Attributes:
    chooses: whether thresholds are chosen on the development set. If not, those of the run are used for it, too.
  """

  def __init__(self, choice: str, spec: TaskSpec):
    self._choice, self._spec = choice, spec
    self._stored: ChosenThresholds | None = None
    self.chooses = True

  def read(self, output_dir: str) -> None:
    """Reads thresholds.json of a run."""
    self._stored = read_thresholds(output_dir, self._spec.labels)

  def apply(self, split: str, split_predictions: Predictions, data_sha256: str) -> Predictions:
    """Returns the predictions for a split with the thresholds for it. `data_sha256`: the hash of the split's files."""
    chosen = self._choose(split, split_predictions, data_sha256)
    thresholds = _threshold_values(self._choice, chosen, self._spec.labels)
    return dataclasses.replace(split_predictions, thresholds=thresholds, separator=self._spec.label_separator)

  def write_chosen(self, split: str, split_predictions: Predictions, data_sha256: str, directory: str) -> None:
    """Writes thresholds.json, if the thresholds for a split are chosen on it."""
    chosen = self._choose(split, split_predictions, data_sha256)
    if chosen is not None and chosen is not self._stored:
      chosen.write(directory)
      self._stored = chosen
    elif chosen is not None:
      log(f"{split}: the thresholds are those that were chosen on the run's development set ({chosen.choice})")

  def _choose(self, split: str, split_predictions: Predictions, data_sha256: str) -> ChosenThresholds | None:
    """The thresholds for a split: chosen on it if it is the development set of the run, else those of the run."""
    labels = split_predictions.labels
    if fixed_threshold(self._choice) is not None:
      return None
    is_other_data = self._stored is not None and self._stored.data_sha256 != data_sha256
    if labels is None or is_other_data or not self.chooses:
      return self._stored
    values = choose_thresholds(self._choice, labels, split_predictions.scores)
    thresholds = dict(zip(self._spec.labels, values.tolist(), strict=True))
    return ChosenThresholds(self._choice, split, data_sha256, thresholds)


def write_class_scores(directory: str, split: str, split_predictions: Predictions) -> None:
  """Writes classes_SPLIT.tsv: label, precision, recall, F1, and the numbers of its examples and predictions.

  If an example may have several labels, also the calibration error of each label's probability, and its threshold.
  There must be one or more examples.
  """
  labels, names = split_predictions.labels, split_predictions.label_names
  assert labels is not None
  scores = classification.scores_of_classes(labels, split_predictions.predicted, len(names))
  columns: dict[str, Sequence[str]] = {"label": names}
  for name, values in scores.items():
    columns[name] = [f"{value:.6g}" if values.dtype.kind == "f" else str(value) for value in values]
  if split_predictions.thresholds is not None:
    probabilities = zip(split_predictions.scores.T, labels.T > 0, strict=True)
    columns["calibration_error"] = [f"{measure_calibration(*values).error:.6g}" for values in probabilities]
    columns["threshold"] = [f"{threshold:.6g}" for threshold in split_predictions.thresholds]
  path = files.join(directory, f"classes_{split}.tsv")
  predictions.write_table(path, list(columns), zip(*columns.values(), strict=True))


def write_submission(path: str, spec: TaskSpec, split_predictions: Predictions) -> None:
  """Writes predictions in the form that gluebenchmark.com accepts: tab-separated columns, index and prediction.

  Labels are written as they are spelled in the task's files. Predicted numbers are clipped to its range.
  """
  if spec.is_regression:
    numbers = np.clip(split_predictions.predicted.astype(np.float64), spec.low, spec.high)
    texts = [f"{number:.6f}" for number in numbers]
  else:
    texts = split_predictions.format_values(split_predictions.predicted)
  predictions.write_table(path, ["index", "prediction"], zip(split_predictions.ids, texts, strict=True))


def calibration_of(predictions: Predictions) -> Calibration:
  """Measures the calibration of the most probable class of each example, which must have one label."""
  assert predictions.thresholds is None
  return measure_calibration(np.nanmax(predictions.scores, axis=1), predictions.predicted == predictions.labels)


def draw_pictures(directory: str, split: str, split_predictions: Predictions) -> None:
  """Draws a confusion matrix or a scatter plot, and calibration_SPLIT.png if each example has one label.

  The latter shows for each interval of probabilities the share of the predictions that are right. On the diagonal, the
  share equals the probability.
  """
  predictions.draw_predictions(directory, split, split_predictions)
  if not split_predictions.label_names or split_predictions.thresholds is not None:
    return
  calibration = calibration_of(split_predictions)
  figure = figures.new_figure(4.2, 4.2)
  axes = figure.subplots()
  width = 1 / NUM_INTERVALS
  is_used = calibration.counts > 0
  centers = (np.arange(NUM_INTERVALS) + 0.5)[is_used] * width
  shares, counts = calibration.share_right[is_used], calibration.counts[is_used]
  axes.bar(centers, shares, width, alpha=0.35, edgecolor="white")
  axes.plot(calibration.probability[is_used], shares, "o-", label="measured, with the number of rows")
  axes.plot([0, 1], [0, 1], "--", color="gray", label="calibrated")
  for center, share, count in zip(centers, shares, counts, strict=True):
    axes.text(center, share + 0.02, f"{count}", ha="center", va="bottom", fontsize=7)
  axes.set(xlim=(0, 1), ylim=(0, 1.08))  # leaves room for a number above a bar of height 1
  axes.set(xlabel="probability of the predicted label", ylabel="share that is right")
  axes.set_title(f"{split}: calibration error {calibration.error:.3f}")
  axes.legend(loc="upper left", fontsize=8)
  files.write_atomically(files.join(directory, f"calibration_{split}.png"), figures.png(figure))


def average_runs(
  run_dirs: Sequence[str], settings_of_runs: Sequence[Mapping[str, Any]], output_dir: str
) -> dict[str, float]:
  """Averages the predictions of several runs, and writes the averages.

  For each split with labels, it also draws the pictures of an evaluation. For each test set, it also writes a file for
  gluebenchmark.com.

  Args, Returns, Raises: see albert.tasks.registry.RunAverager.
  """
  settings = {name: value for name, value in settings_of_runs[0].items() if name in option_fields(ClassifierConfig)}
  config = from_dict(ClassifierConfig, settings, source=files.join(run_dirs[0], output_files.CONFIG))
  spec = make_spec(config)
  test_splits = [split for split, file_format in spec.test.items() if not file_format.folder]
  flag_of_split = dict.fromkeys(spec.dev, "--do_eval") | dict.fromkeys(test_splits, "--do_predict")
  averages = predictions.average_predictions_files(run_dirs, output_dir, flag_of_split, spec.label_separator)
  labeled_splits = [split for split, average in averages.items() if average.labels is not None]
  if spec.label_separator:
    # All splits get the same thresholds: those that --thresholds chooses on the first average with labels, or else the
    # mean of the thresholds of the runs.
    labeled = averages[labeled_splits[0]] if labeled_splits else None
    if labeled is not None and labeled.labels is not None and fixed_threshold(config.thresholds) is None:
      thresholds = choose_thresholds(config.thresholds, labeled.labels, labeled.scores)
    else:
      choices = [settings_of_run.get("thresholds", config.thresholds) for settings_of_run in settings_of_runs]
      runs = zip(run_dirs, choices, strict=True)
      thresholds = np.mean([thresholds_of_run(run, choice, spec.labels) for run, choice in runs], axis=0)
    for split, average in averages.items():
      averages[split] = dataclasses.replace(average, thresholds=thresholds)
      predictions.write_predictions(predictions.predictions_path(output_dir, split), averages[split])
  metrics: dict[str, float] = {}
  for split, average in averages.items():
    if split in labeled_splits:
      draw_pictures(output_dir, split, average)
      prefix = f"{split}_" if len(labeled_splits) > 1 else ""
      metrics |= {prefix + name: value for name, value in compute_metrics(spec, average).items()}
    elif split in spec.test and spec.test[split].submission:
      write_submission(files.join(output_dir, spec.test[split].submission), spec, average)
  return metrics
