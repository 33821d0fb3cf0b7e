"""Tables in memory: pandas frames, NumPy arrays, lists and dicts as the rows that a file would hold.

pandas is not imported: anything that has `columns` and gives a column by its name is a frame.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from albert.data.manifest import cached_sha256
from albert.errors import UserError
from albert.io import files
from albert.io.json_values import encode_utf8, format_value

# What `rows_of` accepts: the path of a file, or data in memory. docs/estimator.md lists the forms.
TableData: TypeAlias = Any

# Classes of pandas that stand for a missing value, by name.
_MISSING_CLASSES = ("NAType", "NaTType")


class _Absent:
  """The value of a row that lacks an optional column."""

  def __repr__(self) -> str:
    return "(missing)"


ABSENT = _Absent()


@dataclasses.dataclass(frozen=True)
class Rows:
  """N rows in memory. Tasks read them like a file.

  Attributes:
    name: what the rows are, for messages, such as "train"; or the path of the file that they were read from.
    columns: name of a column -> its N values: texts, numbers, bools, None, and lists and dicts of these. A row that
      lacks an optional column has ABSENT there.
    numbers: the number of each row, from 0; or of its line in the file, from 1.
    unit: "row", or "line" if `numbers` counts the lines of a file.
  """

  name: str
  columns: Mapping[str, Sequence[Any]]
  numbers: Sequence[int]
  unit: str = "row"

  def __len__(self) -> int:
    return len(self.numbers)

  def __str__(self) -> str:
    return self.name

  def location(self, index: int) -> str:
    """Returns where a row is, for an error message: `train: row 17` or `train.csv, line 19`."""
    return f"{self.name}{',' if self.unit == 'line' else ':'} {self.unit} {self.numbers[index]}"

  def values(self, index: int) -> dict[str, Any]:
    """Returns the columns of a row, without those that it lacks."""
    row = {name: column[index] for name, column in self.columns.items()}
    return {name: value for name, value in row.items() if value is not ABSENT}

  def json_lines(self) -> Iterator[bytes]:
    """Yields each row as a line of JSON, with the columns in the order of their names.

    A file of these lines has the same content as the rows: a run that was trained on one can be resumed with the other.
    """
    names = sorted(self.columns)
    for index in range(len(self)):
      row = {name: self.columns[name][index] for name in names if self.columns[name][index] is not ABSENT}
      yield encode_utf8(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

  @functools.cached_property
  def sha256(self) -> str:
    """SHA-256 of the json_lines, in hex."""
    digest = hashlib.sha256()
    for line in self.json_lines():
      digest.update(line)
    return digest.hexdigest()

  def select(self, indices: Iterable[int], name: str = "") -> Rows:
    """Returns some of the rows. They keep their numbers.

    Args:
      indices: of the rows, in the order of the result.
      name: the name of the result; "" for the same name.
    """
    chosen = list(indices)
    columns = {column: [values[i] for i in chosen] for column, values in self.columns.items()}
    return Rows(name or self.name, columns, [self.numbers[i] for i in chosen], self.unit)


# The data of a split: the path of a file, or rows in memory.
DataSource: TypeAlias = str | Rows


def source_sha256(source: DataSource) -> str:
  """Returns the SHA-256 of a file, or of rows in memory, in hex."""
  return source.sha256 if isinstance(source, Rows) else cached_sha256(source, files.stat(source))


def is_path(data: TableData) -> bool:
  """Whether data is the path of a file: a string or an os.PathLike."""
  return isinstance(data, str | os.PathLike)


def rows_of(data: TableData, name: str, required: Sequence[str], optional: Sequence[str] = ()) -> Rows:
  """Makes rows of data in memory.

  Args:
    data: one of
      - a frame: it has `columns`, and `data[column]` is a column (pandas, Polars),
      - a mapping from the names of columns to sequences or arrays,
      - a NumPy array with named fields,
      - a sequence of mappings, one for each row,
      - a sequence of tuples or lists, or a two-dimensional array, whose columns are `required` in this order,
      - a sequence of values, if only one column is required.
    name: what the data is, for messages, such as "train".
    required: the columns that every row must have.
    optional: columns that are read if the data has them.
  Returns: the rows with the required columns and the optional ones that exist.
  Raises:
    UserError: a column is missing, columns have different lengths, a value is not one of JSON, or there are no rows.
  """
  if hasattr(data, "columns") and hasattr(data, "__getitem__"):
    columns = _columns_of_frame(data, name, required, optional)
  elif isinstance(data, Mapping):
    columns = {key: _listed(data[key], name, key) for key in _names(list(data), name, required, optional)}
  elif isinstance(data, np.ndarray) and data.dtype.names:
    columns = {key: data[key].tolist() for key in _names(data.dtype.names, name, required, optional)}
  else:
    columns = _columns_of_rows(_listed(data, name, ""), name, required, optional)
  lengths = {key: len(column) for key, column in columns.items()}
  if len(set(lengths.values())) > 1:
    listed = ", ".join(f"{key} {length}" for key, length in lengths.items())
    raise UserError(f"{name}: its columns have different lengths ({listed}): give each row a value in each column")
  num_rows = next(iter(lengths.values()), 0)
  if not num_rows:
    raise UserError(f"{name}: has no rows: give at least one")
  plain = {key: [_plain(value, name, row, key) for row, value in enumerate(column)] for key, column in columns.items()}
  return Rows(name, plain, range(num_rows))


def _names(existing: Sequence[Any], name: str, required: Sequence[str], optional: Sequence[str]) -> list[str]:
  """The columns to read: all required ones, and the optional ones that exist."""
  for column in required:
    if column not in existing:
      listed = ", ".join(str(key)[:40] for key in existing[:20]) or "none"
      raise UserError(f"{name}: no column {column!r}; there are: {listed}")
  return [*required, *(column for column in optional if column in existing)]


def _columns_of_frame(data: Any, name: str, required: Sequence[str], optional: Sequence[str]) -> dict[str, list[Any]]:
  columns = {}
  existing = list(data.columns)
  for key in _names(existing, name, required, optional):
    if existing.count(key) > 1:
      raise UserError(f"{name}: {existing.count(key)} columns are called {key!r}: rename all but one")
    columns[key] = _listed(data[key], name, key)
  return columns


def _columns_of_rows(
  rows: Sequence[Any], name: str, required: Sequence[str], optional: Sequence[str]
) -> dict[str, list[Any]]:
  if any(isinstance(row, Mapping) for row in rows):
    for index, row in enumerate(rows):
      if not isinstance(row, Mapping):
        raise UserError(
          f"{name}: row {index} is {format_value(row)}, other rows are dicts: give each row in the same form"
        )
      for column in required:
        if column not in row:
          raise UserError(f"{name}: row {index} has no {column!r}; it has: {', '.join(map(str, row)) or 'nothing'}")
    used = [column for column in optional if any(column in row for row in rows)]
    return {key: [row.get(key, ABSENT) for row in rows] for key in (*required, *used)}
  if len(required) == 1:
    return {required[0]: [row[0] if isinstance(row, tuple) and len(row) == 1 else row for row in rows]}
  for index, row in enumerate(rows):
    if not isinstance(row, list | tuple | np.ndarray) or len(row) != len(required):
      raise UserError(
        f"{name}: row {index} is {format_value(row)}: give {len(required)} values ({', '.join(required)}), or a dict "
        "with these keys"
      )
  return {key: [row[position] for row in rows] for position, key in enumerate(required)}


def _listed(values: Any, name: str, column: str) -> list[Any]:
  """Converts a column, or all rows, to a list."""
  for method in ("tolist", "to_list"):
    if hasattr(values, method):
      values = getattr(values, method)()
      break
  if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
    what = f"column {column!r}" if column else "the data"
    raise UserError(f"{name}: {what} must be a list, an array or a column of a frame, is {format_value(values)}")
  return list(values)


def _plain(value: Any, name: str, row: int, column: str) -> Any:
  """Converts a value to one that JSON has. A missing value of pandas or NumPy becomes None."""
  if isinstance(value, np.generic | np.ndarray):
    value = value.tolist()
  if value is ABSENT or value is None or isinstance(value, bool | int):
    return value
  if isinstance(value, str):
    return str(value)
  if isinstance(value, float):
    if math.isinf(value):
      raise UserError(f"{name}: row {row}: column {column!r} holds {value}: give a finite number")
    return None if math.isnan(value) else float(value)
  if type(value).__name__ in _MISSING_CLASSES:
    return None
  if isinstance(value, Mapping):
    return {str(key): _plain(inner, name, row, column) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(inner, name, row, column) for inner in value]
  raise UserError(
    f"{name}: row {row}: column {column!r} must hold texts, numbers or lists of them, holds a {type(value).__name__}"
  )
