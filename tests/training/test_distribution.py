"""Strategies, the processes that train together, and their batches.

TPUs that cannot be reached, checks of batch sizes, the loss of a process or a TPU, and batches that do not
depend on the number of devices.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf

from albert.config.run import TrainConfig
from albert.data.dataset import Dataset
from albert.errors import RunError, UserError
from albert.io.workers import is_lost_process
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training import distribution
from albert.training.distribution import Cluster, distribute_evaluation_batches, distribute_training_batches
from tests.synthetic import TINY_MODEL, write_shards


class FakeStrategy:
  """Stands in for a strategy where only the number of replicas is used."""

  def __init__(self, num_replicas: int):
    self.num_replicas_in_sync = num_replicas


def test_only_the_batch_sizes_that_the_command_uses_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(distribution, "_make_tpu", lambda config: FakeStrategy(512))
  # The paper's run on a v3-512, with the default eval_batch_size of 64.
  config = TrainConfig(train_batch_size=4096, distribution_strategy="tpu", tpu="local")
  pod = distribution.make_strategy(config)
  distribution.check_batches(config, pod, trains=True, evaluates=False)
  with pytest.raises(UserError, match=r"--eval_batch_size=64 .* by 512 replicas: give a multiple of 512"):
    distribution.check_batches(config, pod, trains=True, evaluates=True)
  # An evaluation with the batch size of a small training.
  config = TrainConfig(train_batch_size=32, eval_batch_size=1024, input_parts=64)
  distribution.check_batches(config, pod, trains=False, evaluates=True)
  with pytest.raises(UserError, match=r"--train_batch_size=32 .* 512 replicas x 1 accumulation steps: give a multiple"):
    distribution.check_batches(config, pod, trains=True, evaluates=True)
  with pytest.raises(UserError, match="32 cannot be shared evenly by 64 input parts: give a multiple of 64"):
    distribution.check_batches(config, FakeStrategy(1), trains=True, evaluates=False)


@pytest.mark.parametrize("tpu", ["nope", "grpc://127.0.0.1:1", "grpc://[::1]:1", "a b"])
def test_a_tpu_that_cannot_be_reached_is_an_error_within_seconds(tpu: str) -> None:
  """TensorFlow itself tries to connect for minutes, and its resolver raises other types of errors."""
  start_time = time.monotonic()
  with pytest.raises(UserError, match=re.escape(f"--tpu={tpu}: cannot reach that TPU (")) as caught:
    distribution.make_strategy(TrainConfig(tpu=tpu, num_train_steps=1))
  assert "give its name or grpc:// address" in str(caught.value)
  assert time.monotonic() - start_time < 30


def test_all_estimators_of_a_process_share_a_mirrored_strategy() -> None:
  """TensorFlow would take the sums over replicas of a second strategy for those of the first."""
  config = TrainConfig(distribution_strategy="mirrored", num_train_steps=1)
  assert distribution.make_strategy(config) is distribution.make_strategy(config)


class FakeTPUStrategy(tf.distribute.TPUStrategy):
  """A TPUStrategy without a TPU."""

  def __init__(self) -> None:
    pass


# What TensorFlow raises after the loss of a TPU.
RESTART_MESSAGE = "Unable to find a context_id matching the specified one (7). Perhaps the worker was restarted"
ERRORS_OF_LOSS: list[tf.errors.OpError] = [
  tf.errors.UnavailableError(None, None, "Socket closed\nAdditional GRPC error information: ..."),
  tf.errors.AbortedError(None, None, "RecvTensor expects a different device incarnation: 15 vs. 17."),
  tf.errors.CancelledError(None, None, "RPC was cancelled"),
  tf.errors.DeadlineExceededError(None, None, "Deadline Exceeded"),
  tf.errors.InvalidArgumentError(None, None, RESTART_MESSAGE),
  tf.errors.FailedPreconditionError(None, None, "The TPU system has not been initialized."),
  tf.errors.InternalError(None, None, "Core halted unexpectedly"),
]


@pytest.mark.parametrize("error", ERRORS_OF_LOSS, ids=lambda error: type(error).__name__)
def test_the_loss_of_a_tpu_is_an_error_of_one_line_with_the_remedy(error: tf.errors.OpError) -> None:
  with pytest.raises(RunError) as caught, Cluster(FakeTPUStrategy()).report_lost_processes(lambda: "start it again"):
    raise error
  first_line = str(error).split("\n", maxsplit=1)[0]
  assert str(caught.value) == (
    f"the TPU was preempted or restarted, or the connection to it is lost ({type(error).__name__}: {first_line}); "
    "start it again"
  )


def test_a_service_that_does_not_answer_is_reported_on_any_device() -> None:
  report = Cluster(tf.distribute.get_strategy()).report_lost_processes(lambda: "start it again")
  with pytest.raises(RunError, match=r"does not answer \(UnavailableError: Socket closed\); start it again"), report:
    raise tf.errors.UnavailableError(None, None, "Socket closed")


def test_other_errors_are_not_changed() -> None:
  for error in (
    tf.errors.InvalidArgumentError(None, None, "Key: input_ids. Can't parse serialized Example."),
    tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"),
  ):
    assert not is_lost_process(error)
    with pytest.raises(type(error)), Cluster(tf.distribute.get_strategy()).report_lost_processes(lambda: ""):
      raise error


def test_every_process_goes_on_as_soon_as_all_have_started(monkeypatch):
  monkeypatch.setattr(distribution, "_SECONDS_BETWEEN_TRIES", 0.01)
  with socket.create_server(("localhost", 0)) as server:
    address = f"localhost:{server.getsockname()[1]}"
  addresses = (address, "other:1", "third:1")
  with futures.ThreadPoolExecutor() as pool:
    ended = [pool.submit(distribution.wait_for_processes, addresses, index) for index in (2, 0)]
    while True:  # a connection of another program, such as a health check, counts as no process
      try:
        with socket.create_connection(("localhost", int(address.rpartition(":")[2]))) as connection:
          connection.sendall(b"GET / HTTP/1.1")
        break
      except OSError:
        continue
    with pytest.raises(futures.TimeoutError):
      ended[0].result(timeout=0.2)
    assert not any(process.done() for process in ended)
    ended.append(pool.submit(distribution.wait_for_processes, addresses, 1))
    assert [process.result(timeout=30) for process in ended] == [None, None, None]
  with socket.create_server(("localhost", int(address.rpartition(":")[2]))):  # the port is free again
    pass


def test_a_port_that_is_in_use_is_refused():
  with socket.create_server(("", 0)) as server:
    address = f"localhost:{server.getsockname()[1]}"
    with pytest.raises(RunError, match=rf"TF_CONFIG: cannot listen on {address} .*: give this process a free port"):
      distribution.wait_for_processes((address, "other:1"), 0)


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
