"""Packing, spill files, merges and shards: the shards hold every instance once, in the order of the keys."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from albert.data.masking import MaskedTokens
from albert.data.span_selection import MaskedSpans
from albert.errors import RunError, UserError
from albert.io import files, records
from albert.io.workers import Workers
from data_prep import packing
from data_prep.sorting import merge, merge_passes, shards, spills
from data_prep.sorting.spills import Spill, SpillWriter
from data_prep.token_sequences import InstanceTokens

WORDS = np.dtype("<u2")
S, P = 12, 4


def make_instances(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, list[int]]]]:
  """Returns packed random instances, and the features that unpacking each one should give."""
  lengths = rng.integers(3, S + 1, count)
  row_splits = np.concatenate([[0], np.cumsum(lengths)])
  ids = rng.integers(1, 30_000, row_splits[-1])
  b_starts = rng.integers(2, lengths + 1)
  labels = rng.integers(0, 2, count)
  positions = [np.sort(rng.choice(length, rng.integers(0, min(P, length) + 1), replace=False)) for length in lengths]
  hidden = [rng.integers(1, 30_000, row_positions.size) for row_positions in positions]
  expected = []
  for row, length in enumerate(lengths.tolist()):
    pad, free = [0] * (S - length), [0] * (P - positions[row].size)
    expected.append(
      {
        "input_ids": ids[row_splits[row] : row_splits[row + 1]].tolist() + pad,
        "input_mask": [1] * length + pad,
        "segment_ids": [int(column >= b_starts[row]) for column in range(length)] + pad,
        "masked_lm_positions": positions[row].tolist() + free,
        "masked_lm_ids": hidden[row].tolist() + free,
        "masked_lm_weights": [1.0] * positions[row].size + free,
        "next_sentence_labels": [int(labels[row])],
      }
    )
  tokens = InstanceTokens(ids, np.ones(ids.size, bool), np.ones(ids.size, bool), row_splits, b_starts)
  flat_positions = np.concatenate([row + start for row, start in zip(positions, row_splits[:-1], strict=True)])
  masked = MaskedTokens(ids, flat_positions, np.concatenate(hidden), MaskedSpans(*[np.zeros(0, int)] * 5))
  words, sizes = packing.pack(tokens, masked, labels, WORDS)
  return words, sizes, expected


def as_lists(features: dict[str, np.ndarray], row: int) -> dict[str, list[int]]:
  return {name: values[row].tolist() for name, values in features.items()}


def test_pack_and_unpack_give_the_features() -> None:
  words, sizes, expected = make_instances(np.random.default_rng(0), 50)
  features = packing.unpack(words, np.cumsum(sizes) - sizes, S, P)
  assert [as_lists(features, row) for row in range(50)] == expected


def test_word_dtype() -> None:
  assert packing.word_dtype(1 << 16) == np.dtype("<u2")
  assert packing.word_dtype((1 << 16) + 1) == np.dtype("<u4")


# (key, features) of instances.
KeyedFeatures = list[tuple[int, dict[str, list[int]]]]


def spill_randomly(
  directory: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int], *, equal_keys: bool = False
) -> tuple[list[Spill], KeyedFeatures]:
  """Writes spill files of several small runs. Returns them, and all their instances in the order of the keys."""
  monkeypatch.setattr(spills, "_RUN_BYTES", 1000)
  monkeypatch.setattr(spills, "_BLOCK_BYTES", 300)
  rng = np.random.default_rng(1)
  all_spills: list[Spill] = []
  instances: KeyedFeatures = []
  for number, count in enumerate(counts):
    path = str(directory / f"unit-{number:08d}-{0:015d}.spill")
    with SpillWriter(path) as writer:
      for _ in range(4 if count else 0):
        keys = rng.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)
        if equal_keys:
          keys = keys >> np.uint64(62) << np.uint64(62)
        words, sizes, expected = make_instances(rng, count)
        writer.add(keys, words, sizes)
        instances += zip(keys.tolist(), expected, strict=True)
      writer.close({"counts": {"documents": number}, "labels": [number, 2]}, [{"unit": number}])
    spill = Spill.load(path)
    assert spill is not None
    all_spills.append(spill)
  return all_spills, sorted(instances, key=lambda item: item[0])


def write_shards(
  directory: Path, all_spills: list[Spill], num_shards: int, *, compress: bool = False
) -> list[list[dict[str, list[float]]]]:
  """Writes shards with write_shard, and returns the examples of each."""
  plan = shards.ShardPlan(all_spills, num_shards)
  examples_of_shards = []
  for index in range(num_shards):
    path = str(directory / f"shard-{index}")
    info = shards.write_shard(plan.make_task(index, path, S, P, WORDS.str, compress=compress))
    examples = [records.decode_example(record) for record in records.read_records(path)]
    assert info.examples == len(examples)
    examples_of_shards.append([{name: values.tolist() for name, values in example.items()} for example in examples])
  return examples_of_shards


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("equal_keys", [False, True])
def test_shards_hold_everything_in_the_order_of_the_keys(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool, equal_keys: bool
) -> None:
  all_spills, instances = spill_randomly(tmp_path, monkeypatch, [30, 0, 17], equal_keys=equal_keys)
  assert [len(spill.runs) for spill in all_spills] == [4, 0, 2]
  monkeypatch.setattr(merge, "KEY_RANGE_BYTES", 700)
  monkeypatch.setattr(packing, "_BATCH_SIZE", 5)
  parts = write_shards(tmp_path, all_spills, 3, compress=compress)
  assert list(itertools.chain.from_iterable(parts)) == [features for _, features in instances]
  assert [len(part) for part in parts] == [62, 63, 63]


def test_fewer_examples_than_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  all_spills, _ = spill_randomly(tmp_path, monkeypatch, [2])
  assert shards.ShardPlan(all_spills, 8).num_examples == 8
  with pytest.raises(UserError, match="--num_shards=9: the text gives only 8 examples"):
    shards.ShardPlan(all_spills, 9)


def test_only_whole_spills_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (spill,), _ = spill_randomly(tmp_path, monkeypatch, [5])
  assert (spill.summary, spill.records()) == ({"counts": {"documents": 0}, "labels": [0, 2]}, [{"unit": 0}])
  path = Path(spill.path)
  data = path.read_bytes()
  flipped = bytearray(data)
  flipped[-30] ^= 1
  for damaged in (data[:-1], data[: len(data) // 2], b"", bytes(flipped)):
    path.write_bytes(damaged)
    assert Spill.load(spill.path) is None
  assert Spill.load(str(tmp_path / "absent")) is None


def test_a_damaged_block_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (spill,), _ = spill_randomly(tmp_path, monkeypatch, [30])
  path = Path(spill.path)
  data = path.read_bytes()
  for offset in (0, 4, 20, spill.runs[0].end - 1, spill.runs[1].begin + 8):
    path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
    assert Spill.load(spill.path) is not None
    with pytest.raises(RunError, match=rf"{path} is damaged at byte \d+: remove this file"):
      write_shards(tmp_path, [spill], 2)


def test_a_spill_file_appears_when_it_is_closed_and_not_after_an_error(tmp_path: Path) -> None:
  words, sizes, _ = make_instances(np.random.default_rng(0), 5)
  path = tmp_path / "unit.spill"
  with SpillWriter(str(path)) as writer:
    writer.add(np.arange(5, dtype=np.uint64), words, sizes)
    assert not path.exists()
    writer.close({})
  assert [path.name for path in tmp_path.iterdir()] == ["unit.spill"]
  path.unlink()

  def parts() -> Iterator[spills.PackedInstances]:
    yield spills.PackedInstances(np.arange(5, dtype=np.uint64), sizes, np.cumsum(sizes) - sizes, words)
    raise _StopError

  with pytest.raises(_StopError), SpillWriter(str(path)) as writer:
    writer.write_run(parts())
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
def test_fan_in_takes_the_fewest_passes(num_runs: int, limit: int, expected: int) -> None:
  assert merge_passes.compute_fan_in(num_runs, limit) == expected
  passes = next(p for p in itertools.count(1) if limit**p >= num_runs)
  assert (expected - 1) ** passes < num_runs <= expected**passes


@pytest.fixture
def workers() -> Iterator[Workers]:
  with Workers(1, lambda: None) as started:
    yield started


class _StopError(Exception):
  pass


@pytest.mark.parametrize("equal_keys", [False, True])
@pytest.mark.parametrize("stop_after", [None, 0, 1, 4])
def test_merge_passes_keep_all_instances_and_resume_after_a_stop(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Workers, equal_keys: bool, stop_after: int | None
) -> None:
  counts = [3, 0, 9, 1, 4, 2, 2, 5, 1, 6, 3]
  all_spills, instances = spill_randomly(tmp_path, monkeypatch, counts, equal_keys=equal_keys)
  monkeypatch.setattr(merge, "KEY_RANGE_BYTES", 700)
  if stop_after is not None:
    merge_spills, calls = merge_passes.merge_spills, itertools.count()

    def stopping(task: merge_passes.MergeTask) -> Spill:
      if next(calls) == stop_after:
        raise _StopError
      return merge_spills(task)

    with monkeypatch.context() as patch:
      patch.setattr(merge_passes, "merge_spills", stopping)
      with pytest.raises(_StopError):
        merge_passes.merge_until(all_spills, str(tmp_path), WORDS.str, workers, num_units=len(counts), max_runs=2)
    left = [Spill.load(str(path)) for path in tmp_path.glob("*.spill")]
    all_spills = sorted((spill for spill in left if spill is not None), key=lambda spill: spill.records()[0]["unit"])
  merged = merge_passes.merge_until(all_spills, str(tmp_path), WORDS.str, workers, num_units=len(counts), max_runs=2)
  assert sorted(path.name for path in tmp_path.iterdir()) == sorted(Path(spill.path).name for spill in merged)
  assert sum(len(spill.runs) for spill in merged) <= 2
  assert [record["unit"] for spill in merged for record in spill.records()] == list(range(len(counts)))
  assert merge_passes.add_summaries(merged) == {"counts": {"documents": 55}, "labels": [55, 22]}
  parts = write_shards(tmp_path, merged, 5)
  assert list(itertools.chain.from_iterable(parts)) == [features for _, features in instances]


@pytest.mark.thorough
def test_opens_and_reads_grow_no_faster_than_n_log_n(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: Workers
) -> None:
  """Four times as many files and key ranges need four times as many opens and reads, times one more merge pass."""
  opens = reads = 0
  open_file = files.open_file

  def counting(path: str, mode: str = "rb") -> object:
    nonlocal opens, reads
    file = open_file(path, mode)
    if "r" not in mode or not path.endswith(".spill"):
      return file
    opens += 1
    read = file.read

    def counted(size: int = -1) -> bytes:
      nonlocal reads
      reads += 1
      return read(size)

    class Counted:
      __enter__ = lambda self: self  # noqa: E731
      __exit__ = lambda self, *arguments: file.close()  # noqa: E731
      seek, close = file.seek, file.close
      read = staticmethod(counted)

    return Counted()

  monkeypatch.setattr(files, "open_file", counting)
  totals = []
  for num_spills in (16, 64, 256):
    directory = tmp_path / str(num_spills)
    directory.mkdir()
    all_spills, instances = spill_randomly(directory, monkeypatch, [2] * num_spills)
    monkeypatch.setattr(merge, "KEY_RANGE_BYTES", 500)
    opens = reads = 0
    merged = merge_passes.merge_until(all_spills, str(directory), WORDS.str, workers, num_units=num_spills, max_runs=4)
    parts = write_shards(directory, merged, 3)
    assert sum(map(len, parts)) == len(instances)
    totals.append((opens, reads))
  for (opens_before, reads_before), (opens_after, reads_after) in itertools.pairwise(totals):
    # log(64) / log(16) = 1.5
    assert opens_after <= 4 * 1.5 * opens_before
    assert reads_after <= 4 * 1.5 * reads_before
