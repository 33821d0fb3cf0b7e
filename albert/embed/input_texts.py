"""Reads the texts to embed and their ids: the lines of a text file, or a column of a table."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from albert.data import tables
from albert.errors import UserError
from albert.io import files
from albert.io.text import check_first_line, read_line_batches

_COUNTED_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Files that hold tables, of which --text_column must name a column.
_TABLE_EXTENSIONS = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")


class TextChunk(NamedTuple):
  """Consecutive texts of a file.

  Attributes:
    ids: the id of each text: line numbers, from 1, or the fields of a column of ids.
    texts: the texts.
  """

  ids: Sequence[int] | Sequence[str]
  texts: Sequence[str]


class InputTexts(abc.ABC):
  """The texts of a file.

  Attributes:
    num_texts: their number.
    ids_are_numbers: whether the ids are the numbers of the texts' lines.
  """

  num_texts: int
  ids_are_numbers: bool

  @abc.abstractmethod
  def chunks(self, chunk_size: int) -> Iterator[TextChunk]:
    """Yields the texts in their order, at most chunk_size at a time."""


class LineTexts(InputTexts):
  """A file with one text on each line. The lines are not kept in memory. A blank line is an empty text.

  Raises:
    UserError: the file cannot be read.
  """

  ids_are_numbers = True

  def __init__(self, path: str):
    self._path = path
    self.num_texts = _count_lines(path)

  def chunks(self, chunk_size: int) -> Iterator[TextChunk]:
    """See InputTexts.

    Raises:
      UserError: a line is not UTF-8 or longer than 16 MiB, or the number of lines is not what it was.
    """
    num_read = 0
    with files.open_file(self._path) as file:
      for lines in read_line_batches(file, chunk_size, self._path):
        ids = range(num_read + 1, num_read + 1 + len(lines))
        num_read += len(lines)
        if num_read > self.num_texts:
          break
        yield TextChunk(ids, [self._decode(number, line) for number, line in zip(ids, lines, strict=True)])
    if num_read != self.num_texts:
      raise UserError(f"{self._path}: changed while it was read: run the command again")

  def _decode(self, number: int, line: bytes) -> str:
    if number == 1:
      check_first_line(self._path, line)
      line = line.removeprefix(_BYTE_ORDER_MARK)
    try:
      return line.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
      raise UserError(
        f"{self._path}, line {number}: not UTF-8 (byte {error.start + 1} of the line is 0x{line[error.start]:02x}): "
        "save the file as UTF-8"
      ) from error


class ColumnTexts(InputTexts):
  """A column of a table, which is kept in memory.

  Args:
    path: see `albert.data.tables.read_table`.
    text_column: the name of the column of texts.
    id_column: the name of the column of ids; "" for the numbers of the lines.
  Raises:
    UserError: the file or a column cannot be read, or an id is empty or occurs twice.
  """

  def __init__(self, path: str, text_column: str, id_column: str):
    table = tables.read_table(path, [text_column, *([id_column] if id_column else [])])
    self._texts = table.columns[text_column]
    self.num_texts = len(table)
    self.ids_are_numbers = not id_column
    self._ids = table.unique_names(id_column) if id_column else table.line_numbers

  def chunks(self, chunk_size: int) -> Iterator[TextChunk]:
    """See InputTexts."""
    for start in range(0, self.num_texts, chunk_size):
      yield TextChunk(self._ids[start : start + chunk_size], self._texts[start : start + chunk_size])


def open_texts(path: str, text_column: str, id_column: str) -> InputTexts:
  """Opens the texts of a file.

  Args:
    path: a file.
    text_column: name of the column of texts; "" if each line of the file is a text.
    id_column: name of the column of ids; "" for the numbers of the lines.
  Raises:
    UserError: the file cannot be read or has no texts, or the columns do not fit the file.
  """
  texts: InputTexts
  if text_column:
    texts = ColumnTexts(path, text_column, id_column)
  elif id_column:
    raise UserError(f"--id_column={id_column}: give --text_column, too: without it, each line is a text")
  elif os.path.splitext(path)[1].lower() in _TABLE_EXTENSIONS:
    raise UserError(f"--input_file={path}: is a table: give --text_column, the column of its texts")
  else:
    texts = LineTexts(path)
  if not texts.num_texts:
    raise UserError(f"--input_file={path}: has no texts")
  return texts


def _count_lines(path: str) -> int:
  """Counts the lines of a file. The last one may lack its line end."""
  num_lines, last = 0, b"\n"
  with files.open_file(path) as file:
    while block := file.read(_COUNTED_BYTES):
      num_lines += block.count(b"\n")
      last = block[-1:]
  return num_lines + (last != b"\n")
