"""Distribution strategies: TPUs that cannot be reached, and checks of batch sizes and memory."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.training import distribution


class FakeStrategy:
  """Stands in for a strategy where only the number of replicas is used."""

  def __init__(self, num_replicas: int):
    self.num_replicas_in_sync = num_replicas


def test_only_the_batch_sizes_that_the_command_uses_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setitem(distribution._STRATEGY_MAKERS, "tpu", lambda config: FakeStrategy(512))
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
  with pytest.raises(UserError, match="32 cannot take equally many examples from each of 64 input parts"):
    distribution.check_batches(config, FakeStrategy(1), trains=True, evaluates=False)


@pytest.mark.parametrize("tpu", ["nope", "grpc://127.0.0.1:1", "grpc://[::1]:1", "a b"])
def test_a_tpu_that_cannot_be_reached_is_an_error_within_seconds(tpu: str) -> None:
  """TensorFlow itself tries to connect for minutes, and its resolver raises other types of errors."""
  start_time = time.monotonic()
  with pytest.raises(UserError, match=re.escape(f"--tpu={tpu}: cannot reach that TPU (")) as caught:
    distribution.make_strategy(TrainConfig(tpu=tpu, num_train_steps=1))
  assert "give its name or grpc:// address" in str(caught.value)
  assert time.monotonic() - start_time < 30


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
  strategy = tf.distribute.OneDeviceStrategy("CPU:0")
  huge_model = ModelConfig(hidden_size=10**6, num_attention_heads=10)
  with pytest.raises(UserError, match=r"hidden_size 1000000, .* has 5.01e\+12 parameters, which take 60,\d+ GB with"):
    distribution.check_memory(huge_model, strategy, trains=True)

  # The 11.7 million parameters of albert_base take 47 MB, or 140 MB with both moments.
  def check_albert_base(memory_megabytes: int, *, trains: bool) -> None:
    monkeypatch.setattr(distribution, "memory_bytes", lambda: memory_megabytes * 10**6)
    distribution.check_memory(ModelConfig(), strategy, trains=trains)

  check_albert_base(150, trains=True)
  check_albert_base(50, trains=False)
  check_albert_base(0, trains=True)  # 0: the memory is not known
  with pytest.raises(UserError, match="give a smaller model"):
    check_albert_base(130, trains=True)


# Two models are trained one after the other, each with a strategy of its own call. The sums have different shapes.
_TWO_SUMS = """
import tensorflow as tf
from albert.config.run import TrainConfig
from albert.training.distribution import make_strategy

(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
for size in (5, 7):
  strategy = make_strategy(TrainConfig(distribution_strategy="mirrored", num_train_steps=1))
  assert strategy.num_replicas_in_sync == 2

  @tf.function
  def total():
    return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(size)))

  print(strategy.experimental_local_results(total())[0].numpy().tolist())
"""


@pytest.mark.thorough
def test_a_process_can_train_two_models_on_several_devices() -> None:
  ended = subprocess.run([sys.executable, "-c", _TWO_SUMS], capture_output=True, text=True, check=True, timeout=300)
  assert ended.stdout.splitlines() == [str([2.0] * 5), str([2.0] * 7)]


def test_all_estimators_of_a_process_share_a_mirrored_strategy() -> None:
  config = TrainConfig(distribution_strategy="mirrored", num_train_steps=1)
  assert distribution.make_strategy(config) is distribution.make_strategy(config)
