"""Packed instances, block files and shards: shards hold every instance once, in the order of the keys."""

from __future__ import annotations

import io
import itertools
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from albert.data.masks import MaskedSpans, MaskedTokens
from albert.errors import RunError
from albert.io import files, records
from data_prep import block_files, shards
from data_prep.block_files import Block, BlockWriter
from data_prep.examples import packing
from data_prep.examples.packing import InstanceTokens
from data_prep.examples.settings import PreparationSettings
from data_prep.job import Job

WORD_DTYPE = np.dtype("<u2")
SEQ_LENGTH = 12
NUM_PREDICTIONS = 4  # of an example, with padding

# The features of an example by their name.
Features = dict[str, list[int]]


def expected_features(
  ids: np.ndarray, b_start: int, label: int, positions: np.ndarray, masked_ids: np.ndarray
) -> Features:
  """Returns the features of an instance, padded."""
  token_padding, prediction_padding = [0] * (SEQ_LENGTH - ids.size), [0] * (NUM_PREDICTIONS - positions.size)
  return {
    "input_ids": ids.tolist() + token_padding,
    "input_mask": [1] * ids.size + token_padding,
    "segment_ids": [int(position >= b_start) for position in range(ids.size)] + token_padding,
    "masked_lm_positions": positions.tolist() + prediction_padding,
    "masked_lm_ids": masked_ids.tolist() + prediction_padding,
    "masked_lm_weights": [1.0] * positions.size + prediction_padding,
    "next_sentence_labels": [label],
  }


def make_instances(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, list[Features]]:
  """Makes random instances.

  Returns:
    The words (numbers of 16 bits) of all packed instances, concatenated; the number of words of each instance; and the
    features that unpacking each instance must give.
  """
  lengths = rng.integers(3, SEQ_LENGTH + 1, count)
  row_splits = np.concatenate([[0], np.cumsum(lengths)])  # instance i has the tokens row_splits[i] to row_splits[i + 1]
  ids = rng.integers(1, 30_000, row_splits[-1])
  b_starts = rng.integers(2, lengths + 1)
  labels = rng.integers(0, 2, count)
  positions = [
    np.sort(rng.choice(length, rng.integers(0, min(NUM_PREDICTIONS, length) + 1), replace=False)) for length in lengths
  ]
  masked_ids = [rng.integers(1, 30_000, row_positions.size) for row_positions in positions]
  expected = [
    expected_features(
      ids[row_splits[row] : row_splits[row + 1]], b_starts[row], int(labels[row]), positions[row], masked_ids[row]
    )
    for row in range(count)
  ]
  word_starts = maskable = np.ones(ids.size, bool)  # not used by packing
  tokens = InstanceTokens(ids, word_starts, maskable, row_splits, b_starts)
  positions_in_ids = [row_positions + start for row_positions, start in zip(positions, row_splits[:-1], strict=True)]
  no_index = np.zeros(0, int)
  no_spans = MaskedSpans(no_index, no_index, no_index, no_index, no_index)
  masked = MaskedTokens(ids, np.concatenate(positions_in_ids), np.concatenate(masked_ids), no_spans)
  words, num_words = packing.pack(tokens, masked, labels, WORD_DTYPE)
  return words, num_words, expected


def test_words_have_16_bits_if_the_vocabulary_allows() -> None:
  assert packing.word_dtype(1 << 16) == np.dtype("<u2")
  assert packing.word_dtype((1 << 16) + 1) == np.dtype("<u4")


# Key and features of each instance.
KeyedFeatures = list[tuple[int, Features]]


def write_blocks(
  directory: Path, monkeypatch: pytest.MonkeyPatch, batch_sizes: list[int], *, equal_keys: bool = False
) -> tuple[list[Block], KeyedFeatures]:
  """Writes a block file of four batches for each size. Returns the blocks, and all instances sorted by their keys."""
  monkeypatch.setattr(block_files, "MAX_RUN_BYTES", 1000)
  rng = np.random.default_rng(1)
  blocks: list[Block] = []
  instances: KeyedFeatures = []
  for number, batch_size in enumerate(batch_sizes):
    path = str(directory / f"block-{number:08d}-{0:015d}.block")
    with files.write_whole(path) as file:
      writer = BlockWriter(file)
      for _ in range(4 if batch_size else 0):
        keys = rng.integers(0, 2**64 - 1, batch_size, dtype=np.uint64, endpoint=True)
        if equal_keys:
          keys = keys >> np.uint64(62) << np.uint64(62)  # keeps the two highest bits
        words, num_words, features = make_instances(rng, batch_size)
        writer.add(keys, words, num_words)
        instances += zip(keys.tolist(), features, strict=True)
      writer.close({"counts": {"documents": number}, "labels": [number, 2]}, [{"unit": number}])
    block = Block.load(path)
    assert block is not None
    blocks.append(block)
  return blocks, sorted(instances, key=lambda instance: instance[0])


