"""Blocks of instances that Apache Beam moves between machines: split by key range, sorted, and cut into shards.

With Beam, these functions do the work of data_prep.sorting: they sort the examples by key, and cut them into shards of
equal size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data_prep.sorting.shards import shard_bounds
from data_prep.token_sequences import concatenated_ranges

# The low bits of an origin are the position of a byte in a file; the bits above them are the file's ordinal.
_OFFSET_BITS = 40


class ShuffleBlock(NamedTuple):
  """Packed instances (see data_prep.packing).

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


def take(block: ShuffleBlock, rows: np.ndarray) -> ShuffleBlock:
  """Returns the instances with the indices `rows`, in that order."""
  starts = np.cumsum(block.sizes, dtype=np.int64) - block.sizes
  sizes = block.sizes[rows]
  words = block.words[concatenated_ranges(starts[rows], sizes.astype(np.int64))]
  return ShuffleBlock(block.keys[rows], block.origins[rows], sizes, words)


def concatenate(blocks: Sequence[ShuffleBlock]) -> ShuffleBlock:
  """Returns the instances of all blocks, in order. There must be at least one block."""
  return ShuffleBlock(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def sort_blocks(blocks: Iterable[ShuffleBlock]) -> ShuffleBlock:
  """Returns the instances of all blocks, sorted by key, and by origin where the keys are equal."""
  block = concatenate(list(blocks))
  return take(block, np.lexsort((block.origins, block.keys)))


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
  for rows in np.split(order, np.flatnonzero(np.diff(key_ranges[order])) + 1):
    if rows.size:
      yield int(key_ranges[rows[0]]), take(block, rows)


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
