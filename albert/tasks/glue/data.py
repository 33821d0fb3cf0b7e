"""Reads the files of a classification or regression task, and detects files that belong to another task."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from albert.data import tables
from albert.data.label_columns import label_matrix, rows_of_labels
from albert.data.rows import DataSource
from albert.data.tables import Table
from albert.errors import UserError
from albert.io import files
from albert.tasks.glue.class_weights import check_class_weights
from albert.tasks.glue.config import RANKING, WINDOWS, ClassifierConfig
from albert.tasks.glue.labels import parse_labels
from albert.tasks.glue.metric_choice import choose_metrics
from albert.tasks.glue.own_data.multi_label import check_multi_label
from albert.tasks.glue.specs import (
  CUSTOM,
  SPECS,
  FileFormat,
  TaskSpec,
  canonical_name,
  custom_spec,
  tasks_of_header,
)


class TextRow(NamedTuple):
  """One row of a file.

  Attributes:
    first: the text, or the first text of a pair.
    second: the second text of a pair; None for a single text.
    label: the index of the class, or the number of a regression; for several labels 0 or 1 for each, int32 [C].
  """

  first: str
  second: str | None
  label: float | np.ndarray


@dataclasses.dataclass(frozen=True)
class TextRows(Sequence[TextRow]):
  """N rows. They are stored by column, because worker processes get chunks of rows, and columns are pickled faster.

  Attributes:
    ids: the ids of the rows.
    first: the texts, or the first texts of the pairs.
    second: the second texts of the pairs; None for single texts.
    labels: classes, int32 [N]; several labels, 0 or 1, int32 [N, C]; or the numbers of a regression, float32 [N]. Zeros
      if the file has no labels.
  """

  ids: Sequence[str]
  first: Sequence[str]
  second: Sequence[str] | None
  labels: np.ndarray

  def __len__(self) -> int:
    return len(self.first)

  def select(self, indices: Sequence[int]) -> TextRows:
    """Returns some of the rows, in the order of the indices. They keep their ids."""
    ids, first = [self.ids[i] for i in indices], [self.first[i] for i in indices]
    second = None if self.second is None else [self.second[i] for i in indices]
    return TextRows(ids, first, second, self.labels[np.asarray(indices, np.int64)])

  @overload
  def __getitem__(self, index: int) -> TextRow: ...
  @overload
  def __getitem__(self, index: slice) -> TextRows: ...
  def __getitem__(self, index: int | slice) -> TextRow | TextRows:
    second = None if self.second is None else self.second[index]
    if isinstance(index, slice):
      assert not isinstance(second, str)
      return TextRows(self.ids[index], self.first[index], second, self.labels[index])
    assert second is None or isinstance(second, str)
    label = self.labels[index]
    return TextRow(self.first[index], second, label if label.ndim else label.item())


def make_spec(config: ClassifierConfig, labels: Sequence[str] = ()) -> TaskSpec:
  """Returns the spec of the task that the flags name.

  Args:
    config: the flags.
    labels: the labels of a custom task without --labels: those of its training file. Without them the spec has no
      labels, and the flags that name labels are not checked; the training file must exist.
  Raises:
    UserError: the task is unknown, or does not have the given labels, formulation or metrics.
  """
  name = canonical_name(config.task_name)
  _check_eval_share(config, name)
  given_labels = parse_labels(config.labels)
  check_multi_label(config, name, given_labels)
  if name == CUSTOM:
    spec = custom_spec(config, given_labels or labels)
    if not config.regression and not spec.labels:
      _check_training_file(config)
  else:
    spec = SPECS[name]
    if config.labels and given_labels != spec.labels:
      raise UserError(f"--labels={config.labels}: those of {name} are {', '.join(spec.labels) or 'numbers'}")
  if config.formulation == RANKING and not spec.ranking_label:
    ranking_tasks = ", ".join(other.name for other in SPECS.values() if other.ranking_label)
    raise UserError(f"--formulation={RANKING} is for {ranking_tasks}, not for {name}")
  _check_long_texts(config, spec)
  if name == CUSTOM and not spec.labels and not config.regression:
    return spec
  check_class_weights(config, spec)
  return choose_metrics(spec, config)


def _check_eval_share(config: ClassifierConfig, name: str) -> None:
  """Raises UserError if --eval_share is given for a task with development sets of its own, or beside --eval_file."""
  if config.eval_share and name != CUSTOM:
    raise UserError(
      f"--eval_share={config.eval_share:g} is for --task_name={CUSTOM}, not for {name}, which has files to evaluate "
      "on: leave it out"
    )
  if config.eval_share and config.eval_file:
    raise UserError(f"--eval_share={config.eval_share:g} and --eval_file={config.eval_file} are both given: give one")


def _check_long_texts(config: ClassifierConfig, spec: TaskSpec) -> None:
  """Raises UserError if --long_texts=windows is given for pairs of texts."""
  texts = spec.formats()[0].texts
  if config.long_texts == WINDOWS and len(texts) > 1:
    raise UserError(
      f"--long_texts={WINDOWS} is for single texts, and {spec.name} has pairs ({', '.join(texts)}): leave it out, and "
      "the longer text of a pair is truncated"
    )


def _check_training_file(config: ClassifierConfig) -> None:
  """Raises UserError if there is no training file to take the labels of a custom task from."""
  if not config.train_file:
    raise UserError("--labels is missing, and there is no --train_file to take the labels of a custom task from")
  if not files.exists(config.train_file):
    raise UserError(f"--train_file={config.train_file}: no such file")


def find_file(data_dir: str, folder: str, name: str) -> str | None:
  """Looks for a file in a folder of data_dir, and in data_dir itself.

  Args:
    data_dir: the directory.
    folder: the folder in it.
    name: the name of the file.
  Returns: the path of the file; None if it is in neither of them.
  """
  for path in (files.join(data_dir, folder, name), files.join(data_dir, name)):
    if data_dir and files.exists(path):
      return path
  return None


def read_text_table(source: DataSource, file_format: FileFormat, spec: TaskSpec) -> Table:
  """Reads the columns of a file of a task, or of its rows in memory.

  Args:
    source: the path of the file, or the rows.
    file_format: its layout.
    spec: the task. Its labels are not needed.
  Raises:
    UserError: the file belongs to another task; or see tables.read_table. The message names the file and the line.
  """
  _check_task_of_header(source, file_format, spec)
  names = [*file_format.texts, *filter(None, (file_format.label, file_format.id))]
  header = None if file_format.has_header else file_format.columns
  list_columns = {file_format.label: spec.label_separator} if spec.label_separator else {}
  return tables.read_table(
    source, names, header=header, tolerated_damage=file_format.tolerated_damage, list_columns=list_columns
  )


def rows_of_table(table: Table, file_format: FileFormat, spec: TaskSpec) -> TextRows:
  """Converts a table to rows.

  Args:
    table: the result of read_text_table.
    file_format: its layout. If it has no label column, the labels are zeros.
    spec: the task.
  Raises:
    UserError: an unknown label, a label that is not a number, an empty field or a repeated id. The message names the
      file and the line.
  """
  texts = [
    table.columns[name] if file_format.allows_empty_texts else table.non_empty_texts(name) for name in file_format.texts
  ]
  ids = table.unique_names(file_format.id) if file_format.id else [str(row) for row in range(len(table))]
  return TextRows(ids, texts[0], texts[1] if len(texts) > 1 else None, _labels_of_table(table, file_format, spec))


def find_labels(table: Table, column: str, separator: str = "") -> list[str]:
  """Finds all labels in a table of a custom task.

  Args:
    table: the table.
    column: the name of the label column.
    separator: separates the labels of a row; "" if each row has one.
  Returns: the different labels, sorted as numbers if all of them are whole numbers, else as text.
  Raises:
    UserError: a label is empty, there is only one label, or the column probably does not hold labels: it has more than
      100 different values, and more than one for every ten rows.
  """
  if separator:
    labels = set(itertools.chain.from_iterable(rows_of_labels(table, column, separator)))
  else:
    labels = {value.strip() for value in table.non_empty_texts(column)}
  for row, value in enumerate(table.columns[column]):
    tables.check_name(table.location(row), column, value.strip())
  if len(labels) < 2:
    raise UserError(
      f"{table.path}: column {column!r} holds {len(labels)} label(s), {sorted(labels)}: a task needs two or more"
    )
  if len(labels) > max(100, len(table) // 10):
    raise UserError(
      f"{table.path}: column {column!r} holds {len(labels)} different labels in {len(table)} rows: give --regression "
      "if they are numbers, another --label_column if this is not the label, or all labels as --labels"
    )
  are_numbers = all(map(_is_whole_number, labels))
  return sorted(labels, key=lambda label: (int(label) if are_numbers else 0, label))  # 1 and 01 in the order of texts


def _is_whole_number(label: str) -> bool:
  return label.removeprefix("-").isdecimal() and label.isascii()


def _check_task_of_header(source: DataSource, file_format: FileFormat, spec: TaskSpec) -> None:
  """Raises UserError if the first line is the header of another task's file."""
  if not file_format.columns:
    return
  header = tables.read_header(source)
  if file_format.has_header and header == list(file_format.columns):
    return
  matching_tasks = tasks_of_header(header)
  if matching_tasks and (spec.name not in matching_tasks or not file_format.has_header):
    expected_header = (
      ", ".join(file_format.columns) if file_format.has_header else f"none, but {len(file_format.columns)} columns"
    )
    raise UserError(
      f"{source}, line 1: this is the header of a file of {' or '.join(matching_tasks)}, not of {spec.name}'s "
      f"{file_format.name} (which has {expected_header}): check --task_name and --data_dir"
    )


