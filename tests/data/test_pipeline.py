"""The stream of training batches: epochs are complete, and the same seed and step give the same batch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from albert.data import pipeline
from albert.data.dataset import InputContext
from albert.data.schema import pretraining_features
from albert.data.shards import Shards, count_and_hash_shards
from albert.errors import UserError
from albert.io.records import decode_example
from tests.synthetic import NUM_PREDICTIONS, SEQ_LENGTH, example, example_numbers, write_shards
from tests.thorough import thorough_except

FEATURES = pretraining_features(SEQ_LENGTH, NUM_PREDICTIONS)
SIZES = [7, 3, 12, 1, 9, 5]
TOTAL = sum(SIZES)


@pytest.fixture(scope="module", params=["plain", "gzip"])
def shards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shards:
  """Shards of these sizes, whose examples are numbered from 0 to TOTAL - 1."""
  directory = tmp_path_factory.mktemp("shards")
  return count_and_hash_shards(write_shards(directory, SIZES, compress=request.param == "gzip"))


def streamed_numbers(
  shards: Shards, count: int, first: int = 0, *, seed: int = 5, interleaved: int = 2, window: int = 4
) -> list[int]:
  """Returns the numbers of `count` examples of the stream, from its position `first` on."""
  with mock.patch.multiple(pipeline, INTERLEAVED_SHARDS=interleaved, WINDOW_SIZE=window):
    stream = pipeline.training_records(shards, num_skipped=first, seed=seed)
  records = map(decode_example, stream.take(count).as_numpy_iterator())
  return [example_numbers(record["input_ids"][None], record["input_mask"][None])[0] for record in records]


def read_host_batches(shards: Shards, num_batches: int, context: InputContext, first: int = 0) -> list[list[list[int]]]:
  """Returns the numbers of the examples that a host gives its replicas, [steps][replicas][examples]."""
  batches = pipeline.ShardDataset(shards, FEATURES).training_batches(
    batch_size=8, first_step=first, seed=5, context=context
  )
  num_replicas = context.num_replicas // context.num_hosts
  replica_batches = [
    example_numbers(batch["input_ids"], batch["input_mask"])
    for batch in batches.take(num_batches * num_replicas).as_numpy_iterator()
  ]
  return [replica_batches[step * num_replicas : (step + 1) * num_replicas] for step in range(num_batches)]


def test_each_epoch_holds_each_example_once_in_a_new_order(shards):
  stream = streamed_numbers(shards, 3 * TOTAL)
  epochs = [stream[i * TOTAL : (i + 1) * TOTAL] for i in range(3)]
  assert all(sorted(epoch) == list(range(TOTAL)) for epoch in epochs)
  assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize(
  ("shards", "interleaved", "window"),
  thorough_except(
    [("plain", 3, 5)], [(kind, *sizes) for kind in ("plain", "gzip") for sizes in ((1, 1), (2, 4), (3, 5), (16, 4096))]
  ),
  indirect=["shards"],
)
def test_a_resumed_stream_continues_with_the_next_example(shards, interleaved, window):
  uninterrupted = streamed_numbers(shards, 2 * TOTAL + 5, interleaved=interleaved, window=window)
  for first in (1, 13, TOTAL - 1, TOTAL, 2 * TOTAL + 1):
    resumed = streamed_numbers(shards, 4, first, interleaved=interleaved, window=window)
    assert resumed == uninterrupted[first : first + 4]


@pytest.mark.thorough
def test_the_order_depends_on_the_seed(shards):
  assert streamed_numbers(shards, TOTAL, seed=1) == streamed_numbers(shards, TOTAL, seed=1)
  assert streamed_numbers(shards, TOTAL, seed=1) != streamed_numbers(shards, TOTAL, seed=2)


def test_evaluation_pads_the_last_batch_with_weight_zero(shards):
  batches = list(pipeline.ShardDataset(shards, FEATURES).evaluation_batches(batch_size=16).as_numpy_iterator())
  assert [int(batch["example_weight"].sum()) for batch in batches] == [16, 16, 5]
  assert all(batch["input_ids"].shape == (16, SEQ_LENGTH) for batch in batches)
  assert batches[-1]["masked_lm_weights"][5:].sum() == 0
  evaluated: list[int] = []
  for batch in batches:
    is_example = batch["example_weight"] > 0
    evaluated += example_numbers(batch["input_ids"][is_example], batch["input_mask"][is_example])
  assert evaluated == list(range(TOTAL))


def test_a_sample_to_evaluate_is_random_and_always_the_same(shards):
  dataset = pipeline.ShardDataset(shards, FEATURES)

  def evaluated(data: pipeline.ShardDataset) -> list[int]:
    batches = data.evaluation_batches(batch_size=8).as_numpy_iterator()
    return [n for batch in batches for n in example_numbers(batch["input_ids"], batch["input_mask"])]

  sample = dataset.sample(16)
  assert sample.num_examples == 16
  numbers = evaluated(sample)
  assert len(set(numbers)) == 16
  assert max(numbers) >= 20  # not the first ones
  assert evaluated(dataset.sample(16)) == numbers
  assert dataset.sample(TOTAL + 1).num_examples == TOTAL


def test_the_shards_are_divided_evenly_among_hosts(shards):
  host_shards = [shards.part(host, 3) for host in range(3)]
  assert sorted(path for part in host_shards for path in part.paths) == sorted(shards.paths)
  assert [part.num_examples for part in host_shards] == [13, 12, 12]
  assert all(part.counts == count_and_hash_shards(part.paths).counts for part in host_shards)
  with pytest.raises(UserError, match="6 shards cannot be shared by 7 input parts"):
    shards.part(0, 7)
  message = r"evenly by 4 input parts: one would have 12 examples, and another one 8, .* multiple of 4"
  with pytest.raises(UserError, match=message):
    shards.part(0, 4)


@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.thorough)])
def test_each_host_reads_its_examples_once_in_an_epoch(tmp_path, replicas):
  paths = write_shards(tmp_path, [6, 5, 5, 6, 4, 6])
  shards = count_and_hash_shards(paths)
  first_numbers = np.cumsum([0, *shards.counts])  # of each shard
  numbers_of_all_hosts = []
  for host in range(2):
    # Each host reads 16 examples in an epoch, 4 in a step.
    context = InputContext(host_index=host, num_hosts=2, num_replicas=replicas)
    stream = np.ravel(read_host_batches(shards, 8, context)).tolist()
    first_epoch, second_epoch = stream[:16], stream[16:32]
    assert sorted(first_epoch) == sorted(second_epoch)
    assert first_epoch != second_epoch
    expected: list[int] = []
    for path in shards.part(host, 2).paths:
      shard = paths.index(path)
      expected += range(first_numbers[shard], first_numbers[shard + 1])
    assert sorted(first_epoch) == sorted(expected)
    numbers_of_all_hosts += first_epoch
  assert sorted(numbers_of_all_hosts) == list(range(32))


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, 5])
def test_global_batches_depend_on_the_input_parts_and_not_on_the_hosts(tmp_path, first):
  shards = count_and_hash_shards(write_shards(tmp_path, [6, 5, 5, 6, 4, 6]))
  contexts = [InputContext(host_index=host, num_hosts=2, num_replicas=4, input_parts=2) for host in range(2)]
  host_0, host_1 = (read_host_batches(shards, 7, context, first) for context in contexts)
  joined = [[*step_of_host_0, *step_of_host_1] for step_of_host_0, step_of_host_1 in zip(host_0, host_1, strict=True)]
  one_host = InputContext(host_index=0, num_hosts=1, num_replicas=4, input_parts=2)
  assert read_host_batches(shards, 7, one_host, first) == joined
  one_device = [[[number for replica in step for number in replica]] for step in joined]
  one_replica = InputContext(host_index=0, num_hosts=1, num_replicas=1, input_parts=2)
  assert read_host_batches(shards, 7, one_replica, first) == one_device
  one_part = dataclasses.replace(one_replica, input_parts=1)
  assert read_host_batches(shards, 7, one_part, first) != one_device


def test_an_empty_shard_is_refused(tmp_path: Path):
  path = tmp_path / "empty.tfrecord"
  path.write_bytes(b"")
  with pytest.raises(UserError, match="holds no records"):
    count_and_hash_shards([str(path)])


def test_values_are_read_as_they_were_written(shards):
  expected = example(0, np.random.default_rng(3))
  batch = next(pipeline.ShardDataset(shards, FEATURES).evaluation_batches(batch_size=1).as_numpy_iterator())
  for name, value in expected.items():
    np.testing.assert_array_equal(batch[name][0], value)
