"""Shuffle blocks: sorting, and splitting by key range and by shard, compared with plain Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from data_prep.runners import beam_blocks
from data_prep.runners.beam_blocks import ShuffleBlock


def make_block(keys: list[int], origins: list[int], seed: int = 0) -> ShuffleBlock:
  rng = np.random.default_rng(seed)
  sizes = rng.integers(1, 6, len(keys)).astype(np.uint32)
  words = rng.integers(0, 1000, int(sizes.sum())).astype(np.uint16)
  return ShuffleBlock(np.array(keys, np.uint64), np.array(origins, np.uint64), sizes, words)


def rows(block: ShuffleBlock) -> list[tuple[int, int, tuple[int, ...]]]:
  """Returns (key, origin, words) of each instance."""
  ends = np.cumsum(block.sizes)
  words = [tuple(part.tolist()) for part in np.split(block.words, ends[:-1])]
  return list(zip(block.keys.tolist(), block.origins.tolist(), words, strict=True))


def random_block(size: int, seed: int) -> ShuffleBlock:
  rng = np.random.default_rng(seed)
  return make_block(rng.integers(0, 1 << 64, size, dtype=np.uint64).tolist(), [seed] * size, seed)


def sorted_rows(blocks: list[ShuffleBlock]) -> list[tuple[int, int, tuple[int, ...]]]:
  return [row for block in beam_blocks.sort_blocks(blocks) for row in rows(block)]


@pytest.mark.parametrize("memory_bytes", [1, 1 << 20], ids=["disk", "memory"])
def test_instances_are_sorted_by_key_and_equal_keys_by_origin(monkeypatch, memory_bytes):
  monkeypatch.setattr(beam_blocks, "_MEMORY_BYTES", memory_bytes)
  one, other = make_block([5, 9, 2], [7, 7, 7], 1), make_block([9, 5, 9], [3, 3, 3], 2)
  expected = sorted(rows(one) + rows(other), key=lambda row: row[:2])
  assert sorted_rows([one, other]) == expected
  assert [row[:2] for row in expected] == [(2, 7), (5, 3), (5, 7), (9, 3), (9, 3), (9, 7)]


@pytest.mark.parametrize("word_type", [np.uint16, np.uint32])
@pytest.mark.parametrize("high", [1 << 40, 1 << 64])
def test_many_blocks_are_sorted_on_disk_as_in_memory(monkeypatch, word_type, high):
  """A part of the keys, or all of them, in several runs and ranges of keys. Many keys are equal."""
  rng = np.random.default_rng(7)
  keys = rng.integers(high - (1 << 39), high, 300, dtype=np.uint64)
  blocks = [
    block._replace(words=block.words.astype(word_type))
    for seed in range(40)
    for block in [make_block(rng.choice(keys, 50).tolist(), [1 << 63 | seed] * 50, seed)]
  ]
  in_memory = sorted_rows(blocks)
  assert in_memory == sorted((row for block in blocks for row in rows(block)), key=lambda row: row[:2])
  monkeypatch.setattr(beam_blocks, "_MEMORY_BYTES", 1000)
  monkeypatch.setattr(beam_blocks, "KEY_RANGE_BYTES", 2000)
  monkeypatch.setattr("data_prep.sorting.spills._RUN_BYTES", 3000)
  on_disk = list(beam_blocks.sort_blocks(blocks))
  assert len(on_disk) > 5
  assert [row for block in on_disk for row in rows(block)] == in_memory
  assert {block.words.dtype for block in on_disk} == {np.dtype(word_type)}


@pytest.mark.parametrize("num_key_ranges", [1, 2, 7, 100])
def test_key_ranges_are_consecutive_intervals(num_key_ranges):
  block = random_block(500, 3)
  parts = dict(beam_blocks.split_by_key_range(block, num_key_ranges))
  assert list(parts) == sorted(parts)
  assert sorted(row for part in parts.values() for row in rows(part)) == sorted(rows(block))
  bounds = [(int(part.keys.min()), int(part.keys.max())) for part in parts.values()]
  assert all(last < first for (_, last), (first, _) in itertools.pairwise(bounds))
  for number, part in parts.items():
    assert {key * num_key_ranges >> 64 for key in part.keys.tolist()} == {number}


def test_the_last_key_is_in_the_last_key_range():
  keys = np.array([0, (1 << 64) - 1], np.uint64)
  assert beam_blocks.find_key_ranges(keys, 12345).tolist() == [0, 12344]


@pytest.mark.parametrize("num_shards", [1, 3, 10, 41])
def test_shards_are_cut_as_on_one_machine(num_shards):
  total = 41
  (ordered,) = beam_blocks.sort_blocks([random_block(total, 4)])
  parts_of_shards: dict[int, list[tuple[int, ShuffleBlock]]] = {}
  for first, last in [(0, 6), (6, 7), (7, 30), (30, 41)]:
    for shard, rank, part in beam_blocks.split_by_shard(
      beam_blocks.take(ordered, np.arange(first, last)), first, total, num_shards
    ):
      parts_of_shards.setdefault(shard, []).append((rank, part))
  assert list(parts_of_shards) == list(range(num_shards))
  all_rows = rows(ordered)
  for shard, parts in parts_of_shards.items():
    low, high = shard * total // num_shards, (shard + 1) * total // num_shards
    assert [rank for rank, _ in parts] == sorted(rank for rank, _ in parts)
    assert [row for _, part in parts for row in rows(part)] == all_rows[low:high]


def test_origins_are_ordered_by_file_then_position():
  assert (
    beam_blocks.unit_origin(0, 5)
    < beam_blocks.unit_origin(0, 6)
    < beam_blocks.unit_origin(1, 0)
    < beam_blocks.unit_origin(1, 1 << 39)
    < 1 << 63
  )
