"""Predictions of classes or numbers as files: predictions_SPLIT.tsv, and a picture for each split.

A predictions file has the columns id, label (if the labels are known), prediction and, for classification, one column
`probability_LABEL` for each class. It holds everything that averaging several runs needs (see albert.ensemble).

N examples, C classes.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.data import tables
from albert.data.tables import label_matrix
from albert.errors import UserError
from albert.io import files
from albert.io.progress import log
from albert.io.text import quote_names, replace_surrogates
from albert.runs import figures
from albert.tasks.splits import TEST

# Columns of a predictions file, and the prefix of its columns of probabilities.
ID, LABEL, PREDICTION, _PROBABILITY_PREFIX = "id", "label", "prediction", "probability_"
# The columns of the confusion matrix if an example may have several labels.
OUTCOMES = ("found", "missed", "wrongly predicted", "rightly left out")
# With more classes, the cells of a confusion matrix show no numbers.
_MAX_NUMBERED_CLASSES = 20
MAX_MISTAKES = 1000  # in a file
# Smaller probabilities are rounded up to it, so that their logarithms are finite.
_SMALLEST_PROBABILITY = 1e-30


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Predictions for N examples of one split.

  Attributes:
    ids: the ids of the examples.
    label_names: the names of C classes; () for a regression.
    scores: for a regression the predicted numbers, float [N]. For classification the probabilities, float [N, C]. They
      are NaN for classes that an example does not have, such as the options that a multiple-choice question lacks.
    labels: the correct classes, int [N], or numbers, float [N]; if an example may have several labels, 0 or 1 for each,
      int [N, C]. None if they are not known.
    thresholds: if an example may have several labels, the probability from which on each is predicted, float [C].
    separator: separates several labels of an example in files.
  """

  ids: Sequence[str]
  label_names: tuple[str, ...]
  scores: np.ndarray
  labels: np.ndarray | None = None
  thresholds: np.ndarray | None = None
  separator: str = ","

  @property
  def predicted(self) -> np.ndarray:
    """The most probable class of each example, int [N] (the first one of a tie), or the predicted number, [N].

    If an example may have several labels: 1 for those that are predicted, and 0 for others, int [N, C].
    """
    if self.thresholds is not None:
      return (self.scores >= self.thresholds).astype(np.int32)
    return np.nanargmax(self.scores, axis=1) if self.label_names else self.scores

  def format_values(self, values: np.ndarray) -> list[str]:
    """Converts classes to their names, or numbers to text that keeps every digit of a float32.

    Args:
      values: like `labels`.
    """
    if values.ndim == 2:
      return [self.separator.join(self.label_names[i] for i in np.flatnonzero(row)) for row in values]
    if self.label_names:
      return [self.label_names[value] for value in values]
    return [f"{value:.9g}" for value in values]


def softmax(logits: np.ndarray) -> np.ndarray:
  """Softmax over the last axis. Where a logit is -inf, the probability is 0.

  Args:
    logits: float [..., C]. Of the C values of an example, at least one is greater than -inf.
  Returns: probabilities, float64 [..., C].
  """
  logits = np.asarray(logits, np.float64)
  exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
  return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def predictions_path(directory: str, split: str) -> str:
  """Returns the path of predictions_SPLIT.tsv in a directory."""
  return files.join(directory, f"predictions_{split}.tsv")


def predictions_name(predict_file: str) -> str:
  """Returns NAME in the names of predictions files: "new" for DIR/new.csv, and "test" for a glob or no file."""
  name = os.path.splitext(os.path.basename(predict_file).removesuffix(".gz"))[0]
  return name if name and files.exists(predict_file) else TEST


