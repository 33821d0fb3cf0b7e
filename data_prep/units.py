"""Cuts the input files into units: parts of the text of limited size, which processes work on independently.

The text of a file is cut into ranges, so that one large file becomes many units. It is cut at the first blank line
after every multiple of UNIT_BYTES. If there is no blank line within another UNIT_BYTES, the document is cut at the end
of a line, or else at white space. Its second part becomes a new document, and the manifest counts such cuts. The units
depend only on the contents and the order of the files. GZIP files are decompressed first (data_prep.runners.gzip_text).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from albert.io import files

UNIT_BYTES = 2 << 20
# Text is cut at the end of a blank line, and the blank line begins before the cut. So the search for blank lines begins
# this many bytes before the first position at which the text may be cut.
_LOOK_BACK = 64
# The first search for a blank line reads this many bytes.
_SHORT_WINDOW = 1 << 16
_BLANK_LINE = re.compile(rb"\n[ \t\r\v\f]*\n")
_LINE_END = re.compile(rb"\n")
_SPACE = re.compile(rb"[ \t\r\v\f]")
# The last byte of a character in UTF-8: the next byte is the first one of another character.
_CHARACTER_END = re.compile(rb"(?s).(?=[\x00-\x7f\xc0-\xff])")


@dataclasses.dataclass(frozen=True)
class TextRange:
  """A range of a file's text. Positions are bytes of the file.

  The positions of a range with `data` are exact. Those of a range without `data` are nominal: multiples of UNIT_BYTES,
  or the file's size. `read_range` reads from the first blank line after the nominal start to the first blank line after
  the nominal end.

  Attributes:
    path: the file.
    ordinal: index of the file in the sorted list of input files.
    start: position of the first byte.
    end: position after the last byte.
    is_cut: whether the range begins inside a document. Known only with `data`.
    data: the text, once it is read.
  """

  path: str
  ordinal: int
  start: int
  end: int
  is_cut: bool = False
  data: bytes | None = None


@dataclasses.dataclass(frozen=True)
class TextUnit:
  """A unit of text.

  Attributes:
    index: number of the unit.
    ranges: its text.
    donors: for NSP, the ranges of a neighbouring unit. If this unit has a single document, the random second segments
      come from the neighbour's documents.
    progress_bytes: number of bytes in the files that a progress bar counts for the unit.
  """

  index: int
  ranges: tuple[TextRange, ...]
  donors: tuple[TextRange, ...] = ()
  progress_bytes: int = 0


# ---- cutting files into ranges -------------------------------------------------------------------------


def find_boundary(window: bytes, min_position: int, *, is_last: bool) -> tuple[int, bool]:
  """Finds where to cut text.

  The cut is at the end of the first blank line that ends at byte `min_position` or later. If there is none, the cut is
  at the end of the file if the window reaches it, and otherwise after the first line end, white space or character.

  Args:
    window: some bytes of the text.
    min_position: the smallest position in the window at which the text may be cut.
    is_last: whether the window reaches the end of the file.

  Returns:
    The position of the cut in the window, and whether it is inside a document.
  """
  for match in _BLANK_LINE.finditer(window):
    if match.end() >= min_position:
      return match.end(), False
  if is_last:
    return len(window), False
  for pattern in (_LINE_END, _SPACE, _CHARACTER_END):
    if end_match := pattern.search(window, max(0, min_position - 1)):
      return end_match.end(), True
  return len(window), True


def _find_boundary_in_file(
  read_at: Callable[[int, int], bytes], min_position: int, unit_bytes: int
) -> tuple[int, bool]:
  """Applies `find_boundary` to a file.

  Args:
    read_at: reads bytes of the file; its arguments are their position and number.
    min_position: the smallest position in the file at which the text may be cut.
    unit_bytes: the cut is at most this many bytes after `min_position`.

  Returns:
    The position of the cut in the file, and whether it is inside a document.
  """
  if min_position == 0:
    return 0, False
  window_start = max(0, min_position - _LOOK_BACK)
  min_in_window = min_position - window_start
  # Most blank lines are near. The long window is read only if there is no blank line in the short one.
  window = read_at(window_start, min_in_window + min(_SHORT_WINDOW, unit_bytes))
  boundary_in_window, is_cut = find_boundary(window, min_in_window, is_last=False)
  if is_cut:
    length = min_in_window + unit_bytes
    window = read_at(window_start, length)
    boundary_in_window, is_cut = find_boundary(window, min_in_window, is_last=len(window) < length)
  return window_start + boundary_in_window, is_cut


def plain_ranges(path: str, ordinal: int, unit_bytes: int = UNIT_BYTES) -> Iterator[TextRange]:
  """Cuts a file into ranges of `unit_bytes` without reading it."""
  size = files.size(path)
  for start in range(0, size, unit_bytes):
    yield TextRange(path, ordinal, start, min(start + unit_bytes, size))


def read_range(text_range: TextRange, unit_bytes: int = UNIT_BYTES) -> tuple[bytes, int, bool]:
  """Reads the text of a range.

  Args:
    text_range: the range.
    unit_bytes: the size that the file was cut into ranges with.

  Returns:
    The text, the byte of the file where it begins, and whether it begins inside a document.
  """
  if text_range.data is not None:
    return text_range.data, text_range.start, text_range.is_cut
  with files.open_file(text_range.path) as file:

    def read_at(start: int, length: int) -> bytes:
      file.seek(start)
      return file.read(length)

    size = files.size(text_range.path)
    start, is_cut = _find_boundary_in_file(read_at, text_range.start, unit_bytes)
    end = size if text_range.end >= size else _find_boundary_in_file(read_at, text_range.end, unit_bytes)[0]
    return read_at(start, max(0, end - start)), start, is_cut and start < end


# ---- units ---------------------------------------------------------------------------------------------


def plan_units(paths: list[str], *, with_donors: bool, unit_bytes: int = UNIT_BYTES) -> Iterator[TextUnit]:
  """Cuts text files into units of about `unit_bytes` of text, in order. Short files share a unit.

  Args:
    paths: the text files. The position of a file in the list is its ordinal.
    with_donors: whether each unit gets the ranges of the next one as donors (the last unit: those of the one before).
    unit_bytes: greatest nominal size of a unit. Its text is at most twice as long.
  """
  units = _group_ranges(paths, unit_bytes)
  if not with_donors:
    yield from units
    return
  previous_ranges: tuple[TextRange, ...] = ()
  unit = next(units, None)
  while unit is not None:
    following = next(units, None)
    yield dataclasses.replace(unit, donors=following.ranges if following else previous_ranges)
    previous_ranges, unit = unit.ranges, following


def _group_ranges(paths: list[str], unit_bytes: int) -> Iterator[TextUnit]:
  """Yields units without donors: groups of the ranges of all files, each of at most `unit_bytes` by nominal size."""
  index = group_bytes = 0
  group: list[TextRange] = []
  for ordinal, path in enumerate(paths):
    for text_range in plain_ranges(path, ordinal, unit_bytes):
      num_bytes = text_range.end - text_range.start
      if group and group_bytes + num_bytes > unit_bytes:
        yield TextUnit(index, tuple(group), progress_bytes=group_bytes)
        index += 1
        group, group_bytes = [], 0
      group.append(text_range)
      group_bytes += num_bytes
  if group:
    yield TextUnit(index, tuple(group), progress_bytes=group_bytes)
