"""The values that a run plan decides: precision, XLA, input parts, the number of steps and the warm-up."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.config.recipes import config_names, configs_directory
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig, resolve_warmup
from albert.data.batches import ExampleDataset
from albert.data.dataset import Dataset, InputContext
from albert.data.examples import TokenizedExamples
from albert.data.pipeline import ShardDataset
from albert.data.schema import pretraining_features
from albert.data.shards import count_and_hash_shards
from albert.errors import UserError
from albert.training import run_plan
from tests.synthetic import NUM_PREDICTIONS, SEQ_LENGTH, write_shards
from tests.training.test_distribution import FakeStrategy

STATIC_SPEC = {"input_ids": tf.TensorSpec([8, 16], tf.int32)}


def simulate_device(
  monkeypatch: pytest.MonkeyPatch, *, flags: str = "", capability: tuple[int, int] | None = None
) -> None:
  """Simulates a CPU with the instruction sets `flags`, and a GPU with a compute capability, or none."""
  gpus = [] if capability is None else ["GPU:0"]
  monkeypatch.setattr(run_plan, "_cpu_flags", lambda: set(flags.split()))
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
def test_auto_precision_is_bfloat16_where_the_device_multiplies_in_it(
  monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], precision: str
) -> None:
  simulate_device(monkeypatch, **device)
  assert run_plan.resolve_precision("auto", FakeStrategy(1)) == precision
  assert run_plan.resolve_precision("float32", FakeStrategy(1)) == "float32"
  assert run_plan.resolve_precision("bfloat16", FakeStrategy(1)) == "bfloat16"
  assert run_plan.resolve_precision("float16", FakeStrategy(1)) == "float16"


@pytest.mark.parametrize(
  ("device", "settings", "precision"),
  [
    ({"flags": "amx_bf16"}, {}, "float32"),
    ({"flags": "amx_bf16"}, {"precision": "bfloat16"}, "bfloat16"),
    ({"flags": "amx_bf16"}, {"precision": "bfloat16", "is_default": True}, "float32"),  # the run has recorded it
    ({"capability": (8, 0)}, {}, "bfloat16"),
    ({"capability": (8, 0)}, {"precision": "float32", "is_default": True}, "float32"),
  ],
)
def test_evaluations_on_a_processor_are_float32_unless_the_command_chooses_another_dtype(
  monkeypatch: pytest.MonkeyPatch, device: dict[str, Any], settings: dict[str, Any], precision: str
) -> None:
  simulate_device(monkeypatch, **device)
  train = TrainConfig(precision=settings.get("precision", "auto"))
  config = RunConfig(output_dir="x", train=train, precision_is_default=settings.get("is_default", False))
  training_precision = run_plan.resolve_precision(train.precision, FakeStrategy(1))
  assert run_plan.resolve_evaluation_precision(config, training_precision, FakeStrategy(1)) == precision


def test_auto_is_deterministic_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
  simulate_device(monkeypatch)
  assert [run_plan.resolve_deterministic(value) for value in ("auto", "true", "false")] == [True, True, False]
  simulate_device(monkeypatch, capability=(8, 0))
  assert [run_plan.resolve_deterministic(value) for value in ("auto", "true", "false")] == [False, True, False]


@pytest.mark.parametrize(
  ("capability", "num_replicas", "jit_compile", "expected"),
  [
    (None, 1, "auto", False),
    (None, 1, "true", True),
    (None, 2, "auto", False),
    (None, 2, "true", True),
    ((8, 0), 1, "auto", True),
    ((8, 0), 1, "false", False),
    ((8, 0), 2, "auto", True),
    ((8, 0), 2, "false", False),
  ],
)
def test_auto_compiles_with_xla_on_gpus(
  monkeypatch: pytest.MonkeyPatch,
  capability: tuple[int, int] | None,
  num_replicas: int,
  jit_compile: str,
  expected: bool,
) -> None:
  simulate_device(monkeypatch, capability=capability)
  assert run_plan.resolve_jit_compile(jit_compile, FakeStrategy(num_replicas), lambda: STATIC_SPEC) is expected


def test_auto_compiles_with_xla_only_if_all_batches_have_one_shape(
  monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
  sequences = [np.arange(length, dtype=np.int32) for length in (5, 9, 17)]
  lengths = np.array([len(sequence) for sequence in sequences], np.int32)
  examples = TokenizedExamples(np.concatenate(sequences), lengths, np.ones(3, np.int32), {})
  shards = count_and_hash_shards(write_shards(tmp_path, [4]))

  def batch_spec(dataset: Dataset) -> Any:
    context = InputContext(host_index=0, num_hosts=1, num_replicas=1)
    return dataset.training_batches(batch_size=2, first_step=0, seed=1, context=context).element_spec

  finetuning = batch_spec(ExampleDataset(examples, "toy"))
  finetuning_with_full_padding = batch_spec(ExampleDataset(examples, "toy", length=32))
  pretraining = batch_spec(ShardDataset(shards, pretraining_features(SEQ_LENGTH, NUM_PREDICTIONS)))

  def is_compiled(jit_compile: str, spec: Any) -> bool:
    return run_plan.resolve_jit_compile(jit_compile, FakeStrategy(1), lambda: spec)

  simulate_device(monkeypatch, capability=(8, 0))
  assert not is_compiled("auto", finetuning)
  assert is_compiled("auto", finetuning_with_full_padding)
  assert is_compiled("auto", pretraining)
  assert is_compiled("true", finetuning)


def test_the_number_of_epochs_gives_the_number_of_steps_rounded_up() -> None:
  # 2.5 epochs of 10 examples in batches of 4 are 6.25 steps.
  assert TrainConfig(num_train_epochs=2.5, train_batch_size=4).num_steps(10) == 7
  assert TrainConfig(num_train_steps=9, train_batch_size=4).num_steps(10) == 9
  with pytest.raises(UserError, match=r"num_train_epochs=1e\+30 are 2.5e\+30 steps"):
    TrainConfig(num_train_epochs=1e30, train_batch_size=4).num_steps(10)


def test_a_default_warm_up_of_more_than_half_the_run_becomes_a_tenth(
  verbose: None, capsys: pytest.CaptureFixture[str]
) -> None:
  optimizer = OptimizerConfig(num_warmup_steps=1256)
  assert resolve_warmup(optimizer, 2512, is_default=True) == optimizer  # exactly half of the steps
  assert resolve_warmup(optimizer, 10, is_default=False) == optimizer  # make_schedule refuses it
  proportion = OptimizerConfig(num_warmup_steps=1256, warmup_proportion=0.1)
  assert resolve_warmup(proportion, 10, is_default=True) == proportion
  assert capsys.readouterr().err == ""
  shortened = {steps: resolve_warmup(optimizer, steps, is_default=True) for steps in (2511, 10, 1)}
  assert {steps: config.num_warmup_steps for steps, config in shortened.items()} == {2511: 251, 10: 1, 1: 0}
  lines = capsys.readouterr().err.splitlines()
  assert lines[1] == "num_warmup_steps is 1, a tenth of the 10 steps: the default, 1256, is more than half of them"


@pytest.mark.parametrize("name", config_names())
def test_the_warm_up_of_a_recipe_is_kept_with_the_steps_of_the_recipe(name: str) -> None:
  sections = json.loads(Path(configs_directory(), f"{name}.json").read_text())
  optimizer, train = OptimizerConfig(**sections["optimizer"]), TrainConfig(**sections["train"])
  assert resolve_warmup(optimizer, train.num_train_steps, is_default=True) == optimizer


def test_input_parts_default_to_one_per_host_and_must_be_a_multiple_of_the_hosts() -> None:
  assert run_plan.resolve_input_parts(0, 3) == 3
  assert run_plan.resolve_input_parts(6, 3) == 6
  with pytest.raises(UserError, match="--input_parts=4 cannot be shared evenly by 3 hosts: give a multiple of 3"):
    run_plan.resolve_input_parts(4, 3)


def test_a_plan_cannot_be_changed_and_leaves_the_given_settings_as_they_are() -> None:
  config = RunConfig(output_dir="run", train=TrainConfig(train_batch_size=8, distribution_strategy="one_device"))
  plan = run_plan.plan_run(config)
  assert (config.train.input_parts, plan.config.train.input_parts) == (0, 1)
  with pytest.raises(dataclasses.FrozenInstanceError):
    plan.precision = "float32"
