"""Recognizes text files that are not UTF-8 with line ends LF or CRLF, so that errors name what they are."""

from __future__ import annotations

import codecs

from albert.errors import UserError

# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS = {
  codecs.BOM_UTF32_LE: "UTF-32",
  codecs.BOM_UTF32_BE: "UTF-32",
  codecs.BOM_UTF16_LE: "UTF-16",
  codecs.BOM_UTF16_BE: "UTF-16",
}
# How many bytes at the start of a file are searched, at most and at least, for the zeros that UTF-16 and UTF-32 have
# beside Latin letters.
_LOOKED_AT = 64
_FEWEST = 4


def other_encoding(start: bytes) -> str:
  """UTF-16 or UTF-32 if the first bytes of a file are of that encoding, else "".

  Without a byte order mark it is recognized by zeros in all of the places where Latin letters have them.
  """
  for mark, name in _MARKS.items():
    if start.startswith(mark):
      return name
  start = start[:_LOOKED_AT]
  start = start[: len(start) // 4 * 4]
  if len(start) < _FEWEST:
    return ""
  for name, width in (("UTF-32", 4), ("UTF-16", 2)):
    for place in (0, width - 1):
      others = [start[other::width] for other in range(width) if other != place]
      if all(start[place::width]) and not any(map(any, others)):
        return name
  return ""


def check_encoding(where: str, start: bytes) -> None:
  """UserError, which begins with `where`, if the first bytes of a file say that it is UTF-16 or UTF-32."""
  name = other_encoding(start)
  if name:
    raise UserError(f"{where} is {name}: save it as UTF-8")


def check_first_line(where: str, line: bytes) -> None:
  """UserError if the first line of a file, with its end, is not UTF-8, or if all lines end in CR alone."""
  check_encoding(where, line)
  if not line.endswith(b"\n") and b"\r" in line.rstrip(b"\r"):
    raise UserError(f"{where}: its lines end in CR alone (as on Mac OS 9): save it with the line ends LF or CRLF")
