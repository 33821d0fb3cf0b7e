"""Block files: packed instances sorted by their random keys, in 4,096 ranges of keys that can be read alone.

A block is a group of neighbouring units of text, and its file holds their instances. The top 12 bits of a key are the
number of its range. The file begins with the ranges that have instances, in order. A range holds the keys of its
instances (uint64), their sizes in words (uint32), and their words, all sorted by key; instances with equal keys are in
the order of the text. A table follows: for each range its offset in the file, its number of instances and a CRC-32.

All ranges with their table are a sorted run. A file has a single run, unless the instances of a block need more memory
than a process may use; then another run follows. At the end are the records of the units of text, a summary, the
positions and checksums of the tables (JSON), and a trailer: the length and checksum of the JSON, and a magic number.
"""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from albert.errors import RunError
from albert.io import files, json_values

NUM_RANGES = 1 << 12
_RANGE_SHIFT = np.uint64(64 - 12)
_TABLE_TYPE = np.dtype([("offset", "<u8"), ("count", "<u4"), ("checksum", "<u4")])
# As soon as the instances in memory need this many bytes, they are sorted and written.
MAX_RUN_BYTES = 128 << 20
_KEY_BYTES, _SIZE_BYTES = 8, 4
INDEX_BYTES = _KEY_BYTES + _SIZE_BYTES  # bytes of an instance's key and size
_MAGIC = b"block\x001\n"
_TRAILER = struct.Struct("<QQ")  # length and CRC-32 of the JSON; the magic number follows
_TRAILER_BYTES = _TRAILER.size + len(_MAGIC)
# Threads that read the tables of block files.
_NUM_READERS = 16


class PackedInstances(NamedTuple):
  """Packed instances (see data_prep.examples.packing) in any order.

  They have random keys, uint64 [I], numbers of words and starts in `words`, int64 [I], and the words [W].
  """

  keys: np.ndarray
  sizes: np.ndarray
  starts: np.ndarray
  words: np.ndarray


class SortedRun(NamedTuple):
  """A sorted run: the path of its file and the offset of its table, where its last range ends."""

  path: str
  table_offset: int


class RangeSizes(NamedTuple):
  """The number of instances in each range, and their number of bytes in the file; each int64 [NUM_RANGES]."""

  counts: np.ndarray
  num_bytes: np.ndarray


# ---- writing -------------------------------------------------------------------------------------------