def write_shards(
  directory: Path, blocks: list[Block], num_shards: int, *, compress: bool = False
) -> list[list[dict[str, list[float]]]]:
  settings = PreparationSettings(max_seq_length=SEQ_LENGTH, max_predictions_per_seq=NUM_PREDICTIONS)
  job = Job(
    inputs=(), output_dir=str(directory), spm_model_file="", settings=settings, num_shards=num_shards, compress=compress
  )
  plan = shards.ShardPlan(blocks, num_shards)
  plan.save_runs(str(directory))
  infos = []
  for group in plan.group_shards(range(num_shards)):
    infos += shards.write_shards(plan.make_task(group, job, str(directory), WORD_DTYPE.str, ""))
  assert [info.file for info in infos] == [job.shard_name(index) for index in range(num_shards)]
  examples_of_shards = []
  for info in infos:
    path = str(directory / info.file)
    examples = [records.decode_example(record) for record in records.read_records(path)]
    assert info.examples == len(examples)
    examples_of_shards.append([{name: array.tolist() for name, array in example.items()} for example in examples])
  return examples_of_shards


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("equal_keys", [False, True])
@pytest.mark.parametrize("step_bytes", [1, 700, 100_000])
def test_shards_hold_everything_in_the_order_of_the_keys(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool, equal_keys: bool, step_bytes: int
) -> None:
  """With 1 or 700 bytes in memory, a shard needs several steps; with 100,000, a single step gives all shards."""
  blocks, instances = write_blocks(tmp_path, monkeypatch, [30, 0, 17], equal_keys=equal_keys)
  assert [len(block.runs) for block in blocks] == [4, 0, 2]
  monkeypatch.setattr(shards, "_MIN_STEP_BYTES", step_bytes)
  monkeypatch.setattr(shards, "_NUM_STEPS", 10**9)
  monkeypatch.setattr(packing, "_BATCH_SIZE", 5)
  examples_of_shards = write_shards(tmp_path, blocks, 3, compress=compress)
  assert list(itertools.chain.from_iterable(examples_of_shards)) == [features for _, features in instances]
  assert [len(examples) for examples in examples_of_shards] == [62, 63, 63]  # 4 * (30 + 17) = 188 instances


