"""Blocks of instances that Apache Beam moves between machines: split by key range, sorted, and cut into shards.

A block holds the instances of one key range that a process has gathered, as arrays. Keys are unsigned 64-bit integers.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert.errors import RunError
from albert.io import files
from data_prep.examples.token_sequences import concatenated_ranges
from data_prep.sorting.merge import KEY_RANGE_BYTES, LAST_KEY, RunSection, merge_runs
from data_prep.sorting.shards import shard_bounds
from data_prep.sorting.spills import PackedInstances, Spill, SpillWriter

# The low bits of an origin are the position of a byte in a file; the bits above them are the file's ordinal.
_OFFSET_BITS = 40
# Up to this many bytes of instances are sorted in memory, more of them on the local disk.
_MEMORY_BYTES = 64 << 20


class ShuffleBlock(NamedTuple):
  """Packed instances (see data_prep.examples.packing).

  Attributes:
    keys: uint64 [I], random keys, by which the examples are sorted.
    origins: uint64 [I], the beginning of the unit of text that each instance was made from (see `unit_origin`).
      Instances with equal keys are sorted by it.
    sizes: uint32 [I], number of words of each instance.
    words: [W], the words of all instances, concatenated.
  """

  keys: np.ndarray
  origins: np.ndarray
  sizes: np.ndarray
  words: np.ndarray

  @property
  def num_bytes(self) -> int:
    """Bytes of the arrays."""
    return sum(column.nbytes for column in self)


def unit_origin(ordinal: int, start: int) -> int:
  """Returns the origin of a unit whose text begins at byte `start` of file number `ordinal`."""
  return ordinal << _OFFSET_BITS | start


def take(block: ShuffleBlock, indices: np.ndarray) -> ShuffleBlock:
  """Returns the instances with these indices, in the order of the indices."""
  starts = np.cumsum(block.sizes, dtype=np.int64) - block.sizes
  sizes = block.sizes[indices]
  words = block.words[concatenated_ranges(starts[indices], sizes.astype(np.int64))]
  return ShuffleBlock(block.keys[indices], block.origins[indices], sizes, words)


def concatenate(blocks: Sequence[ShuffleBlock]) -> ShuffleBlock:
  """Returns the instances of all blocks, in order. There must be at least one block."""
  return ShuffleBlock(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def sort_blocks(blocks: Iterable[ShuffleBlock]) -> Iterator[ShuffleBlock]:
  """Sorts the instances of all blocks by key, and by origin where the keys are equal.

  If they are too large for the memory, they are sorted on the local disk (data_prep.sorting).

  Yields:
    Blocks of consecutive instances.
  """
  remaining = iter(blocks)
  gathered: list[ShuffleBlock] = []
  num_bytes = 0
  for block in remaining:
    gathered.append(block)
    num_bytes += block.num_bytes
    if num_bytes > _MEMORY_BYTES:
      yield from _sort_on_disk(itertools.chain(gathered, remaining), block.words.dtype)
      return
  if gathered:
    block = concatenate(gathered)
    yield take(block, np.lexsort((block.origins, block.keys)))


def _sort_on_disk(blocks: Iterable[ShuffleBlock], word_type: np.dtype) -> Iterator[ShuffleBlock]:
  """Does the same as `sort_blocks` with a spill file. The origin of each instance is stored after its words."""
  with tempfile.TemporaryDirectory() as directory:
    path = files.join(directory, "key-range.spill")
    first_key, last_key = LAST_KEY, 0
    with SpillWriter(path) as writer:
      for block in blocks:
        words, sizes = _append_origins(block)
        writer.add(block.keys, words, sizes)
        first_key, last_key = min(first_key, int(block.keys.min())), max(last_key, int(block.keys.max()))
      writer.close({}, [])
    spill = Spill.load(path)
    if spill is None:
      raise RunError(f"{path} was damaged after it was written: run the same command again")
    sections = [RunSection(path, run.begin, 0, run.end) for run in spill.runs]
    num_bytes = sum(run.num_bytes for run in spill.runs)
    # Of all 64-bit keys these are only a part, which merge_runs divides into ranges of about KEY_RANGE_BYTES.
    num_key_ranges = (1 + num_bytes // KEY_RANGE_BYTES) * max(1, LAST_KEY // (last_key - first_key + 1))
    for instances in merge_runs(
      sections, word_type.str, first_key=first_key, last_key=last_key, num_key_ranges=num_key_ranges
    ):
      yield _with_origins(instances)


def _append_origins(block: ShuffleBlock) -> tuple[np.ndarray, np.ndarray]:
  """Returns the words of a block with the origin of each instance after its words, and the new sizes."""
  origins = block.origins.astype("<u8").view(block.words.dtype).reshape(block.origins.size, -1)  # [I, words]
  sizes = block.sizes.astype(np.int64)
  new_sizes = sizes + origins.shape[1]
  starts = np.cumsum(new_sizes) - new_sizes
  words = np.empty(int(new_sizes.sum()), block.words.dtype)
  words[concatenated_ranges(starts, sizes)] = block.words
  words[(starts + sizes)[:, None] + np.arange(origins.shape[1])] = origins
  return words, new_sizes


def _with_origins(instances: PackedInstances) -> ShuffleBlock:
  """Returns the instances of `_append_origins`, which are sorted by key, also sorted by origin."""
  num_words = np.dtype("<u8").itemsize // instances.words.dtype.itemsize
  sizes = instances.sizes - num_words
  origin_words = instances.words[(instances.starts + sizes)[:, None] + np.arange(num_words)]
  origins = np.ascontiguousarray(origin_words).view("<u8")[:, 0]
  indices = np.lexsort((origins, instances.keys))
  words = instances.words[concatenated_ranges(instances.starts[indices], sizes[indices])]
  return ShuffleBlock(instances.keys[indices], origins[indices], sizes[indices].astype(np.uint32), words)


def find_key_ranges(keys: np.ndarray, num_key_ranges: int) -> np.ndarray:
  """Returns the number of the key range that each key is in, int64 [I].

  Args:
    keys: uint64 [I].
    num_key_ranges: all keys are divided into this many ranges of equal length; at most 2**31.
  """
  # floor(key / 2**64 * num_key_ranges) with the top 31 bits of the key, so that the product fits into 64 bits.
  return ((keys >> np.uint64(33)) * np.uint64(num_key_ranges) >> np.uint64(31)).astype(np.int64)


def split_by_key_range(block: ShuffleBlock, num_key_ranges: int) -> Iterator[tuple[int, ShuffleBlock]]:
  """Yields the number of each key range that has instances, and its instances in their present order."""
  key_ranges = find_key_ranges(block.keys, num_key_ranges)
  order = np.argsort(key_ranges, kind="stable")
  for indices in np.split(order, np.flatnonzero(np.diff(key_ranges[order])) + 1):
    if indices.size:
      yield int(key_ranges[indices[0]]), take(block, indices)


def split_by_shard(
  block: ShuffleBlock, first_example: int, num_examples: int, num_shards: int
) -> Iterator[tuple[int, int, ShuffleBlock]]:
  """Cuts sorted instances into parts of shards, as `shards.shard_bounds` divides all examples.

  Args:
    block: the examples first_example, first_example + 1, ... of all examples.
    first_example: number of the block's first example among all examples.
    num_examples: number of examples in all shards.
    num_shards: number of shards.

  Yields:
    The number of the shard, the number of the part's first example, and the part.
  """
  bounds = shard_bounds(num_examples, num_shards)
  block_end = first_example + block.keys.size
  for shard in range(num_shards):
    start, end = max(bounds[shard], first_example), min(bounds[shard + 1], block_end)
    if start < end:
      yield shard, start, take(block, np.arange(start - first_example, end - first_example))
