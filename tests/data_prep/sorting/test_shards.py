"""Packed instances, spill files, merge passes and shards: shards hold every instance once, in the order of the keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest

from albert.data.masks.masking import MaskedTokens
from albert.data.masks.span_selection import MaskedSpans
from albert.errors import RunError, UserError
from albert.io import files, records
from albert.io.parallel.workers import Workers
from data_prep.examples import packing
from data_prep.examples.token_sequences import InstanceTokens
from data_prep.sorting import merge, merge_passes, shards, spills
from data_prep.sorting.spills import Spill, SpillWriter

WORD_DTYPE = np.dtype("<u2")
SEQ_LENGTH = 12
NUM_PREDICTIONS = 4  # of an example, with padding

# The features of an example by their name.
Features = dict[str, list[int]]


def expected_features(
  ids: np.ndarray, b_start: int, label: int, positions: np.ndarray, masked_ids: np.ndarray
) -> Features:
  """Returns the features of an instance, padded.

  Args:
    ids: the token ids.
    b_start: position of the first token of the second segment.
    label: the label of the sentence prediction.
    positions: the masked positions.
    masked_ids: the ids of the masked tokens before masking.
  """
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


def test_pack_and_unpack_give_the_features() -> None:
  words, num_words, expected = make_instances(np.random.default_rng(0), 50)
  starts = np.cumsum(num_words) - num_words  # where the words of each instance begin
  features = packing.unpack(words, starts, SEQ_LENGTH, NUM_PREDICTIONS)
  unpacked = [{name: array[row].tolist() for name, array in features.items()} for row in range(50)]
  assert unpacked == expected


def test_words_have_16_bits_if_the_vocabulary_allows() -> None:
  assert packing.word_dtype(1 << 16) == np.dtype("<u2")
  assert packing.word_dtype((1 << 16) + 1) == np.dtype("<u4")


# Key and features of each instance.
KeyedFeatures = list[tuple[int, Features]]


def write_spills(
  directory: Path, monkeypatch: pytest.MonkeyPatch, batch_sizes: list[int], *, equal_keys: bool = False
) -> tuple[list[Spill], KeyedFeatures]:
  """Writes spill files of random instances. Each has several small sorted runs.

  Args:
    directory: where to write them.
    monkeypatch: makes runs and blocks small.
    batch_sizes: for each file the number of instances in each of its four batches.
    equal_keys: whether to use only four different keys.

  Returns:
    The spill files, and all their instances in the order of the keys.
  """
  monkeypatch.setattr(spills, "_RUN_BYTES", 1000)
  monkeypatch.setattr(spills, "_BLOCK_BYTES", 300)
  rng = np.random.default_rng(1)
  all_spills: list[Spill] = []
  instances: KeyedFeatures = []
  for number, batch_size in enumerate(batch_sizes):
    path = str(directory / f"unit-{number:08d}-{0:015d}.spill")
    with SpillWriter(path) as writer:
      for _ in range(4 if batch_size else 0):
        keys = rng.integers(0, 2**64 - 1, batch_size, dtype=np.uint64, endpoint=True)
        if equal_keys:
          keys = keys >> np.uint64(62) << np.uint64(62)  # keeps the two highest bits
        words, num_words, features = make_instances(rng, batch_size)
        writer.add(keys, words, num_words)
        instances += zip(keys.tolist(), features, strict=True)
      writer.close({"counts": {"documents": number}, "labels": [number, 2]}, [{"unit": number}])
    spill = Spill.load(path)
    assert spill is not None
    all_spills.append(spill)
  return all_spills, sorted(instances, key=lambda instance: instance[0])


def write_shards(
  directory: Path, all_spills: list[Spill], num_shards: int, *, compress: bool = False
) -> list[list[dict[str, list[float]]]]:
  """Writes shards with write_shard, and returns the examples of each shard."""
  plan = shards.ShardPlan(all_spills, num_shards)
  examples_of_shards = []
  for index in range(num_shards):
    path = str(directory / f"shard-{index}")
    info = shards.write_shard(
      plan.make_task(index, path, SEQ_LENGTH, NUM_PREDICTIONS, WORD_DTYPE.str, compress=compress)
    )
    examples = [records.decode_example(record) for record in records.read_records(path)]
    assert info.examples == len(examples)
    examples_of_shards.append([{name: array.tolist() for name, array in example.items()} for example in examples])
  return examples_of_shards


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("equal_keys", [False, True])
def test_shards_hold_everything_in_the_order_of_the_keys(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool, equal_keys: bool
) -> None:
  all_spills, instances = write_spills(tmp_path, monkeypatch, [30, 0, 17], equal_keys=equal_keys)
  assert [len(spill.runs) for spill in all_spills] == [4, 0, 2]
  monkeypatch.setattr(merge, "KEY_RANGE_BYTES", 700)
  monkeypatch.setattr(packing, "_BATCH_SIZE", 5)
  examples_of_shards = write_shards(tmp_path, all_spills, 3, compress=compress)
  assert list(itertools.chain.from_iterable(examples_of_shards)) == [features for _, features in instances]
  assert [len(examples) for examples in examples_of_shards] == [62, 63, 63]  # 4 * (30 + 17) = 188 instances


def test_fewer_examples_than_shards_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  all_spills, _ = write_spills(tmp_path, monkeypatch, [2])
  assert shards.ShardPlan(all_spills, 8).num_examples == 8
  with pytest.raises(UserError, match="--num_shards=9: the text gives only 8 examples"):
    shards.ShardPlan(all_spills, 9)


def test_only_complete_spills_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (spill,), _ = write_spills(tmp_path, monkeypatch, [5])
  assert (spill.summary, spill.records()) == ({"counts": {"documents": 0}, "labels": [0, 2]}, [{"unit": 0}])
  path = Path(spill.path)
  complete = path.read_bytes()
  with_flipped_bit = bytearray(complete)
  with_flipped_bit[-30] ^= 1
  for damaged in (complete[:-1], complete[: len(complete) // 2], b"", bytes(with_flipped_bit)):
    path.write_bytes(damaged)
    assert Spill.load(spill.path) is None
  assert Spill.load(str(tmp_path / "absent")) is None


def test_a_damaged_block_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (spill,), _ = write_spills(tmp_path, monkeypatch, [30])
  path = Path(spill.path)
  complete = path.read_bytes()
  # In the header and the keys of the first block, in the last block of the first run, and in the second run.
  for offset in (0, 4, 20, spill.runs[0].end - 1, spill.runs[1].begin + 8):
    path.write_bytes(complete[:offset] + bytes([complete[offset] ^ 1]) + complete[offset + 1 :])
    assert Spill.load(spill.path) is not None  # which reads only the end of the file
    with pytest.raises(RunError, match=rf"{path} is damaged at byte \d+: remove this file"):
      write_shards(tmp_path, [spill], 2)


def test_a_spill_file_appears_when_it_is_closed_and_not_after_an_error(tmp_path: Path) -> None:
  words, num_words, _ = make_instances(np.random.default_rng(0), 5)
  path = tmp_path / "unit.spill"
  with SpillWriter(str(path)) as writer:
    writer.add(np.arange(5, dtype=np.uint64), words, num_words)
    assert not path.exists()
    writer.close({})
  assert [path.name for path in tmp_path.iterdir()] == ["unit.spill"]
  path.unlink()

  def instances_then_error() -> Iterator[spills.PackedInstances]:
    starts = np.cumsum(num_words) - num_words
    yield spills.PackedInstances(np.arange(5, dtype=np.uint64), num_words, starts, words)
    raise _StopError

  with pytest.raises(_StopError), SpillWriter(str(path)) as writer:
    writer.write_run(instances_then_error())
  assert not list(tmp_path.iterdir())


# ---- merge passes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("num_runs", "limit", "expected"),
  [
    (80_000, 384, 283),
    (400, 384, 20),
    (384, 384, 384),
    (385, 384, 20),
    (384**2, 384, 384),
    (10**7, 384, 216),
    (9, 2, 2),
  ],
)
def test_fan_in_is_the_smallest_with_the_fewest_passes(num_runs: int, limit: int, expected: int) -> None:
  """The fan-in is the number of runs that are merged into one. With fan-in f, p passes merge at most f**p runs."""
  assert merge_passes.compute_fan_in(num_runs, limit) == expected
  fewest_passes = next(passes for passes in itertools.count(1) if limit**passes >= num_runs)
  assert (expected - 1) ** fewest_passes < num_runs <= expected**fewest_passes


@pytest.fixture
def workers() -> Iterator[Workers]:
  with Workers(1) as started:
    yield started


class _StopError(Exception):
  """Stops a writer or a merge, as if its process had ended."""


@pytest.mark.parametrize("equal_keys", [False, True])
@pytest.mark.parametrize("stop_after", [None, 0, 1, 4])
def test_merge_passes_keep_all_instances_and_resume_after_a_stop(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Workers, equal_keys: bool, stop_after: int | None
) -> None:
  batch_sizes = [3, 0, 9, 1, 4, 2, 2, 5, 1, 6, 3]
  num_files = len(batch_sizes)
  all_spills, instances = write_spills(tmp_path, monkeypatch, batch_sizes, equal_keys=equal_keys)
  monkeypatch.setattr(merge, "KEY_RANGE_BYTES", 700)
  if stop_after is not None:
    merge_spills, calls = merge_passes.merge_spills, itertools.count()

    def merge_or_stop(task: merge_passes.MergeTask) -> Spill:
      if next(calls) == stop_after:
        raise _StopError
      return merge_spills(task)

    with monkeypatch.context() as patch:
      patch.setattr(merge_passes, "merge_spills", merge_or_stop)
      with pytest.raises(_StopError):
        merge_passes.merge_until(all_spills, str(tmp_path), WORD_DTYPE.str, workers, num_units=num_files, max_runs=2)
    loaded = [Spill.load(str(path)) for path in tmp_path.glob("*.spill")]
    complete = [spill for spill in loaded if spill is not None]  # None: the file is incomplete
    all_spills = sorted(complete, key=lambda spill: spill.records()[0]["unit"])
  merged = merge_passes.merge_until(all_spills, str(tmp_path), WORD_DTYPE.str, workers, num_units=num_files, max_runs=2)
  assert sorted(path.name for path in tmp_path.iterdir()) == sorted(Path(spill.path).name for spill in merged)
  assert sum(len(spill.runs) for spill in merged) <= 2
  assert [record["unit"] for spill in merged for record in spill.records()] == list(range(num_files))
  # Sums over 11 files of {"documents": number} and [number, 2], see write_spills.
  assert merge_passes.add_summaries(merged) == {"counts": {"documents": 55}, "labels": [55, 22]}
  examples_of_shards = write_shards(tmp_path, merged, 5)
  assert list(itertools.chain.from_iterable(examples_of_shards)) == [features for _, features in instances]


class SpillFileCounter:
  """Counts how often spill files are opened and read. Its `open_file` replaces that of albert.io.files."""

  def __init__(self) -> None:
    self.num_opens = self.num_reads = 0
    self.open_uncounted = files.open_file

  def open_file(self, path: str, mode: str = "rb") -> BinaryIO | CountedFile:
    if "r" not in mode or not path.endswith(".spill"):
      return self.open_uncounted(path, mode)
    self.num_opens += 1
    return CountedFile(self.open_uncounted(path, mode), self)


class CountedFile:
  """A spill file whose reads are counted."""

  def __init__(self, file: BinaryIO, counter: SpillFileCounter):
    self._file, self._counter = file, counter
    self.seek, self.close = file.seek, file.close

  def read(self, size: int = -1) -> bytes:
    self._counter.num_reads += 1
    return self._file.read(size)

  def __enter__(self) -> CountedFile:
    return self

  def __exit__(self, *arguments: object) -> None:
    self._file.close()


@pytest.mark.thorough
def test_opens_and_reads_grow_no_faster_than_n_log_n(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
  """Four times as many files need at most 4 * 1.5 times as many opens and reads: log(64) / log(16) = 1.5."""
  counter = SpillFileCounter()
  monkeypatch.setattr(files, "open_file", counter.open_file)
  totals = []  # (opens, reads) for 16, 64 and 256 files
  for num_spills in (16, 64, 256):
    directory = tmp_path / str(num_spills)
    directory.mkdir()
    all_spills, instances = write_spills(directory, monkeypatch, [2] * num_spills)
    monkeypatch.setattr(merge, "KEY_RANGE_BYTES", 500)
    counter.num_opens = counter.num_reads = 0
    merged = merge_passes.merge_until(
      all_spills, str(directory), WORD_DTYPE.str, workers, num_units=num_spills, max_runs=4
    )
    examples_of_shards = write_shards(directory, merged, 3)
    assert sum(map(len, examples_of_shards)) == len(instances)
    totals.append((counter.num_opens, counter.num_reads))
  for (opens_before, reads_before), (opens_after, reads_after) in itertools.pairwise(totals):
    assert opens_after <= 4 * 1.5 * opens_before
    assert reads_after <= 4 * 1.5 * reads_before