def companion_path(predictions_file: str, prefix: str) -> str:
  """Returns the path of a file beside --predictions_file: PREFIX_NAME for NAME or predictions_NAME."""
  directory, name = os.path.split(predictions_file)
  return files.join(directory, f"{prefix}_{name.removeprefix('predictions_')}")


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Writes a tab-separated file that `albert.data.tables` can read, and returns its text.

  Nothing is quoted. Tabs and line ends inside a cell become spaces. Lone surrogates, which UTF-8 cannot encode, become
  U+FFFD.
  """
  separators_to_spaces = str.maketrans("\t\r\n", "   ")
  lines = ["\t".join(cell.translate(separators_to_spaces) for cell in row) for row in [header, *rows]]
  text = replace_surrogates("\n".join(lines) + "\n")
  files.write_atomically(path, text)
  return text


def write_predictions(path: str, predictions: Predictions) -> None:
  """Writes a predictions file."""
  columns: dict[str, Sequence[str]] = {ID: predictions.ids}
  if predictions.labels is not None:
    columns[LABEL] = predictions.format_values(predictions.labels)
  columns[PREDICTION] = predictions.format_values(predictions.predicted)
  for index, name in enumerate(predictions.label_names):
    scores = predictions.scores[:, index]
    columns[_PROBABILITY_PREFIX + name] = ["" if np.isnan(score) else f"{score:.9g}" for score in scores]
  write_table(path, list(columns), zip(*columns.values(), strict=True))


def read_predictions(path: str, separator: str = "") -> Predictions:
  """Reads a file that write_predictions wrote.

  Args:
    path: the file.
    separator: separates the labels of an example, if it may have several. Then the thresholds are 0.5.
  Raises:
    UserError: the file is not a predictions file, or it is damaged; the message names the file and the line.
  """
  header = tables.read_header(path)
  table = tables.read_table(path, header)
  probability_columns = [name for name in header if name.startswith(_PROBABILITY_PREFIX)]
  if not {ID, PREDICTION} <= set(header) <= {ID, LABEL, PREDICTION, *probability_columns}:
    raise UserError(f"{path}, line 1: not a predictions file: its columns are {quote_names(header)}")
  ids, has_labels = table.unique_names(ID), LABEL in header
  if not probability_columns:  # a regression
    return Predictions(ids, (), table.numbers(PREDICTION), table.numbers(LABEL) if has_labels else None)
  classes = tuple(name.removeprefix(_PROBABILITY_PREFIX) for name in probability_columns)
  # Table.numbers accepts no empty cells, so they become -1 first, and then NaN.
  cells = {name: [text or "-1" for text in table.columns[name]] for name in probability_columns}
  numbers = dataclasses.replace(table, columns=cells)
  scores = np.stack([numbers.numbers(name, -1, 1) for name in probability_columns], axis=1)
  scores[scores < 0] = np.nan
  empty_rows = np.flatnonzero(np.isnan(scores).all(axis=1))
  if empty_rows.size:
    raise UserError(f"{table.location(empty_rows[0])}: all probabilities are empty")
  labels = thresholds = None
  if separator:
    thresholds = np.full(len(classes), 0.5)
  if has_labels:
    labels = label_matrix(table, LABEL, classes, separator) if separator else table.label_indices(LABEL, classes)
  return Predictions(ids, classes, scores, labels, thresholds, separator or ",")


def average_predictions(all_predictions: Sequence[Predictions], paths: Sequence[str]) -> Predictions:
  """Averages the probabilities, or the predicted numbers, of several models for the same examples.

  Args:
    all_predictions: the predictions of one or more models.
    paths: their files, for error messages.
  Returns: the average, with the ids and the labels of the first model.
  Raises:
    UserError: a file has other ids, other classes or other labels than the first one.
  """
  first, first_path = all_predictions[0], paths[0]
  for other, path in zip(all_predictions[1:], paths[1:], strict=True):
    if other.label_names != first.label_names:
      other_labels, first_labels = (", ".join(each.label_names) or "numbers" for each in (other, first))
      raise UserError(
        f"{path}: its labels are {other_labels}; those of {first_path} are {first_labels}: give runs of one task"
      )
    if list(other.ids) != list(first.ids):
      raise UserError(f"{path}: its ids are not those of {first_path}, in the same order: give runs on the same data")
    if not np.array_equal(np.asarray(other.labels), np.asarray(first.labels)):  # equal also if both are None
      raise UserError(f"{path}: its column {LABEL!r} is not that of {first_path}: give runs on the same data")
  mean_scores = np.mean([predictions.scores.astype(np.float64) for predictions in all_predictions], axis=0)
  return dataclasses.replace(first, scores=mean_scores)


def splits_of_all_runs(
  run_dirs: Sequence[str], prefix: str, suffix: str, flag_of_split: Mapping[str, str]
) -> list[str]:
  """Returns the splits, and the names of predicted files (see predictions_name), whose predictions all runs have.

  Lines on stderr say which predictions the ensemble does not write.

  Args:
    run_dirs: output_dirs of the runs.
    prefix, suffix: beginning and end of the name of a predictions file; the split is between them.
    flag_of_split: split -> the flag with which a run writes its predictions, --do_eval or --do_predict. If one run has
      predictions for one of these splits, all runs must have them.
  Raises:
    UserError: some runs have the predictions of a split in flag_of_split and others do not, or the runs have no split
      in common.
  """
  splits_of_runs = [
    {name[len(prefix) : -len(suffix)] for name in names if name.startswith(prefix) and name.endswith(suffix)}
    for names in map(files.listdir, run_dirs)
  ]
  known_splits = set.union(*splits_of_runs)
  for split in sorted(known_splits):
    has_split = [split in splits for splits in splits_of_runs]
    if not all(has_split):
      run, other_run = run_dirs[has_split.index(False)], run_dirs[has_split.index(True)]
      missing = f"{run} has no {prefix}{split}{suffix}, which {other_run} has"
      if split in flag_of_split:
        raise UserError(
          f"--inputs: {missing}: write it with {flag_of_split[split]} --output_dir={run}, train the run again if its "
          "checkpoints are deleted, or leave it out"
        )
      log(f"{missing}, so the ensemble does not write it")
  for split, flag in flag_of_split.items():
    if flag == "--do_predict" and split not in known_splits and known_splits <= flag_of_split.keys():
      name = f"{prefix}{split}{suffix}"
      log(f"no run has {name}, so the ensemble does not write it: {flag} in the command that trains adds it")
  common_splits = sorted(set.intersection(*splits_of_runs))
  if not common_splits:
    raise UserError(f"{', '.join(run_dirs)} have no {prefix}*{suffix} in common: run --do_eval or --do_predict there")
  return common_splits


def average_predictions_files(
  run_dirs: Sequence[str], output_dir: str, flag_of_split: Mapping[str, str], separator: str = ""
) -> dict[str, Predictions]:
  """Averages the predictions_SPLIT.tsv files that all runs have, and writes the averages to output_dir.

  Args: see splits_of_all_runs and read_predictions.
  Returns: split -> averaged predictions.
  """
  averages = {}
  for split in splits_of_all_runs(run_dirs, "predictions_", ".tsv", flag_of_split):
    paths = [predictions_path(directory, split) for directory in run_dirs]
    averages[split] = average_predictions([read_predictions(path, separator) for path in paths], paths)
  for split, average in averages.items():
    write_predictions(predictions_path(output_dir, split), average)
  return averages


def draw_predictions(directory: str, split: str, predictions: Predictions) -> str:
  """Draws labels against predictions: confusion_matrix_SPLIT.png, or scatter_SPLIT.png for a regression.

  Returns: the path of the picture.
  """
  assert predictions.labels is not None
  num_classes = len(predictions.label_names)
  inches = 3.5 + 0.4 * min(num_classes, 40)  # 0.4 inches for each class, up to 40 classes
  figure = figures.new_figure(inches + 0.8, inches)  # 0.8 inches for the color bar
  axes = figure.subplots()
  if num_classes:
    _draw_confusion_matrix(figure, axes, predictions)
    axes.set(xlabel="prediction", ylabel="label", title=split)
  else:
    axes.plot(predictions.labels, predictions.predicted, ".", alpha=0.4)
    axes.grid(alpha=0.3)
    axes.set(xlabel="label", ylabel="prediction", title=split)
  path = files.join(directory, f"{'confusion_matrix' if num_classes else 'scatter'}_{split}.png")
  files.write_atomically(path, figures.png(figure))
  return path


def confusion_counts(predictions: Predictions) -> np.ndarray:
  """Counts the examples of each label (row) and prediction (column), int [C, C].

  If an example may have several labels, the columns are those of OUTCOMES, int [C, 4].
  """
  from sklearn import metrics

  if predictions.thresholds is not None:
    counts = metrics.multilabel_confusion_matrix(predictions.labels, predictions.predicted)  # [C, label, prediction]
    return np.stack([counts[:, 1, 1], counts[:, 1, 0], counts[:, 0, 1], counts[:, 0, 0]], axis=1)
  classes = np.arange(len(predictions.label_names))
  return np.asarray(metrics.confusion_matrix(predictions.labels, predictions.predicted, labels=classes))


def _draw_confusion_matrix(figure: Any, axes: Any, predictions: Predictions) -> None:
  """Draws the shares of each label's examples, and their numbers unless there are too many classes."""
  names, counts = predictions.label_names, confusion_counts(predictions)
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  image = axes.imshow(shares, vmin=0, vmax=1, cmap="Blues", aspect="auto")
  figure.colorbar(image, ax=axes, label="share of the label's examples")
  if len(names) > _MAX_NUMBERED_CLASSES:
    return
  column_names = names if predictions.thresholds is None else OUTCOMES
  axes.set_xticks(range(len(column_names)), column_names, rotation=45, ha="right")
  axes.set_yticks(range(len(names)), names)
  for (row, column), count in np.ndenumerate(counts):
    color = "white" if shares[row, column] > 0.6 else "black"  # readable on a dark or a light cell
    axes.text(column, row, f"{count}", ha="center", va="center", color=color)


