"""Reads tables of text as they are found: TSV, CSV and JSON lines, with or without a header.

A byte-order mark is dropped, a line may end in LF or CRLF, and blank lines at the end mean nothing. In a TSV file
quotes are characters like any other (GLUE's files have stray ones); a CSV file honours them. The other line ends
that Unicode knows are part of the text.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from albert.config.ranges import as_float32
from albert.errors import UserError
from albert.io import files, json_values
from albert.io.json_values import shown
from albert.io.text_encoding import check_first_line

# What a text may hold in a CSV file, in characters; the csv module's own limit is 131,072.
_LARGEST_FIELD = 2**31 - 1
_JSON_EXTENSIONS = (".jsonl", ".json", ".ndjson")

# A row: the number of the line it starts in, from 1, and its fields.
_Row = tuple[int, list[str]]


@dataclasses.dataclass(frozen=True)
class Table:
  """Columns of a file.

  Attributes:
    path: the file.
    line_numbers: of each row, from 1.
    columns: name -> the fields, as they stand in the file.
    damaged_lines: the lines left out for having another number of fields than the header.
  """

  path: str
  line_numbers: Sequence[int]
  columns: dict[str, list[str]]
  damaged_lines: Sequence[int] = ()

  def __len__(self) -> int:
    return len(self.line_numbers)

  def location(self, row: int) -> str:
    """File and line of a row, for an error."""
    return f"{self.path}, line {self.line_numbers[row]}"

  def non_empty_texts(self, name: str) -> list[str]:
    """A column none of whose fields is empty. UserError with the line of one that is."""
    values = self.columns[name]
    for row, value in enumerate(values):
      if not value or value.isspace():
        raise UserError(f"{self.location(row)}: column {name!r} is empty: fill it in or remove the line")
    return values

  def unique_names(self, name: str) -> list[str]:
    """A column, stripped, that names each row. UserError with the line of a field that is empty or came before."""
    values = [value.strip() for value in self.non_empty_texts(name)]
    for row, value in enumerate(values):
      check_name(self.location(row), name, value)
    if len(set(values)) < len(values):
      first: dict[str, int] = {}
      for row, value in enumerate(values):
        if value in first:
          raise UserError(
            f"{self.location(row)}: {name} {value!r} is that of line {self.line_numbers[first[value]]} already: "
            "give each row one of its own"
          )
        first[value] = row
    return values

  def numbers(self, name: str, low: float = -math.inf, high: float = math.inf) -> np.ndarray:
    """A column as float32 [N].

    Raises:
      UserError: with the line of what is not a number, is not in low..high, or has a square, which the loss of a
        regression takes, that overflows float32.
    """
    values = self.non_empty_texts(name)
    numbers = np.empty(len(values), np.float32)
    for row, value in enumerate(values):
      try:
        number = float(value)
      except ValueError:
        number = math.nan
      if math.isnan(number):
        raise UserError(f"{self.location(row)}: {name} {shown(value.strip())} is not a number")
      if not math.isfinite(as_float32(number * number)):
        raise UserError(
          f"{self.location(row)}: {name} {shown(value.strip())} is too large: its square overflows float32"
        )
      if not low <= number <= high:
        raise UserError(f"{self.location(row)}: {name} {number:g} is not between {low:g} and {high:g}")
      numbers[row] = number
    return numbers

  def label_indices(self, name: str, labels: Sequence[str]) -> np.ndarray:
    """A column of labels as their places in `labels`, int32 [N]. UserError with the line of an unknown label."""
    code_of = {label: code for code, label in enumerate(labels)}
    codes = np.empty(len(self), np.int32)
    for row, value in enumerate(self.non_empty_texts(name)):
      code = code_of.get(value.strip())
      if code is None:
        raise UserError(f"{self.location(row)}: {name} {value.strip()!r} is no label of this task: {_listed(labels)}")
      codes[row] = code
    return codes


def check_name(where: str, what: str, value: str) -> None:
  """UserError if an id or a label has a tab or a line end, which predictions files cannot hold."""
  if any(character in value for character in "\t\r\n"):
    raise UserError(f"{where}: {what} {shown(value)} has a tab or a line end: remove it")


def read_header(path: str) -> list[str]:
  """The names of the columns: the fields of the first line, or the keys of the first JSON object; [] if empty."""
  if _is_json(path):
    return next((list(values) for _, values in _json_objects(path)), [])
  return next((_names(fields) for _, fields in _rows(path)), [])


def read_table(
  path: str,
  names: Sequence[str],
  *,
  header: Sequence[str] | None = None,
  tolerated_damage: float = 0.0,
) -> Table:
  """Reads the columns `names` of a file.

  Args:
    path: .csv, .jsonl (or .json, .ndjson: an object a line), and tab-separated for any other name.
    names: those to read; they may be fewer than the file has.
    header: the columns of a file that has no header; None for one whose first line names them.
    tolerated_damage: the share of rows that may have another number of fields than the header. They are left
      out and listed in damaged_lines.
  Returns: the table; it may have no rows.
  Raises:
    UserError: no such file; a missing column (the message lists those there are); another number of fields than
      the header; a JSON line that is no object; bytes that are no UTF-8. Each with file and line.
  """
  if _is_json(path):
    return _read_json_lines(path, names)
  rows = _rows(path)
  if header is None:
    header = next((_names(fields) for _, fields in rows), None)
    if header is None:
      raise UserError(f"{path} is empty: it lacks the line that names its columns")
  places = [_place(path, header, name) for name in names]
  picked: list[list[str]] = [[] for _ in names]
  line_numbers: list[int] = []
  damaged: list[_Row] = []
  appends = [(column.append, place) for column, place in zip(picked, places, strict=True)]
  num_fields = len(header)
  for number, fields in rows:
    if len(fields) != num_fields:
      damaged.append((number, fields))
      if not tolerated_damage:
        break
      continue
    line_numbers.append(number)
    for append, place in appends:
      append(fields[place])
  if len(damaged) > tolerated_damage * len(line_numbers):
    number, fields = damaged[0]
    raise UserError(
      f"{path}, line {number}: {len(fields)} columns instead of {num_fields} ({_listed(header)}): "
      f"fields are parted by {'commas' if _is_csv(path) else 'tabs'}"
    )
  return Table(path, line_numbers, dict(zip(names, picked, strict=True)), [number for number, _ in damaged])


def _extension(path: str) -> str:
  return os.path.splitext(path)[1].lower()


def _is_json(path: str) -> bool:
  return _extension(path) in _JSON_EXTENSIONS


def _is_csv(path: str) -> bool:
  return _extension(path) == ".csv"


def _listed(names: Iterable[str]) -> str:
  listed = [name if len(name) <= 40 else f"{name[:40]}..." for name in itertools.islice(names, 21)]
  return ", ".join(listed[:20]) + (", ..." if len(listed) > 20 else "")


def _names(fields: Sequence[str]) -> list[str]:
  return [field.strip() for field in fields]


def _place(path: str, header: Sequence[str], name: str) -> int:
  if header.count(name) == 1:
    return header.index(name)
  if name in header:
    raise UserError(f"{path}, line 1: {header.count(name)} columns are called {name!r}: rename all but one")
  raise UserError(f"{path}, line 1: no column {name!r}; there are: {_listed(header)}")


def _lines(path: str) -> Iterator[tuple[int, str]]:
  """(number from 1, line with its end) of the file."""
  with files.open_file(path) as file:
    for number, line in enumerate(file, start=1):
      if number == 1:
        check_first_line(path, line)
        line = line.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901
      try:
        yield number, line.decode("utf-8")
      except UnicodeDecodeError as error:
        raise UserError(
          f"{path}, line {number}: not UTF-8 (byte {error.start + 1} of the line is 0x{line[error.start]:02x}): "
          "save the file as UTF-8"
        ) from error


def _rows(path: str) -> Iterator[_Row]:
  """The rows of a TSV or CSV file, without blank lines at its end."""
  blank: list[_Row] = []
  for number, fields in _csv_rows(path) if _is_csv(path) else _tsv_rows(path):
    if fields in ([], [""]):
      blank.append((number, fields))
      continue
    if blank:
      yield from blank
      blank = []
    yield number, fields


def _tsv_rows(path: str) -> Iterator[_Row]:
  for number, line in _lines(path):
    yield number, line.rstrip("\r\n").split("\t")


def _csv_rows(path: str) -> Iterator[_Row]:
  csv.field_size_limit(_LARGEST_FIELD)
  reader = csv.reader((line for _, line in _lines(path)), strict=True)
  while True:
    number = reader.line_num + 1
    try:
      fields = next(reader, None)
    except csv.Error as error:
      if "new-line character" in str(error):  # the csv module's remedy is for Python programs
        raise UserError(f"{path}, line {number}: a carriage return outside of quotes: quote the field") from error
      raise UserError(f"{path}, line {number}: {error}: double a quote inside of quotes, and close them") from error
    if fields is None:
      return
    yield number, fields


def _json_objects(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
  for number, line in _lines(path):
    if not line.strip():
      continue
    yield number, json_values.parse(f"{path}, line {number}", line.rstrip(), dict[str, Any], "give an object a line")


def _read_json_lines(path: str, names: Sequence[str]) -> Table:
  columns: dict[str, list[str]] = {name: [] for name in names}
  line_numbers: list[int] = []
  for number, values in _json_objects(path):
    line_numbers.append(number)
    for name, column in columns.items():
      if name not in values:
        raise UserError(f"{path}, line {number}: no {name!r}; there are: {_listed(values)}")
      column.append(_json_text(values[name], path, number, name))
  return Table(path, line_numbers, columns)


def _json_text(value: Any, path: str, number: int, name: str) -> str:
  if isinstance(value, str):
    return value
  if value is None:
    return ""
  if isinstance(value, bool):
    return "true" if value else "false"
  if isinstance(value, int | float):
    return str(value)
  raise UserError(f"{path}, line {number}: {name!r} must be a text or a number, is a {type(value).__name__}")
