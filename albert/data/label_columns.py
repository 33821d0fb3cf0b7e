"""Columns of tables whose fields hold any number of labels.

N rows, C labels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from albert.data.tables import Table
from albert.errors import UserError
from albert.io.wording import join_names


def split_labels(text: str, separator: str) -> list[str]:
  """Returns the labels in a field, without whitespace at their ends. An empty field has none."""
  return [label.strip() for label in text.split(separator) if label.strip()]


def label_matrix(table: Table, column: str, labels: Sequence[str], separator: str) -> np.ndarray:
  """Converts a column of labels to an indicator matrix.

  Args:
    table: the table.
    column: the name of the column.
    labels: all labels of the task.
    separator: separates the labels of a field.
  Returns: int32 [N, C] of 0 and 1.
  Raises:
    UserError: a label is not one of the task's. The message names its line.
  """
  index_of_label = {label: index for index, label in enumerate(labels)}
  matrix = np.zeros([len(table), len(labels)], np.int32)
  for row, text in enumerate(table.columns[column]):
    for label in split_labels(text, separator):
      if label not in index_of_label:
        raise UserError(f"{table.location(row)}: {column} {label!r} is not a label of this task: {join_names(labels)}")
      matrix[row, index_of_label[label]] = 1
  return matrix
