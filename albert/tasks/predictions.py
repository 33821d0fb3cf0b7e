"""What a model predicts for each example of a split, as files: predictions_SPLIT.tsv, mistakes_SPLIT.tsv, a picture.

A predictions file has the columns id, label (where it is known), prediction, and for classes one column
`probability_LABEL` each. It is all that an ensemble needs (`python -m albert.evaluation ensemble`).
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from albert.data import tables
from albert.errors import UserError
from albert.io import figures, files
from albert.io.json_values import without_surrogates
from albert.runs import output_files

_ID, _LABEL, _PREDICTION, _PROBABILITY = "id", "label", "prediction", "probability_"
_MOST_MISTAKES = 1000
# A picture with more classes is drawn without numbers in its cells.
_MOST_NUMBERS = 20


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Of N examples.

  Attributes:
    ids: of the examples.
    label_names: of C classes; () for a regression.
    scores: probabilities float [N, C], NaN for a class that an example does not have (an option of a question, say);
      or the predicted numbers float [N].
    labels: the right classes int [N], or numbers float [N]; None where they are not known.
  """

  ids: Sequence[str]
  label_names: tuple[str, ...]
  scores: np.ndarray
  labels: np.ndarray | None = None

  @property
  def predicted(self) -> np.ndarray:
    """The likeliest class int [N], the first of equal ones; or the predicted number [N]."""
    return np.nanargmax(self.scores, axis=1) if self.label_names else self.scores

  def texts(self, values: np.ndarray) -> list[str]:
    """Classes by their names; numbers with all digits of a float32."""
    if self.label_names:
      return [self.label_names[value] for value in values]
    return [f"{value:.9g}" for value in values]


def predictions_path(directory: str, split: str) -> str:
  """Where the predictions of a split are."""
  return files.join(directory, f"predictions_{split}.tsv")


def companion_path(predictions_file: str, kind: str) -> str:
  """Where a file that belongs to --predictions_file is: KIND_NAME beside it."""
  directory, name = os.path.split(predictions_file)
  return files.join(directory, f"{kind}_{name}")