def write_mistakes(
  directory: str, split: str, predictions: Predictions, texts: Sequence[tuple[str, Sequence[str]]]
) -> str:
  """Writes mistakes_SPLIT.tsv: at most 1000 wrong predictions, the worst first.

  The worst mistakes are those with the highest loss (see label_losses), or the numbers with the largest absolute error.
  The fourth column has that value. If there is one label for each example, the fifth column has the probability of the
  predicted class.

  Args:
    directory, split: where to write.
    predictions: the predictions; they must have labels.
    texts: columns to add, as pairs: the name of the column, and its text for each example.
  Returns: the path of the file.
  """
  labels, predicted = predictions.labels, predictions.predicted
  assert labels is not None
  is_wrong = predicted != labels
  if predictions.thresholds is not None:
    is_wrong = is_wrong.any(axis=1)
  # The columns of numbers. Mistakes are sorted by the first one.
  columns: dict[str, np.ndarray] = {}
  if predictions.label_names:
    severity = columns["loss"] = label_losses(predictions)
  else:
    severity = columns["error"] = np.abs(predicted.astype(np.float64) - labels)
  if predictions.label_names and predictions.thresholds is None:
    columns["probability"] = np.nanmax(predictions.scores, axis=1)
  wrong_indices = np.flatnonzero(is_wrong)
  worst_indices = wrong_indices[np.argsort(-severity[wrong_indices], kind="stable")][:MAX_MISTAKES]
  cells = [
    [predictions.ids[i] for i in worst_indices],
    predictions.format_values(labels[worst_indices]),
    predictions.format_values(predicted[worst_indices]),
    *([f"{values[i]:.4f}" for i in worst_indices] for values in columns.values()),
    *([column[i] for i in worst_indices] for _, column in texts),
  ]
  path = files.join(directory, f"mistakes_{split}.tsv")
  header = [ID, LABEL, PREDICTION, *columns, *(name for name, _ in texts)]
  write_table(path, header, zip(*cells, strict=True))
  return path


