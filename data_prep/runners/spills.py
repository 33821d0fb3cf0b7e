"""Spill files: sorted runs of instances on disk, as in an external merge sort.

A run is a sequence of blocks, each with consecutive instances: how many, the number of their words and a checksum;
then their keys (uint64), sizes in words (uint32) and words. So a run can be read sequentially from any block on, one
block in memory. Behind its blocks stands the run's table: how many of its instances have a key below each bucket (the
top bits of a key), and the first instance and the offset of each block. At the end stand records of the units of text
that the file is made from, and a footer that lists the runs and holds the writer's summary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from albert.errors import RunError, UserError
from albert.io import files, json_values

LAST_KEY = (1 << 64) - 1
# Bytes of instances that a process sorts in memory.
STRETCH_BYTES = 10 << 20
# Buckets in the table of a run: enough to find the first example of a shard without reading much before it.
UNIT_BUCKET_BITS = 12
MERGED_BUCKET_BITS = 16
_RUN_BYTES = 32 << 20
# One read. A merge holds one block of each run.
_BLOCK_BYTES = 64 << 10
_HEADER = struct.Struct("<III")  # instances, words, CRC-32 of what follows
_BYTES_OF_INDEX = 12  # of an instance: key and size
_MAGIC = b"spill\x002\n"
_TRAILER = len(_MAGIC) + 16


class Instances(NamedTuple):
  """[I] instances: keys (uint64), sizes in words (int64), where each one's words start in `words` (int64)."""

  keys: np.ndarray
  sizes: np.ndarray
  starts: np.ndarray
  words: np.ndarray


def join(parts: Sequence[Instances]) -> Instances:
  """All instances of the parts, one part after another."""
  shifts = np.cumsum([0] + [part.words.size for part in parts[:-1]])
  return Instances(
    np.concatenate([part.keys for part in parts]),
    np.concatenate([part.sizes for part in parts]),
    np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=True)]),
    np.concatenate([part.words for part in parts]),
  )


def in_order(instances: Instances) -> Instances:
  """The instances by key, those of equal keys in the order they have; the words stay where they are."""
  order = np.argsort(instances.keys, kind="stable")
  return Instances(instances.keys[order], instances.sizes[order], instances.starts[order], instances.words)


# ---- writing -------------------------------------------------------------------------------------------


class Run(NamedTuple):
  """A sorted run of a file: its instances, and where its blocks begin and end; its table lies behind them."""

  num_instances: int
  begin: int
  end: int
  bucket_bits: int
  num_blocks: int

  @property
  def num_bytes(self) -> int:
    return self.end - self.begin


class _RunWriter:
  """Writes one run at the present end of a file."""

  def __init__(self, file: BinaryIO, begin: int, bucket_bits: int):
    self._file = file
    self._begin = self._end = begin
    self._shift = np.uint64(64 - bucket_bits)
    self._bucket_bits = bucket_bits
    self._counts = np.zeros(1 << bucket_bits, np.int64)
    self._num_instances = 0
    self._firsts: list[int] = []
    self._offsets: list[int] = []

  def write(self, instances: Instances) -> None:
    """Adds instances, sorted, whose keys are not below those added before."""
    keys, sizes = instances.keys, instances.sizes
    width = instances.words.dtype.itemsize
    words = np.ascontiguousarray(instances.words).data.cast("B")
    starts, ends = (instances.starts * width).tolist(), ((instances.starts + sizes) * width).tolist()
    block = np.cumsum(sizes * width + _BYTES_OF_INDEX) // _BLOCK_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), keys.size]
    for low, high in itertools.pairwise(bounds):
      body = b"".join(
        [
          keys[low:high].astype("<u8").tobytes(),
          sizes[low:high].astype("<u4").tobytes(),
          *(words[start:end] for start, end in zip(starts[low:high], ends[low:high], strict=True)),
        ]
      )
      header = _HEADER.pack(high - low, int(sizes[low:high].sum()), zlib.crc32(body))
      self._firsts.append(self._num_instances + low)
      self._offsets.append(self._end)
      self._file.write(header + body)
      self._end += len(header) + len(body)
    self._num_instances += keys.size
    self._counts += np.bincount((keys >> self._shift).astype(np.int64), minlength=self._counts.size)

  def close(self) -> tuple[Run, int]:
    """Writes the table; returns the run and the end of the file."""
    below = np.cumsum(self._counts) - self._counts
    table = np.concatenate([below, self._firsts, self._offsets]).astype("<u8").tobytes()
    self._file.write(table)
    run = Run(self._num_instances, self._begin, self._end, self._bucket_bits, len(self._firsts))
    return run, self._end + len(table)