def test_shards_of_a_range_that_is_larger_than_a_step_are_written_together(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """The range is read for all of them at once. Each of four ranges of keys holds about 30 of the 120 instances."""
  blocks, _ = write_blocks(tmp_path, monkeypatch, [30], equal_keys=True)
  monkeypatch.setattr(shards, "_MIN_STEP_BYTES", 1)
  groups = list(shards.ShardPlan(blocks, 60).group_shards(range(60)))
  assert list(itertools.chain.from_iterable(groups)) == list(range(60))
  assert 4 <= len(groups) <= 7  # the shards inside a range, and those that hold the end of a range


def test_a_task_may_run_twice_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """A cluster that has lost the connection to a node may do so. The second run ends while the first renames a shard."""
  blocks, _ = write_blocks(tmp_path, monkeypatch, [10])
  settings = PreparationSettings(max_seq_length=SEQ_LENGTH, max_predictions_per_seq=NUM_PREDICTIONS)
  job = Job(inputs=(), output_dir=str(tmp_path / "out"), spm_model_file="", settings=settings, num_shards=1)
  directory = tmp_path / "out" / "workspace"
  directory.mkdir(parents=True)
  plan = shards.ShardPlan(
    [msgspec.structs.replace(block, path=str(shutil.copy(block.path, directory))) for block in blocks], 1
  )
  plan.save_runs(str(directory))
  task = plan.make_task([0], job, str(directory), WORD_DTYPE.str, "")
  replace, results = files.replace, []

  def run_again_and_replace(source: str, target: str) -> None:
    if target == str(tmp_path / "out" / job.shard_name(0)):
      monkeypatch.setattr(files, "replace", replace)
      results.append(shards.write_shards(task))
    replace(source, target)

  monkeypatch.setattr(files, "replace", run_again_and_replace)
  assert [shards.write_shards(task)] == results
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [job.shard_name(0), "workspace"]
  names = {path.name for path in directory.iterdir()}
  assert names == {"shard-00000.json", "runs.json", *(Path(block.path).name for block in blocks)}


def test_only_complete_blocks_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (block,), _ = write_blocks(tmp_path, monkeypatch, [5])
  assert (block.summary, block.records) == ({"counts": {"documents": 0}, "labels": [0, 2]}, [{"unit": 0}])
  path = Path(block.path)
  complete = path.read_bytes()
  with_flipped_bit = bytearray(complete)
  with_flipped_bit[-30] ^= 1
  for damaged in (complete[:-1], complete[: len(complete) // 2], b"", bytes(with_flipped_bit)):
    path.write_bytes(damaged)
    assert Block.load(block.path) is None
  assert Block.load(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("where", ["first key", "words", "last byte of the first run", "second run", "table"])
def test_a_damaged_range_is_an_error_that_names_the_file(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
  (block,), _ = write_blocks(tmp_path, monkeypatch, [30])
  path = Path(block.path)
  complete = path.read_bytes()
  (table, _), (second_table, _), *_ = block.tables
  offset = {
    "first key": 0,
    "words": 20,
    "last byte of the first run": table - 1,
    "second run": second_table - 8,
    "table": table + 100,
  }[where]
  path.write_bytes(complete[:offset] + bytes([complete[offset] ^ 1]) + complete[offset + 1 :])
  assert Block.load(block.path) is not None  # which reads only the end of the file
  with pytest.raises(RunError, match=rf"{path} is damaged at byte \d+: remove this file"):
    write_shards(tmp_path, [block], 2)


def test_a_table_that_is_damaged_after_the_plan_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """A task reads the rows of its ranges again. Whatever byte of a row is wrong, the checksum of the range shows it."""
  (block,), _ = write_blocks(tmp_path, monkeypatch, [5])
  (table, _), *_ = block.tables
  path = Path(block.path)
  complete = path.read_bytes()
  sizes = block_files.add_sizes([block])
  ranges = block_files.KeyRanges(0, block_files.NUM_RANGES - 1, int(sizes.num_bytes.sum()))
  (first_range, *_) = np.flatnonzero(sizes.counts)
  for byte in range(16):
    offset = table + 16 * int(first_range) + byte
    path.write_bytes(complete[:offset] + bytes([complete[offset] ^ 1]) + complete[offset + 1 :])
    with pytest.raises(RunError, match=rf"{path} is damaged at byte \d+: remove this file"):
      block_files.read_sorted(block.runs, ranges, WORD_DTYPE.str)


def test_a_step_opens_each_block_once_and_makes_two_reads_of_it(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """A process has one block file open at a time. It reads the rows of a table, and one slice of the file."""
  blocks, _ = write_blocks(tmp_path, monkeypatch, [3] * 20)
  num_runs = sum(len(block.runs) for block in blocks)
  sizes = block_files.add_sizes(blocks)
  opened: list[BlockFile] = []

  class BlockFile(io.BytesIO):
    num_reads = 0

    def __init__(self, path: str):
      assert all(file.closed for file in opened)
      opened.append(self)
      super().__init__(Path(path).read_bytes())

    def read(self, size: int | None = -1) -> bytes:
      self.num_reads += 1
      return super().read(size)

  monkeypatch.setattr(files, "open_file", BlockFile)
  groups = list(block_files.group_ranges(sizes.num_bytes, 2000))
  for ranges in groups:
    assert ranges.num_bytes <= 2000
    block_files.read_sorted([run for block in blocks for run in block.runs], ranges, WORD_DTYPE.str)
  assert len(groups) > 3
  assert [file.num_reads for file in opened] == [2] * (num_runs * len(groups))
