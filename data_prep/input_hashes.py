"""Checks that no input file changed while the examples were made from it.

A unit of text is read once. Its record keeps, for each range, the position in the file and the hash of the text. When
all units are done, every file is read once more: the recorded ranges must cover it exactly, and each range must still
have its hash. The same pass computes the hash of the whole file. The hashes in the manifest are therefore those of the
text that the examples were made from, and a file that changed between the two passes is detected even if its size is
the same.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from albert.data.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files
from albert.io.records import HashingReader
from data_prep.units import TextRange, TextUnit, read_range

_BYTES_PER_READ = 1 << 20


class RangeHash(NamedTuple):
  """The hash of a range of text that was read.

  Attributes:
    ordinal: index of the file in the sorted list of input files.
    start: first byte.
    end: byte after the last one.
    sha256: SHA-256 of the text, in hex.
  """

  ordinal: int
  start: int
  end: int
  sha256: str


def unit_name(unit: TextUnit) -> str:
  """Returns the ordinal of the unit's first file and its nominal start. Sorted names are in the order of the text."""
  first = unit.ranges[0]
  return f"{first.ordinal:08d}-{first.start:015d}"


def read_unit(unit: TextUnit) -> tuple[TextUnit, dict[str, Any]]:
  """Reads the text of a unit.

  Args:
    unit: the unit, without its text.

  Returns:
    The unit with the text of its ranges and donors, and its record. The record (JSON values) holds the unit's name and
    the `RangeHash` of each range and donor. The unit's instances depend only on the record and the job's settings.
  """
  ranges = tuple(map(_read_text, unit.ranges))
  donors = tuple(map(_read_text, unit.donors))
  record = {
    "unit": unit_name(unit),
    "ranges": [list(_hash_range(text_range)) for text_range in ranges],
    "donors": [list(_hash_range(text_range)) for text_range in donors],
  }
  return dataclasses.replace(unit, ranges=ranges, donors=donors), record


def _read_text(text_range: TextRange) -> TextRange:
  with files.convert_errors(text_range.path, "read"):
    data, start, is_cut = read_range(text_range)
  return TextRange(text_range.path, text_range.ordinal, start, start + len(data), is_cut, data)


def _hash_range(text_range: TextRange) -> RangeHash:
  assert text_range.data is not None
  sha256 = hashlib.sha256(text_range.data).hexdigest()
  return RangeHash(text_range.ordinal, text_range.start, text_range.end, sha256)


# ---- checking files ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FileTask:
  """An input file to check.

  Attributes:
    path: the file.
    num_bytes: its size when it was cut into units.
    ranges: the ranges of all units, each exactly once.
    donors: ranges that units read as donors, from neighbouring units.
  """

  path: str
  num_bytes: int
  ranges: tuple[RangeHash, ...]
  donors: tuple[RangeHash, ...] = ()


def make_file_tasks(paths: Sequence[str], sizes: Sequence[int], records: Iterable[dict[str, Any]]) -> list[FileTask]:
  """Returns one `FileTask` for each input file.

  Args:
    paths: the input files.
    sizes: bytes of each file when it was cut into units.
    records: the records of all units (`read_unit`).
  """
  # The hashes of each file.
  ranges: list[list[RangeHash]] = [[] for _ in paths]
  donors: list[list[RangeHash]] = [[] for _ in paths]
  for record in records:
    for range_hash in itertools.starmap(RangeHash, record["ranges"]):
      ranges[range_hash.ordinal].append(range_hash)
    for range_hash in itertools.starmap(RangeHash, record["donors"]):
      donors[range_hash.ordinal].append(range_hash)
  return [FileTask(path, sizes[i], tuple(ranges[i]), tuple(donors[i])) for i, path in enumerate(paths)]


def check_file(task: FileTask) -> dict[str, Any]:
  """Reads a file once more and compares it with the ranges that the units read.

  Returns:
    The file's entry for the manifest: its name, size and SHA-256.

  Raises:
    UserError: the file has changed.
    RunError: units are missing or were made twice, or the file cannot be read.
  """
  range_hashes = {*task.ranges, *task.donors}
  with files.open_file(task.path) as file:
    reader = HashingReader(file)
    digests, length = _hash_ranges(cast("BinaryIO", reader), range_hashes)
  is_changed = any(digests[range_hash] != range_hash.sha256 for range_hash in range_hashes)
  if is_changed or reader.num_bytes != task.num_bytes:
    raise changed_file_error(task.path)
  _check_coverage(task, length)
  return {"file": os.path.basename(task.path), "bytes": reader.num_bytes, "sha256": reader.sha256.hexdigest()}


def changed_file_error(path: str) -> UserError:
  """Returns the error for an input file that changed between two passes over it."""
  return UserError(
    f"{path} changed while it was being read: nothing was written from it; run the same command again when no other "
    "program writes to this file"
  )


def _check_coverage(task: FileTask, length: int) -> None:
  """Checks that the units' ranges cover the text, of `length` bytes, without gaps or overlaps."""
  covered_end = 0  # the ranges so far cover the text up to this byte
  bounds = sorted((range_hash.start, range_hash.end) for range_hash in task.ranges)
  # The empty range at the end finds text that is missing after the last range.
  for start, end in [*bounds, (length, length)]:
    if start != covered_end:
      fault = "missing from" if start > covered_end else "twice in"
      raise RunError(
        f"{task.path}: the text from byte {min(covered_end, start)} to {max(covered_end, start)} is {fault} the "
        "examples: units of text were lost or repeated; run the same command again"
      )
    covered_end = end


def hash_file(path: str) -> dict[str, Any]:
  """Returns the manifest's entry for a file as it is now: its name, size and SHA-256."""
  return {"file": os.path.basename(path), "bytes": files.size(path), "sha256": file_sha256(path)}


def _hash_ranges(stream: BinaryIO, ranges: Iterable[RangeHash]) -> tuple[dict[RangeHash, str], int]:
  """Reads a stream to its end, and hashes the text of each range as it is now.

  Ranges may overlap, since a unit's donors are the ranges of another unit.

  Returns:
    The hash of each range, in hex, and the length of the stream in bytes.
  """
  not_begun = collections.deque(sorted(ranges))
  begun: list[tuple[RangeHash, Any]] = []  # the ranges that are being read, and the hashes of their text so far
  digests: dict[RangeHash, str] = {}
  position = 0
  while block := stream.read(_BYTES_PER_READ):
    block_end = position + len(block)
    while not_begun and not_begun[0].start < block_end:
      begun.append((not_begun.popleft(), hashlib.sha256()))
    for text_range, digest in begun:
      digest.update(memoryview(block)[max(0, text_range.start - position) : max(0, text_range.end - position)])
      if text_range.end <= block_end:
        digests[text_range] = digest.hexdigest()
    begun = [(text_range, digest) for text_range, digest in begun if text_range.end > block_end]
    position = block_end
  # If the stream is shorter than it was, some ranges are incomplete or missing.
  digests |= {text_range: digest.hexdigest() for text_range, digest in begun}
  digests |= {text_range: hashlib.sha256().hexdigest() for text_range in not_begun}
  return digests, position
