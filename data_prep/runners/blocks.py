"""Instances on their way between machines: blocks of many, split by stretches of keys, sorted, cut into shards.

Pure: arrays in, arrays out. What data_prep.runners.beam does with a shuffle service, data_prep.shards does with files;
both put examples in the order of their keys and cut that order into shards of equal size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data_prep.shards import ragged

# Bits of an origin that hold a place in a file; the bits above hold the file.
_OFFSET_BITS = 40


class Block(NamedTuple):
  """[I] instances.

  keys: uint64, the order of the examples. origins: uint64, where the unit of text begins that they are of; it orders
  equal keys. sizes: uint32, how many words each has. words: end to end.
  """

  keys: np.ndarray
  origins: np.ndarray
  sizes: np.ndarray
  words: np.ndarray

  @property
  def num_bytes(self) -> int:
    return sum(column.nbytes for column in self)


def origin(ordinal: int, start: int) -> int:
  """The origin of a unit whose text begins at byte `start` of file `ordinal`."""
  return ordinal << _OFFSET_BITS | start


def take(block: Block, rows: np.ndarray) -> Block:
  """The instances at `rows`, in that order."""
  starts = np.cumsum(block.sizes, dtype=np.int64) - block.sizes
  sizes = block.sizes[rows]
  words = block.words[ragged(starts[rows], sizes.astype(np.int64))]
  return Block(block.keys[rows], block.origins[rows], sizes, words)


def join(blocks: Sequence[Block]) -> Block:
  """All instances of the blocks, at least one, in one."""
  return Block(*(np.concatenate(column) for column in zip(*blocks, strict=True)))


def in_order(blocks: Iterable[Block]) -> Block:
  """All instances of the blocks, sorted by key; those of equal keys by where they come from."""
  block = join(list(blocks))
  return take(block, np.lexsort((block.origins, block.keys)))


def stretch_of(keys: np.ndarray, num_stretches: int) -> np.ndarray:
  """int64 [I]: which of `num_stretches` equal stretches of keys (at most 2**31) each key is in."""
  return ((keys >> np.uint64(33)) * np.uint64(num_stretches) >> np.uint64(31)).astype(np.int64)


def split(block: Block, num_stretches: int) -> Iterator[tuple[int, Block]]:
  """The block's instances by stretch, in the order they have."""
  stretches = stretch_of(block.keys, num_stretches)
  order = np.argsort(stretches, kind="stable")
  for rows in np.split(order, np.flatnonzero(np.diff(stretches[order])) + 1):
    if rows.size:
      yield int(stretches[rows[0]]), take(block, rows)


def cut(block: Block, first_rank: int, total: int, num_shards: int) -> Iterator[tuple[int, int, Block]]:
  """The parts of a sorted block by shard: (shard, rank of the part's first example, part).

  Args:
    block: examples number first_rank, first_rank + 1, ... of all.
    first_rank: how many examples come before it.
    total: examples of all shards.
    num_shards: shard s holds examples s * total // num_shards to (s + 1) * total // num_shards - 1.
  """
  firsts = [shard * total // num_shards for shard in range(num_shards + 1)]
  last_rank = first_rank + block.keys.size
  for shard in range(num_shards):
    low, high = max(firsts[shard], first_rank), min(firsts[shard + 1], last_rank)
    if low < high:
      yield shard, low, take(block, np.arange(low - first_rank, high - first_rank))