class SpillWriter:
  """Writes a spill file to a staging file, which `close` renames; a context manager that removes it after an error.

  Args:
    path: of the file.
    bucket_bits: of the table of each run.
  """

  def __init__(self, path: str, bucket_bits: int = UNIT_BUCKET_BITS):
    self.path = path
    self._bucket_bits = bucket_bits
    self._staging = files.staging_path(path)
    self._file: BinaryIO = files.open_file(self._staging, "wb")
    self._pending: list[Instances] = []
    self._pending_bytes = 0
    self._offset = 0
    self._runs: list[Run] = []

  def add(self, keys: np.ndarray, words: np.ndarray, sizes: np.ndarray) -> None:
    """Adds instances in any order: uint64 keys [I], their words end to end, how many words each has [I]."""
    sizes = sizes.astype(np.int64)
    self._pending.append(Instances(keys, sizes, np.cumsum(sizes) - sizes, words))
    self._pending_bytes += words.nbytes + _BYTES_OF_INDEX * keys.size
    if self._pending_bytes >= _RUN_BYTES:
      self._write_pending()

  def _write_pending(self) -> None:
    if self._pending:
      instances = in_order(join(self._pending))
      self._pending, self._pending_bytes = [], 0
      if instances.keys.size:
        self.write_run([instances])

  def write_run(self, parts: Iterator[Instances] | Sequence[Instances]) -> None:
    """Writes one run from sorted parts, each not below the one before."""
    writer = _RunWriter(self._file, self._offset, self._bucket_bits)
    for part in parts:
      writer.write(part)
    run, self._offset = writer.close()
    self._runs.append(run)

  def close(self, summary: dict[str, Any], records: Sequence[dict[str, Any]] = ()) -> None:
    """Finishes the file. `Spill.summary` and `Spill.records` give the arguments (JSON values) back."""
    self._write_pending()
    lines = json.dumps(records).encode()
    place = [self._offset, len(lines), zlib.crc32(lines)]
    footer = json.dumps({"runs": self._runs, "records": place, "summary": summary}).encode()
    self._file.write(lines + footer + struct.pack("<QQ", len(footer), zlib.crc32(footer)) + _MAGIC)
    files.sync(self._file)
    self._file.close()
    files.replace(self._staging, self.path)

  def __enter__(self) -> SpillWriter:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    if kind is not None:
      # What closing and removing run into is not what went wrong first.
      with contextlib.suppress(Exception):
        self._file.close()
      files.discard(self._staging)


# ---- reading -------------------------------------------------------------------------------------------


class RunTable(NamedTuple):
  """Of a run: instances with a key below each bucket, and the first instance and the offset of each block."""

  below: np.ndarray
  firsts: np.ndarray
  offsets: np.ndarray


class _Footer(msgspec.Struct):
  runs: tuple[Run, ...]
  records: tuple[int, int, int]
  summary: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Spill:
  """A finished spill file.

  Attributes:
    path: of the file.
    runs: that it holds.
    summary: its writer's.
    records_place: offset, length and CRC-32 of the records.
  """

  path: str
  runs: tuple[Run, ...]
  summary: dict[str, Any]
  records_place: tuple[int, int, int]

  @classmethod
  def load(cls, path: str) -> Spill | None:
    """The spill at `path`, or None if there is none that is whole."""
    if not files.exists(path):
      return None
    size = files.size(path)
    with files.open_file(path) as file:
      file.seek(max(0, size - _TRAILER))
      trailer = file.read(_TRAILER)
      if trailer[16:] != _MAGIC:
        return None
      length, checksum = struct.unpack("<QQ", trailer[:16])
      if length + _TRAILER > size:
        return None
      file.seek(size - _TRAILER - length)
      footer = file.read(length)
    if zlib.crc32(footer) != checksum:
      return None
    try:
      values = json_values.parse(path, footer, _Footer)
    except UserError:
      return None
    return cls(path, values.runs, values.summary, values.records)

  def records(self) -> list[dict[str, Any]]:
    """The records of the units of text that the file is made from, in order."""
    offset, length, checksum = self.records_place
    with files.open_file(self.path) as file:
      file.seek(offset)
      data = file.read(length)
    if zlib.crc32(data) != checksum:
      raise RunError(f"{self.path} is damaged at byte {offset}: remove this file and run the same command again")
    return json_values.parse(f"{self.path}, byte {offset}", data, list[dict[str, Any]], "remove this file")

  def table(self, run: Run) -> RunTable:
    """The table of one of the runs."""
    num_buckets = 1 << run.bucket_bits
    with files.open_file(self.path) as file:
      file.seek(run.end)
      data = file.read(8 * (num_buckets + 2 * run.num_blocks))
    values = np.frombuffer(data, "<u8").astype(np.int64)
    below, firsts, offsets = np.split(values, [num_buckets, num_buckets + run.num_blocks])
    return RunTable(below, firsts, offsets)


