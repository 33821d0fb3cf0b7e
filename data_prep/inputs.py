"""Which bytes of the input files the examples were made from, and whether the files still hold them.

A unit of text is read once, and a record keeps where in which file each of its ranges lies and the hash of its text.
When all units are done, every file is read once more: the ranges must cover it exactly and each must have the hash that
its unit recorded. The same pass gives the hash of the whole file. So the hashes in the manifest are those of the text
that the examples were made from, and a file that changed in between is found, also if its size is the same.
"""

from __future__ import annotations

import collections
import dataclasses
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from albert.data.manifest import file_sha256
from albert.errors import RunError, UserError
from albert.io import files
from data_prep.corpus import Range, Unit, read_range
from data_prep.text_files import is_gzip

_BLOCK = 1 << 20


class TextRange(NamedTuple):
  """Text that was read: file, first byte and end (of a packed file: of its unpacked text), SHA-256 in hex."""

  ordinal: int
  start: int
  end: int
  sha256: str


def unit_name(unit: Unit) -> str:
  """Names a unit by where it nominally begins, so that units sort by their names."""
  first = unit.ranges[0]
  return f"{first.ordinal:08d}-{first.start:015d}"


def read_unit(unit: Unit) -> tuple[Unit, dict[str, Any]]:
  """The unit with the text of its ranges and donors in memory, and its record.

  The record (JSON values) says what was read: a unit's instances are a function of it and of the settings.
  """
  ranges, donors = (tuple(map(_read, parts)) for parts in (unit.ranges, unit.donors))
  record = {
    "unit": unit_name(unit),
    "ranges": [list(_text_range(part)) for part in ranges],
    "donors": [list(_text_range(part)) for part in donors],
  }
  return dataclasses.replace(unit, ranges=ranges, donors=donors), record


def _read(part: Range) -> Range:
  with files.naming(part.path, "read"):
    data, start, is_cut = read_range(part)
  return Range(part.path, part.ordinal, start, start + len(data), is_cut, data)


def _text_range(part: Range) -> TextRange:
  assert part.data is not None
  return TextRange(part.ordinal, part.start, part.end, hashlib.sha256(part.data).hexdigest())


# ---- checking files ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class FileTask:
  """An input file to check.

  Attributes:
    path: of the file.
    num_bytes: its size when it was cut into units.
    ranges: all that units read, each range once.
    donors: what units read of others' ranges.
  """

  path: str
  num_bytes: int
  ranges: tuple[TextRange, ...]
  donors: tuple[TextRange, ...] = ()


def file_tasks(paths: Sequence[str], sizes: Sequence[int], records: Iterable[dict[str, Any]]) -> list[FileTask]:
  """The checks of all input files, from the records of all units."""
  ranges: list[list[TextRange]] = [[] for _ in paths]
  donors: list[list[TextRange]] = [[] for _ in paths]
  for record in records:
    for found, values in ((ranges, record["ranges"]), (donors, record["donors"])):
      for value in values:
        text = TextRange(*value)
        found[text.ordinal].append(text)
  return [FileTask(path, sizes[i], tuple(ranges[i]), tuple(donors[i])) for i, path in enumerate(paths)]


def check_file(task: FileTask) -> dict[str, Any]:
  """The file's entry in the manifest: its name, size and hash.

  Raises:
    UserError: the file is not what the units read.
    RunError: units are missing or were made twice, or the file cannot be read.
  """
  changed = UserError(
    f"{task.path} changed while it was being read: nothing was written from it; give the same command again when no "
    "other program writes to this file"
  )
  with files.open_file(task.path) as file:
    raw = _HashingReader(file)
    stream = cast("BinaryIO", gzip.GzipFile(fileobj=cast("Any", raw)) if is_gzip(task.path) else raw)
    try:
      digests, length = _hash_ranges(stream, {*task.ranges, *task.donors})
    except (EOFError, zlib.error, gzip.BadGzipFile):
      raise changed from None
  if raw.num_bytes != task.num_bytes or any(digests[text] != text.sha256 for text in {*task.ranges, *task.donors}):
    raise changed
  end = 0
  for start, following_end in [*sorted((text.start, text.end) for text in task.ranges), (length, length)]:
    if start != end:
      what = "missing" if start > end else "there twice"
      raise RunError(
        f"{task.path}: the text from byte {min(end, start)} to {max(end, start)} is {what} in the examples: units of "
        "work were lost or repeated; run the same command again"
      )
    end = following_end
  return {"file": os.path.basename(task.path), "bytes": raw.num_bytes, "sha256": raw.sha256.hexdigest()}


def hash_file(path: str) -> dict[str, Any]:
  """The file's entry in a manifest, as it is now."""
  return {"file": os.path.basename(path), "bytes": files.size(path), "sha256": file_sha256(path)}


class _HashingReader:
  """Reads a file, counting and hashing what it reads."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self.num_bytes = 0
    self.sha256 = hashlib.sha256()

  def read(self, size: int = -1) -> bytes:
    data = self._file.read(size)
    self.num_bytes += len(data)
    self.sha256.update(data)
    return data


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
  while block := stream.read(_BLOCK):
    yield block


def _hash_ranges(stream: BinaryIO, ranges: Iterable[TextRange]) -> tuple[dict[TextRange, str], int]:
  """The hash of each range of a stream as it is now, and the length of the stream."""
  waiting = collections.deque(sorted(ranges))
  begun: list[tuple[TextRange, Any]] = []
  digests: dict[TextRange, str] = {}
  position = 0
  for block in _blocks(stream):
    stop = position + len(block)
    while waiting and waiting[0].start < stop:
      begun.append((waiting.popleft(), hashlib.sha256()))
    for text, digest in begun:
      digest.update(memoryview(block)[max(0, text.start - position) : max(0, text.end - position)])
    digests.update((text, digest.hexdigest()) for text, digest in begun if text.end <= stop)
    begun = [(text, digest) for text, digest in begun if text.end > stop]
    position = stop
  begun += [(text, hashlib.sha256()) for text in waiting]
  digests.update((text, digest.hexdigest()) for text, digest in begun)
  return digests, position
