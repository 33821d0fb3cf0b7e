"""The training steps can be lowered and compiled for a TPU. A lowered step computes what a training run computes."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from albert.config.model import MODELS
from albert.config.run import OptimizerConfig, TrainConfig
from albert.errors import UserError
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import make_schedule
from albert.settings import tpu_memory
from albert.tasks import registry
from albert.training import distribution
from albert.training.loop import Trainer
from albert.training.run_plan import TrainingPlan
from benchmarks.tpu import report, search
from benchmarks.tpu.chips import NUM_CORES
from benchmarks.tpu.lowering import Step, batch_specs
from benchmarks.tpu.programs import STEPS, Program
from benchmarks.tpu.protocol import ENVIRONMENT, Worker
from tests.gcs_server import has_openssl
from tests.open_shards import MIB, bytes_requested
from tests.synthetic import DROPOUT, TINY_MODEL, write_shards

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "tpu_aot.py"
LENGTH = 80
MODEL = dataclasses.replace(TINY_MODEL, vocab_size=400, max_position_embeddings=LENGTH, **DROPOUT)
GIB = 1 << 30


def _has_tpu_profile() -> bool:
  """Whether the packages of the TPU profile (constraints/tpu.txt) are installed."""
  try:
    return bool(importlib.metadata.version("tensorflow-tpu") and importlib.metadata.version("jax"))
  except importlib.metadata.PackageNotFoundError:
    return False


needs_tpu_profile = pytest.mark.skipif(not _has_tpu_profile(), reason="needs the tpu profile: make test-tpu")


@pytest.fixture(autouse=True)
def _float32_after_each_test() -> Any:
  """Undoes the change of Keras's global policy that lowering makes."""
  yield
  keras.mixed_precision.set_global_policy("float32")


def make_program(step: str, **options: Any) -> Program:
  return Program(step=step, model="albert_tiny", length=LENGTH, **options)


def test_every_task_has_a_step_with_batches_of_one_shape(tmp_path):
  task_names = set()
  for step_name, make_task_and_data in STEPS.items():
    directory = tmp_path / step_name
    directory.mkdir()
    task, dataset = make_task_and_data(MODEL, LENGTH, directory)
    task_names.add(task.name)
    specs = batch_specs(dataset, 6)
    expected = [6, 4, LENGTH] if step_name == "race" else [6, LENGTH]
    assert specs["input_ids"].shape == expected
  assert task_names == set(registry.TASKS)


def test_batches_of_many_shapes_are_refused():
  with pytest.raises(UserError, match=r"input_ids has shape .*give --pad_to_max_length"):
    distribution.check_static_shapes({"input_ids": tf.TensorSpec([4, None], tf.int32)})


def make_run_trainer(lowered: Step, gradient_accumulation_steps: int) -> Trainer:
  """Makes the trainer of a training run on a CPU, with the task of a lowered step."""
  config = OptimizerConfig(optimizer="lamb")
  train = TrainConfig(gradient_accumulation_steps=gradient_accumulation_steps, train_batch_size=4)
  device = tf.distribute.OneDeviceStrategy("CPU:0")
  with device.scope():
    model = lowered.task.build_model()
    optimizer = make_optimizer(config, make_schedule(config, train.num_train_steps, 4))
    trainer = Trainer(lowered.task, model, optimizer, TrainingPlan(strategy=device, train=train, optimizer=config))
  optimizer.iterations.assign(2000)
  return trainer


def argument_indices(lowered: Step) -> dict[str, int]:
  """Returns which argument of a lowered step holds each variable, by the variable's name."""
  index_of_variable = {variable.ref(): index for index, variable in enumerate(lowered.variables)}
  # Under mixed precision Keras wraps the variables of a layer.
  unwrapped = {name: getattr(variable, "_variable", variable) for name, variable in lowered.trainer.state().items()}
  return {name: index_of_variable[variable.ref()] for name, variable in unwrapped.items()}