class RunPart(NamedTuple):
  """A run from one of its instances on: the file, the offset of a block, instances to skip there, the run's end."""

  path: str
  offset: int
  skip: int
  end: int


class RunReader:
  """Reads a part of a run sequentially, a block at a time.

  Args:
    part: what to read.
    words: type of the words.

  Raises:
    RunError: the file is damaged, or cannot be read.
  """

  def __init__(self, part: RunPart, words: str):
    self._part, self._words = part, np.dtype(words)
    self._position = part.offset
    self._file = files.open_file(part.path)
    self._file.seek(part.offset)
    self._header = self._file.read(_HEADER.size)
    self._skip = part.skip
    self._block: Instances | None = None
    self._at = 0

  def close(self) -> None:
    self._file.close()

  def _damaged(self) -> RunError:
    return RunError(
      f"{self._part.path} is damaged at byte {self._position}: remove this file and run the same command again"
    )

  def _next_block(self) -> Instances | None:
    if self._position >= self._part.end:
      return None
    if len(self._header) < _HEADER.size:
      raise self._damaged()
    count, num_words, checksum = _HEADER.unpack(self._header)
    length = _BYTES_OF_INDEX * count + self._words.itemsize * num_words
    if self._position + _HEADER.size + length > self._part.end:
      raise self._damaged()
    # The header of the next block comes along: one read for each block.
    data = self._file.read(length + _HEADER.size)
    body, self._header = data[:length], data[length:]
    if zlib.crc32(body) != checksum:
      raise self._damaged()
    self._position += _HEADER.size + length
    keys = np.frombuffer(body, "<u8", count)
    sizes = np.frombuffer(body, "<u4", count, 8 * count).astype(np.int64)
    words = np.frombuffer(body, self._words, num_words, _BYTES_OF_INDEX * count)
    skip, self._skip = min(self._skip, count), max(0, self._skip - count)
    return Instances(keys[skip:], sizes[skip:], (np.cumsum(sizes) - sizes)[skip:], words)

  def advance(self) -> None:
    """Goes to the next block with an instance, or to the end. Comes once before the first instance is taken."""
    self._at, self._block = 0, self._next_block()
    while self._block is not None and not self._block.keys.size:
      self._block = self._next_block()

  @property
  def next_key(self) -> int | None:
    """The key of the next instance; None at the end."""
    return None if self._block is None else int(self._block.keys[self._at])

  def take_through(self, last_key: int) -> list[Instances]:
    """The instances not taken yet whose keys are at most `last_key`."""
    taken: list[Instances] = []
    while self._block is not None:
      stop = int(np.searchsorted(self._block.keys, np.uint64(last_key), side="right"))
      if stop > self._at:
        taken.append(_rows(self._block, self._at, stop))
      self._at = stop
      if stop < self._block.keys.size:
        break
      self.advance()
    return taken


def _rows(block: Instances, low: int, high: int) -> Instances:
  """Consecutive instances of a block, at least one, with their words alone."""
  first = int(block.starts[low])
  last = int(block.starts[high - 1] + block.sizes[high - 1])
  return Instances(block.keys[low:high], block.sizes[low:high], block.starts[low:high] - first, block.words[first:last])


def merge(
  parts: Sequence[RunPart], words: str, *, first_key: int, last_key: int, num_stretches: int
) -> Iterator[Instances]:
  """The instances of several runs in the order of their keys, a stretch of keys at a time.

  Of equal keys, those of the earlier part come first. Each file is opened once and read sequentially.

  Args:
    parts: runs, each from its first instance with a key of at least `first_key` on.
    words: type of the words.
    first_key: the least key.
    last_key: the greatest key.
    num_stretches: into which all keys are cut. A stretch is in memory as a whole.
  """
  length = -(-(LAST_KEY + 1) // num_stretches)
  with contextlib.ExitStack() as stack:
    readers: list[RunReader] = []
    for part in parts:
      readers.append(RunReader(part, words))
      stack.callback(readers[-1].close)
      readers[-1].advance()
    waiting = [(reader.next_key, index) for index, reader in enumerate(readers) if reader.next_key is not None]
    heapq.heapify(waiting)
    for first in range(first_key, last_key + 1, length):
      last = min(first + length - 1, last_key)
      chosen = []
      while waiting and waiting[0][0] <= last:
        chosen.append(heapq.heappop(waiting)[1])
      found = [taken for index in sorted(chosen) for taken in readers[index].take_through(last)]
      for index in chosen:
        following = readers[index].next_key
        if following is not None:
          heapq.heappush(waiting, (following, index))
      if found:
        joined = join(found)
        del found
        yield in_order(joined)
