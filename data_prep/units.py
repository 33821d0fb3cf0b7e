"""Cuts the input files into units: parts of the text of limited size, which processes work on independently.

The text of a file is cut into ranges, so that one large file becomes many units. It is cut at the first blank line
after every multiple of UNIT_BYTES. If there is no blank line within another UNIT_BYTES, the document is cut at the end
of a line, or else at white space. Its second part becomes a new document, and the manifest counts such cuts. The units
depend only on the contents and the order of the files.

A unit of text is read once, and its record keeps the hash of each of its ranges. The manifest's hash of a file is made
from them, so it is that of the text that the examples were made from. A file whose size or time changes while it is
read is an error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from albert.data.manifest import file_sha256
from albert.errors import UserError
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
  """A range of a file, whose index in the sorted list of input files is `ordinal`. Positions are bytes of the file.

  The positions of a range with `data`, its text, are exact. `is_cut` says whether it begins inside a document, and
  `is_end_cut` whether it ends inside one.
  Those of a range without `data` are nominal: multiples of UNIT_BYTES, or the file's size. `read_range` reads from the
  first blank line after the nominal start to the first blank line after the nominal end.
  """

  path: str
  ordinal: int
  start: int
  end: int
  is_cut: bool = False
  data: bytes | None = None
  is_end_cut: bool = False


@dataclasses.dataclass(frozen=True)
class TextUnit:
  """A unit of text: its ranges, and the number of bytes that a progress bar counts for it.

  For NSP, it has donors, the ranges of a neighbouring unit. If this unit has a single document, the random second
  segments come from the neighbour's documents.
  """

  ranges: tuple[TextRange, ...]
  donors: tuple[TextRange, ...] = ()
  progress_bytes: int = 0


# ---- cutting files into ranges -------------------------------------------------------------------------


def find_boundary(window: bytes, min_position: int, *, is_last: bool) -> tuple[int, bool]:
  """Finds where to cut text in `window`, some bytes of it; `is_last` says whether they reach the end of the file.

  The cut is at the end of the first blank line that ends at byte `min_position` or later. If there is none, the cut is
  at the end of the file if the window reaches it, and otherwise after the first line end, white space or character.

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
  """Applies `find_boundary` to a file. The cut is at most `unit_bytes` after `min_position`.

  `read_at` reads bytes of the file; its arguments are their position and number.
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


def read_range(text_range: TextRange, unit_bytes: int = UNIT_BYTES) -> TextRange:
  """Returns a range, of a file that was cut into ranges of `unit_bytes`, with its text and its exact positions."""
  if text_range.data is not None:
    return text_range
  path = text_range.path
  with files.convert_errors(path, "read"), files.open_file(path) as file:

    def read_at(start: int, length: int) -> bytes:
      file.seek(start)
      return file.read(length)

    size = files.size(path)
    start, is_cut = _find_boundary_in_file(read_at, text_range.start, unit_bytes)
    end, is_end_cut = size, False
    if text_range.end < size:
      end, is_end_cut = _find_boundary_in_file(read_at, text_range.end, unit_bytes)
    data = read_at(start, max(0, end - start))
  return TextRange(path, text_range.ordinal, start, start + len(data), is_cut and start < end, data, is_end_cut)


# ---- units ---------------------------------------------------------------------------------------------


def plan_units(paths: list[str], *, with_donors: bool, unit_bytes: int = UNIT_BYTES) -> Iterator[TextUnit]:
  """Cuts text files into units of about `unit_bytes` of text, at most twice as long. Short files share a unit.

  The position of a file in the list is its ordinal. With donors, each unit gets the ranges of the next one (the
  last unit: those of the one before).
  """
  units = list(_group_ranges(paths, unit_bytes))
  for index, unit in enumerate(units):
    neighbour = units[index + 1 : index + 2] or units[-2:-1]
    yield dataclasses.replace(unit, donors=neighbour[0].ranges) if with_donors and neighbour else unit


def _group_ranges(paths: list[str], unit_bytes: int) -> Iterator[TextUnit]:
  """Yields units without donors: groups of the ranges of all files, each of at most `unit_bytes` by nominal size."""
  group_bytes = 0
  group: list[TextRange] = []
  for ordinal, (path, metadata) in enumerate(files.stats(paths).items()):
    for start in range(0, metadata.num_bytes, unit_bytes):
      end = min(start + unit_bytes, metadata.num_bytes)
      if group and group_bytes + end - start > unit_bytes:
        yield TextUnit(tuple(group), progress_bytes=group_bytes)
        group, group_bytes = [], 0
      group.append(TextRange(path, ordinal, start, end))
      group_bytes += end - start
  if group:
    yield TextUnit(tuple(group), progress_bytes=group_bytes)


# ---- hashes --------------------------------------------------------------------------------------------


def read_unit(unit: TextUnit) -> tuple[TextUnit, dict[str, Any]]:
  """Reads the text of a unit.

  Returns:
    The unit with the text of its ranges and donors, and its record: for each range and each donor the ordinal of the
    file, the first byte, the one after the last, and the SHA-256. The unit's instances depend only on the record and
    the job's settings.
  """
  ranges, donors = tuple(map(read_range, unit.ranges)), tuple(map(read_range, unit.donors))
  record = {"ranges": list(map(_hash_text, ranges)), "donors": list(map(_hash_text, donors))}
  return dataclasses.replace(unit, ranges=ranges, donors=donors), record


def hash_unit(unit: TextUnit) -> dict[str, Any]:
  """Returns the record of a unit, see `read_unit`."""
  return read_unit(unit)[1]


def _hash_text(text_range: TextRange) -> list[Any]:
  assert text_range.data is not None
  return [text_range.ordinal, text_range.start, text_range.end, hashlib.sha256(text_range.data).hexdigest()]


def text_entries(metadata: Mapping[str, files.Stat], records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
  """Returns the manifest's entries of text files: name, size, and SHA-256 of the list of the hashes of its ranges.

  `metadata` are those of the files, and `records` those of all units, in order (`read_unit`).
  """
  digests = [hashlib.sha256() for _ in metadata]
  for record in records:
    for ordinal, _, _, sha256 in record["ranges"]:
      digests[ordinal].update(f"{sha256}\n".encode())
  return [
    {"file": os.path.basename(path), "bytes": stat.num_bytes, "ranges_sha256": digest.hexdigest()}
    for (path, stat), digest in zip(metadata.items(), digests, strict=True)
  ]


def hash_file(path: str) -> dict[str, Any]:
  """Returns the manifest's entry of a file that is converted: its name, size and SHA-256."""
  return {"file": os.path.basename(path), "bytes": files.size(path), "sha256": file_sha256(path)}


def check_unchanged(before: Mapping[str, files.Stat]) -> None:
  """Raises a UserError if the size or the time of a file has changed since its metadata were read."""
  for path, metadata in files.stats(before).items():
    if metadata != before[path]:
      raise UserError(f"{path} changed while it was being read: run the same command again once no program writes it")
