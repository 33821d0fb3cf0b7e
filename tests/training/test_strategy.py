"""Strategies: unreachable TPUs, and checks of batch sizes and memory."""

from __future__ import annotations

import re
import time

import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.training import strategy as strategies


class FakeStrategy:
  """A strategy of which only the number of replicas is read."""

  def __init__(self, num_replicas: int):
    self.num_replicas_in_sync = num_replicas


def test_only_the_batch_sizes_that_the_command_uses_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setitem(strategies._STRATEGY_MAKERS, "tpu", lambda config: FakeStrategy(512))
  # The paper's run on a v3-512, with the default eval_batch_size of 64.
  config = TrainConfig(train_batch_size=4096, distribution_strategy="tpu", tpu="local")
  pod = strategies.make_strategy(config)
  strategies.check_batches(config, pod, trains=True, evaluates=False)
  with pytest.raises(UserError, match=r"--eval_batch_size=64 .* by 512 replicas: give a multiple of 512"):
    strategies.check_batches(config, pod, trains=True, evaluates=True)
  # An evaluation with the batch size of a small training.
  config = TrainConfig(train_batch_size=32, eval_batch_size=1024, input_parts=64)
  strategies.check_batches(config, pod, trains=False, evaluates=True)
  with pytest.raises(UserError, match=r"--train_batch_size=32 .* 512 replicas x 1 accumulation steps: give a multiple"):
    strategies.check_batches(config, pod, trains=True, evaluates=True)
  with pytest.raises(UserError, match="32 cannot take equally many examples from each of 64 input parts"):
    strategies.check_batches(config, FakeStrategy(1), trains=True, evaluates=False)


@pytest.mark.parametrize("tpu", ["nope", "grpc://127.0.0.1:1", "grpc://[::1]:1", "a b"])
def test_an_unreachable_tpu_gives_one_line_within_seconds(tpu: str) -> None:
  """TensorFlow itself would try to connect for minutes, and its resolver raises other kinds of errors."""
  started = time.monotonic()
  with pytest.raises(UserError, match=re.escape(f"--tpu={tpu}: cannot reach that TPU (")) as caught:
    strategies.make_strategy(TrainConfig(tpu=tpu, num_train_steps=1))
  assert "give its name or grpc:// address" in str(caught.value)
  assert time.monotonic() - started < 30


def test_a_model_larger_than_the_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
  strategy = tf.distribute.OneDeviceStrategy("CPU:0")
  huge = ModelConfig(hidden_size=10**6, num_attention_heads=10)
  with pytest.raises(UserError, match=r"hidden_size 1000000, .* has 5.01e\+12 parameters, which take 60,\d+ GB with"):
    strategies.check_memory(huge, strategy, trains=True)
  # 11.7 million parameters of albert_base: 47 MB, 140 MB with both moments.
  for memory, trains, is_refused in ((150e6, True, False), (130e6, True, True), (50e6, False, False), (0, True, False)):
    monkeypatch.setattr(strategies, "_memory_bytes", lambda memory=memory: int(memory))
    if is_refused:
      with pytest.raises(UserError, match="give a smaller model"):
        strategies.check_memory(ModelConfig(), strategy, trains=trains)
    else:
      strategies.check_memory(ModelConfig(), strategy, trains=trains)
