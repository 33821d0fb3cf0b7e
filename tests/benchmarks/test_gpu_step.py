"""A training step that is exported for JAX computes what TensorFlow computes, and runs without TensorFlow."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config.run import OptimizerConfig, TrainConfig
from albert.data.dataset import InputContext
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import make_schedule
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.loop import Trainer
from albert.training.run_plan import TrainingPlan
from benchmarks.gpu import compare, devices, step_package
from benchmarks.gpu.step_package import FeatureSpec, Manifest, Records, VariableSpec
from benchmarks.gpu.timing import Measurement
from tests.benchmarks import scripts
from tests.synthetic import SEQ_LENGTH, TINY_MODEL, example, write_shards

MODEL = dataclasses.replace(TINY_MODEL, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2)
OPTIMIZER = OptimizerConfig(learning_rate=0.02, num_warmup_steps=3)
NUM_STEPS = 10
BATCH_SIZE = 6

# An input of transformers' models -> the feature of our batches.
_TRANSFORMERS_INPUTS = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}

MANIFEST = Manifest(
  model_name="albert_tiny",
  model=MODEL.to_dict(),
  length=5,
  predictions=2,
  precision="float32",
  batch_sizes=(4,),
  flops_per_sequence=2e9,
  optimizer=OPTIMIZER.to_dict(),
  num_train_steps=20,
  versions={},
  variables=(
    VariableSpec("weight", (300, 70), "float32", stddev=0.02),
    VariableSpec("gamma", (7,), "float32", initial=1.0),
    VariableSpec("other", (300, 70), "float32", stddev=0.02),
    VariableSpec("first_bad_step", (), "int64", initial=-1),
  ),
  features=(FeatureSpec("ids", (5,), "int32"), FeatureSpec("weights", (2,), "float32")),
  metrics={"masked_lm_loss": (1, 3)},
)


def test_initial_values_are_drawn_from_a_truncated_normal_distribution():
  weight, gamma, other, first_bad_step = step_package.initial_values(MANIFEST, seed=1)
  assert np.abs(weight).max() <= 0.04
  # The standard deviation of a standard normal distribution that is cut at 2 and -2 is 0.87963.
  assert weight.std() == pytest.approx(0.87963 * 0.02, rel=0.02)
  assert weight.mean() == pytest.approx(0, abs=4e-4)
  assert weight.dtype == np.float32
  np.testing.assert_array_equal(gamma, np.ones(7, np.float32))
  assert first_bad_step.dtype == np.int64
  assert first_bad_step == -1
  assert abs(np.corrcoef(weight.ravel(), other.ravel())[0, 1]) < 0.03
  np.testing.assert_array_equal(weight, next(step_package.initial_values(MANIFEST, seed=1)))
  assert (weight != next(step_package.initial_values(MANIFEST, seed=2))).all()


def test_records_are_stored_in_small_types_and_read_in_theirs(tmp_path):
  ids = np.array([[number, 299, 0, 1, 2] for number in range(7)], np.int32)
  weights = np.full((7, 2), 0.3, np.float32)
  step_package.write_records(tmp_path, {"ids": ids, "weights": weights})
  with np.load(tmp_path / step_package.RECORDS_FILE) as stored:
    assert (stored["ids"].dtype, stored["weights"].dtype) == (np.uint16, np.float32)
  batch = Records(tmp_path, MANIFEST).batch(1, 4)  # records 4, 5, 6 and 0
  assert (batch["ids"].dtype, batch["weights"].dtype) == (np.int32, np.float32)
  np.testing.assert_array_equal(batch["ids"], ids[[4, 5, 6, 0]])
  np.testing.assert_array_equal(batch["weights"], weights[:4])


def test_a_manifest_that_was_written_is_read(tmp_path):
  MANIFEST.write(tmp_path)
  assert Manifest.read(tmp_path) == MANIFEST


def make_trial(batch_size: int, *seconds: float) -> compare.Trial:
  return compare.Trial(batch_size, Measurement("GPU", 60.0, list(seconds), 3 << 30, [10.3, 9.5], {}))


def test_the_table_has_the_fastest_batch_and_its_share_of_the_peak():
  trials = [
    make_trial(4, 0.1, 0.1, 0.1),  # 40 sequences/s
    make_trial(8, 0.08, 0.1, 0.16),  # 80 in the median, 50 to 100
    compare.Trial(16, None, "out of memory"),
  ]
  row = compare.format_row(MANIFEST, "library", trials, peak=1e12)
  # 80 sequences/s of 2 GFLOP are 16% of 1 TFLOP/s.
  assert row == (
    "| albert_tiny | 5 | float32 | library | 8 | 80.0 (50.0 to 100.0) | 16.0% | 3.0 | 60 | 10.300, 9.500 |\n"
  )
  assert "16: out of memory" in compare.format_row(MANIFEST, "library", trials[2:], peak=None)
  report = compare.format_report([row], "GPU", {"jax": "0.7"}, 1e12)
  assert row in report
  assert "| bert_large | 512 | one A100, LAMB | 96.5 |" in report


def test_the_peak_is_found_by_the_name_of_the_device():
  assert devices.peak_flops("NVIDIA H100 80GB HBM3") == 989e12
  assert devices.peak_flops("NVIDIA L40S") == 362e12
  assert devices.peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
  assert devices.peak_flops("cpu") is None


def make_run_trainer(task: PretrainingTask, *, jit_compile: bool) -> Trainer:
  train = TrainConfig(num_train_steps=20, train_batch_size=BATCH_SIZE)
  device = tf.distribute.OneDeviceStrategy("CPU:0")
  with device.scope():
    optimizer = make_optimizer(OPTIMIZER, make_schedule(OPTIMIZER, train.num_train_steps, BATCH_SIZE))
    plan = TrainingPlan(strategy=device, train=train, optimizer=OPTIMIZER, jit_compile=jit_compile)
    return Trainer(task, task.build_model(), optimizer, plan)


def write_tiny_package(directory: Path, **options: Any) -> tuple[Path, str]:
  from benchmarks.gpu import packaging

  (shard,) = write_shards(directory / "shards", [50])
  package = directory / "package"
  settings: dict[str, Any] = {"precision": "float32", "model": MODEL, "optimizer": OPTIMIZER, **options}
  packaging.write_package(
    package,
    model_name="albert_tiny",
    input_file=shard,
    batch_sizes=[BATCH_SIZE],
    num_records=NUM_STEPS * BATCH_SIZE,
    num_train_steps=20,
    **settings,
  )
  return package, shard


@pytest.fixture
def _float32_afterwards() -> Any:
  """Undoes the change of Keras's global policy that lowering makes."""
  yield
  keras.mixed_precision.set_global_policy("float32")


