"""Recognizes text files in UTF-16 or UTF-32 or with line ends CR, so that errors can name the encoding."""

from __future__ import annotations

import codecs

from albert.errors import UserError

# UTF-32 comes first: its little-endian byte order mark begins with UTF-16's.
_BYTE_ORDER_MARKS = {
  codecs.BOM_UTF32_LE: "UTF-32",
  codecs.BOM_UTF32_BE: "UTF-32",
  codecs.BOM_UTF16_LE: "UTF-16",
  codecs.BOM_UTF16_BE: "UTF-16",
}
# Maximum and minimum number of bytes that are searched for the zero bytes of Latin letters in UTF-16 and UTF-32.
_MAX_SEARCHED_BYTES = 64
_MIN_SEARCHED_BYTES = 4


def detect_utf16_or_utf32(start: bytes) -> str:
  """Recognizes UTF-16 and UTF-32.

  A text without a byte order mark is recognized if it begins with Latin letters, whose other bytes are all zero.

  Args:
    start: the first bytes of a file; at most 64 are used.

  Returns:
    "UTF-16", "UTF-32", or "" for any other encoding.
  """
  for mark, name in _BYTE_ORDER_MARKS.items():
    if start.startswith(mark):
      return name
  start = start[:_MAX_SEARCHED_BYTES]
  start = start[: len(start) // 4 * 4]  # whole characters of UTF-32
  if len(start) < _MIN_SEARCHED_BYTES:
    return ""
  for name, width in (("UTF-32", 4), ("UTF-16", 2)):
    for letter_offset in (0, width - 1):  # little-endian, big-endian
      other_bytes = [start[offset::width] for offset in range(width) if offset != letter_offset]
      if all(start[letter_offset::width]) and not any(map(any, other_bytes)):
        return name
  return ""


def check_encoding(source: str, start: bytes) -> None:
  """Checks that a file is not in UTF-16 or UTF-32.

  Args:
    source: the file's name; the error begins with it.
    start: the first bytes of the file.

  Raises:
    UserError: it is in UTF-16 or UTF-32.
  """
  name = detect_utf16_or_utf32(start)
  if name:
    raise UserError(f"{source} is {name}: save it as UTF-8")


def check_first_line(source: str, line: bytes) -> None:
  """Checks the encoding and the line ends of a file.

  Args:
    source: the file's name; the error begins with it.
    line: the first line of the file with its line end.

  Raises:
    UserError: the file is in UTF-16 or UTF-32, or its lines end in CR without LF.
  """
  check_encoding(source, line)
  if not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
    raise UserError(f"{source}: its lines end in CR alone (as on Mac OS 9): save it with the line ends LF or CRLF")
