"""What `auto` chooses for the device at hand."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import TrainConfig
from albert.data.batches import ExampleDataset
from albert.data.dataset import Dataset, InputContext
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import ShardDataset
from albert.data.schema import pretraining_features
from albert.data.shards import open_shards
from albert.errors import UserError
from albert.training import strategy as strategies
from tests.synthetic import PREDICTIONS, SEQ_LENGTH, write_shards

STATIC = {"input_ids": tf.TensorSpec([8, 16], tf.int32)}


class FakeStrategy:
  """All that the choices ask a strategy for."""

  def __init__(self, num_replicas: int):
    self.num_replicas_in_sync = num_replicas


def with_device(monkeypatch: pytest.MonkeyPatch, *, flags: str = "", capability: tuple[int, int] | None = None) -> None:
  """A machine whose processor has `flags`, and a GPU of `capability` or none."""
  gpus = [] if capability is None else ["GPU:0"]
  monkeypatch.setattr(strategies, "_cpu_flags", lambda: set(flags.split()))
  for kind in ("list_physical_devices", "list_logical_devices"):
    monkeypatch.setattr(tf.config, kind, lambda name=None: gpus if name == "GPU" else ["CPU:0"])
  details = {"compute_capability": capability}
  monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)


@pytest.mark.parametrize(
  ("device", "precision"),
  [
    ({"flags": "avx2 fma"}, "float32"),
    ({"flags": "avx2 avx512f avx512_bf16"}, "bfloat16"),
    ({"flags": "avx2 amx_bf16 amx_tile"}, "bfloat16"),
    ({"flags": "avx2", "capability": (8, 0)}, "bfloat16"),
    ({"flags": "amx_bf16", "capability": (7, 5)}, "float32"),
  ],
)
def test_precision(monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], precision: str) -> None:
  with_device(monkeypatch, **device)
  assert strategies.resolve_precision("auto", FakeStrategy(1)) == precision
  assert strategies.resolve_precision("float32", FakeStrategy(1)) == "float32"
  assert strategies.resolve_precision("bfloat16", FakeStrategy(1)) == "bfloat16"


def test_only_the_batches_that_are_used_must_fit_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setitem(strategies._STRATEGIES, "tpu", lambda config: FakeStrategy(512))
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
  with pytest.raises(UserError, match="--train_batch_size=32 does not hold as many examples of each of 64 input parts"):
    strategies.check_batches(config, FakeStrategy(1), trains=True, evaluates=False)


@pytest.mark.parametrize(
  ("capability", "num_replicas", "asked", "compiled"),
  [
    (None, 1, "auto", False),
    (None, 1, "true", True),
    (None, 2, "auto", False),
    ((8, 0), 1, "auto", True),
    ((8, 0), 1, "false", False),
    ((8, 0), 2, "auto", False),
  ],
)
def test_xla(
  monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] | None, num_replicas: int, asked: str, compiled: bool
) -> None:
  with_device(monkeypatch, capability=capability)
  assert strategies.resolve_jit_compile(asked, FakeStrategy(num_replicas), lambda: STATIC) is compiled


def test_xla_is_for_batches_of_one_shape(
  monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  rows = [np.arange(length) for length in (5, 9, 17)]
  lengths = np.array([len(row) for row in rows], np.int32)
  examples = TokenizedExamples(np.concatenate(rows).astype(np.int32), lengths, np.ones(3, np.int32), {})
  shards = open_shards(write_shards(tmp_path, [4]))
  data: dict[str, Dataset] = {
    "finetuning": ExampleDataset(examples, "toy"),
    "padded": ExampleDataset(examples, "toy", length=32),
    "pretraining": ShardDataset(shards, pretraining_features(SEQ_LENGTH, PREDICTIONS)),
  }
  specs = {
    name: source.training_batches(batch_size=2, first_step=0, seed=1, context=InputContext(0, 1, 1)).element_spec
    for name, source in data.items()
  }
  with_device(monkeypatch, capability=(8, 0))
  capsys.readouterr()
  compiled = {
    name: strategies.resolve_jit_compile("auto", FakeStrategy(1), lambda s=spec: s) for name, spec in specs.items()
  }
  assert compiled == {"finetuning": False, "padded": True, "pretraining": True}
  assert capsys.readouterr().err == ""
  assert strategies.resolve_jit_compile("true", FakeStrategy(1), lambda: specs["finetuning"])
  assert capsys.readouterr().err.startswith("warning: --jit_compile=true compiles the step anew for each length")


def test_xla_of_several_replicas_is_refused() -> None:
  with pytest.raises(UserError, match="this run has 2 replicas: give --jit_compile=auto"):
    strategies.resolve_jit_compile("true", FakeStrategy(2), lambda: STATIC)


@pytest.mark.parametrize("tpu", ["nope", "grpc://127.0.0.1:1", "grpc://[::1]:1", "a b"])
def test_a_tpu_that_is_not_there_is_one_line_at_once(tpu: str) -> None:
  """TensorFlow itself would connect for minutes, and its resolver raises errors of its clients."""
  started = time.monotonic()
  with pytest.raises(UserError, match=re.escape(f"--tpu={tpu}: cannot reach that TPU (")) as caught:
    strategies.make_strategy(TrainConfig(tpu=tpu, num_train_steps=1))
  assert "give its name or grpc:// address" in str(caught.value)
  assert time.monotonic() - started < 30


def test_a_model_that_no_machine_can_hold_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_epochs_that_give_too_many_steps_are_refused():
  assert strategies.with_train_steps(TrainConfig(num_train_epochs=2.5, train_batch_size=4), 10).num_train_steps == 7
  with pytest.raises(UserError, match=r"num_train_epochs=1e\+30 of 10 examples are 2.5e\+30 steps"):
    strategies.with_train_steps(TrainConfig(num_train_epochs=1e30, train_batch_size=4), 10)