@pytest.mark.usefixtures("_float32_afterwards")
@pytest.mark.parametrize(
  ("model", "jit_compile"), [(TINY_MODEL, False), (MODEL, True)], ids=["without dropout", "dropout"]
)
def test_ten_steps_in_jax_have_the_losses_of_tensorflow(tmp_path, model, jit_compile):
  """Both begin with the same weights. The learning rate is large.

  The dropout of the exported step is that of a run whose step is compiled by XLA: for the same seed, XLA draws other
  random numbers than TensorFlow's kernels.
  """
  pytest.importorskip("jax", reason="needs JAX: make test-parity")
  from benchmarks.gpu.jax_step import JaxStep

  package, shard = write_tiny_package(tmp_path, model=model)
  step = JaxStep(package, BATCH_SIZE, seed=5)
  task = PretrainingTask(model, PretrainingConfig(input_file=shard))
  trainer = make_run_trainer(task, jit_compile=jit_compile)
  specs = step.manifest.variables
  numbers = {spec.name: number for number, spec in enumerate(specs)}
  assert set(trainer.state()) <= set(numbers)
  for name, variable in trainer.state().items():
    spec = specs[numbers[name]]
    if spec.stddev:
      assert np.abs(variable.numpy()).max() <= 2 * spec.stddev
      assert variable.numpy().std() == pytest.approx(0.88 * spec.stddev, rel=0.3)
    else:
      np.testing.assert_array_equal(variable.numpy(), np.full(spec.shape, spec.initial), err_msg=name)
    variable.assign(np.asarray(step.variables[numbers[name]]))

  data = task.training_data()
  batches = iter(data.training_batches(batch_size=BATCH_SIZE, first_step=0, seed=0, context=InputContext(0, 1, 1)))
  losses = []
  for _ in range(NUM_STEPS):
    trainer.train_steps(batches, tf.constant(1))
    step.run(1)
    expected, actual = trainer.accumulator.result_and_reset(), step.metrics_and_reset()
    assert set(actual) == set(expected)
    for name in expected:
      assert actual[name] == pytest.approx(expected[name], rel=1e-5, abs=1e-7), name
    losses.append(actual["masked_lm_loss"])
  assert losses[-1] < losses[0] - 0.1
  for name, variable in trainer.state().items():
    np.testing.assert_allclose(step.variables[numbers[name]], variable.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.usefixtures("_float32_afterwards")
def test_a_package_runs_in_its_directory_without_tensorflow_and_albert(tmp_path):
  pytest.importorskip("jax", reason="needs JAX: make test-parity")
  package, _ = write_tiny_package(tmp_path, precision="bfloat16")
  arguments = [".", f"--batch_size={BATCH_SIZE}", "--rounds=2", "--steps_per_round=5", "--variables_file=v.npz"]
  code = (
    "import sys; sys.path.insert(0, '.')\n"
    "from benchmarks.gpu import jax_step\n"
    f"sys.argv[1:] = {arguments}\n"
    "jax_step.main()\n"
    "assert not {'tensorflow', 'albert'} & set(sys.modules)\n"
  )
  result = subprocess.run(
    [sys.executable, "-c", code], cwd=package, capture_output=True, text=True, check=True, timeout=600
  )
  measurement = Measurement(**json.loads(result.stdout))
  assert len(measurement.losses) == 3
  assert measurement.losses[0] == pytest.approx(np.log(MODEL.vocab_size), rel=0.1)
  assert measurement.losses[-1] < measurement.losses[0]
  with np.load(package / "v.npz") as variables:
    assert variables["global_step"] == 11
  program = step_package.program_file(package, BATCH_SIZE).read_bytes()
  assert b"custom_call" not in program
  assert b"StableHLO_v" in program[:30]


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="JAX is there")
def test_without_jax_one_line_names_the_environment_that_has_it(tmp_path):
  result = scripts.run("gpu_step.py", "--input_file=none.tfrecord", f"--output_dir={tmp_path}")
  assert result.returncode == 2
  assert re.fullmatch(r"error: jax is not installed: .*`make test-parity`.*\n", result.stderr)