def _labels_of_table(table: Table, file_format: FileFormat, spec: TaskSpec) -> np.ndarray:
  """The labels of a table: classes, int32 [N], several labels, int32 [N, C], or numbers, float32 [N].

  Raises:
    UserError: a label is not one of the task's. If the first label belongs to another task of GLUE with the same
      columns, the message names that task.
  """
  if not file_format.label:
    shape = [len(table), len(spec.labels)] if spec.label_separator else [len(table)]
    return np.zeros(shape, np.float32 if spec.is_regression else np.int32)
  if spec.label_separator:
    return label_matrix(table, file_format.label, spec.labels, spec.label_separator)
  if spec.is_regression:
    return table.numbers(file_format.label, spec.low, spec.high)
  first_label = table.columns[file_format.label][0].strip() if len(table) else ""
  if first_label not in spec.labels and file_format.columns:
    other_tasks = [name for name in tasks_of_header(file_format.columns) if name != spec.name]
    matching_tasks = [name for name in other_tasks if first_label in SPECS[name].labels]
    if matching_tasks:
      raise UserError(
        f"{table.location(0)}: {file_format.label} {first_label!r} is one of {' or '.join(matching_tasks)}, not of "
        f"{spec.name} ({', '.join(spec.labels)}): check --task_name and --data_dir"
      )
  return table.label_indices(file_format.label, spec.labels)
