"""Tokenized examples: padding compared with a plain loop, records, the plan of batches, and the cache of features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.data.batches import BatchPlan, ExampleDataset
from albert.data.dataset import InputContext
from albert.data.examples import TokenizedExamples, concatenate
from albert.data.feature_cache import make_examples
from albert.io import local_files, records

ALONE = InputContext(host_index=0, num_hosts=1, num_replicas=1)


def sequence(rng: np.random.Generator, length: int) -> list[int]:
  """Returns the ids of `[CLS] a [SEP] b [SEP]`, `length` >= 5 tokens."""
  first = int(rng.integers(1, length - 3))
  body = rng.integers(5, 100, length - 3).tolist()
  return [2, *body[:first], 3, *body[first:], 3]


def make(num_examples: int, max_sequences: int = 1, seed: int = 0) -> tuple[TokenizedExamples, list[list[list[int]]]]:
  """Makes random examples; returns them also as lists, [examples][sequences][tokens]."""
  rng = np.random.default_rng(seed)
  nested = [
    [sequence(rng, int(rng.integers(5, 40))) for _ in range(rng.integers(1, max_sequences + 1))]
    for _ in range(num_examples)
  ]
  flat = [tokens for example in nested for tokens in example]
  ids = np.array([token for tokens in flat for token in tokens], np.int32)
  examples = TokenizedExamples(
    ids,
    np.array([len(tokens) for tokens in flat], np.int32),
    np.array([len(example) for example in nested], np.int32),
    {"label_ids": np.arange(num_examples, dtype=np.int32), "score": np.linspace(0, 1, num_examples, dtype=np.float32)},
    {"place": 7 * ids},
  )
  return examples, nested


def test_padded_batches_equal_a_plain_loop() -> None:
  examples, nested = make(9, max_sequences=4)
  indices = np.array([7, 0, 3, 3])
  batch = examples.padded_batch(indices, length=41, num_sequences=5, token_features=["place"])
  for row, index in enumerate(indices):
    for column in range(5):
      tokens = nested[index][column] if column < len(nested[index]) else []
      padding = [0] * (41 - len(tokens))
      first_separator = tokens.index(3) if tokens else 0
      assert batch["input_ids"][row, column].tolist() == tokens + padding
      assert batch["input_mask"][row, column].tolist() == [1] * len(tokens) + padding
      assert (
        batch["segment_ids"][row, column].tolist() == [int(i > first_separator) for i in range(len(tokens))] + padding
      )
      assert batch["place"][row, column].tolist() == [7 * token for token in tokens] + padding
      assert batch["option_mask"][row, column] == float(bool(tokens))
  assert batch["label_ids"].tolist() == batch["example_index"].tolist() == indices.tolist()


def test_examples_are_the_same_after_writing_and_reading_records(tmp_path: Path) -> None:
  examples, _ = make(1300, max_sequences=3)
  path = str(tmp_path / "a.tfrecord")
  with records.RecordWriter(path) as writer:
    for record in examples.to_records():
      writer.write(record)
  read_examples = concatenate([TokenizedExamples.from_record(record) for record in records.read_records(path)])
  for name in ("input_ids", "sequence_lengths", "sequence_counts"):
    np.testing.assert_array_equal(getattr(read_examples, name), getattr(examples, name))
  assert read_examples.labels.keys() == examples.labels.keys()
  np.testing.assert_array_equal(read_examples.labels["score"], examples.labels["score"])
  np.testing.assert_array_equal(read_examples.token_features["place"], examples.token_features["place"])


@pytest.mark.parametrize(
  ("lengths", "counts", "labels"),
  [([3, 3], [1, 1], {}), ([3, 2], [1, 2], {}), ([5, 0], [1, 1], {}), ([5], [1], {"a": np.zeros(2)})],
)
def test_arrays_whose_lengths_do_not_agree_are_an_error(
  lengths: list[int], counts: list[int], labels: dict[str, np.ndarray]
) -> None:
  with pytest.raises(ValueError):
    TokenizedExamples(np.zeros(5, np.int32), np.array(lengths), np.array(counts), labels)


@pytest.mark.parametrize(("num_examples", "batch_size"), [(1000, 8), (37, 8), (5, 8)])
def test_every_epoch_has_each_example_once_within_a_window(num_examples: int, batch_size: int) -> None:
  lengths = np.random.default_rng(0).integers(5, 500, num_examples)
  plan = BatchPlan(lengths, batch_size, seed=3)
  window_batches = max(1, min(64, num_examples // batch_size))
  steps = window_batches * num_examples  # a whole number of windows and of epochs
  counts = Counter(np.concatenate([plan.batch(step) for step in range(steps)]).tolist())
  assert set(counts.values()) == {steps * batch_size // num_examples}
  assert len(counts) == num_examples


def test_the_plan_is_a_function_of_seed_and_step() -> None:
  lengths = np.random.default_rng(0).integers(5, 500, 300)
  plan = BatchPlan(lengths, 8, seed=3)
  forward = [plan.batch(step).tolist() for step in range(200)]
  assert [BatchPlan(lengths, 8, seed=3).batch(step).tolist() for step in (150, 3, 77)] == [
    forward[step] for step in (150, 3, 77)
  ]
  assert BatchPlan(lengths, 8, seed=4).batch(0).tolist() != forward[0]


def test_batches_have_little_padding_and_are_not_ordered_by_length() -> None:
  lengths = np.random.default_rng(0).integers(5, 500, 5000)
  plan = BatchPlan(lengths, 32, seed=3)
  batches = [lengths[plan.batch(step)] for step in range(plan._window_batches)]
  padded = sum(batch.max() * len(batch) for batch in batches)
  assert sum(batch.sum() for batch in batches) / padded > 0.95
  longest = [int(batch.max()) for batch in batches]
  assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def read(data: ExampleDataset, num_batches: int, **arguments: object) -> list[dict[str, np.ndarray]]:
  values = {"batch_size": 8, "first_step": 0, "seed": 1, "context": ALONE} | arguments
  return list(data.training_batches(**values).take(num_batches).as_numpy_iterator())  # type: ignore[arg-type]


def test_a_resumed_stream_continues_with_the_next_batch() -> None:
  data = ExampleDataset(make(50)[0], "test")
  uninterrupted, resumed = read(data, 12), read(data, 4, first_step=8)
  for expected, batch in zip(uninterrupted[8:], resumed, strict=True):
    assert batch.keys() == expected.keys()
    for name in expected:
      np.testing.assert_array_equal(batch[name], expected[name])


def test_the_shares_of_all_replicas_together_are_the_global_batch() -> None:
  data = ExampleDataset(make(50)[0], "test")
  global_batches = read(data, 3)
  hosts = [read(data, 6, context=InputContext(host_index=host, num_hosts=2, num_replicas=4)) for host in range(2)]
  for step, global_batch in enumerate(global_batches):
    shares = [hosts[host][2 * step + replica] for host in range(2) for replica in range(2)]
    for name, values in global_batch.items():
      np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), values)


@pytest.mark.parametrize("multiple_choice", [False, True])
@pytest.mark.parametrize("length", [None, 64])
def test_evaluation_reads_each_example_once(multiple_choice: bool, length: int | None) -> None:
  examples, _ = make(21, max_sequences=3 if multiple_choice else 1)
  data = ExampleDataset(examples, "test", multiple_choice=multiple_choice, length=length, token_features=["place"])
  dataset = data.evaluation_batches(batch_size=8)
  evaluated: list[int] = []
  for batch in dataset.as_numpy_iterator():
    evaluated += batch["example_index"][batch["example_weight"] > 0].tolist()
    assert batch["input_ids"].shape[-1] == (length or batch["input_ids"].shape[-1]) <= (length or 40)
    assert batch["input_ids"].ndim == (3 if multiple_choice else 2)
  assert sorted(evaluated) == list(range(21))
  assert dataset.element_spec["input_ids"].shape[-1] == length
  assert dataset.element_spec["label_ids"] == tf.TensorSpec([8], tf.int32)


def featurize(raw: Sequence[int]) -> TokenizedExamples:
  """Makes examples of one token each."""
  ones = np.ones(len(raw), np.int32)
  return TokenizedExamples(np.array(raw, np.int32), ones, ones)


def fail(raw: Sequence[int]) -> TokenizedExamples:
  raise AssertionError(f"{len(raw)} examples made again")


def test_examples_are_made_once_with_one_and_several_processes(tmp_path: Path) -> None:
  raw = list(range(10_000))

  def make_or_read(function: object, key: int, num_processes: int) -> list[int]:
    examples = make_examples(
      raw,
      function,
      name="n",
      key={"data": key},
      cache_dir=str(tmp_path),
      num_processes=num_processes,  # type: ignore[arg-type]
    )
    return examples.input_ids.tolist()

  assert make_or_read(featurize, 1, 2) == raw
  assert make_or_read(fail, 1, 2) == raw
  assert make_or_read(featurize, 2, 1) == raw
  with pytest.raises(AssertionError, match="made again"):
    make_or_read(fail, 3, 1)
  min(tmp_path.iterdir()).write_bytes(b"damaged")
  assert make_or_read(featurize, 1, 1) == raw
  assert make_or_read(featurize, 2, 1) == raw


def warnings(capsys: pytest.CaptureFixture[str]) -> list[str]:
  """Returns the lines on stderr except that of the progress."""
  return [line for line in capsys.readouterr().err.splitlines() if not line.startswith("features of n: 100%")]


def encoded_records(path: Path) -> list[bytes]:
  """Returns the encoded records of a file, with lengths and checksums."""
  data, pieces = path.read_bytes(), []
  while data:
    length = 16 + int.from_bytes(data[:8], "little")
    pieces.append(data[:length])
    data = data[length:]
  return pieces


DAMAGES = {
  "no bytes": lambda pieces: [],
  "cut between records": lambda pieces: pieces[:1],
  "end missing": lambda pieces: pieces[:-1],
  "first record missing": lambda pieces: pieces[1:],
  "a record twice": lambda pieces: [pieces[0], *pieces],
  "a record twice at the end": lambda pieces: [*pieces, pieces[-1]],
  "other order": lambda pieces: [pieces[1], pieces[0], *pieces[2:]],
  "half a record": lambda pieces: [*pieces[:1], pieces[1][:50]],
  "another file's bytes": lambda pieces: [b"damaged"],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again_with_one_warning(
  tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
  raw = list(range(1500))

  def examples(function: Callable[[Sequence[int]], TokenizedExamples]) -> list[int]:
    return make_examples(raw, function, name="n", key={}, cache_dir=str(tmp_path), num_processes=1).input_ids.tolist()

  assert examples(featurize) == raw
  (path,) = tmp_path.iterdir()
  undamaged = path.read_bytes()
  pieces = encoded_records(path)
  assert len(pieces) >= 3
  path.write_bytes(b"".join(DAMAGES[damage](pieces)))
  capsys.readouterr()
  assert examples(featurize) == raw
  (line,) = warnings(capsys)
  assert line.startswith(f"warning: {path}: the cached features cannot be used (")
  assert path.read_bytes() == undamaged
  assert examples(fail) == raw


def test_features_that_cannot_be_cached_are_a_warning(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  raw = list(range(1500))
  (tmp_path / "file").write_text("no directory")

  def full_disk(file: object) -> None:
    raise OSError(28, "No space left on device")

  for cache_dir, reason in ((tmp_path / "file", "File exists"), (tmp_path / "full", "No space left on device")):
    if cache_dir.name == "full":
      monkeypatch.setattr(local_files, "sync", full_disk)
    examples = make_examples(raw, featurize, name="n", key={}, cache_dir=str(cache_dir), num_processes=1)
    assert examples.input_ids.tolist() == raw
    (line,) = warnings(capsys)
    assert "the features cannot be cached" in line
    assert reason in line
  assert not list((tmp_path / "full").iterdir())