@pytest.mark.parametrize(
  "options",
  [
    pytest.param({}, marks=pytest.mark.slow),
    pytest.param({"recompute_grad": True}, marks=pytest.mark.slow),
    pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
  ],
)
def test_the_lowered_step_changes_the_variables_as_a_training_run_does(tmp_path, options):
  """The lowered step and the training run's step get the same weights and batch, and are executed on a CPU.

  The lowered step takes the values of all variables as arguments, and returns the new ones.
  """
  lowered = Step(make_program("pretraining", **options), tmp_path, MODEL)
  trainer = make_run_trainer(lowered, options.get("gradient_accumulation_steps", 1))
  indices = argument_indices(lowered)
  assert set(indices) == set(trainer.state())
  old_values = [np.zeros(variable.shape, variable.dtype.as_numpy_dtype) for variable in lowered.variables]
  for name, variable in trainer.state().items():
    old_values[indices[name]] = variable.numpy()
  rng = np.random.default_rng(0)
  specs = batch_specs(lowered.data, 4)
  batch = {name: tf.constant(rng.integers(0, 2, spec.shape), spec.dtype) for name, spec in specs.items()}

  trainer.strategy.run(tf.function(trainer.replica_step), args=(batch,))
  lowered_function = tf.function(lambda values: lowered(values, batch, tf.constant(0), 1))
  new_values = lowered_function([tf.constant(value) for value in old_values])
  for name, variable in trainer.state().items():
    index = indices[name]
    change = np.abs(variable.numpy() - old_values[index]).max()
    assert change > 0, name
    np.testing.assert_allclose(new_values[index], variable.numpy(), rtol=1e-5, atol=1e-3 * change, err_msg=name)


LIMIT_GIB = 15.75  # GiB of a core that programs can use


def made_up_trial(batch: int, fixed_gib: float, gib_per_sequence: float) -> dict[str, Any]:
  """Returns the compiler's result for a program that takes `fixed_gib` + batch * `gib_per_sequence` GiB.

  60% of the fixed part are variables. A sequence takes 2 TFLOP and 5 GB of transfers.
  """
  used = int((fixed_gib + batch * gib_per_sequence) * GIB)
  if used > LIMIT_GIB * GIB:
    return {"needs": used, "limit": int(LIMIT_GIB * GIB), "seconds": 1.0}
  variables = int(0.6 * fixed_gib * GIB)
  return {"argument": variables, "output": variables, "alias": variables, "temporary": used - variables, "code": 0,
          "flops": 2e12 * batch, "bytes_accessed": 5e9 * batch, "seconds": 1.0}  # fmt: skip


def search_largest_batch(
  fixed_gib: float, gib_per_sequence: float, *, hbm: int = 16 * GIB, first: int = 5, sizes: Any = search.GRID
) -> tuple[int | None, dict[int, Any]]:
  """Searches with made-up trials. Returns the largest batch that fits, and all trials."""
  trials: dict[int, Any] = {}
  while (batch := search.next_batch(trials, hbm=hbm, first=first, sizes=sizes)) is not None:
    assert batch not in trials
    trials[batch] = made_up_trial(batch, fixed_gib, gib_per_sequence)
  return max((batch for batch, trial in trials.items() if search.fits(trial)), default=None), trials


@pytest.mark.parametrize(
  ("fixed_gib", "gib_per_sequence"), [(0.2, 0.21), (5.0, 0.9), (9.0, 0.004), (14.0, 1.8), (1.0, 0.0001), (20.0, 1.0)]
)
@pytest.mark.parametrize("first_batch", [1, 30, 700])
def test_the_search_finds_the_limit_in_few_compilations(fixed_gib, gib_per_sequence, first_batch):
  largest, trials = search_largest_batch(fixed_gib, gib_per_sequence, first=first_batch)
  assert largest == max(
    (batch for batch in search.GRID if fixed_gib + batch * gib_per_sequence <= LIMIT_GIB), default=None
  )
  assert len(trials) <= 7


def test_batches_are_multiples_of_the_accumulation_steps():
  program = Program(step="pretraining", model="albert_tiny", length=512, gradient_accumulation_steps=4)
  largest, trials = search_largest_batch(1.0, 0.6, sizes=search.batch_sizes(program))
  assert all(batch % 4 == 0 for batch in trials)
  assert largest == 24  # (15.75 - 1.0) / 0.6 = 24.6


def test_the_search_ends_at_the_largest_batch_whose_loss_tensorflow_can_differentiate():
  program = Program(step="pretraining", model="albert_tiny", length=512)
  assert program.max_batch == (2**31 - 1) // (77 * 30_000) == 929
  sizes = search.batch_sizes(program)
  assert sizes[-1] == 768
  largest, trials = search_largest_batch(1.0, 0.001, hbm=95 * GIB, sizes=sizes)
  assert largest == 768
  assert table_row(program, trials)["largest batch per core"] == "768"
  assert search.batch_sizes(dataclasses.replace(program, gradient_accumulation_steps=2))[-1] == 1024
  assert search.batch_sizes(dataclasses.replace(program, step="squad")) == search.GRID


