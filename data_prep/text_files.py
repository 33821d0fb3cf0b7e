"""Reading .txt and .txt.gz files line by line, in constant memory."""

from __future__ import annotations

import gzip
import itertools
import zlib
from collections.abc import Callable, Iterator

from albert import files
from albert.errors import UserError

_BYTE_ORDER_MARK = "\ufeff"
_LINES_BETWEEN_REPORTS = 4096


def open_text_lines(path: str, on_read: Callable[[int], None] | None = None) -> Iterator[tuple[int, str]]:
  """(line number from 1, line without its line end) of a UTF-8 text file.

  Lines end at LF or CR LF; byte-order marks are taken away.

  Args:
    path: a text file, packed if it ends in ".gz".
    on_read: called now and then with the bytes of the (packed) file read since the last call.

  Raises:
    UserError: the file cannot be read, is not UTF-8 (naming the line), or is packed and not whole.
  """
  with files.open_file(path) as raw:
    lines = iter(gzip.GzipFile(fileobj=raw) if path.endswith(".gz") else raw)
    reported = 0
    for number in itertools.count(1):
      try:
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
