"""Reads ranges of lines of a file, with their numbers. A line belongs to the range in which it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from albert.io import files
from data_prep.readers.records import Piece
from data_prep.readers.streams import compression, open_stream
from data_prep.text_files import BYTE_ORDER_MARK

_BLOCK_BYTES = 1 << 20
# The end of a piece that reaches to the end of its file.
TO_THE_END = (1 << 63) - 1
# A paragraph with more characters is cut at the end of a line, so that a file without blank lines fits into memory.
_MAX_PARAGRAPH_CHARS = 1 << 20


def whole_file(path: str, text_format: str) -> Piece:
  """Returns a piece that is the whole file."""
  return Piece(path, text_format, 0, TO_THE_END, files.size(path))


def byte_ranges(path: str, text_format: str, unit_bytes: int) -> Iterator[Piece]:
  """Cuts a file into ranges of bytes without reading it. A compressed file is a single piece."""
  size = files.size(path)
  if compression(path) or size <= unit_bytes:
    yield whole_file(path, text_format)
    return
  for start in range(0, size, unit_bytes):
    end = min(start + unit_bytes, size)
    yield Piece(path, text_format, start, end, end - start)


class LineNumbers:
  """Numbers of the lines of a range. The lines before the range are counted only when a number is asked for.

  Args:
    path: the file; not compressed if `start` is not 0.
    start: the byte where the range's first line begins.
  """

  def __init__(self, path: str, start: int):
    self._path, self._start = path, start
    self._num_before: int | None = 0 if start == 0 else None

  def place(self, index: int) -> Callable[[], str]:
    """Returns a function that returns the name of line `index` of the range, from 0."""
    return lambda: f"line {self._lines_before() + index + 1}"

  def _lines_before(self) -> int:
    if self._num_before is None:
      self._num_before, left = 0, self._start
      with files.open_file(self._path) as file:
        while left > 0 and (block := file.read(min(_BLOCK_BYTES, left))):
          self._num_before += block.count(b"\n")
          left -= len(block)
    return self._num_before


def read_lines(piece: Piece) -> Iterator[tuple[Callable[[], str], bytes]]:
  """Reads the lines that begin in a piece.

  Yields:
    A function that returns the line's place, and the line with its line end.
  """
  with open_stream(piece.path) as stream:
    position = piece.start
    if position:
      stream.seek(position - 1)
      position += len(stream.readline()) - 1  # the rest of a line that begins before the piece
    numbers = LineNumbers(piece.path, position)
    index = 0
    while position < piece.end and (line := stream.readline()):
      yield numbers.place(index), line
      position += len(line)
      index += 1


def decoding_problem(line: bytes, error: UnicodeDecodeError) -> str:
  """Returns what is wrong with a line that is not UTF-8, and the remedy."""
  problem = f"byte 0x{line[error.start]:02x}, {error.reason}"
  return f"not UTF-8 text ({problem}): convert the file to UTF-8, for example with iconv"


def clean(text: str) -> str:
  """Returns a line without byte-order marks and without white space around it."""
  return text.replace(BYTE_ORDER_MARK, "").strip() if BYTE_ORDER_MARK in text else text.strip()


def paragraphs_of(lines: Iterator[str], *, joins_lines: bool) -> Iterator[str]:
  """Yields the paragraphs of some text.

  Args:
    lines: its lines.
    joins_lines: whether the lines up to a blank line are one paragraph. If not, each line is one.
  """
  pending: list[str] = []
  num_chars = 0
  for line in map(clean, lines):
    if joins_lines and line and num_chars < _MAX_PARAGRAPH_CHARS:
      pending.append(line)
      num_chars += len(line)
      continue
    if pending:
      yield " ".join(pending)
      pending, num_chars = [], 0
    if joins_lines and line:
      pending, num_chars = [line], len(line)
      continue
    if line:
      yield line
  if pending:
    yield " ".join(pending)