def table_row(program: Program, trials: dict[int, Any]) -> dict[str, str]:
  """Returns the cells of the table's only row, by their headings."""
  header, _, row = report.format_table({(program, "v3"): search.Search("2026-11-23", trials)}).splitlines()
  headings = [cell.strip() for cell in header[2:-2].split(" | ")]
  cells = [cell.strip() for cell in row[2:-2].split(" | ")]
  return dict(zip(headings, cells, strict=True))


def test_the_table_has_memory_operations_and_roofline():
  # They take 1.0 + 24 * 0.6 = 15.4 GiB and 1.0 + 32 * 0.6 = 20.2 GiB.
  trials = {24: made_up_trial(24, 1.0, 0.6), 32: made_up_trial(32, 1.0, 0.6)}
  row = table_row(make_program("pretraining", recompute_grad=True), trials)
  assert row["compiled"] == "2026-11-23"
  assert row["step"] == "pretraining, recompute_grad"
  assert (row["largest batch per core"], row["does not fit"]) == ("24", "32 (20.2 GiB)")
  assert (row["HBM GiB"], row["variables"], row["GFLOP per sequence"]) == ("15.40", "0.60", "2000")
  # A core of a v3 has a peak of 61.5 TFLOP/s.
  assert float(row["roofline ms per step"]) == pytest.approx(24 * 2e12 / 61.5e12 * 1e3, abs=1)
  assert row["bound by"] == "matrices"


def test_gradient_accumulation_has_no_flops_since_the_compiler_counts_a_loop_once():
  trials = {24: made_up_trial(24, 1.0, 0.6), 32: made_up_trial(32, 1.0, 0.6)}
  row = table_row(make_program("pretraining", gradient_accumulation_steps=4), trials)
  assert (row["step"], row["HBM GiB"]) == ("pretraining, 4 accumulation steps", "15.40")
  assert row["TFLOP per step"] == row["roofline ms per step"] == row["bound by"] == ""


@pytest.mark.parametrize(("batch", "largest"), [(1, "none"), (24, "not known yet")])
def test_the_table_shows_whether_no_batch_fits_or_none_was_found_so_far(batch, largest):
  trials = {batch: made_up_trial(batch, 20.0, 1.0)}
  assert table_row(make_program("pretraining"), trials)["largest batch per core"] == largest


def test_a_newer_search_replaces_an_older_one(tmp_path):
  program, path = make_program("pretraining"), tmp_path / "trials.jsonl"
  for date, batch in (("2026-11-22", 4), ("2026-11-23", 6), ("2026-11-22", 8), ("2026-11-23", 12)):
    search.record_trial(path, program, "v3", date, batch, made_up_trial(batch, 1.0, 0.6))
  assert list(search.read_searches(path)[program, "v3"].trials) == [6, 12]


def test_the_table_of_the_package_is_that_of_the_recorded_compilations():
  """Compares with the lines of the file, read here in another way: of each step and chip those of the newest search."""
  trials_file = ROOT / "benchmarks" / "results" / "tpu_aot_trials.jsonl"
  fits: dict[Any, dict[int, int]] = {}
  too_large: dict[Any, dict[int, int]] = {}
  lines = [json.loads(line) for line in trials_file.read_text(encoding="utf-8").splitlines()]
  newest: dict[str, str] = {}
  for line in lines:
    line["program"] = dataclasses.asdict(Program(**line["program"]))  # with fields that are newer than the line
    key = json.dumps([line["program"], line["chip"]], sort_keys=True)
    newest[key] = max(newest.get(key, ""), line["search_began"])
  table = tpu_memory.read_table()
  for line in lines:
    program = line["program"]
    is_left_out = program["one_hot"] or program["num_cores"] != NUM_CORES or line["chip"] not in table.chips
    if is_left_out or line["search_began"] != newest[json.dumps([program, line["chip"]], sort_keys=True)]:
      continue
    trial = line["trial"]
    size = (
      sum(trial[key] for key in ("argument", "output", "temporary", "code")) - trial["alias"]
      if "argument" in trial
      else 0
    )
    settings = (
      *(program[name] for name in ("step", "model", "length", "recompute_grad", "gradient_accumulation_steps")),
      line["chip"],
    )
    (fits if size else too_large).setdefault(settings, {})[line["batch_size"]] = size or trial["needs"]
  assert fits
  for step in table.steps:
    settings = (step.step, step.model, step.length, step.recompute_grad, step.gradient_accumulation_steps, step.chip)
    assert {trial.batch: trial.bytes for trial in step.fits} == fits.pop(settings, {}), settings
    assert {trial.batch: trial.bytes for trial in step.too_large} == too_large.pop(settings, {}), settings
  assert not fits
  assert not too_large