class BlockWriter:
  """Writes a block to an open file, see `files.write_whole`. Call `close` at the end."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self._offset = 0
    self._pending: list[PackedInstances] = []
    self._pending_bytes = 0
    self._tables: list[tuple[int, int]] = []  # offset and CRC-32 of each table

  def add(self, keys: np.ndarray, words: np.ndarray, sizes: np.ndarray) -> None:
    """Adds instances in any order: random keys, uint64 [I], the words of all, [W], and their numbers of words, [I]."""
    if not keys.size:
      return
    sizes = sizes.astype(np.int64)
    self._pending.append(PackedInstances(keys, sizes, np.cumsum(sizes) - sizes, words))
    self._pending_bytes += words.nbytes + INDEX_BYTES * keys.size
    if self._pending_bytes >= MAX_RUN_BYTES:
      self._write_run()

  def _write_run(self) -> None:
    """Sorts the pending instances by key and writes them. The sort is stable, and copies no words."""
    parts, self._pending, self._pending_bytes = self._pending, [], 0
    word_size = parts[0].words.dtype.itemsize
    words_of_parts = [np.ascontiguousarray(part.words).data.cast("B") for part in parts]
    keys = np.concatenate([part.keys for part in parts])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    part_numbers = np.repeat(np.arange(len(parts)), [part.keys.size for part in parts])[order]
    sizes = np.concatenate([part.sizes for part in parts])[order]
    starts = np.concatenate([part.starts for part in parts])[order] * word_size  # in bytes
    ends = starts + sizes * word_size
    key_bytes, size_bytes = keys.astype("<u8").tobytes(), sizes.astype("<u4").tobytes()

    ranges = (keys >> _RANGE_SHIFT).astype(np.int64)
    table = np.zeros(NUM_RANGES, _TABLE_TYPE)
    counts = np.bincount(ranges, minlength=NUM_RANGES)
    highs = np.cumsum(counts)
    table["count"] = counts
    offsets, checksums = table["offset"], table["checksum"]
    for number, (low, high) in enumerate(itertools.pairwise([0, *highs.tolist()])):
      offsets[number] = self._offset
      if low == high:
        continue
      numbers, firsts, lasts = (column[low:high].tolist() for column in (part_numbers, starts, ends))
      words = [words_of_parts[part][first:last] for part, first, last in zip(numbers, firsts, lasts, strict=True)]
      key_part, size_part = slice(_KEY_BYTES * low, _KEY_BYTES * high), slice(_SIZE_BYTES * low, _SIZE_BYTES * high)
      body = b"".join([key_bytes[key_part], size_bytes[size_part], *words])
      checksums[number] = zlib.crc32(body, high - low)
      self._file.write(body)
      self._offset += len(body)
    table_bytes = table.tobytes()
    self._tables.append((self._offset, zlib.crc32(table_bytes)))
    self._file.write(table_bytes)
    self._offset += len(table_bytes)

  def close(self, summary: dict[str, Any], records: Sequence[dict[str, Any]] = ()) -> None:
    """Finishes the block. The records of its units (`units.read_unit`) and the summary are JSON values."""
    if self._pending:
      self._write_run()
    footer = json.dumps({"tables": self._tables, "summary": summary, "records": records}).encode()
    self._file.write(footer + _TRAILER.pack(len(footer), zlib.crc32(footer)) + _MAGIC)


# ---- reading -------------------------------------------------------------------------------------------


class Block(msgspec.Struct):
  """The JSON object at the end of a block file, and the path of the file.

  It has the offset and CRC-32 of the table of each sorted run, and the values of `BlockWriter.close`.
  """

  tables: tuple[tuple[int, int], ...]
  summary: dict[str, Any]
  records: list[dict[str, Any]]
  path: str = ""

  @classmethod
  def load(cls, path: str) -> Block | None:
    """Reads the end of a block file. Returns None if the file is missing, incomplete or damaged there."""
    if not files.exists(path):
      return None
    size = files.size(path)
    with files.open_file(path) as file:
      file.seek(max(0, size - _TRAILER_BYTES))
      trailer = file.read(_TRAILER_BYTES)
      if len(trailer) < _TRAILER_BYTES or not trailer.endswith(_MAGIC):
        return None
      length, checksum = _TRAILER.unpack_from(trailer)
      if length + _TRAILER_BYTES > size:
        return None
      file.seek(size - _TRAILER_BYTES - length)
      footer = file.read(length)
    if zlib.crc32(footer) != checksum:
      return None
    block = json_values.parse(path, footer, cls)
    block.path = path
    return block

  @property
  def runs(self) -> list[SortedRun]:
    """The file's sorted runs, in the order of the text."""
    return [SortedRun(self.path, offset) for offset, _ in self.tables]


def load_blocks(paths: Sequence[str]) -> list[Block]:
  """Loads finished block files. Raises a RunError if one is missing or damaged."""
  blocks = []
  for path, block in zip(paths, files.in_threads(Block.load, paths), strict=True):
    if block is None:
      raise RunError(f"{path} is missing or damaged: run the same command again")
    blocks.append(block)
  return blocks


def add_sizes(blocks: Sequence[Block]) -> RangeSizes:
  """Adds up the tables of blocks. Many files are read at a time, since each read waits for the file system."""
  parts = files.in_threads(_add_sizes_of_part, [blocks[start::_NUM_READERS] for start in range(_NUM_READERS)])
  return RangeSizes(*np.sum(parts, axis=0))


def _add_sizes_of_part(blocks: Sequence[Block]) -> RangeSizes:
  counts, num_bytes = np.zeros(NUM_RANGES, np.int64), np.zeros(NUM_RANGES, np.int64)
  for block in blocks:
    with files.open_file(block.path) as file:
      for offset, checksum in block.tables:
        file.seek(offset)
        table_bytes = file.read(NUM_RANGES * _TABLE_TYPE.itemsize)
        if zlib.crc32(table_bytes) != checksum:
          raise damaged_error(block.path, offset)
        table = np.frombuffer(table_bytes, _TABLE_TYPE)
        counts += table["count"]
        num_bytes += np.diff(table["offset"].astype(np.int64), append=offset)
  return RangeSizes(counts, num_bytes)


class KeyRanges(NamedTuple):
  """Neighbouring key ranges to read and sort together: the first and the last one, and their bytes in all runs."""

  first: int
  last: int
  num_bytes: int


def group_ranges(num_bytes: np.ndarray, max_bytes: int, first: int = 0) -> Iterator[KeyRanges]:
  """Groups the key ranges, of `num_bytes` in all runs, from one on. A group has at most `max_bytes`, or one range."""
  total = 0
  for number, size in enumerate(num_bytes[first:].tolist(), first):
    if number > first and total + size > max_bytes:
      yield KeyRanges(first, number - 1, total)
      first, total = number, 0
    total += size
  yield KeyRanges(first, len(num_bytes) - 1, total)