def write_table(path: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
  """Writes a tab-separated file as `albert.data.tables` reads it: no quoting; tabs and line ends become spaces."""
  lines = ["\t".join(map(_cell, row)) for row in [header, *rows]]
  files.write_atomically(path, "\n".join(lines) + "\n")


def _cell(text: str) -> str:
  """The text without what a cell cannot hold; a lone surrogate, which UTF-8 does not have, becomes U+FFFD."""
  return without_surrogates(" ".join(text.split("\t")).replace("\r", " ").replace("\n", " "))


def write_predictions(directory: str, split: str, predictions: Predictions, path: str = "") -> str:
  """Writes predictions_SPLIT.tsv, or the file `path`, and returns its path."""
  header = [_ID]
  columns: list[Sequence[str]] = [predictions.ids]
  if predictions.labels is not None:
    header.append(_LABEL)
    columns.append(predictions.texts(predictions.labels))
  header.append(_PREDICTION)
  columns.append(predictions.texts(predictions.predicted))
  for place, name in enumerate(predictions.label_names):
    header.append(_PROBABILITY + name)
    columns.append(["" if np.isnan(value) else f"{value:.9g}" for value in predictions.scores[:, place]])
  path = path or predictions_path(directory, split)
  write_table(path, header, zip(*columns, strict=True))
  return path


def read_predictions(path: str) -> Predictions:
  """Reads what write_predictions wrote.

  Raises:
    UserError: the file is none of these, or damaged; with file and line.
  """
  header = tables.read_header(path)
  table = tables.read_table(path, header)
  names = tuple(name.removeprefix(_PROBABILITY) for name in header if name.startswith(_PROBABILITY))
  known = {_ID, _LABEL, _PREDICTION, *(_PROBABILITY + name for name in names)}
  if _ID not in header or _PREDICTION not in header or not known.issuperset(header):
    raise UserError(f"{path}, line 1: not a predictions file: its columns are {', '.join(header)}")
  labels = None
  if not names:
    if _LABEL in header:
      labels = table.numbers(_LABEL)
    return Predictions(table.unique_names(_ID), (), table.numbers(_PREDICTION), labels)
  if _LABEL in header:
    labels = table.label_indices(_LABEL, names)
  scores = np.stack([_probabilities(table, _PROBABILITY + name) for name in names], axis=1)
  for row in np.flatnonzero(np.isnan(scores).all(axis=1))[:1]:
    raise UserError(f"{table.location(row)}: has no probability at all")
  return Predictions(table.unique_names(_ID), names, scores, labels)


def _probabilities(table: tables.Table, column: str) -> np.ndarray:
  """Probabilities float32 [N], NaN for empty cells."""
  values = table.columns[column]
  filled = tables.Table(table.path, table.line_numbers, {column: [value or "-1" for value in values]})
  numbers = filled.numbers(column, -1, 1)
  return np.where(numbers < 0, np.float32(np.nan), numbers)


def average(all_predictions: Sequence[Predictions], paths: Sequence[str]) -> Predictions:
  """The mean of what several models predict for the same examples: of probabilities, or of numbers.

  Args:
    all_predictions: one or more.
    paths: their files, for the error.
  Raises:
    UserError: files of other examples, other labels, or other right answers than the first one's.
  """
  first = all_predictions[0]
  for other, path in zip(all_predictions[1:], paths[1:], strict=True):
    if other.label_names != first.label_names:
      theirs, ours = (", ".join(p.label_names) or "numbers" for p in (other, first))
      raise UserError(f"{path}: its labels are {theirs}; those of {paths[0]} are {ours}: give runs of one task")
    if list(other.ids) != list(first.ids):
      raise UserError(f"{path}: its ids are not those of {paths[0]}, in the same order: give runs on the same data")
    is_known = other.labels is not None and first.labels is not None
    if (other.labels is None) != (first.labels is None) or (is_known and np.any(other.labels != first.labels)):
      raise UserError(f"{path}: its column {_LABEL!r} is not that of {paths[0]}: give runs on the same data")
  return dataclasses.replace(first, scores=np.mean([p.scores.astype(np.float64) for p in all_predictions], axis=0))


def check_complete(directories: Sequence[str], name: str, flag: str) -> None:
  """Checks that all runs of an ensemble have a predictions file, or none.

  If none has the predictions of a test set, it says so on stderr.

  Args:
    directories: output_dirs of the runs.
    name: of the file.
    flag: --do_eval or --do_predict, which writes it.
  Raises:
    UserError: a run lacks the file and another one has it; the command that writes it is named.
  """
  lacking = [directory for directory in directories if not files.exists(files.join(directory, name))]
  if not lacking:
    return
  if len(lacking) == len(directories):
    if flag == "--do_predict":
      print(f"no run has {name}, so the ensemble has no predictions of it: run them with {flag}", file=sys.stderr)
    return
  having = next(directory for directory in directories if directory not in lacking)
  directory = lacking[0]
  checkpoints = files.join(directory, output_files.CHECKPOINTS)
  if files.exists(checkpoints) and any(step.startswith("step-") for step in files.listdir(checkpoints)):
    task = output_files.read_config(files.join(directory, output_files.CONFIG)).get("task")
    remedy = f"run `python run_{task}.py {flag} --output_dir={directory}` with the files of the other runs"
  else:
    remedy = f"its checkpoints are deleted, so delete it and train it again with {flag}, or leave it out"
  raise UserError(f"--inputs: {directory} has no {name}, which {having} has: {remedy}")


def ensemble(directories: Sequence[str], output_dir: str, splits: Mapping[str, str]) -> dict[str, Predictions]:
  """Averages the predictions_SPLIT.tsv files that all directories have, and writes them to output_dir.

  Args:
    directories: output_dirs of the runs.
    output_dir: where to write.
    splits: those that all runs must have if one has them -> the flag that writes their predictions.
  Returns: split -> predictions.
  Raises:
    UserError: no split that all have, or what `check_complete` and `average` raise.
  """
  for split, flag in splits.items():
    check_complete(directories, f"predictions_{split}.tsv", flag)
  prefix, suffix = "predictions_", ".tsv"
  found = [
    {name for name in files.listdir(path) if name.startswith(prefix) and name.endswith(suffix)} for path in directories
  ]
  names = sorted(set.intersection(*found))
  if not names:
    raise UserError(
      f"{', '.join(directories)} have no {prefix}*{suffix} in common: run --do_eval or --do_predict there"
    )
  results = {}
  for name in names:
    split = name.removeprefix(prefix).removesuffix(suffix)
    paths = [files.join(path, name) for path in directories]
    results[split] = average([read_predictions(path) for path in paths], paths)
  for split, result in results.items():
    write_predictions(output_dir, split, result)
  return results


def write_mistakes(
  directory: str, split: str, predictions: Predictions, texts: Sequence[tuple[str, Sequence[str]]]
) -> str:
  """Writes mistakes_SPLIT.tsv, the most confident first (of a regression: the farthest off), at most 1000 of them.

  Args:
    predictions: with labels.
    texts: (name, texts of all examples) of each column to show beside.
  Returns: the path.
  """
  labels, predicted = predictions.labels, predictions.predicted
  assert labels is not None
  if predictions.label_names:
    confidence = np.nanmax(predictions.scores, axis=1)
    wrong = np.flatnonzero(predicted != labels)
    title = "probability"
  else:
    confidence = np.abs(predicted.astype(np.float64) - labels)
    wrong = np.flatnonzero(confidence)
    title = "error"
  order = wrong[np.argsort(-confidence[wrong], kind="stable")][:_MOST_MISTAKES]
  shown, right = predictions.texts(predicted[order]), predictions.texts(labels[order])
  rows = [
    [predictions.ids[i], right[n], shown[n], f"{confidence[i]:.4f}", *(column[i] for _, column in texts)]
    for n, i in enumerate(order)
  ]
  path = files.join(directory, f"mistakes_{split}.tsv")
  write_table(path, [_ID, _LABEL, _PREDICTION, title, *(name for name, _ in texts)], rows)
  return path


def draw_predictions(directory: str, split: str, predictions: Predictions) -> str:
  """Draws labels against predictions: confusion_matrix_SPLIT.png, or scatter_SPLIT.png of a regression.

  Args:
    predictions: with labels.
  Returns: the path.
  """
  assert predictions.labels is not None
  names = predictions.label_names
  size = 3.5 + 0.4 * min(len(names), 40)
  figure = figures.new_figure(size + 0.8, size)
  axes = figure.subplots()
  if names:
    image = axes.imshow(_shares(predictions), vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(image, ax=axes, label="share of the label's examples")
    _number_cells(axes, predictions)
  else:
    axes.plot(predictions.labels, predictions.predicted, ".", alpha=0.4)
    axes.grid(alpha=0.3)
  axes.set_xlabel("prediction" if names else "label")
  axes.set_ylabel("label" if names else "prediction")
  axes.set_title(split)
  path = files.join(directory, f"{'confusion_matrix' if names else 'scatter'}_{split}.png")
  files.write_atomically(path, figures.png(figure))
  return path


def confusion_counts(predictions: Predictions) -> np.ndarray:
  """int [C, C]: the examples of each label (row) by their prediction (column)."""
  counts = np.zeros((len(predictions.label_names),) * 2, np.int64)
  assert predictions.labels is not None
  np.add.at(counts, (predictions.labels, predictions.predicted), 1)
  return counts


def _shares(predictions: Predictions) -> np.ndarray:
  counts = confusion_counts(predictions)
  return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _number_cells(axes: Any, predictions: Predictions) -> None:
  names = predictions.label_names
  if len(names) > _MOST_NUMBERS:
    return
  counts, shares = confusion_counts(predictions), _shares(predictions)
  ticks = range(len(names))
  axes.set_xticks(ticks, names, rotation=45, ha="right")
  axes.set_yticks(ticks, names)
  for row in ticks:
    for column in ticks:
      color = "white" if shares[row, column] > 0.6 else "black"
      axes.text(column, row, f"{counts[row, column]}", ha="center", va="center", color=color)