@pytest.mark.slow
@pytest.mark.skipif(_has_tpu_profile(), reason="the profile is there")
def test_without_the_tpu_profile_one_line_names_the_command_that_makes_it(tmp_path):
  command = [sys.executable, str(SCRIPT), f"--output_dir={tmp_path}"]
  result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
  assert result.returncode == 2
  assert re.fullmatch(r"error: tensorflow-tpu, .* not installed: .*`make setup-tpu`.*\n", result.stderr)


@needs_tpu_profile
@pytest.mark.parametrize("step", STEPS)
def test_every_step_can_be_lowered_with_products_in_bfloat16(tmp_path, step):
  lowered = Step(make_program(step), tmp_path, MODEL)
  text = lowered.stablehlo(4, NUM_CORES)
  products = [line for line in text.splitlines() if "stablehlo.dot" in line]
  assert len(products) > 8 * MODEL.num_hidden_layers
  assert sum("bf16" in line for line in products) > 20 * MODEL.num_hidden_layers
  assert "xf64>" not in text
  assert text.count('"stablehlo.all_reduce"') > len(lowered.trainer.weights)
  assert "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>" in text  # all-reduces are over all eight cores


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  """The lowered step of pretraining without options."""
  return Step(make_program("pretraining"), tmp_path_factory.mktemp("plain"), MODEL).stablehlo(4, NUM_CORES)


@needs_tpu_profile
@pytest.mark.parametrize(
  "options",
  [{"recompute_grad": True}, {"gradient_accumulation_steps": 2}, {"one_hot": True}, {"shard_optimizer_state": True}],
)
def test_every_option_changes_the_lowered_step(tmp_path, plain, options):
  lowered = Step(make_program("pretraining", **options), tmp_path, MODEL)
  with_option = lowered.stablehlo(4, NUM_CORES)
  num_products, num_products_with_option = plain.count("stablehlo.dot"), with_option.count("stablehlo.dot")
  if "recompute_grad" in options:
    assert num_products_with_option > num_products
  elif "one_hot" in options:
    assert num_products_with_option == num_products + 2  # one in the forward pass, one in the backward pass
  elif "shard_optimizer_state" in options:
    # The gradients are divided. In their place the changes are summed; further sums are those of the squares for LAMB's
    # norms and for the global norm, which takes the place of that of the rows of the word embeddings.
    num_weights = len(lowered.trainer.weights)
    assert with_option.count('"stablehlo.reduce_scatter"') == num_weights
    assert "stablehlo.reduce_scatter" not in plain
    num_sums, num_sums_with_option = (text.count('"stablehlo.all_reduce"') for text in (plain, with_option))
    assert num_sums_with_option == num_sums + 1
    part = f"tensor<{MODEL.hidden_size // NUM_CORES}x{MODEL.hidden_size}xf32>"  # of a moment of the query's kernel
    assert any(part in line for line in with_option.splitlines() if "@main(" in line)
    assert part not in plain
  else:
    assert "stablehlo.while" in with_option
    assert "stablehlo.while" not in plain


@needs_tpu_profile
@pytest.mark.parametrize("gradient_accumulation_steps", [1, 2])
def test_cores_that_share_moments_and_gradients_train_as_one_device(tmp_path, gradient_accumulation_steps):
  """JAX runs the program for TPUs on four devices of a processor: five updates with LAMB and clipping."""
  write_shards(tmp_path / "shards", [50])
  output_file = tmp_path / "weights.npz"
  arguments = [str(tmp_path / "shards" / "*"), str(output_file), str(gradient_accumulation_steps)]
  command = [sys.executable, "-m", "tests.benchmarks.sharded_step", *arguments]
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
  subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=600)
  with np.load(output_file) as weights:
    initial, one_device, cores = (
      {name.removeprefix(key): weights[name] for name in weights.files if name.startswith(key)}
      for key in ("initial/", "one_device/", "cores/")
    )
  assert len(one_device) > 30
  for name, expected in one_device.items():
    assert cores[name].shape == (4, *expected.shape)
    for core in cores[name]:
      np.testing.assert_array_equal(core, cores[name][0], err_msg=name)
    # LAMB divides the moments by the gradient's size, and so enlarges its rounding: to 4e-5 of the largest change.
    tolerance = 1e-7 + 1e-3 * np.abs(expected - initial[name]).max()
    np.testing.assert_allclose(cores[name][0], expected, rtol=1e-6, atol=tolerance, err_msg=name)
  assert max(np.abs(one_device[name] - initial[name]).max() for name in initial) > 0.01