def read_sorted(runs: Sequence[SortedRun], ranges: KeyRanges, word_type: str) -> PackedInstances:
  """Reads the instances of some key ranges from all runs, and sorts them by key.

  One file is open at a time, and a single slice of each run is read. Instances with equal keys are in the order of the
  runs, which is that of the text.

  Raises:
    RunError: a file is damaged or cannot be read.
  """
  buffer = np.empty(ranges.num_bytes, np.uint8)
  parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # keys, sizes and starts of each run
  end = 0
  for run in runs:
    data, offsets, counts = _read_slice(run, ranges)
    if end + data.size > buffer.size:
      raise damaged_error(run.path, run.table_offset)
    buffer[end : end + data.size] = data
    parts.append(_find_instances(data, offsets, counts, np.dtype(word_type), end))
    end += data.size
  if end != buffer.size:
    raise RunError("block files are shorter than their tables say: run the same command again")
  keys, sizes, starts = (np.concatenate(column) for column in zip(*parts, strict=True))
  order = np.argsort(keys, kind="stable")
  return PackedInstances(keys[order], sizes[order], starts[order], buffer.view(word_type))


def _read_slice(run: SortedRun, ranges: KeyRanges) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the bytes of some ranges (uint8), where each range begins in them, and the instances in each range."""
  num_ranges = ranges.last - ranges.first + 1
  num_rows = num_ranges + (ranges.last + 1 < NUM_RANGES)  # also the row after the last range, which says where it ends
  with files.open_file(run.path) as file:
    file.seek(run.table_offset + ranges.first * _TABLE_TYPE.itemsize)
    row_bytes = file.read(num_rows * _TABLE_TYPE.itemsize)
    if len(row_bytes) < num_rows * _TABLE_TYPE.itemsize:
      raise damaged_error(run.path, run.table_offset)
    rows = np.frombuffer(row_bytes, _TABLE_TYPE)
    bounds = rows["offset"].astype(np.int64)
    if num_rows == num_ranges:
      bounds = np.append(bounds, run.table_offset)
    first, last = int(bounds[0]), int(bounds[-1])
    if not 0 <= first <= last <= run.table_offset:
      raise damaged_error(run.path, run.table_offset)
    file.seek(first)
    data = file.read(last - first)
  counts = rows["count"][:num_ranges].astype(np.int64)
  offsets = bounds - first
  view = memoryview(data)
  checked = np.flatnonzero(counts | np.diff(offsets))
  columns = (column[checked].tolist() for column in (offsets[:-1], offsets[1:], counts, rows["checksum"][:num_ranges]))
  for begin, end, count, checksum in zip(*columns, strict=True):
    if zlib.crc32(view[begin:end], count) != checksum:
      raise damaged_error(run.path, first + begin)
  return np.frombuffer(data, np.uint8), offsets[:-1], counts


def _find_instances(
  data: np.ndarray, offsets: np.ndarray, counts: np.ndarray, word_type: np.dtype, position: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Finds the keys, sizes and starts (see `PackedInstances`) in the result of `_read_slice`.

  The bytes begin at byte `position` of the buffer of all runs, to which the starts refer.
  """
  firsts = np.cumsum(counts) - counts  # number of each range's first instance
  index_in_range = np.arange(int(counts.sum())) - np.repeat(firsts, counts)
  size_offsets = offsets + _KEY_BYTES * counts
  word_offsets = offsets + INDEX_BYTES * counts
  key_positions = np.repeat(offsets, counts) + _KEY_BYTES * index_in_range
  size_positions = np.repeat(size_offsets, counts) + _SIZE_BYTES * index_in_range
  keys = data[key_positions[:, None] + np.arange(_KEY_BYTES)].view("<u8")[:, 0]
  sizes = data[size_positions[:, None] + np.arange(_SIZE_BYTES)].view("<u4")[:, 0].astype(np.int64)
  before = np.cumsum(sizes) - sizes  # number of words of all instances before each one
  before_range = np.append(before, 0)[np.minimum(firsts, sizes.size)]
  byte_positions = np.repeat(word_offsets, counts) + (before - np.repeat(before_range, counts)) * word_type.itemsize
  return keys, sizes, (position + byte_positions) // word_type.itemsize


def damaged_error(path: str, offset: int) -> RunError:
  """Returns the error for a block file that is damaged at byte `offset`."""
  return RunError(f"{path} is damaged at byte {offset}: remove this file and run the same command again")
