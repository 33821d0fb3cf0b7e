"""Columns of tables whose fields hold any number of labels.

N rows, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from albert.data.tables import Table
from albert.errors import UserError
from albert.io.wording import join_names

# What stands for 0 and 1 in a field with a number for each label.
_BITS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}


def split_labels(text: str, separator: str) -> list[str]:
  """Returns the labels in a field, without whitespace at their ends. An empty field has none."""
  return [label.strip() for label in text.split(separator) if label.strip()]


def rows_of_labels(table: Table, column: str, separator: str, labels: Sequence[str] = ()) -> list[list[str]]:
  """Splits the fields of a column into labels.

  A field with a 0 or 1 for each label of the task stands for the labels with a 1, unless a label is called so.

  Args:
    table: the table.
    column: the name of the column.
    separator: separates the labels of a field.
    labels: all labels of the task; () if they are not known yet.
  Raises:
    UserError: a label occurs twice in a row, or the rows hold 0 and 1 for labels whose names are not known. The message
      names the line.
  """
  rows = [split_labels(text, separator) for text in table.columns[column]]
  if not _BITS.keys() & set(labels):
    for index, row in enumerate(rows):
      if len(row) == len(labels) and _BITS.keys() >= set(row):
        rows[index] = [label for label, text in zip(labels, row, strict=True) if _BITS[text]]
  bits = "if these are 0 or 1 for each label, give --labels with a name for each, in this order"
  for index, row in enumerate(rows):
    if len(set(row)) < len(row):
      twice = next(label for label in row if row.count(label) > 1)
      raise UserError(f"{table.location(index)}: {column} has the label {twice!r} twice: give it once; {bits}")
  if rows and not labels and all(len(row) == 2 and _BITS.keys() >= set(row) for row in rows):
    raise UserError(f"{table.location(0)}: {column} is {' and '.join(rows[0])}, and all rows have these two: {bits}")
  return rows


def label_matrix(table: Table, column: str, labels: Sequence[str], separator: str) -> np.ndarray:
  """Converts a column of labels to an indicator matrix.

  Args:
    table: the table.
    column: the name of the column.
    labels: all labels of the task.
    separator: separates the labels of a field.
  Returns: int32 [N, C] of 0 and 1.
  Raises:
    UserError: a label is not one of the task's, or see rows_of_labels. The message names its line.
  """
  index_of_label = {label: index for index, label in enumerate(labels)}
  matrix = np.zeros([len(table), len(labels)], np.int32)
  for row, labels_of_row in enumerate(rows_of_labels(table, column, separator, labels)):
    for label in labels_of_row:
      if label not in index_of_label:
        raise UserError(f"{table.location(row)}: {column} {label!r} is not a label of this task: {join_names(labels)}")
      matrix[row, index_of_label[label]] = 1
  return matrix