@needs_tpu_profile
def test_gradient_checkpointing_takes_less_memory_and_more_operations(tmp_path):
  """The compiler must not detect that the forward pass is computed twice, and remove one of the computations."""
  deep_model = dataclasses.replace(MODEL, num_hidden_layers=6)
  compiler = Worker("benchmarks.tpu.compiler")
  trials = []
  for recompute_grad in (False, True):
    lowered = Step(make_program("pretraining", recompute_grad=recompute_grad), tmp_path, deep_model)
    path = tmp_path / "step.mlir"
    path.write_text(lowered.stablehlo(512, NUM_CORES), encoding="utf-8")
    trials.append(compiler.ask({"path": str(path), "chip": "v5e", "num_cores": NUM_CORES}))
  compiler.close()
  without_checkpointing, with_checkpointing = trials
  assert with_checkpointing["temporary"] < 0.8 * without_checkpointing["temporary"]
  assert with_checkpointing["flops"] > 1.1 * without_checkpointing["flops"]


@needs_tpu_profile
@pytest.mark.skipif(not has_openssl(), reason="needs openssl")
def test_tensorflow_for_tpus_holds_as_little_of_an_open_shard_of_a_bucket_as_stock_tensorflow(tmp_path):
  """By default it requests 512 MiB of each shard at once; with a small block, 128 MiB for the buffer of tf.data."""
  first_requests, _ = bytes_requested(tmp_path, **ENVIRONMENT)
  assert sorted(first_requests) == [(f"{index}.tfrecord", 0, 16 * MIB) for index in range(3)]


@needs_tpu_profile
def test_the_script_continues_a_search_that_was_stopped(tmp_path):
  flags = ["--steps=pretraining", "--models=albert_tiny", "--lengths=128", "--chips=v5e", f"--output_dir={tmp_path}"]
  trials_file = tmp_path / "tpu_aot_trials.jsonl"
  program = dataclasses.asdict(Program(step="pretraining", model="albert_tiny", length=128))
  # A search that is almost finished: only one batch size between these two is left to compile.
  recorded_trials = {512: made_up_trial(512, 0.1, 0.001), 1024: {"needs": 17 * GIB, "limit": 15 * GIB, "seconds": 1.0}}
  with trials_file.open("w", encoding="utf-8") as file:
    for batch, trial in recorded_trials.items():
      line = {"program": program, "chip": "v5e", "search_began": "2026-11-23", "batch_size": batch, "trial": trial}
      file.write(json.dumps(line) + "\n")
  command = [sys.executable, str(SCRIPT), *flags]
  result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
  lines = [json.loads(line) for line in trials_file.read_text(encoding="utf-8").splitlines()]
  assert [line["batch_size"] for line in lines] == [512, 1024, 768]
  new_trial = lines[2]["trial"]
  tiny = MODELS["albert_tiny"]
  # Multiplications of all layers for a token: one for each of the 12 H^2 weights of a layer, and 2 H for each of the
  # 128 tokens that attention reads. Each comes with an addition, which counts, too. The backward pass takes twice as
  # many operations as the forward pass: a factor of 2 x 3.
  multiplications = (12 * tiny.hidden_size**2 + 2 * 128 * tiny.hidden_size) * tiny.num_hidden_layers
  assert new_trial["flops"] > 6 * 768 * 128 * multiplications
  assert new_trial["alias"] >= 12 * new_trial["parameters"]  # a weight and two moments of 4 bytes each
  (table_file,) = tmp_path.glob("tpu_aot_2*.md")
  row = "| pretraining | albert_tiny | 128 | v5e | 768 | 1024 (17.0 GiB) |"
  assert row in table_file.read_text(encoding="utf-8")
  assert str(table_file) in result.stdout
  second_result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
  assert "batch" not in second_result.stdout  # nothing is left to compile
  assert json.loads((tmp_path / "tpu_memory.json").read_text())["steps"][0]["fits"][-1]["batch"] == 768
