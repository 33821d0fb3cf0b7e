"""Reads .txt and .txt.gz files line by line, in constant memory."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from albert.errors import UserError
from albert.io import files
from data_prep.text_checks import HEAD_BYTES, check_head, check_is_gzip

BYTE_ORDER_MARK = "\ufeff"
_LINES_BETWEEN_REPORTS = 4096
# Longer lines are cut. Tokenization and SentencePiece's trainer need memory in proportion to the length of a line, and
# the trainer skips lines over 1 MiB.
_MAX_LINE_CHARS = 20_000


def is_gzip(path: str) -> bool:
  """Whether a file is read as a GZIP file; its name decides."""
  return path.endswith(".gz")


def cut_line(text: str) -> Iterator[str]:
  """Cuts a line into parts of at most 20,000 characters, at white space if there is any."""
  while len(text) > _MAX_LINE_CHARS:
    position = text.rfind(" ", 1, _MAX_LINE_CHARS)
    position = position if position > 0 else _MAX_LINE_CHARS
    yield text[:position]
    text = text[position:].lstrip()
  if text:
    yield text


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
  with files.open_file(path) as raw_file:
    if is_gzip(path):
      check_is_gzip(path, raw_file.read(HEAD_BYTES))
      raw_file.seek(0)
    file = cast("BinaryIO", gzip.GzipFile(fileobj=raw_file)) if is_gzip(path) else raw_file
    lines: Iterator[bytes] | None = None
    reported_bytes = 0
    for line_number in itertools.count(1):
      try:
        if lines is None:
          check_head(path, file.read(HEAD_BYTES))
          file.seek(0)
          lines = iter(file)
        line = next(lines, None)
      except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
          f"{path}, after line {line_number - 1}: the GZIP file is damaged or incomplete ({error}): compress it again, "
          "or leave it out of the input"
        ) from error
      if on_read is not None and (line is None or line_number % _LINES_BETWEEN_REPORTS == 0):
        position = files.size(path) if line is None else raw_file.tell()
        on_read(position - reported_bytes)
        reported_bytes = position
      if line is None:
        return
      yield line_number, _decode(line, path, line_number)


def _decode(line: bytes, path: str, line_number: int) -> str:
  try:
    text = line.decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{path}, line {line_number}: not UTF-8 text (byte 0x{line[error.start]:02x}, {error.reason}): "
      "convert the file to UTF-8, for example with iconv"
    ) from error
  return text.removesuffix("\n").removesuffix("\r").replace(BYTE_ORDER_MARK, "")
