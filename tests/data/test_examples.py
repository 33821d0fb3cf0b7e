"""Tokenized examples: their padding, the batches of an epoch, and the cache of features."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.data.batches import BatchPlan, ExampleDataset
from albert.data.dataset import Dataset, InputContext
from albert.data.examples import TokenizedExamples, make_examples
from albert.io import local_files
from albert.tokenization.vocabulary import CLS_ID, SEP_ID

ONE_HOST = InputContext(host_index=0, num_hosts=1, num_replicas=1)


def random_pair(rng: np.random.Generator, length: int) -> list[int]:
  """Returns the ids of `[CLS] a [SEP] b [SEP]`, which are `length` >= 5 tokens."""
  size_of_a = int(rng.integers(1, length - 3))
  ids = rng.integers(5, 100, length - 3).tolist()  # without the 5 special tokens
  return [CLS_ID, *ids[:size_of_a], SEP_ID, *ids[size_of_a:], SEP_ID]


def random_sequences(num_examples: int, max_sequences: int = 1) -> list[list[list[int]]]:
  """Returns the token ids of random examples, [examples][sequences][tokens]. The same arguments give the same ids."""
  rng = np.random.default_rng(0)
  return [
    [random_pair(rng, int(rng.integers(5, 40))) for _ in range(rng.integers(1, max_sequences + 1))]
    for _ in range(num_examples)
  ]


def make_tokenized_examples(num_examples: int, max_sequences: int = 1) -> TokenizedExamples:
  """Makes the examples of random_sequences, with labels and a feature "offset" of each token, which is 7 * its id."""
  sequences_of_examples = random_sequences(num_examples, max_sequences)
  sequences = [sequence for example in sequences_of_examples for sequence in example]
  ids = np.concatenate(sequences).astype(np.int32)
  return TokenizedExamples(
    ids,
    np.array([len(sequence) for sequence in sequences], np.int32),
    np.array([len(example) for example in sequences_of_examples], np.int32),
    {"label_ids": np.arange(num_examples, dtype=np.int32), "score": np.linspace(0, 1, num_examples, dtype=np.float32)},
    {"offset": 7 * ids},
  )


def test_padded_batches_equal_those_of_a_plain_loop() -> None:
  examples, sequences = make_tokenized_examples(9, max_sequences=4), random_sequences(9, max_sequences=4)
  indices = np.array([7, 0, 3, 3])
  batch = examples.padded_batch(indices, length=41, num_sequences=5, token_features=["offset"])
  for row, index in enumerate(indices):
    for column in range(5):
      tokens = sequences[index][column] if column < len(sequences[index]) else []
      padding = [0] * (41 - len(tokens))
      first_separator = tokens.index(SEP_ID) if tokens else 0
      segment_ids = [0 if position <= first_separator else 1 for position in range(len(tokens))]
      assert batch["input_ids"][row, column].tolist() == tokens + padding
      assert batch["input_mask"][row, column].tolist() == [1] * len(tokens) + padding
      assert batch["segment_ids"][row, column].tolist() == segment_ids + padding
      assert batch["offset"][row, column].tolist() == [7 * token for token in tokens] + padding
      assert batch["option_mask"][row, column] == (1.0 if tokens else 0.0)
  assert batch["label_ids"].tolist() == batch["example_index"].tolist() == indices.tolist()


def test_cached_examples_are_those_that_were_made(tmp_path: Path) -> None:
  examples = make_tokenized_examples(100, max_sequences=3)
  for function in (lambda raw: examples, fail_to_featurize):
    made = make_examples([0], function, name="n", key={}, cache_dir=str(tmp_path))
    np.testing.assert_equal(dataclasses.asdict(made), dataclasses.asdict(examples))
    assert made.labels["score"].dtype == np.float32


@pytest.mark.parametrize(
  ("lengths", "counts", "labels"),
  # Lengths of 6 tokens, where there are 5; 3 sequences, where there are 2; an empty sequence; 2 labels of 1 example.
  [([3, 3], [1, 1], {}), ([3, 2], [1, 2], {}), ([5, 0], [1, 1], {}), ([5], [1], {"a": np.zeros(2)})],
)
def test_arrays_whose_lengths_do_not_agree_are_an_error(
  lengths: list[int], counts: list[int], labels: dict[str, np.ndarray]
) -> None:
  with pytest.raises(ValueError):
    TokenizedExamples(np.zeros(5, np.int32), np.array(lengths), np.array(counts), labels)


@pytest.mark.parametrize(("num_examples", "batch_size"), [(1000, 8), (37, 8), (5, 8)])
def test_every_example_is_seen_equally_often(num_examples: int, batch_size: int) -> None:
  lengths = np.random.default_rng(0).integers(5, 500, num_examples)
  plan = BatchPlan(lengths, batch_size, seed=3)
  window_batches = max(1, min(64, num_examples // batch_size))  # batches of a window, as in albert.data.batches
  steps = window_batches * num_examples  # a whole number of windows and of epochs
  counts = Counter(np.concatenate([plan.batch(step) for step in range(steps)]).tolist())
  assert set(counts.values()) == {steps * batch_size // num_examples}
  assert len(counts) == num_examples


def test_the_plan_is_a_function_of_seed_and_step() -> None:
  lengths = np.random.default_rng(0).integers(5, 500, 300)
  plan = BatchPlan(lengths, 8, seed=3)
  forward = [plan.batch(step).tolist() for step in range(200)]
  new_plan = BatchPlan(lengths, 8, seed=3)
  for step in (150, 3, 77):
    assert new_plan.batch(step).tolist() == forward[step]
  assert BatchPlan(lengths, 8, seed=4).batch(0).tolist() != forward[0]


def test_batches_have_little_padding_and_are_not_ordered_by_length() -> None:
  lengths = np.random.default_rng(0).integers(5, 500, 5000)
  plan = BatchPlan(lengths, 32, seed=3)
  batches = [lengths[plan.batch(step)] for step in range(plan._batches_per_window)]
  num_tokens_and_padding = sum(batch.max() * len(batch) for batch in batches)
  assert sum(batch.sum() for batch in batches) / num_tokens_and_padding > 0.95
  longest = [int(batch.max()) for batch in batches]
  assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def read_batches(dataset: ExampleDataset, num_batches: int, **changes: object) -> list[dict[str, np.ndarray]]:
  """Reads training batches. `changes` replaces some of the arguments of training_batches."""
  arguments = {"batch_size": 8, "first_step": 0, "seed": 1, "context": ONE_HOST} | changes
  return list(dataset.training_batches(**arguments).take(num_batches).as_numpy_iterator())  # type: ignore[arg-type]


def test_a_resumed_stream_continues_with_the_next_batch() -> None:
  dataset = ExampleDataset(make_tokenized_examples(50), "test")
  uninterrupted, resumed = read_batches(dataset, 12), read_batches(dataset, 4, first_step=8)
  for expected, batch in zip(uninterrupted[8:], resumed, strict=True):
    assert batch.keys() == expected.keys()
    for name in expected:
      np.testing.assert_array_equal(batch[name], expected[name])


def test_few_lengths_pad_the_same_batches_to_at_most_four_lengths() -> None:
  dataset = ExampleDataset(make_tokenized_examples(200), "test")  # sequences of up to 39 tokens
  batches, padded_batches = read_batches(dataset, 40), read_batches(dataset.with_few_lengths(), 40)
  assert {batch["input_ids"].shape[1] for batch in batches} >= {8, 16, 24, 32}
  assert {batch["input_ids"].shape[1] for batch in padded_batches} == {16, 32, 39}
  for batch, padded_batch in zip(batches, padded_batches, strict=True):
    np.testing.assert_array_equal(padded_batch["label_ids"], batch["label_ids"])
    length = batch["input_ids"].shape[1]
    np.testing.assert_array_equal(padded_batch["input_ids"][:, :length], batch["input_ids"])
    assert not padded_batch["input_mask"][:, length:].any()


def test_the_shares_of_all_replicas_together_are_the_global_batch() -> None:
  dataset = ExampleDataset(make_tokenized_examples(50), "test")
  global_batches = read_batches(dataset, 3)
  # Each of two hosts reads a batch for each of its two replicas in every step.
  contexts = [InputContext(host_index=host, num_hosts=2, num_replicas=4) for host in range(2)]
  host_0, host_1 = (read_batches(dataset, 6, context=context) for context in contexts)
  for step, global_batch in enumerate(global_batches):
    shares = host_0[2 * step : 2 * step + 2] + host_1[2 * step : 2 * step + 2]
    for name, values in global_batch.items():
      np.testing.assert_array_equal(np.concatenate([share[name] for share in shares]), values)


@pytest.mark.parametrize("multiple_choice", [False, True])
@pytest.mark.parametrize("length", [None, 64])
def test_evaluation_reads_each_example_once(multiple_choice: bool, length: int | None) -> None:
  examples = make_tokenized_examples(21, max_sequences=3 if multiple_choice else 1)
  dataset = ExampleDataset(examples, "test", multiple_choice=multiple_choice, length=length, token_features=["offset"])
  batches = dataset.evaluation_batches(batch_size=8)
  evaluated: list[int] = []
  for batch in batches.as_numpy_iterator():
    evaluated += batch["example_index"][batch["example_weight"] > 0].tolist()
    batch_length = batch["input_ids"].shape[-1]
    assert batch_length <= 40 if length is None else batch_length == length
    assert batch["input_ids"].ndim == (3 if multiple_choice else 2)
  assert sorted(evaluated) == list(range(21))
  assert batches.element_spec["input_ids"].shape[-1] == length
  assert batches.element_spec["label_ids"] == tf.TensorSpec([8], tf.int32)
  batches = dataset.evaluation_batches(batch_size=8, pad_last=False)
  assert [len(batch["example_index"]) for batch in batches.as_numpy_iterator()] == [8, 8, 5]


def evaluated_examples(dataset: Dataset) -> list[int]:
  batches = dataset.evaluation_batches(batch_size=8).as_numpy_iterator()
  return [index for batch in batches for index in batch["example_index"][batch["example_weight"] > 0].tolist()]


def test_a_sample_to_evaluate_is_random_and_always_the_same() -> None:
  dataset = ExampleDataset(make_tokenized_examples(400), "test")
  lengths = dataset.examples.longest_sequences
  sample = dataset.sample(100)
  evaluated = evaluated_examples(sample)
  assert (len(evaluated), len(set(evaluated)), sample.num_examples) == (100, 100, 100)
  assert abs(lengths[evaluated].mean() - lengths.mean()) < 2 * lengths.std() / 10
  assert (np.diff(lengths[evaluated]) <= 0).all()
  assert evaluated_examples(dataset.sample(100)) == evaluated
  assert dataset.sample(400) is dataset


def test_windows_of_one_text_stay_together_in_a_sample() -> None:
  examples = make_tokenized_examples(60)
  groups = np.repeat(np.arange(20), [1, 2, 3, 4, 5] * 4)
  examples = dataclasses.replace(examples, labels={"text_index": groups.astype(np.int32)})
  dataset = ExampleDataset(examples, "test", group_label="text_index")
  for size in (1, 7, 30):
    evaluated = evaluated_examples(dataset.sample(size))
    assert sorted(evaluated) == [index for index in range(60) if groups[index] in groups[evaluated]]
    assert size - 5 < len(evaluated) <= max(size, 5)


def featurize(numbers: Sequence[int]) -> TokenizedExamples:
  """Makes an example of each number. Its only token is the number."""
  ones = np.ones(len(numbers), np.int32)
  return TokenizedExamples(np.array(numbers, np.int32), ones, ones)


def fail_to_featurize(numbers: Sequence[int]) -> TokenizedExamples:
  """Replaces `featurize` where the examples must come from the cache."""
  raise AssertionError(f"{len(numbers)} examples made again")


@pytest.mark.thorough
def test_examples_are_made_once_with_one_and_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  numbers = list(range(10_000))
  monkeypatch.setattr("albert.data.examples._MAX_SECONDS_OF_ONE_PROCESS", 0.0)  # starts processes for little work

  def make_or_read(function: Callable[[Sequence[int]], TokenizedExamples], key: int, num_processes: int) -> list[int]:
    examples = make_examples(
      numbers, function, name="n", key={"data": key}, cache_dir=str(tmp_path), num_processes=num_processes
    )
    return examples.input_ids.tolist()

  assert make_or_read(featurize, 1, 2) == numbers
  assert make_or_read(fail_to_featurize, 1, 2) == numbers
  assert make_or_read(featurize, 2, 1) == numbers
  with pytest.raises(AssertionError, match="made again"):
    make_or_read(fail_to_featurize, 3, 1)


# Each function returns what is left of the bytes of a file.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
  "no bytes": lambda content: b"",
  "its first half": lambda content: content[: len(content) // 2],
  "its second half": lambda content: content[len(content) // 2 :],
  "another number": lambda content: content.replace(b"\x07\0\0\0\x08", b"\x08\0\0\0\x08"),
  "a shorter header": lambda content: content.replace(b"NUMPY\x01\0v", b"NUMPY\x01\0t", 1),
  "another file's bytes": lambda content: b"damaged",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again_with_one_warning(
  tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
  numbers = list(range(1500))

  def make_or_read(function: Callable[[Sequence[int]], TokenizedExamples]) -> list[int]:
    examples = make_examples(numbers, function, name="n", key={}, cache_dir=str(tmp_path), num_processes=1)
    return examples.input_ids.tolist()

  assert make_or_read(featurize) == numbers
  (path,) = tmp_path.iterdir()
  undamaged = path.read_bytes()
  path.write_bytes(DAMAGES[damage](undamaged))
  capsys.readouterr()
  assert make_or_read(featurize) == numbers
  (warning,) = capsys.readouterr().err.splitlines()
  assert warning.startswith(f"warning: {path}: the cached features cannot be used (")
  assert path.read_bytes() == undamaged
  assert make_or_read(fail_to_featurize) == numbers


def test_features_that_cannot_be_cached_are_a_warning(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  numbers = list(range(1500))
  (tmp_path / "file").write_text("no directory")

  def full_disk(file: object) -> None:
    raise OSError(28, "No space left on device")

  for cache_dir, reason in ((tmp_path / "file", "File exists"), (tmp_path / "full", "No space left on device")):
    if cache_dir.name == "full":
      monkeypatch.setattr(local_files, "sync", full_disk)
    examples = make_examples(numbers, featurize, name="n", key={}, cache_dir=str(cache_dir), num_processes=1)
    assert examples.input_ids.tolist() == numbers
    (warning,) = capsys.readouterr().err.splitlines()
    assert "cannot cache features" in warning
    assert reason in warning
  assert not list((tmp_path / "full").iterdir())
