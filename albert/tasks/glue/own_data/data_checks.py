"""What a user should know about the rows of a task before it is trained.

Skipped lines, empty texts, texts that are trained and evaluated on, and how many rows each label has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert.data.tables import Table
from albert.io.wording import counted
from albert.tasks.glue.data import TextRows
from albert.tasks.glue.own_data.eval_share import text_keys
from albert.tasks.glue.specs import TaskSpec

_MAX_SHOWN_PAIRS, _MAX_SHOWN_LABELS = 3, 20


def damage_warnings(table: Table) -> Iterator[str]:
  """Yields a warning if damaged lines were skipped."""
  if table.damaged_lines:
    yield (
      f"{table.path}: skipped {counted(len(table.damaged_lines), 'line')} with another number of columns; the first "
      f"one is line {table.damaged_lines[0]}"
    )


def empty_text_warnings(rows: TextRows, table: Table) -> Iterator[str]:
  """Yields a warning if rows have empty texts."""
  columns = [rows.first] if rows.second is None else [rows.first, rows.second]
  empty_rows = [row for row, texts in enumerate(zip(*columns, strict=True)) if not all(map(str.strip, texts))]
  if empty_rows:
    is_single = len(empty_rows) == 1
    number = f"{counted(len(empty_rows), 'row')} of {len(rows)} {'has' if is_single else 'have'} an empty text"
    place = table.location(empty_rows[0])
    yield f"{place}: {number}{'' if is_single else ', this is the first'}: only the label of such a row is learned"


def duplicates(train: TextRows, dev: TextRows) -> list[tuple[int, int]]:
  """Finds the rows of the development set whose texts are in the training set, too. Empty texts do not count.

  Returns: the index of each such row in `dev`, and of the first row of `train` with its texts.
  """
  row_of_key: dict[str, int] = {}
  for row, key in enumerate(text_keys(train)):
    row_of_key.setdefault(key, row)
  found = ((row, row_of_key.get(key)) for row, key in enumerate(text_keys(dev)) if key.strip("\0"))
  return [(row, train_row) for row, train_row in found if train_row is not None]


def duplicate_warnings(train_table: Table, dev_table: Table, pairs: list[tuple[int, int]]) -> Iterator[str]:
  """Yields a warning if texts are in both sets. It names the first rows.

  Args:
    train_table, dev_table: the tables of both sets.
    pairs: the result of `duplicates`.
  """
  if not pairs:
    return
  unit, train_unit = dev_table.unit, train_table.unit
  shown = [
    f"{unit} {dev_table.line_numbers[row]} ({train_unit} {train_table.line_numbers[train_row]})"
    for row, train_row in pairs[:_MAX_SHOWN_PAIRS]
  ]
  more = ", ..." if len(pairs) > _MAX_SHOWN_PAIRS else ""
  have = "has a text that is" if len(pairs) == 1 else "have texts that are"
  yield (
    f"{dev_table.path}: {counted(len(pairs), 'row')} of {len(dev_table)} {have} in {train_table.path}, too: "
    f"{', '.join(shown)}{more}: the results will be better than on new texts"
  )


def summary(rows: TextRows, table: Table, spec: TaskSpec) -> dict[str, Any]:
  """Describes labeled rows, as JSON values: their number, and the rows of each label or the range of the numbers."""
  description: dict[str, Any] = {"source": table.path, "rows": len(rows)}
  if spec.is_regression:
    numbers = rows.labels.astype(np.float64)
    return description | {"least": numbers.min(), "mean": numbers.mean(), "greatest": numbers.max()}
  counts = rows.labels.sum(axis=0) if rows.labels.ndim > 1 else np.bincount(rows.labels, minlength=len(spec.labels))
  return description | {"labels": {label: int(count) for label, count in zip(spec.labels, counts, strict=True)}}


def summary_line(split: str, description: Mapping[str, Any]) -> str:
  """Returns the line of the log about a summary: "train.csv (train): 8 rows; complaint: 3, praise: 5"."""
  if "labels" in description:
    counts = [f"{label}: {count}" for label, count in description["labels"].items()]
    content = ", ".join([*counts[:_MAX_SHOWN_LABELS], *(["..."] if len(counts) > _MAX_SHOWN_LABELS else [])])
  else:
    least, mean, greatest = (description[name] for name in ("least", "mean", "greatest"))
    content = f"numbers from {least:g} to {greatest:g}, mean {mean:.4g}"
  return f"{description['source']} ({split}): {counted(description['rows'], 'row', ',')}; {content}"
