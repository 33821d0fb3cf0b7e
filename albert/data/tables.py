"""Reads tables of text: TSV, CSV, JSON-lines and Parquet files, with or without a header, and rows in memory.

A byte-order mark is removed, lines end in LF or CRLF, and blank lines at the end of a file are ignored. Other line
separators of Unicode are part of the text. In CSV files, and in others whose fields are not separated by tabs, quotes
enclose fields. In TSV files, they are ordinary characters, because GLUE's files contain unpaired quotes. Files with a
name that ends in .gz are decompressed.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import itertools
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from albert.config.command_flags import as_float32
from albert.data.rows import (
  PARQUET_EXTENSION,
  DataSource,
  Rows,
  check_columns,
  field_text,
  parquet_column_names,
  read_parquet,
)
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.text import check_first_line, counted, format_value, join_names, label_name, quote_names

# Largest number of characters in a field of a CSV file. The csv module's default is 131,072.
_MAX_FIELD_CHARS = 2**31 - 1
_JSON_EXTENSIONS = (".jsonl", ".json", ".ndjson")
# What stands for 0 and 1 in a field with a number for each label.
_BITS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}

# Separators of fields that are recognized, and their names in messages.
SEPARATORS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "vertical bars"}
# The first rows of a file without a header, by which its separator is recognized.
_NUM_FIRST_ROWS = 20

# A row of a TSV or CSV file: the number of its first line, from 1, and its fields.
_Row = tuple[int, list[str]]


@dataclasses.dataclass(frozen=True)
class Table(Rows):
  """Rows whose columns are texts.

  Attributes:
    columns: name of a column -> its fields, unchanged.
    damaged_lines: line numbers of the rows that were left out because they have more or fewer fields than the header.
  """

  columns: dict[str, list[str]]
  damaged_lines: Sequence[int] = ()

  def non_empty_texts(self, name: str) -> list[str]:
    """Returns the fields of a column, after checking that none is empty.

    Raises:
      UserError: a field is empty or only whitespace. The message names its line.
    """
    values = self.columns[name]
    for row, value in enumerate(values):
      if not value or value.isspace():
        raise UserError(f"{self.location(row)}: column {name!r} is empty: fill it in or remove the {self.unit}")
    return values

  def unique_names(self, name: str) -> list[str]:
    """Returns the fields of a column of ids, without whitespace at their ends.

    Raises:
      UserError: a field is empty, contains a tab or a line end, or occurs twice. The message names its line.
    """
    values = [value.strip() for value in self.non_empty_texts(name)]
    first_row: dict[str, int] = {}
    for row, value in enumerate(values):
      check_name(self.location(row), name, value)
      if first_row.setdefault(value, row) != row:
        first = self.short_location(first_row[value])
        raise UserError(
          f"{self.location(row)}: {name} {value!r} is already used in {first}: give each row another {name}"
        )
    return values

  def numbers(self, name: str, low: float = -math.inf, high: float = math.inf) -> np.ndarray:
    """Returns a column of numbers.

    Args:
      name: name of the column.
      low, high: the smallest and the largest allowed number.

    Returns:
      float32 [N].

    Raises:
      UserError: a field is not a number, is not between low and high, or its square overflows float32. The message
        names its line.
    """
    values = self.non_empty_texts(name)
    numbers = np.empty(len(values), np.float32)
    for row, value in enumerate(values):
      number = parse_number(value)
      if math.isnan(number):
        raise UserError(
          f"{self.location(row)}: {name} {format_value(value.strip())} is not a number: write it like -1234.5 or 1e-3"
        )
      if not math.isfinite(as_float32(number * number)):  # the loss of a regression squares it
        raise UserError(
          f"{self.location(row)}: {name} {format_value(value.strip())} is too large: its square overflows float32"
        )
      if not low <= number <= high:
        raise UserError(f"{self.location(row)}: {name} {number:g} is not between {low:g} and {high:g}")
      numbers[row] = number
    return numbers

  def label_indices(self, name: str, labels: Sequence[str]) -> np.ndarray:
    """Converts a column of labels to indices.

    Args:
      name: name of the column.
      labels: all labels of the task.

    Returns:
      int32 [N], the index in `labels` of each field.

    Raises:
      UserError: a field is not one of the labels. The message names its line.
    """
    index_of_label = {label_name(label): index for index, label in enumerate(labels)}
    indices = np.empty(len(self), np.int32)
    for row, value in enumerate(self.non_empty_texts(name)):
      index = index_of_label.get(label_name(value))
      if index is None:
        raise _unknown_label(f"{self.location(row)}: {name} {value.strip()!r}", labels)
      indices[row] = index
    return indices


def _unknown_label(value: str, labels: Sequence[str]) -> UserError:
  return UserError(f"{value} is not a label of this task: {join_names(labels)}: correct it, or train with this label")


def parse_number(text: str) -> float:
  """Returns the number in a text, or NaN. Unlike float, it refuses 1_000 and digits that are not ASCII."""
  try:
    return float(text) if text.isascii() and "_" not in text else math.nan
  except ValueError:
    return math.nan


def check_name(location: str, column: str, value: str) -> None:
  """Checks that an id or a label can be written to a file of predictions.

  Args:
    location: file and line of the value, for the message.
    column: the column of the value, for the message, such as "id".
    value: the id or label.

  Raises:
    UserError: the value contains a tab or a line end.
  """
  if any(character in value for character in "\t\r\n"):
    raise UserError(f"{location}: {column} {format_value(value)} has a tab or a line end: remove it")


def split_labels(text: str, separator: str) -> list[str]:
  """Returns the labels in a field (see label_name): a list as JSON or Python writes it, separated texts, or nothing."""
  labels = text.split(separator)
  if text.startswith("[") and text.endswith("]"):
    labels = [label.strip().strip("\"'") for label in text[1:-1].split(",")]
  return [label_name(label) for label in labels if label.strip()]


def rows_of_labels(table: Table, column: str, separator: str, labels: Sequence[str] = ()) -> list[list[str]]:
  """Splits the fields of a column into labels.

  A field with a 0 or 1 for each label of the task stands for the labels with a 1, unless a label is called so.

  Args:
    table: the table.
    column: the name of the column.
    separator: separates the labels of a field.
    labels: all labels of the task, see label_name; () if they are not known yet.
  Raises:
    UserError: a label occurs twice in a row, a label in a list contains the separator, or the rows hold 0 and 1 for
      labels whose names are not known. The message names the line.
  """
  rows = [split_labels(text, separator) for text in table.columns[column]]
  if not _BITS.keys() & set(labels):
    for index, row in enumerate(rows):
      if len(row) == len(labels) and _BITS.keys() >= set(row):
        rows[index] = [label for label, text in zip(labels, row, strict=True) if _BITS[text]]
  bits = "if these are 0 or 1 for each label, give --labels with a name for each, in this order"
  for index, row in enumerate(rows):
    if any(separator in label for label in row):
      place = table.location(index)
      raise UserError(f"{place}: a label in {column} contains --label_separator={separator}: give another")
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
  index_of_label = {label_name(label): index for index, label in enumerate(labels)}
  matrix = np.zeros([len(table), len(labels)], np.int32)
  for row, labels_of_row in enumerate(rows_of_labels(table, column, separator, list(index_of_label))):
    for label in labels_of_row:
      if label not in index_of_label:
        raise _unknown_label(f"{table.location(row)}: {column} {label!r}", labels)
      matrix[row, index_of_label[label]] = 1
  return matrix


def concatenate(tables: Sequence[Table]) -> Table:
  """Returns the rows of several tables with the same columns. Messages name the table that a row comes from."""
  if len(tables) == 1:
    return tables[0]
  columns = {name: [value for table in tables for value in table.columns[name]] for name in tables[0].columns}
  numbers = [number for table in tables for number in table.row_numbers]
  parts = [part for table in tables for part in [Rows(table.name, {}, (), table.unit)] * len(table)]
  damaged_lines = [line for table in tables for line in table.damaged_lines]
  return Table(", ".join(table.name for table in tables), columns, numbers, "line", parts, damaged_lines)


def bit_matrix(table: Table, names: Sequence[str]) -> np.ndarray:
  """Converts columns of 0 and 1 to an indicator matrix, int32 [N, C]. Raises UserError for another value."""
  matrix = np.zeros([len(table), len(names)], np.int32)
  for index, name in enumerate(names):
    for row, value in enumerate(table.columns[name]):
      bit = _BITS.get(value.strip().lower())
      if bit is None:
        raise UserError(
          f"{table.location(row)}: column {name!r} is {format_value(value.strip())}: give 1 for this label, or 0"
        )
      matrix[row, index] = bit
  return matrix


def read_header(path: str) -> list[str]:
  """Returns the names of the columns of a file.

  Returns:
    The fields of the first line, or the keys of the first object; [] if the file is empty.
  """
  if _extension(path) == PARQUET_EXTENSION:
    return parquet_column_names(path)
  if is_json_file(path):
    return next((list(values) for _, _, values in read_objects(path)), [])
  return _header(_read_rows(path, _usual_separator(path)))


def read_table(
  source: DataSource,
  names: Sequence[str],
  *,
  header: Sequence[str] | None = None,
  separator: str = "",
  tolerated_damage: float = 0.0,
  list_columns: Mapping[str, str] = MappingProxyType({}),
) -> Table:
  """Reads columns of a file, or of rows in memory.

  Args:
    source: the path of the file, or the rows. The extension of a file determines its format: .csv; .jsonl, .json or
      .ndjson for a JSON object on each line or a list of objects; .parquet; any other for tab-separated fields.
    names: names of the columns to read. The file may have more columns.
    header: names of all columns of a file without a header; None if the first line of the file names them.
    separator: what separates the fields; "" for commas in .csv files and tabs in others, or for the one of SEPARATORS
      with which the first line names the columns.
    tolerated_damage: maximum number of damaged rows for each undamaged row, such as 0.001. A row is damaged if it has
      more or fewer fields than the header. Damaged rows are left out and listed in damaged_lines.
    list_columns: name of a column -> separator. Where its values are lists, as JSON and Parquet have them, the field
      is their elements, joined by the separator.

  Returns:
    The table. It may have no rows.

  Raises:
    UserError: the file does not exist; a column is missing; there are too many damaged rows; a line of JSON is not an
      object; the file is not UTF-8; pyarrow, which Parquet files need, is not installed. The message names the file
      and the line.
  """
  if isinstance(source, str) and _extension(source) == PARQUET_EXTENSION:
    source = read_parquet(source, names)
  if isinstance(source, Rows):
    return _table_of_rows(source, names, list_columns)
  if is_json_file(source):
    return _read_json(source, names, list_columns)
  return _read_delimited(source, names, header, separator, tolerated_damage)


def _read_delimited(
  path: str, names: Sequence[str], header: Sequence[str] | None, separator: str, tolerated_damage: float
) -> Table:
  """Reads columns of a TSV or CSV file. See read_table for the arguments."""
  found_separator = separator or _usual_separator(path)
  rows = _read_rows(path, found_separator)
  if header is None:
    try:
      header = _header(rows)
    except UserError:  # with a wrong separator, quotes may be misplaced
      header = []
    if not {*names} <= {*header}:
      found_separator = separator or find_separator(path, names) or found_separator
      rows = _read_rows(path, found_separator)
      header = _header(rows)
    if not any(header):
      raise UserError(f"{path}: its first line is blank or missing: write the names of the columns there")
  check_columns(f"{path}, line 1", header, names)
  columns: dict[str, list[str]] = {name: [] for name in names}
  # For each column: its index in the file, and the method that appends a field. Looking them up here saves time below.
  columns_to_read = [(header.index(name), column.append) for name, column in columns.items()]
  line_numbers: list[int] = []
  damaged_rows: list[_Row] = []
  num_fields = len(header)
  for number, fields in rows:
    if len(fields) != num_fields:
      damaged_rows.append((number, fields))
      if not tolerated_damage:
        break
      continue
    line_numbers.append(number)
    for index, add_field in columns_to_read:
      add_field(fields[index])
  if len(damaged_rows) > tolerated_damage * len(line_numbers):
    number, fields = damaged_rows[0]
    remedy = f"fields are separated by {SEPARATORS[found_separator]}" if any(fields) else "remove the blank line"
    columns_found = f"{counted(len(fields), 'column')} instead of {num_fields} ({quote_names(header)})"
    raise UserError(f"{path}, line {number}: {columns_found}: {remedy}")
  return Table(path, columns, line_numbers, "line", damaged_lines=[number for number, _ in damaged_rows])


def _header(rows: Iterator[_Row]) -> list[str]:
  """Returns the fields of the next row, without whitespace at their ends; [] if there is none."""
  return next(([field.strip() for field in fields] for _, fields in rows), [])


def _usual_separator(path: str) -> str:
  """Returns the separator that the extension of a file stands for."""
  return "," if _extension(path) == ".csv" else "\t"


def find_separator(path: str, names: Sequence[str] = (), num_fields: int = 0) -> str:
  """Finds the separator with which the first line of a file names some columns, or its first rows have num_fields.

  Args:
    path: the file.
    names: columns that its first line names; () if the file has no header.
    num_fields: the number of fields of a row of a file without a header.
  Returns: one of SEPARATORS; "" if none fits, there is only one field, or the file has another form.
  Raises:
    UserError: several fit.
  """
  if num_fields == 1 or _extension(path) in (PARQUET_EXTENSION, *_JSON_EXTENSIONS):
    return ""
  fitting = []
  for separator in SEPARATORS:
    try:
      rows = [fields for _, fields in itertools.islice(_read_rows(path, separator), 1 if names else _NUM_FIRST_ROWS)]
    except UserError:  # with a wrong separator, quotes may be misplaced
      continue
    if {*names} <= {*map(str.strip, rows[0])} if names and rows else {*map(len, rows)} == {num_fields}:
      fitting.append(separator)
  if len(fitting) > 1:
    candidates = " or ".join(SEPARATORS[separator] for separator in fitting)
    flags = " or ".join(f"--separator={separator!r}" for separator in fitting).replace("'\\t'", "tab")
    raise UserError(f"{path}: fields may be separated by {candidates}: give {flags}")
  return "".join(fitting)


def _extension(path: str) -> str:
  return os.path.splitext(path.lower().removesuffix(".gz"))[1]


def is_json_file(path: str) -> bool:
  """Whether the extension of a file says that it has JSON objects."""
  return _extension(path) in _JSON_EXTENSIONS


def read_lines(path: str) -> Iterator[tuple[int, str]]:
  """Yields the number, from 1, and the text of each line of a file, with its line end.

  Raises:
    UserError: the file does not exist, or is not UTF-8 or not the GZIP data that its name ends in; the message names
      the line.
  """
  with files.open_file(path) as file:
    for number, line in enumerate(_decompressed(path, file) if path.endswith(".gz") else file, start=1):
      if number == 1:
        check_first_line(path, line)
        line = line.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901
      try:
        yield number, line.decode("utf-8")
      except UnicodeDecodeError as error:
        found = f"byte {error.start + 1} of the line is 0x{line[error.start]:02x}"
        raise UserError(f"{path}, line {number}: not UTF-8 ({found}): save the file as UTF-8") from error


def _decompressed(path: str, file: BinaryIO) -> Iterator[bytes]:
  try:
    yield from gzip.GzipFile(fileobj=file)
  except (EOFError, zlib.error, gzip.BadGzipFile) as error:
    raise UserError(
      f"{path}: damaged GZIP data ({error}): copy it again, or rename it if it is not GZIP data"
    ) from error


def _read_rows(path: str, separator: str) -> Iterator[_Row]:
  """Yields the rows of a TSV or CSV file. Blank lines at the end of the file are left out."""
  # In CSV, [""] is a quoted empty field: the row of an empty text in a file of one column.
  rows: Iterator[_Row]
  if _usual_separator(path) == separator == "\t":
    rows, blank = ((number, line.rstrip("\r\n").split("\t")) for number, line in read_lines(path)), [""]
  else:
    rows, blank = _read_csv(path, separator), []
  blank_rows: list[_Row] = []  # yielded only if another row follows
  for number, fields in rows:
    if fields == blank:
      blank_rows.append((number, fields))
    else:
      yield from blank_rows
      blank_rows.clear()
      yield number, fields


def _read_csv(path: str, separator: str) -> Iterator[_Row]:
  csv.field_size_limit(_MAX_FIELD_CHARS)
  reader = csv.reader((line for _, line in read_lines(path)), strict=True, delimiter=separator)
  while True:
    number = reader.line_num + 1
    try:
      fields = next(reader, None)
    except csv.Error as error:
      if "new-line character" in str(error):  # the message of the csv module is for programmers
        raise UserError(f"{path}, line {number}: a carriage return outside of quotes: quote the field") from error
      raise UserError(f"{path}, line {number}: {error}: double a quote inside of quotes, and close them") from error
    if fields is None:
      return
    yield number, fields


def read_objects(source: DataSource) -> Iterator[tuple[str, int, dict[str, Any]]]:
  """Yields the location, the number and the values of each row in memory, or of each object in a JSON file.

  A file has an object on each line, or a list of objects. Both are numbered from 1.
  """
  if isinstance(source, Rows):
    for index, number in enumerate(source.row_numbers):
      yield source.location(index), number, source.values(index)
  elif _is_list(source):
    text = "".join(line for _, line in read_lines(source))
    rows = json_values.parse(source, text, list[dict[str, Any]], "give a list of objects")
    for number, values in enumerate(rows, start=1):
      yield f"{source}: row {number}", number, values
  else:
    for number, line in read_lines(source):
      if line.strip():
        location = f"{source}, line {number}"
        yield location, number, json_values.parse(location, line.rstrip(), dict[str, Any], "give an object a line")


def _is_list(path: str) -> bool:
  """Whether a JSON file holds a list of objects, and not an object on each line."""
  return next((line.lstrip()[:1] for _, line in read_lines(path) if line.strip()), "") == "["


def _read_json(path: str, names: Sequence[str], list_columns: Mapping[str, str]) -> Table:
  columns: dict[str, list[str]] = {name: [] for name in names}
  row_numbers: list[int] = []
  for location, number, values in read_objects(path):
    row_numbers.append(number)
    for name, column in columns.items():
      if name not in values:
        raise UserError(f"{location}: no {name!r}; there are: {quote_names(values)}")
      column.append(field_text(values[name], location, name, list_columns.get(name)))
  return Table(path, columns, row_numbers, "row" if _is_list(path) else "line")


def _table_of_rows(rows: Rows, names: Sequence[str], list_columns: Mapping[str, str]) -> Table:
  check_columns(rows.name, list(rows.columns), names)
  columns: dict[str, list[str]] = {}
  for name in names:
    separator, values = list_columns.get(name), enumerate(rows.columns[name])
    columns[name] = [field_text(value, rows.location(index), name, separator) for index, value in values]
  return Table(rows.name, columns, rows.row_numbers, rows.unit)
