"""Reads ranges of lines of a file, with their numbers. A line belongs to the range in which it begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from albert.io import files
from data_prep.readers.records import NO_TEXT, DroppedRecord, GetPlace, Piece, SourceDocument
from data_prep.readers.streams import compression, open_stream
from data_prep.text.text_files import count_line_ends, strip_line

# The end of a piece that reaches to the end of its file.
TO_THE_END = (1 << 63) - 1
# A paragraph with more characters is cut at the end of a line, so that a file without blank lines fits into memory.
_MAX_PARAGRAPH_CHARS = 1 << 20


def whole_file(path: str, text_format: str) -> Piece:
  """Returns a piece that is the whole file."""
  return Piece(path, text_format, 0, TO_THE_END, files.size(path))


def byte_ranges(path: str, text_format: str, unit_bytes: int, *, divisible_ending: str = "") -> Iterator[Piece]:
  """Cuts a file into ranges of bytes without reading it.

  Args:
    path: the file.
    text_format: its form.
    unit_bytes: the size of a range.
    divisible_ending: ending of compressed files that can be read from the middle, such as ".bz2". Other compressed
      files are single pieces.
  """
  size = files.size(path)
  if compression(path) not in ("", divisible_ending) or size <= unit_bytes:
    yield whole_file(path, text_format)
    return
  for start in range(0, size, unit_bytes):
    end = min(start + unit_bytes, size)
    yield Piece(path, text_format, start, end, end - start)


class SourceLine(NamedTuple):
  """A line of a file.

  Attributes:
    get_place: returns where it is in its file, such as "line 3".
    content: its bytes, with the line end.
  """

  get_place: GetPlace
  content: bytes


class LineNumbers:
  """Numbers of the lines of a range. The lines before the range are counted only when a number is needed.

  Args:
    path: the file; not compressed if `start` is not 0.
    start: the byte where the range's first line begins.
  """

  def __init__(self, path: str, start: int):
    self._path, self._start = path, start
    self._num_before: int | None = None if start else 0

  def place_getter(self, index: int) -> GetPlace:
    """Returns a function that returns the place of a line, such as "line 3".

    Args:
      index: number of the line in the range, from 0.
    """
    return lambda: f"line {self._lines_before() + index + 1}"

  def _lines_before(self) -> int:
    if self._num_before is None:
      self._num_before = count_line_ends(self._path, self._start)
    return self._num_before


def read_lines(piece: Piece) -> Iterator[SourceLine]:
  """Reads the lines that begin in a piece."""
  with open_stream(piece.path) as stream:
    position = piece.start
    if position:
      # The piece may begin inside a line. It begins with a line if the byte before it is a line end.
      stream.seek(position - 1)
      position += len(stream.readline()) - 1
    numbers = LineNumbers(piece.path, position)
    index = 0
    while position < piece.end and (line := stream.readline()):
      yield SourceLine(numbers.place_getter(index), line)
      position += len(line)
      index += 1


def paragraphs_of(lines: Iterable[str], *, joins_lines: bool) -> Iterator[str]:
  """Yields the paragraphs of some text.

  Args:
    lines: its lines.
    joins_lines: whether the lines up to a blank line are one paragraph. If not, each line is one.
  """
  stripped_lines = map(strip_line, lines)
  return _join_lines(stripped_lines) if joins_lines else filter(None, stripped_lines)


def _join_lines(lines: Iterable[str]) -> Iterator[str]:
  """Yields paragraphs: the lines up to each blank line, joined."""
  paragraph_lines: list[str] = []
  num_chars = 0
  for line in lines:
    if paragraph_lines and (not line or num_chars >= _MAX_PARAGRAPH_CHARS):
      yield " ".join(paragraph_lines)
      paragraph_lines, num_chars = [], 0
    if line:
      paragraph_lines.append(line)
      num_chars += len(line)
  if paragraph_lines:
    yield " ".join(paragraph_lines)


def text_to_record(get_place: GetPlace, text: str | None, *, joins_lines: bool) -> SourceDocument | DroppedRecord:
  """Makes a document from the text in a field of a record. It is dropped if the field is null.

  Args:
    get_place: returns where the record is.
    text: the text.
    joins_lines: see `paragraphs_of`.
  """
  if text is None:
    return DroppedRecord(get_place, NO_TEXT, "")
  return SourceDocument(get_place, paragraphs_of(text.split("\n"), joins_lines=joins_lines))
