"""Spill files: sorted runs of packed instances on disk, as in an external merge sort.

A sorted run is a sequence of blocks of consecutive instances. A block consists of its number of instances, its number
of words, a checksum, the keys of its instances (uint64), their sizes in words (uint32), and their words. A run can
therefore be read sequentially from any block on, with one block in memory.

Each run is followed by its table, with which a reader finds the first instance whose key is not below a given one. Keys
with the same top bits are in the same bucket. The table holds, for each bucket, the number of the run's instances with
keys below the bucket; for each block, the index of its first instance and the block's offset in the file.

After the runs, the file holds the records of the units of text that it was made from, a footer (the list of the runs, a
summary, and the position of the records), and a trailer (the footer's length and checksum, and a magic number).
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from albert.io import files, json_values, local_files

# Number of top bits of a key that give the number of its bucket: in the file of a unit of text, and in a file merged
# from several files. A shard is read from the beginning of a bucket, so with small buckets few instances of the shard
# before are read.
UNIT_BUCKET_BITS = 12
MERGED_BUCKET_BITS = 16
# As soon as the instances in memory need this many bytes, they are sorted and written as a run.
_RUN_BYTES = 32 << 20
# Approximate bytes of a block. A merge holds one block of each run in memory.
_BLOCK_BYTES = 64 << 10
BLOCK_HEADER = struct.Struct("<III")  # number of instances, number of words, CRC-32 of the rest of the block
INDEX_BYTES = 12  # bytes of an instance's key and size
_MAGIC = b"spill\x002\n"
_TRAILER = struct.Struct("<QQ")  # length and CRC-32 of the footer; the magic number follows
_TRAILER_BYTES = _TRAILER.size + len(_MAGIC)


class PackedInstances(NamedTuple):
  """Packed instances (see data_prep.examples.packing) in any order.

  Attributes:
    keys: uint64 [I], random keys.
    sizes: int64 [I], number of words of each instance.
    starts: int64 [I], position in `words` where each instance begins.
    words: [W], the words.
  """

  keys: np.ndarray
  sizes: np.ndarray
  starts: np.ndarray
  words: np.ndarray


def concatenate(parts: Sequence[PackedInstances]) -> PackedInstances:
  """Returns the instances of all parts, in order."""
  shifts = np.cumsum([0] + [part.words.size for part in parts[:-1]])
  return PackedInstances(
    np.concatenate([part.keys for part in parts]),
    np.concatenate([part.sizes for part in parts]),
    np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=True)]),
    np.concatenate([part.words for part in parts]),
  )


def sort_by_key(instances: PackedInstances) -> PackedInstances:
  """Returns the instances sorted by key. The sort is stable, and the words are not moved."""
  order = np.argsort(instances.keys, kind="stable")
  return PackedInstances(instances.keys[order], instances.sizes[order], instances.starts[order], instances.words)


# ---- writing -------------------------------------------------------------------------------------------


class SortedRun(NamedTuple):
  """A sorted run of a spill file.

  Attributes:
    num_instances: number of its instances.
    begin: offset of its first block.
    end: offset after its last block, where its table begins.
    bucket_bits: number of top bits of a key that give the number of its bucket.
    num_blocks: number of its blocks.
  """

  num_instances: int
  begin: int
  end: int
  bucket_bits: int
  num_blocks: int

  @property
  def num_bytes(self) -> int:
    """Number of bytes of its blocks."""
    return self.end - self.begin


class _RunWriter:
  """Writes one sorted run at the end of a file.

  Args:
    file: the file.
    begin: offset of the file's end.
    bucket_bits: number of top bits of a key that give the number of its bucket.
  """

  def __init__(self, file: BinaryIO, begin: int, bucket_bits: int):
    self._file = file
    self._begin = self._end = begin
    self._shift = np.uint64(64 - bucket_bits)
    self._bucket_bits = bucket_bits
    self._bucket_counts = np.zeros(1 << bucket_bits, np.int64)
    self._num_instances = 0
    self._block_firsts: list[int] = []
    self._block_offsets: list[int] = []

  def write(self, instances: PackedInstances) -> None:
    """Adds sorted instances. Their keys must not be smaller than those of earlier calls."""
    keys, sizes = instances.keys, instances.sizes
    word_size = instances.words.dtype.itemsize
    word_bytes = np.ascontiguousarray(instances.words).data.cast("B")
    # Where the words of each instance begin and end in `word_bytes`.
    starts = (instances.starts * word_size).tolist()
    ends = ((instances.starts + sizes) * word_size).tolist()
    # A new block begins whenever the total size passes another multiple of _BLOCK_BYTES.
    block_numbers = np.cumsum(sizes * word_size + INDEX_BYTES) // _BLOCK_BYTES
    bounds = [0, *(np.flatnonzero(np.diff(block_numbers)) + 1).tolist(), keys.size]
    for low, high in itertools.pairwise(bounds):
      words = [word_bytes[start:end] for start, end in zip(starts[low:high], ends[low:high], strict=True)]
      body = b"".join([keys[low:high].astype("<u8").tobytes(), sizes[low:high].astype("<u4").tobytes(), *words])
      header = BLOCK_HEADER.pack(high - low, int(sizes[low:high].sum()), zlib.crc32(body))
      self._block_firsts.append(self._num_instances + low)
      self._block_offsets.append(self._end)
      self._file.write(header + body)
      self._end += len(header) + len(body)
    self._num_instances += keys.size
    buckets = (keys >> self._shift).astype(np.int64)
    self._bucket_counts += np.bincount(buckets, minlength=self._bucket_counts.size)

  def close(self) -> tuple[SortedRun, int]:
    """Writes the table. Returns the run and the offset of the end of the file."""
    num_below = np.cumsum(self._bucket_counts) - self._bucket_counts
    table = np.concatenate([num_below, self._block_firsts, self._block_offsets]).astype("<u8").tobytes()
    self._file.write(table)
    run = SortedRun(self._num_instances, self._begin, self._end, self._bucket_bits, len(self._block_firsts))
    return run, self._end + len(table)


class SpillWriter:
  """Writes a spill file. It is a context manager; call `close` before the end of the `with` statement.

  Everything is written to a staging file, which `close` renames. After an error the staging file is removed.

  Args:
    path: the spill file.
    bucket_bits: number of top bits of a key that give the number of its bucket in the table of each run.
  """

  def __init__(self, path: str, bucket_bits: int = UNIT_BUCKET_BITS):
    self.path = path
    self._bucket_bits = bucket_bits
    self._staging = files.staging_path(path)
    self._file: BinaryIO = files.open_file(self._staging, "wb")
    self._pending: list[PackedInstances] = []
    self._pending_bytes = 0
    self._offset = 0
    self._runs: list[SortedRun] = []

  def add(self, keys: np.ndarray, words: np.ndarray, sizes: np.ndarray) -> None:
    """Adds instances in any order.

    Args:
      keys: uint64 [I], random keys.
      words: [W], the words of all instances, concatenated.
      sizes: [I], number of words of each instance.
    """
    sizes = sizes.astype(np.int64)
    self._pending.append(PackedInstances(keys, sizes, np.cumsum(sizes) - sizes, words))
    self._pending_bytes += words.nbytes + INDEX_BYTES * keys.size
    if self._pending_bytes >= _RUN_BYTES:
      self._write_pending()

  def _write_pending(self) -> None:
    if self._pending:
      instances = sort_by_key(concatenate(self._pending))
      self._pending, self._pending_bytes = [], 0
      if instances.keys.size:
        self.write_run([instances])

  def write_run(self, parts: Iterator[PackedInstances] | Sequence[PackedInstances]) -> None:
    """Writes one run from sorted parts. No part may have smaller keys than the part before it."""
    writer = _RunWriter(self._file, self._offset, self._bucket_bits)
    for part in parts:
      writer.write(part)
    run, self._offset = writer.close()
    self._runs.append(run)

  def close(self, summary: dict[str, Any], records: Sequence[dict[str, Any]] = ()) -> None:
    """Finishes the file.

    Args:
      summary: JSON values, which `Spill.summary` returns.
      records: the records of the units of text (`input_hashes.read_unit`), which `Spill.records` returns.
    """
    self._write_pending()
    record_bytes = json.dumps(records).encode()
    records_position = [self._offset, len(record_bytes), zlib.crc32(record_bytes)]
    footer = json.dumps({"runs": self._runs, "records": records_position, "summary": summary}).encode()
    self._file.write(record_bytes + footer + _TRAILER.pack(len(footer), zlib.crc32(footer)) + _MAGIC)
    local_files.sync(self._file)
    self._file.close()
    files.replace(self._staging, self.path)

  def __enter__(self) -> SpillWriter:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    if kind is not None:
      # An error while closing must not hide the error that ended the `with` statement.
      with contextlib.suppress(Exception):
        self._file.close()
      files.discard(self._staging)


# ---- reading -------------------------------------------------------------------------------------------


class RunTable(NamedTuple):
  """The table of a sorted run.

  Attributes:
    num_below: int64 [buckets], number of the run's instances with keys below each bucket.
    block_firsts: int64 [blocks], index of the first instance of each block.
    block_offsets: int64 [blocks], offset of each block in the file.
  """

  num_below: np.ndarray
  block_firsts: np.ndarray
  block_offsets: np.ndarray


class _Footer(msgspec.Struct):
  """The JSON object in the footer; its fields are those of `Spill`."""

  runs: tuple[SortedRun, ...]
  records: tuple[int, int, int]
  summary: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Spill:
  """A finished spill file.

  Attributes:
    path: the file.
    runs: its sorted runs.
    summary: the argument of `SpillWriter.close`.
    records_position: offset, length and CRC-32 of the records.
  """

  path: str
  runs: tuple[SortedRun, ...]
  summary: dict[str, Any]
  records_position: tuple[int, int, int]

  @classmethod
  def load(cls, path: str) -> Spill | None:
    """Reads the footer of a spill file. Returns None if the file is missing, incomplete or damaged."""
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
    try:
      values = json_values.parse(path, footer, _Footer)
    except UserError:
      return None
    return cls(path, values.runs, values.summary, values.records)

  def records(self) -> list[dict[str, Any]]:
    """Reads the records of the units of text that the file was made from, in order.

    Raises:
      RunError: the file is damaged.
    """
    offset, length, checksum = self.records_position
    with files.open_file(self.path) as file:
      file.seek(offset)
      data = file.read(length)
    if zlib.crc32(data) != checksum:
      raise damaged_error(self.path, offset)
    return json_values.parse(f"{self.path}, byte {offset}", data, list[dict[str, Any]], "remove this file")

  def table(self, run: SortedRun) -> RunTable:
    """Reads the table of one of the file's runs."""
    num_buckets = 1 << run.bucket_bits
    with files.open_file(self.path) as file:
      file.seek(run.end)
      table_bytes = file.read(8 * (num_buckets + 2 * run.num_blocks))  # 8 bytes for each integer
    integers = np.frombuffer(table_bytes, "<u8").astype(np.int64)
    return RunTable(*np.split(integers, [num_buckets, num_buckets + run.num_blocks]))


def damaged_error(path: str, offset: int) -> RunError:
  """Returns the error for a spill file that is damaged at byte `offset`."""
  return RunError(f"{path} is damaged at byte {offset}: remove this file and run the same command again")