def write_least_sure(path: str, predictions: Predictions, texts: Mapping[str, Sequence[str]]) -> None:
  """Writes a CSV file with at most 1000 predicted rows, those first whose prediction is the least sure.

  The column margin has the difference between the two largest probabilities; or, if an example may have several labels,
  the smallest distance of a probability to its threshold.

  Args:
    path: the file; its extension is replaced by .csv.
    predictions: predictions of classes.
    texts: the columns of texts.
  """
  scores = np.nan_to_num(predictions.scores.astype(np.float64))
  if predictions.thresholds is None:
    margins = np.diff(np.sort(scores, axis=1)[:, -2:], axis=1)[:, 0]
  else:
    margins = np.abs(scores - predictions.thresholds).min(axis=1)
  order = np.argsort(margins, kind="stable")[:MAX_MISTAKES]
  table = io.StringIO()
  writer = csv.writer(table, lineterminator="\n")
  writer.writerow([ID, *texts, PREDICTION, "margin"])
  predicted = predictions.format_values(predictions.predicted[order])
  for row, prediction in zip(order, predicted, strict=True):
    values = [column[row] for column in texts.values()]
    writer.writerow([predictions.ids[row], *values, prediction, f"{margins[row]:.4f}"])
  files.write_atomically(f"{os.path.splitext(path)[0]}.csv", replace_surrogates(table.getvalue()))


def label_losses(predictions: Predictions) -> np.ndarray:
  """Computes the loss of each example, without class weights: -log(p), with the probability p of the label.

  If an example may have several labels, it is the mean over the labels of the binary cross entropy.

  Args:
    predictions: predictions of classes, with labels.
  Returns: float64 [N]. A probability of 0 counts as 1e-30.
  """
  labels, scores = predictions.labels, predictions.scores.astype(np.float64)
  assert labels is not None
  if predictions.thresholds is not None:
    probabilities = np.where(labels > 0, scores, 1 - scores)  # [N, C]
  else:
    probabilities = scores[np.arange(len(labels)), labels][:, np.newaxis]
  return np.asarray(-np.log(np.maximum(probabilities, _SMALLEST_PROBABILITY)).mean(axis=1))
