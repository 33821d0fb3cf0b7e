"""Reads .txt and .txt.gz files line by line, in constant memory."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from albert.errors import UserError
from albert.io import files
from data_prep.text.text_checks import HEAD_BYTES, check_head, check_is_gzip, damaged_file_error

_BYTE_ORDER_MARK = "\ufeff"
_LINES_BETWEEN_REPORTS = 4096
# Longer lines are cut. Tokenization and SentencePiece's trainer need memory in proportion to the length of a line, and
# the trainer skips lines over 1 MiB.
_MAX_LINE_CHARS = 20_000
_BYTES_PER_READ = 1 << 20


def is_gzip(path: str) -> bool:
  """Whether a file is read as a GZIP file; its name decides."""
  return path.endswith(".gz")


def cut_line(text: str) -> Iterator[str]:
  """Cuts a line into parts of at most 20,000 characters, at a space if there is one."""
  start = 0
  while len(text) - start > _MAX_LINE_CHARS:
    # The text that is left is not copied, so that the time is in proportion to the length.
    end = text.rfind(" ", start + 1, start + _MAX_LINE_CHARS)
    end = end if end > 0 else start + _MAX_LINE_CHARS
    yield text[start:end]
    start = end
    while text[start : start + 1].isspace():
      start += 1
  if start < len(text):
    yield text[start:]


def open_text_lines(path: str, on_read: Callable[[int], None] | None = None) -> Iterator[tuple[int, str]]:
  """Reads the lines of a UTF-8 text file.

  Lines end with LF or CR LF. Byte-order marks are removed.

  Args:
    path: a text file, compressed if its name ends in ".gz".
    on_read: called from time to time with the number of bytes read since the last call. For a GZIP file, these are
      compressed bytes.

  Yields:
    The line number, from 1, and the line without its line end.

  Raises:
    UserError: the file cannot be read, is not plain text (`text_checks.check_head`), is not UTF-8 (the message names
      the line), or is a damaged or incomplete GZIP file.
  """
  with files.open_file(path) as file:
    reported_bytes = 0
    for line_number, line in enumerate(_read_lines(path, file), 1):
      if on_read is not None and line_number % _LINES_BETWEEN_REPORTS == 0:
        position = file.tell()
        on_read(position - reported_bytes)
        reported_bytes = position
      try:
        text = line.decode("utf-8")
      except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {line_number}: {decoding_problem(line, error)}") from error
      yield line_number, text.removesuffix("\n").removesuffix("\r").replace(_BYTE_ORDER_MARK, "")
    if on_read is not None:
      on_read(files.size(path) - reported_bytes)


def _read_lines(path: str, file: BinaryIO) -> Iterator[bytes]:
  """Yields the lines of an open file, decompressed if its name ends in ".gz". First checks that it is plain text."""
  stream = file
  if is_gzip(path):
    check_is_gzip(path, file.read(HEAD_BYTES))
    file.seek(0)
    stream = cast("BinaryIO", gzip.GzipFile(fileobj=file))
  num_lines = 0
  try:
    check_head(path, stream.read(HEAD_BYTES))
    stream.seek(0)
    for line in stream:
      yield line
      num_lines += 1
  except (EOFError, zlib.error, gzip.BadGzipFile) as error:
    raise damaged_file_error(f"{path}, after line {num_lines}", "GZIP", error) from error


def decoding_problem(line: bytes, error: UnicodeDecodeError) -> str:
  """Returns what is wrong with a line that is not UTF-8, and the remedy."""
  problem = f"byte 0x{line[error.start]:02x}, {error.reason}"
  return f"not UTF-8 text ({problem}): convert the file to UTF-8, for example with iconv"


def strip_line(line: str) -> str:
  """Returns a line without byte-order marks and without white space around it."""
  return line.replace(_BYTE_ORDER_MARK, "").strip() if _BYTE_ORDER_MARK in line else line.strip()


def count_line_ends(path: str, stop: int) -> int:
  """Counts the line ends before byte `stop` of a file."""
  num_line_ends, bytes_left = 0, stop
  with files.open_file(path) as file:
    while bytes_left > 0 and (block := file.read(min(_BYTES_PER_READ, bytes_left))):
      num_line_ends += block.count(b"\n")
      bytes_left -= len(block)
  return num_line_ends
