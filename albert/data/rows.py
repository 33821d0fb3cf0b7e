"""Rows in memory, which tasks read like a file: of pandas frames, NumPy arrays, lists, dicts and Parquet files.

pandas is not imported. Any object counts as a frame if it has `columns` and returns a column for `data[name]`. pyarrow,
an optional library, is imported when a Parquet file is opened.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from albert.data.manifest import cached_sha256
from albert.errors import UserError
from albert.io import files, local_files
from albert.io.text import encode_utf8, format_value, quote_names

# What `rows_of` accepts: the path of a file, or data in memory. docs/estimator.md lists the forms.
TableData: TypeAlias = Any
RowsT = TypeVar("RowsT", bound="Rows")

# Names of the classes with which pandas represents a missing value.
_MISSING_CLASSES = ("NAType", "NaTType")
PARQUET_EXTENSION = ".parquet"


class _Absent:
  """The class of ABSENT, which stands in a row for an optional column that the row lacks."""

  def __repr__(self) -> str:
    return "(missing)"


ABSENT = _Absent()


@dataclasses.dataclass(frozen=True)
class Rows:
  """N rows in memory. Tasks read them like a file.

  Attributes:
    name: for messages: the argument that the rows were given as, such as "train", or the path of their file.
    columns: name of a column -> its N values: texts, numbers, bools, None, and lists and dicts of these. ABSENT stands
      for the value of an optional column that a row lacks.
    row_numbers: the number of each row, from 0; or for rows of a file the number of its line, from 1.
    unit: what `row_numbers` count: "row", or "line".
    parts: if the rows come from several files, an object for each row that has the name and the unit of its file.
  """

  name: str
  columns: Mapping[str, Sequence[Any]]
  row_numbers: Sequence[int]
  unit: str = "row"
  parts: Sequence[Rows] = ()

  def __len__(self) -> int:
    return len(self.row_numbers)

  def __str__(self) -> str:
    return self.name

  def location(self, index: int) -> str:
    """Returns where a row is, for an error message: `train: row 17` or `train.csv, line 19`."""
    part = self.parts[index] if self.parts else self
    separator = "," if part.unit == "line" else ":"
    return f"{part.name}{separator} {part.unit} {self.row_numbers[index]}"

  def short_location(self, index: int) -> str:
    """Returns where a row is in its file, `line 19`, for a message that already names the file (see `parts`)."""
    return self.location(index) if self.parts else f"{self.unit} {self.row_numbers[index]}"

  def values(self, index: int) -> dict[str, Any]:
    """Returns the columns of a row, without those that it lacks."""
    row = {name: column[index] for name, column in self.columns.items()}
    return {name: value for name, value in row.items() if value is not ABSENT}

  def json_lines(self) -> Iterator[bytes]:
    """Yields each row as a line of JSON, with the columns in the order of their names.

    A file of these lines has the same content as the rows: a run that was trained on one can be resumed with the other.
    """
    for index in range(len(self)):
      row = dict(sorted(self.values(index).items()))
      yield encode_utf8(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")

  @functools.cached_property
  def sha256(self) -> str:
    """SHA-256 of the json_lines, in hex."""
    digest = hashlib.sha256()
    for line in self.json_lines():
      digest.update(line)
    return digest.hexdigest()

  def select(self: RowsT, indices: Iterable[int]) -> RowsT:
    """Returns some of the rows, in the order of their indices. They keep their numbers."""
    indices = list(indices)
    columns = {column: [values[i] for i in indices] for column, values in self.columns.items()}
    parts = [self.parts[i] for i in indices] if self.parts else ()
    return dataclasses.replace(self, columns=columns, row_numbers=[self.row_numbers[i] for i in indices], parts=parts)


# The data of a split: the path of a file, or rows in memory.
DataSource: TypeAlias = str | Rows


def source_sha256(source: DataSource) -> str:
  """Returns the SHA-256 of a file, or of rows in memory, in hex."""
  return source.sha256 if isinstance(source, Rows) else cached_sha256(source, files.stat(source))


def is_path(data: TableData) -> bool:
  """Whether data is the path of a file: a string or an os.PathLike."""
  return isinstance(data, str | os.PathLike)


def is_text(data: TableData) -> bool:
  """Whether data is a text, not a path: a string with spaces that has no extension and names no file."""
  return isinstance(data, str) and " " in data and not re.search(r"\.\w+$", data) and not files.exists(data)


def rows_of(data: TableData, name: str, required: Sequence[str], optional: Sequence[str] = ()) -> Rows:
  """Converts data in memory to rows.

  Args:
    data: one of
      - a frame: it has `columns`, and `data[column]` is a column (pandas, Polars),
      - a mapping from the names of columns to sequences or arrays,
      - a NumPy array with named fields,
      - a sequence of mappings, one for each row,
      - a sequence of tuples or lists, or a two-dimensional array, whose columns are `required` in this order,
      - a sequence of values, if only one column is required,
      - a text, or a mapping with a text in the first column, which is one row.
    name: the argument that the data was given as, such as "train", for messages.
    required: the columns that every row must have.
    optional: columns that are read if the data has them.
  Returns: the rows with the required columns and the optional ones that exist.
  Raises:
    UserError: a column is missing, columns have different lengths, JSON has no type for a value, or there are no rows.
  """
  if isinstance(data, str) or (isinstance(data, Mapping) and isinstance(data.get(required[0]), str)):
    data = [data]
  existing: list[Any] | None = None  # the names of the columns, if the data is not a sequence of rows
  if hasattr(data, "columns") and hasattr(data, "__getitem__"):
    existing = list(data.columns)
  elif isinstance(data, Mapping):
    existing = list(data)
  elif isinstance(data, np.ndarray) and data.dtype.names:
    existing = list(data.dtype.names)
  if existing is None:
    columns = _columns_from_rows(_to_list(data, name, ""), name, required, optional)
  else:
    wanted = [*required, *(column for column in optional if column in existing)]
    check_columns(name, existing, wanted)
    columns = {key: _to_list(data[key], name, key) for key in wanted}
  lengths = {key: len(column) for key, column in columns.items()}
  if len(set(lengths.values())) > 1:
    all_lengths = ", ".join(f"{key} {length}" for key, length in lengths.items())
    raise UserError(f"{name}: its columns have different lengths ({all_lengths}): give each row a value in each column")
  num_rows = next(iter(lengths.values()), 0)
  if not num_rows:
    raise UserError(f"{name}: has no rows: give at least one")
  for key, column in columns.items():
    columns[key] = [_to_json_value(value, name, row, key) for row, value in enumerate(column)]
  return Rows(name, columns, range(num_rows))


def check_columns(location: str, existing: Sequence[Any], names: Iterable[str]) -> None:
  """Checks that each column exists once.

  Args:
    location: the file, the argument or the row, for messages.
    existing: the names of all columns.
    names: the names of the columns to read.

  Raises:
    UserError: a column is missing, or several have its name.
  """
  for name in names:
    if name not in existing:
      raise UserError(f"{location}: no column {name!r}; there are: {quote_names(existing)}")
    if existing.count(name) > 1:
      raise UserError(f"{location}: {existing.count(name)} columns are called {name!r}: rename all but one")


def _columns_from_rows(
  rows: Sequence[Any], name: str, required: Sequence[str], optional: Sequence[str]
) -> dict[str, list[Any]]:
  """Converts rows that are dicts, tuples or lists, or single values if one column is required, to columns.

  A row that is a dict and lacks an optional column has ABSENT there.
  """
  if any(isinstance(row, Mapping) for row in rows):
    for index, row in enumerate(rows):
      if not isinstance(row, Mapping):
        raise UserError(
          f"{name}: row {index} is {format_value(row)}, other rows are dicts: give each row in the same form"
        )
      for column in required:
        if column not in row:
          raise UserError(f"{name}: row {index} has no {column!r}; it has: {quote_names(row)}")
    existing_optional = [column for column in optional if any(column in row for row in rows)]
    return {key: [row.get(key, ABSENT) for row in rows] for key in (*required, *existing_optional)}
  if len(required) == 1:
    return {required[0]: [row[0] if isinstance(row, tuple) and len(row) == 1 else row for row in rows]}
  for index, row in enumerate(rows):
    if not isinstance(row, list | tuple | np.ndarray) or len(row) != len(required):
      raise UserError(
        f"{name}: row {index} is {format_value(row)}: give {len(required)} values ({quote_names(required)}), or a dict"
      )
  return {key: [row[position] for row in rows] for position, key in enumerate(required)}


def _to_list(values: Any, name: str, column: str) -> list[Any]:
  """Converts a column, or all rows if `column` is "", to a list."""
  for method in ("tolist", "to_list"):
    if hasattr(values, method):
      values = getattr(values, method)()
      break
  if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
    subject = f"column {column!r}" if column else "the data"
    raise UserError(f"{name}: {subject} must be a list, an array or a column of a frame, is {format_value(values)}")
  return list(values)


def _to_json_value(value: Any, name: str, row: int, column: str) -> Any:
  """Converts a value to a type that JSON has. A missing value of pandas or NumPy becomes None."""
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
    return {str(key): _to_json_value(inner, name, row, column) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_to_json_value(inner, name, row, column) for inner in value]
  raise UserError(
    f"{name}: row {row}: column {column!r} must hold texts, numbers or lists of them, holds a {type(value).__name__}"
  )


def field_text(value: Any, location: str, name: str, separator: str | None = None) -> str:
  """Converts a JSON value to the text that a TSV file would have. Raises UserError for a list, an object, or ABSENT.

  With a separator, a list becomes its elements, joined by it. Then an element that contains the separator is an error.
  """
  if isinstance(value, str):
    return value
  if value is None:
    return ""
  if value is ABSENT:
    raise UserError(f"{location}: no {name!r}, which other rows have: give each row one, or none any")
  if isinstance(value, bool):
    return "true" if value else "false"
  if isinstance(value, int | float):
    return str(value)
  if separator is not None and isinstance(value, list):
    texts = [field_text(element, location, name) for element in value]
    for text in texts:
      if separator in text:
        raise UserError(f"{location}: {name} {format_value(text)} contains the separator of labels, {separator!r}")
    return separator.join(texts)
  remedy = ": give --multi_label if it lists labels, else an object a row" if isinstance(value, list | dict) else ""
  raise UserError(f"{location}: {name!r} must be a text or a number, is a {type(value).__name__}{remedy}")


def import_pyarrow(path: str) -> Any:
  """Imports pyarrow with its modules for Parquet and Arrow files.

  Args:
    path: the file, for the message.
  Raises:
    UserError: pyarrow is not installed; the message gives the command that installs it.
  """
  with local_files.required_library(
    path, "reading or writing Parquet and Arrow files needs pyarrow", "pip install 'pyarrow>=15'"
  ):
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
  return pyarrow


def open_source(path: str, pyarrow: Any) -> Any:
  """Opens a file for pyarrow. A local file is mapped into memory, so that skipped parts of it are not read."""
  if not files.is_remote(path):
    local_files.check_is_regular(path)
    return pyarrow.memory_map(path)
  return pyarrow.PythonFile(io.BufferedReader(_RemoteFile(path)), mode="r")


def damage_error(path: str, error: Exception) -> UserError:
  """Makes the error for a file that pyarrow cannot read."""
  return UserError(f"{path}: cannot be read ({' '.join(str(error).split())}): write the file again, or leave it out")


class _RemoteFile(io.RawIOBase):
  """A remote file with the methods that pyarrow needs."""

  def __init__(self, path: str):
    self._file = files.open_file(path)

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return True

  def readinto(self, buffer: Any) -> int:
    data = self._file.read(len(buffer))
    buffer[: len(data)] = data
    return len(data)

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    self._file.seek(offset, whence)
    return self._file.tell()


def _open_parquet(path: str, pyarrow: Any) -> Any:
  try:
    return pyarrow.parquet.ParquetFile(open_source(path, pyarrow))
  except (pyarrow.ArrowException, OSError) as error:
    raise damage_error(path, error) from error


def parquet_column_names(path: str) -> list[str]:
  """Returns the names of the columns of a Parquet file.

  Raises:
    UserError: pyarrow is not installed, or the file cannot be read.
  """
  with _open_parquet(path, import_pyarrow(path)) as file:
    return list(file.schema_arrow.names)


def read_parquet(path: str, names: Sequence[str]) -> Rows:
  """Reads columns of a Parquet file.

  Args:
    path: local or remote.
    names: the names of the columns to read.
  Returns: the rows, numbered from 1. Missing values and NaN are None.
  Raises:
    UserError: pyarrow is not installed, the file cannot be read, or it lacks a column or has it twice.
  """
  pyarrow = import_pyarrow(path)
  with _open_parquet(path, pyarrow) as file:
    check_columns(path, file.schema_arrow.names, names)
    try:
      table = file.read(columns=list(dict.fromkeys(names)))
      columns = {name: list(map(_without_nan, table.column(name).to_pylist())) for name in names}
    except (pyarrow.ArrowException, OSError, ValueError) as error:  # ValueError: not UTF-8, or a date out of range
      raise damage_error(path, error) from error
  return Rows(path, columns, range(1, table.num_rows + 1))


def _without_nan(value: Any) -> Any:
  return None if isinstance(value, float) and math.isnan(value) else value
