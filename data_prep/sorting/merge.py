"""Merges sorted runs. Their instances are read in the order of the keys, one key range at a time."""

from __future__ import annotations

import contextlib
import heapq
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert.io import files
from data_prep.sorting.spills import BLOCK_HEADER, INDEX_BYTES, PackedInstances, concatenate, damaged_error, sort_by_key

LAST_KEY = (1 << 64) - 1
# Approximate bytes of the instances in one key range. A process holds one key range in memory and sorts it there.
KEY_RANGE_BYTES = 10 << 20


class RunSection(NamedTuple):
  """The part of a sorted run from one of its instances to the run's end.

  Attributes:
    path: the spill file.
    offset: position in the file of the block that holds the first instance.
    skip: number of instances of this block before the first instance.
    end: position in the file after the run's last block.
  """

  path: str
  offset: int
  skip: int
  end: int


class RunReader:
  """Reads a section of a sorted run sequentially, one block at a time.

  Args:
    section: the section to read.
    word_type: NumPy type of the words.

  Raises:
    RunError: the file is damaged or cannot be read.
  """

  def __init__(self, section: RunSection, word_type: str):
    self._section, self._word_type = section, np.dtype(word_type)
    self._offset = section.offset
    self._file = files.open_file(section.path)
    self._file.seek(section.offset)
    self._header = self._file.read(BLOCK_HEADER.size)
    self._num_to_skip = section.skip
    self._block: PackedInstances | None = None
    self._num_taken = 0  # number of the block's instances that have been taken

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _read_block(self) -> PackedInstances | None:
    """Reads the next block, and drops the instances to skip. Returns None at the end of the section."""
    if self._offset >= self._section.end:
      return None
    if len(self._header) < BLOCK_HEADER.size:
      raise damaged_error(self._section.path, self._offset)
    count, num_words, checksum = BLOCK_HEADER.unpack(self._header)
    length = INDEX_BYTES * count + self._word_type.itemsize * num_words
    if self._offset + BLOCK_HEADER.size + length > self._section.end:
      raise damaged_error(self._section.path, self._offset)
    # The header of the next block is read, too, which halves the number of reads.
    data = self._file.read(length + BLOCK_HEADER.size)
    body, self._header = data[:length], data[length:]
    if zlib.crc32(body) != checksum:
      raise damaged_error(self._section.path, self._offset)
    self._offset += BLOCK_HEADER.size + length
    keys = np.frombuffer(body, "<u8", count)
    sizes = np.frombuffer(body, "<u4", count, 8 * count).astype(np.int64)
    words = np.frombuffer(body, self._word_type, num_words, INDEX_BYTES * count)
    skip, self._num_to_skip = min(self._num_to_skip, count), max(0, self._num_to_skip - count)
    return PackedInstances(keys[skip:], sizes[skip:], (np.cumsum(sizes) - sizes)[skip:], words)

  def advance(self) -> None:
    """Reads the next block that holds an instance. Call it once before the first instance is taken."""
    self._num_taken, self._block = 0, self._read_block()
    while self._block is not None and not self._block.keys.size:
      self._block = self._read_block()

  @property
  def next_key(self) -> int | None:
    """The key of the next instance; None at the end."""
    return None if self._block is None else int(self._block.keys[self._num_taken])

  def take_through(self, last_key: int) -> list[PackedInstances]:
    """Takes the next instances, up to and including those with the key `last_key`."""
    taken: list[PackedInstances] = []
    while self._block is not None:
      stop = int(np.searchsorted(self._block.keys, np.uint64(last_key), side="right"))
      if stop > self._num_taken:
        taken.append(_slice_block(self._block, self._num_taken, stop))
      self._num_taken = stop
      if stop < self._block.keys.size:
        break
      self.advance()
    return taken


def _slice_block(block: PackedInstances, low: int, high: int) -> PackedInstances:
  """Returns the instances low to high - 1 of a block with only their own words. There must be at least one."""
  first = int(block.starts[low])
  end = int(block.starts[high - 1] + block.sizes[high - 1])
  return PackedInstances(
    block.keys[low:high], block.sizes[low:high], block.starts[low:high] - first, block.words[first:end]
  )


def merge_runs(
  sections: Sequence[RunSection], word_type: str, *, first_key: int, last_key: int, num_key_ranges: int
) -> Iterator[PackedInstances]:
  """Merges sorted runs. Each file is opened once and read sequentially.

  Args:
    sections: the runs, each from its first instance with a key of at least `first_key`.
    word_type: NumPy type of the words.
    first_key: the smallest key.
    last_key: the greatest key.
    num_key_ranges: all 64-bit keys are divided into this many ranges of equal length. The instances of one range must
      fit into memory.

  Yields:
    The instances of each key range, sorted by key. Instances with equal keys are in the order of the sections.
  """
  range_length = -(-(LAST_KEY + 1) // num_key_ranges)
  with contextlib.ExitStack() as stack:
    readers: list[RunReader] = []
    for section in sections:
      readers.append(RunReader(section, word_type))
      stack.callback(readers[-1].close)
      readers[-1].advance()
    # A heap of (next key, index) of the readers that are not at their end.
    queue = [(reader.next_key, index) for index, reader in enumerate(readers) if reader.next_key is not None]
    heapq.heapify(queue)
    for first in range(first_key, last_key + 1, range_length):
      last = min(first + range_length - 1, last_key)
      readers_in_range = []
      while queue and queue[0][0] <= last:
        readers_in_range.append(heapq.heappop(queue)[1])
      parts = [part for index in sorted(readers_in_range) for part in readers[index].take_through(last)]
      for index in readers_in_range:
        next_key = readers[index].next_key
        if next_key is not None:
          heapq.heappush(queue, (next_key, index))
      if parts:
        instances = concatenate(parts)
        del parts  # frees their memory before sorting
        yield sort_by_key(instances)