@pytest.mark.parametrize("sharing", ["all", "none"])
def test_the_loss_with_transformers_is_that_of_its_own_pretraining_model(tmp_path, sharing):
  """transformers itself computes logits at all positions, and ignores those whose label is -100."""
  torch = pytest.importorskip("torch", reason="needs torch and transformers: make test-parity")
  pytest.importorskip("transformers", reason="needs torch and transformers: make test-parity")
  from benchmarks.gpu.transformers_step import PretrainingLoss

  model = dataclasses.replace(TINY_MODEL, sharing=sharing, embedding_size=24 if sharing == "none" else 8)
  torch.manual_seed(0)
  module = PretrainingLoss(dataclasses.replace(MANIFEST, model=model.to_dict())).eval()
  rng = np.random.default_rng(0)
  examples = [example(number, rng) for number in range(BATCH_SIZE)]
  batch = {name: torch.from_numpy(np.stack([features[name] for features in examples])) for name in examples[0]}
  loss, masked_lm_loss = module(batch)
  labels = torch.full((BATCH_SIZE, SEQ_LENGTH), -100)
  for row, features in enumerate(examples):
    num_predictions = int(features["masked_lm_weights"].sum())
    positions = features["masked_lm_positions"][:num_predictions]
    labels[row, positions] = torch.from_numpy(features["masked_lm_ids"][:num_predictions])
  order = "next_sentence_label" if sharing == "none" else "sentence_order_label"
  inputs = {name: batch[field] for name, field in _TRANSFORMERS_INPUTS.items()}
  expected = module.model(**inputs, labels=labels, **{order: batch["next_sentence_labels"].flatten()})
  assert float(loss) == pytest.approx(float(expected.loss), rel=1e-5)
  assert 0 < float(masked_lm_loss) < float(loss)
