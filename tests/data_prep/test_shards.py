"""Packing, spills and shards: what goes in comes out, once, in the order of the keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from albert.data import records
from albert.data.masking import MaskedTokens, Spans
from albert.errors import RunError, UserError
from data_prep import shards
from data_prep.segments import Tokens

WORDS = np.dtype("<u2")
S, P = 12, 4


def make_instances(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, list[dict[str, list[int]]]]:
  """Random instances, packed, and the features each should give, made by hand."""
  lengths = rng.integers(3, S + 1, count)
  row_splits = np.concatenate([[0], np.cumsum(lengths)])
  ids = rng.integers(1, 30_000, row_splits[-1])
  b_starts = rng.integers(2, lengths + 1)
  labels = rng.integers(0, 2, count)
  positions = [np.sort(rng.choice(length, rng.integers(0, min(P, length) + 1), replace=False)) for length in lengths]
  hidden = [rng.integers(1, 30_000, places.size) for places in positions]
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
  tokens = Tokens(ids, np.ones(ids.size, bool), np.ones(ids.size, bool), row_splits, b_starts)
  flat = np.concatenate([places + start for places, start in zip(positions, row_splits[:-1], strict=True)])
  masked = MaskedTokens(ids, flat, np.concatenate(hidden), Spans(*[np.zeros(0, int)] * 5))
  words, sizes = shards.pack(tokens, masked, labels, WORDS)
  return words, sizes, expected


def as_lists(features: dict[str, np.ndarray], row: int) -> dict[str, list[int]]:
  return {name: values[row].tolist() for name, values in features.items()}


def test_pack_and_unpack_give_the_features() -> None:
  words, sizes, expected = make_instances(np.random.default_rng(0), 50)
  features = shards.unpack(words, np.cumsum(sizes) - sizes, S, P)
  assert [as_lists(features, row) for row in range(50)] == expected


def test_word_dtype() -> None:
  assert shards.word_dtype(1 << 16) == np.dtype("<u2")
  assert shards.word_dtype((1 << 16) + 1) == np.dtype("<u4")


def spill_randomly(
  directory: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> tuple[list[shards.Spill], list[tuple[int, dict[str, list[int]]]]]:
  """Spills of several small runs each, and all (key, features) in the order of the keys."""
  monkeypatch.setattr(shards, "_RUN_BYTES", 1000)
  rng = np.random.default_rng(1)
  spills, everything = [], []
  for number, count in enumerate(counts):
    writer = shards.SpillWriter(str(directory / f"unit-{number}.spill"))
    for _ in range(4 if count else 0):
      keys = rng.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)
      words, sizes, expected = make_instances(rng, count)
      writer.add(keys, words, sizes)
      everything += zip(keys.tolist(), expected, strict=True)
    writer.close({"number": number})
    spill = shards.Spill.load(writer.path)
    assert spill is not None
    spills.append(spill)
  return spills, sorted(everything, key=lambda item: item[0])


@pytest.mark.parametrize("compress", [False, True])
def test_shards_hold_everything_in_the_order_of_the_keys(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
  spills, everything = spill_randomly(tmp_path, monkeypatch, [30, 0, 17])
  assert [len(spill.runs) for spill in spills] == [4, 0, 2]
  monkeypatch.setattr(shards, "STRETCH_BYTES", 700)
  monkeypatch.setattr(shards, "_BATCH", 5)
  bounds = shards.shard_bounds(spills, 3, WORDS.str)
  found, sizes = [], []
  for number, (first, last) in enumerate(bounds):
    path = str(tmp_path / f"shard-{number}")
    task = shards.ShardTask(tuple(s.path for s in spills), first, last, path, S, P, WORDS.str, compress)
    info = shards.write_shard(task)
    examples = [records.decode_example(record) for record in records.read_records(path)]
    sizes.append(len(examples))
    assert info.examples == len(examples)
    found += [{name: values.tolist() for name, values in example.items()} for example in examples]
  assert found == [features for _, features in everything]
  assert sizes == [62, 63, 63]


def test_fewer_examples_than_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  spills, _ = spill_randomly(tmp_path, monkeypatch, [2])
  assert len(shards.shard_bounds(spills, 8, WORDS.str)) == 8
  with pytest.raises(UserError, match="--num_shards=9: the text gives 8 examples only"):
    shards.shard_bounds(spills, 9, WORDS.str)


def test_only_whole_spills_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  (spill,), _ = spill_randomly(tmp_path, monkeypatch, [5])
  assert spill.summary == {"number": 0}
  path = Path(spill.path)
  data = path.read_bytes()
  flipped = bytearray(data)
  flipped[-30] ^= 1
  for damaged in (data[:-1], data[: len(data) // 2], b"", bytes(flipped)):
    path.write_bytes(damaged)
    assert shards.Spill.load(spill.path) is None
    with pytest.raises(RunError, match="has gone or is damaged"):
      shards.load_spills([spill.path])
  assert shards.Spill.load(str(tmp_path / "absent")) is None


def test_nothing_is_there_until_a_spill_is_closed(tmp_path: Path) -> None:
  writer = shards.SpillWriter(str(tmp_path / "unit.spill"))
  words, sizes, _ = make_instances(np.random.default_rng(0), 5)
  writer.add(np.arange(5, dtype=np.uint64), words, sizes)
  assert not (tmp_path / "unit.spill").exists()
  writer.close({})
  assert [path.name for path in tmp_path.iterdir()] == ["unit.spill"]
