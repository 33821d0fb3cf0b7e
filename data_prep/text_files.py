"""Reading .txt and .txt.gz files line by line, in constant memory."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

from albert.errors import UserError
from albert.io import files
from data_prep.text_checks import HEAD_BYTES, check_head, check_is_gzip

_BYTE_ORDER_MARK = "\ufeff"
_LINES_BETWEEN_REPORTS = 4096
# Longer lines are cut at white space: the memory of the tokenizer and of SentencePiece's trainer grows with them, and
# the trainer leaves out lines over 1 MiB.
_MAX_LINE_CHARS = 20_000


def is_gzip(path: str) -> bool:
  return path.endswith(".gz")


def cut_line(text: str) -> Iterator[str]:
  """A line in pieces of bounded length, cut at white space where there is any."""
  while len(text) > _MAX_LINE_CHARS:
    place = text.rfind(" ", 1, _MAX_LINE_CHARS)
    place = place if place > 0 else _MAX_LINE_CHARS
    yield text[:place]
    text = text[place:].lstrip()
  if text:
    yield text


def open_text_lines(path: str, on_read: Callable[[int], None] | None = None) -> Iterator[tuple[int, str]]:
  """(line number from 1, line without its line end) of a UTF-8 text file.

  Lines end at LF or CR LF; byte-order marks are taken away.

  Args:
    path: a text file, packed if it ends in ".gz".
    on_read: called now and then with the bytes of the (packed) file read since the last call.

  Raises:
    UserError: the file cannot be read, is not prose (`text_checks.check_head`), is not UTF-8 (naming the line), or is
      packed and not whole.
  """
  with files.open_file(path) as raw:
    if is_gzip(path):
      check_is_gzip(path, raw.read(HEAD_BYTES))
      raw.seek(0)
    file = cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if is_gzip(path) else raw
    lines: Iterator[bytes] | None = None
    reported = 0
    for number in itertools.count(1):
      try:
        if lines is None:
          check_head(path, file.read(HEAD_BYTES))
          file.seek(0)
          lines = iter(file)
        line = next(lines, None)
      except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
          f"{path}, after line {number - 1}: not a whole GZIP file ({error}): pack it again or leave it out"
        ) from error
      if on_read is not None and (line is None or number % _LINES_BETWEEN_REPORTS == 0):
        position = files.size(path) if line is None else raw.tell()
        on_read(position - reported)
        reported = position
      if line is None:
        return
      yield number, _decode(line, path, number)


def _decode(line: bytes, path: str, number: int) -> str:
  try:
    text = line.decode("utf-8")
  except UnicodeDecodeError as error:
    raise UserError(
      f"{path}, line {number}: not UTF-8 text (byte 0x{line[error.start]:02x}, {error.reason}): "
      "convert the file to UTF-8, for example with iconv"
    ) from error
  return text.removesuffix("\n").removesuffix("\r").replace(_BYTE_ORDER_MARK, "")
