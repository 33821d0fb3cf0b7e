"""Shuffle blocks of the Beam runner: sorting, and splitting by key range and by shard, compared with plain Python."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from data_prep.runners import beam_blocks
from data_prep.runners.beam_blocks import ShuffleBlock


def make_block(keys: list[int], origins: list[int], seed: int = 0) -> ShuffleBlock:
  """Makes a block of instances with these keys and origins, and with 1 to 5 random words each."""
  rng = np.random.default_rng(seed)
  sizes = rng.integers(1, 6, len(keys)).astype(np.uint32)
  words = rng.integers(0, 1000, int(sizes.sum())).astype(np.uint16)
  return ShuffleBlock(np.array(keys, np.uint64), np.array(origins, np.uint64), sizes, words)


def instances_in(block: ShuffleBlock) -> list[tuple[int, int, tuple[int, ...]]]:
  """Returns (key, origin, words) of each instance."""
  ends = np.cumsum(block.sizes)
  words = [tuple(instance_words.tolist()) for instance_words in np.split(block.words, ends[:-1])]
  return list(zip(block.keys.tolist(), block.origins.tolist(), words, strict=True))


def random_block(size: int, seed: int) -> ShuffleBlock:
  """Makes a block of `size` instances with random keys."""
  rng = np.random.default_rng(seed)
  return make_block(rng.integers(0, 1 << 64, size, dtype=np.uint64).tolist(), [seed] * size, seed)


def sorted_instances(blocks: list[ShuffleBlock]) -> list[tuple[int, int, tuple[int, ...]]]:
  """Returns the instances of the sorted blocks, in their order."""
  return [instance for block in beam_blocks.sort_blocks(blocks) for instance in instances_in(block)]


@pytest.mark.parametrize("memory_bytes", [1, 1 << 20], ids=["disk", "memory"])
def test_instances_are_sorted_by_key_and_equal_keys_by_origin(monkeypatch, memory_bytes):
  monkeypatch.setattr(beam_blocks, "_MEMORY_BYTES", memory_bytes)
  block_a, block_b = make_block([5, 9, 2], [7, 7, 7], seed=1), make_block([9, 5, 9], [3, 3, 3], seed=2)
  # By key and origin. The sort is stable.
  expected = sorted(instances_in(block_a) + instances_in(block_b), key=lambda instance: instance[:2])
  assert sorted_instances([block_a, block_b]) == expected
  assert [instance[:2] for instance in expected] == [(2, 7), (5, 3), (5, 7), (9, 3), (9, 3), (9, 7)]


@pytest.mark.parametrize("word_type", [np.uint16, np.uint32])
@pytest.mark.parametrize("key_limit", [1 << 40, 1 << 64])
def test_many_blocks_are_sorted_on_disk_as_in_memory(monkeypatch, word_type, key_limit):
  """The sort on disk has several runs and several key ranges. Many keys are equal, and all are below `key_limit`."""
  rng = np.random.default_rng(7)
  keys = rng.integers(key_limit - (1 << 39), key_limit, 300, dtype=np.uint64)
  blocks = [
    block._replace(words=block.words.astype(word_type))
    for seed in range(40)
    for block in [make_block(rng.choice(keys, 50).tolist(), [1 << 63 | seed] * 50, seed)]  # origins use all 64 bits
  ]
  in_memory = sorted_instances(blocks)
  all_instances = [instance for block in blocks for instance in instances_in(block)]
  assert in_memory == sorted(all_instances, key=lambda instance: instance[:2])
  monkeypatch.setattr(beam_blocks, "_MEMORY_BYTES", 1000)
  monkeypatch.setattr(beam_blocks, "KEY_RANGE_BYTES", 2000)
  monkeypatch.setattr("data_prep.sorting.spills._RUN_BYTES", 3000)
  on_disk = list(beam_blocks.sort_blocks(blocks))
  assert len(on_disk) > 5
  assert [instance for block in on_disk for instance in instances_in(block)] == in_memory
  assert {block.words.dtype for block in on_disk} == {np.dtype(word_type)}


@pytest.mark.parametrize("num_key_ranges", [1, 2, 7, 100])
def test_key_ranges_are_consecutive_intervals(num_key_ranges):
  block = random_block(500, 3)
  block_of_range = dict(beam_blocks.split_by_key_range(block, num_key_ranges))
  assert list(block_of_range) == sorted(block_of_range)
  instances = [instance for range_block in block_of_range.values() for instance in instances_in(range_block)]
  assert sorted(instances) == sorted(instances_in(block))
  bounds = [(int(range_block.keys.min()), int(range_block.keys.max())) for range_block in block_of_range.values()]
  assert all(largest < next_smallest for (_, largest), (next_smallest, _) in itertools.pairwise(bounds))
  for number, range_block in block_of_range.items():
    assert {key * num_key_ranges >> 64 for key in range_block.keys.tolist()} == {number}


def test_the_last_key_is_in_the_last_key_range():
  keys = np.array([0, (1 << 64) - 1], np.uint64)
  assert beam_blocks.find_key_ranges(keys, 12345).tolist() == [0, 12344]


@pytest.mark.parametrize("num_shards", [1, 3, 10, 41])
def test_split_by_shard_gives_shards_of_equal_size(num_shards):
  """41 sorted instances come in four key ranges. Shard s of n must begin at instance s * 41 // n."""
  num_instances = 41
  (sorted_block,) = beam_blocks.sort_blocks([random_block(num_instances, 4)])
  # Shard -> its blocks, each with the number of its first instance among all instances.
  numbered_blocks: dict[int, list[tuple[int, ShuffleBlock]]] = {}
  for start, end in [(0, 6), (6, 7), (7, 30), (30, 41)]:
    range_block = beam_blocks.take(sorted_block, np.arange(start, end))
    for shard, number, shard_block in beam_blocks.split_by_shard(range_block, start, num_instances, num_shards):
      numbered_blocks.setdefault(shard, []).append((number, shard_block))
  assert list(numbered_blocks) == list(range(num_shards))
  all_instances = instances_in(sorted_block)
  for shard, blocks in numbered_blocks.items():
    start, end = shard * num_instances // num_shards, (shard + 1) * num_instances // num_shards
    assert [number for number, _ in blocks] == sorted(number for number, _ in blocks)
    assert [instance for _, shard_block in blocks for instance in instances_in(shard_block)] == all_instances[start:end]


def test_origins_are_ordered_by_file_then_position():
  """unit_origin(file, offset of the unit in bytes)."""
  assert (
    beam_blocks.unit_origin(0, 5)
    < beam_blocks.unit_origin(0, 6)
    < beam_blocks.unit_origin(1, 0)
    < beam_blocks.unit_origin(1, 1 << 39)
    < 1 << 63
  )
