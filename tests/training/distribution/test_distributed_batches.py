"""One device reads the batches itself; several devices share each batch, and get the same examples together."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import tensorflow as tf

from albert.config.run import TrainConfig
from albert.data.dataset import Dataset
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.distribution.distributed_batches import distribute_evaluation_batches, distribute_training_batches
from tests.synthetic import TINY_MODEL, write_shards

ONE_DEVICE = tf.distribute.OneDeviceStrategy("CPU:0")
CONFIG = TrainConfig(train_batch_size=8, seed=5, input_parts=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
  """Two shards with 40 examples."""
  directory = tmp_path_factory.mktemp("shards")
  write_shards(directory, [20, 20])
  return PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=str(directory / "*.tfrecord"))).training_data()


def ids(strategy: tf.distribute.Strategy, batches: Iterable, num_batches: int) -> list[np.ndarray]:
  """Returns input_ids [B, S] of the first batches, those of all replicas together."""
  iterator = iter(batches)
  return [strategy.gather(next(iterator)["input_ids"], axis=0).numpy() for _ in range(num_batches)]


def test_one_device_reads_a_dataset_whose_threads_tensorflow_does_not_tune(data: Dataset) -> None:
  """An iterator for several devices tunes its threads, and its end waits up to a minute for the thread that does so."""
  for batches in (
    distribute_training_batches(ONE_DEVICE, CONFIG, data, first_step=0),
    distribute_evaluation_batches(ONE_DEVICE, data, 8),
  ):
    assert isinstance(batches, tf.data.Dataset)
    assert batches.options().autotune.enabled is False


def test_the_last_batch_of_an_evaluation_is_padded_only_for_several_replicas(data: Dataset) -> None:
  two_devices = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
  for strategy, sizes in ((ONE_DEVICE, [32, 8]), (two_devices, [32, 32])):
    batches = ids(strategy, distribute_evaluation_batches(strategy, data, 32), 2)
    assert [len(batch) for batch in batches] == sizes


@pytest.mark.parametrize("first_step", [0, 7])
def test_batches_do_not_depend_on_the_strategy(data: Dataset, first_step: int) -> None:
  two_devices = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
  assert two_devices.num_replicas_in_sync == 2
  of_one, of_two = (
    ids(strategy, distribute_training_batches(strategy, CONFIG, data, first_step), 6)
    for strategy in (ONE_DEVICE, two_devices)
  )
  np.testing.assert_array_equal(of_one, of_two)
  of_one, of_two = (
    ids(strategy, distribute_evaluation_batches(strategy, data, 8), 5) for strategy in (ONE_DEVICE, two_devices)
  )
  np.testing.assert_array_equal(of_one, of_two)
