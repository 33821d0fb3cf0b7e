"""Merges sorted runs. All runs are read at the same time, one range of keys after the other."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert.io import files
from data_prep.sorting.spills import (
  BLOCK_HEADER,
  INDEX_BYTES,
  PackedInstances,
  Spill,
  concatenate,
  damaged_error,
  sort_by_key,
)

LAST_KEY = (1 << 64) - 1  # the greatest key
# Approximate bytes of the instances with keys in one range. A process sorts them in memory.
KEY_RANGE_BYTES = 10 << 20


class RunSection(NamedTuple):
  """The part of a sorted run that begins at one of its instances and reaches to the run's end.

  Attributes:
    path: the spill file.
    offset: position in the file of the block that holds the section's first instance.
    skip: number of instances in this block before the section's first instance.
    end: position in the file after the run's last block.
  """

  path: str
  offset: int
  skip: int
  end: int


class RunReader:
  """Reads a section of a sorted run sequentially, one block at a time.

  Call `read_next_block` once before the other methods.

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
    """Reads the next block, without the instances to skip. Returns None at the end of the section."""
    if self._offset >= self._section.end:
      return None
    if len(self._header) < BLOCK_HEADER.size:
      raise damaged_error(self._section.path, self._offset)
    count, num_words, checksum = BLOCK_HEADER.unpack(self._header)
    length = INDEX_BYTES * count + self._word_type.itemsize * num_words
    if self._offset + BLOCK_HEADER.size + length > self._section.end:
      raise damaged_error(self._section.path, self._offset)
    # One read gets the rest of this block and the header of the next one.
    data = self._file.read(length + BLOCK_HEADER.size)
    body, self._header = data[:length], data[length:]
    if zlib.crc32(body) != checksum:
      raise damaged_error(self._section.path, self._offset)
    self._offset += BLOCK_HEADER.size + length
    keys = np.frombuffer(body, "<u8", count)
    sizes = np.frombuffer(body, "<u4", count, 8 * count).astype(np.int64)
    words = np.frombuffer(body, self._word_type, num_words, INDEX_BYTES * count)
    starts = np.cumsum(sizes) - sizes
    skip = min(self._num_to_skip, count)
    self._num_to_skip -= skip
    return PackedInstances(keys[skip:], sizes[skip:], starts[skip:], words)

  def read_next_block(self) -> None:
    """Reads blocks until one has an instance that is not skipped. At the end of the section there is none."""
    self._num_taken, self._block = 0, self._read_block()
    while self._block is not None and not self._block.keys.size:
      self._block = self._read_block()

  def take_through(self, last_key: int) -> list[PackedInstances]:
    """Returns the next instances with keys up to and including `last_key`. Each instance is returned once."""
    taken: list[PackedInstances] = []
    while self._block is not None and int(self._block.keys[self._num_taken]) <= last_key:
      stop = int(np.searchsorted(self._block.keys, np.uint64(last_key), side="right"))
      taken.append(_slice_block(self._block, self._num_taken, stop))
      self._num_taken = stop
      if stop == self._block.keys.size:
        self.read_next_block()
    return taken


def _slice_block(block: PackedInstances, low: int, high: int) -> PackedInstances:
  """Returns the instances low to high - 1 of a block, without the words of the others. `high` is greater than `low`."""
  first = int(block.starts[low])
  end = int(block.starts[high - 1] + block.sizes[high - 1])
  return PackedInstances(
    block.keys[low:high], block.sizes[low:high], block.starts[low:high] - first, block.words[first:end]
  )


def merge_runs(
  sections: Sequence[RunSection], word_type: str, *, first_key: int, last_key: int, num_key_ranges: int
) -> Iterator[PackedInstances]:
  """Merges sorted runs. Each run is read once, sequentially.

  The keys from `first_key` to `last_key` are divided into ranges. For one range after the other, the instances of all
  runs with keys in this range are read and sorted in memory.

  Args:
    sections: one for each run. It begins with the run's first instance whose key is at least `first_key`.
    word_type: NumPy type of the words.
    first_key: the smallest key to read.
    last_key: the greatest key to read.
    num_key_ranges: the number of ranges if all 64-bit keys were read. It decides how long a range is, and with it how
      much memory its instances need.

  Yields:
    The instances of each range that has any, sorted by key. Instances with equal keys are in the order of the sections.
  """
  range_length = LAST_KEY // num_key_ranges + 1  # (LAST_KEY + 1) / num_key_ranges, rounded up
  with contextlib.ExitStack() as stack:
    readers: list[RunReader] = []
    for section in sections:
      reader = RunReader(section, word_type)
      stack.callback(reader.close)
      reader.read_next_block()
      readers.append(reader)
    for first in range(first_key, last_key + 1, range_length):
      last = min(first + range_length - 1, last_key)
      parts = [part for reader in readers for part in reader.take_through(last)]
      if parts:
        instances = concatenate(parts)
        del parts  # frees their memory before sorting
        yield sort_by_key(instances)


def merge_whole_files(all_spills: Sequence[Spill], word_type: str, key_range_bytes: int) -> Iterator[PackedInstances]:
  """Merges all runs of spill files from the first key to the last.

  Args:
    all_spills: the spill files.
    word_type: NumPy type of the words.
    key_range_bytes: approximate bytes of instances to hold in memory.

  Yields:
    See `merge_runs`.
  """
  runs = [(spill.path, run) for spill in all_spills for run in spill.runs]
  sections = [RunSection(path, run.begin, 0, run.end) for path, run in runs]
  num_key_ranges = 1 + sum(run.num_bytes for _, run in runs) // key_range_bytes
  yield from merge_runs(sections, word_type, first_key=0, last_key=LAST_KEY, num_key_ranges=num_key_ranges)
