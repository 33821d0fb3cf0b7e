"""The training steps can be lowered and compiled for a TPU, and the lowered step computes the same as a run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
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

from albert.config.model import MODELS, ModelConfig
from albert.config.run import OptimizerConfig, TrainConfig
from albert.errors import UserError
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import make_schedule
from albert.tasks import registry
from albert.training import distributed_batches
from albert.training.loop import Trainer
from albert.training.run_plan import TrainingPlan
from benchmarks.tpu import report, search
from benchmarks.tpu.chips import NUM_CORES
from benchmarks.tpu.lowering import Step, batch_specs
from benchmarks.tpu.programs import STEPS, Program
from benchmarks.tpu.protocol import Worker

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "tpu_aot.py"
MODEL = ModelConfig(
  vocab_size=400,
  embedding_size=8,
  hidden_size=24,
  num_hidden_layers=2,
  num_attention_heads=3,
  intermediate_size=40,
  hidden_dropout_prob=0.1,
  attention_probs_dropout_prob=0.1,
  max_position_embeddings=80,
)
LENGTH = 80
GIB = 1 << 30


def _has_profile() -> bool:
  try:
    return bool(importlib.metadata.version("tensorflow-tpu") and importlib.metadata.version("jax"))
  except importlib.metadata.PackageNotFoundError:
    return False


needs_profile = pytest.mark.skipif(not _has_profile(), reason="needs the tpu profile: make test-tpu")


@pytest.fixture(autouse=True)
def _float32_afterwards() -> Any:
  yield
  keras.mixed_precision.set_global_policy("float32")


def program(step: str, **options: Any) -> Program:
  return Program(step=step, model="albert_tiny", length=LENGTH, **options)


def test_every_task_has_a_step_with_batches_of_one_shape(tmp_path):
  names = set()
  for name, make in STEPS.items():
    directory = tmp_path / name
    directory.mkdir()
    task, data = make(MODEL, LENGTH, directory)
    names.add(task.name)
    specs = batch_specs(data, 6)
    expected = [6, 4, LENGTH] if name == "race" else [6, LENGTH]
    assert specs["input_ids"].shape == expected
  assert names == set(registry.TASKS)


def test_batches_of_many_shapes_are_refused():
  with pytest.raises(UserError, match=r"input_ids has shape .*give --pad_to_max_length"):
    distributed_batches.check_static_shapes({"input_ids": tf.TensorSpec([4, None], tf.int32)})


def test_a_tpu_elsewhere_runs_no_python():
  distributed_batches.check_host("local", needs_python=True)
  distributed_batches.check_host("grpc://10.0.0.2:8470", needs_python=False)
  with pytest.raises(UserError, match=r"--tpu=grpc://10\.0\.0\.2:8470: .*--tpu=local"):
    distributed_batches.check_host("grpc://10.0.0.2:8470", needs_python=True)


@pytest.mark.parametrize(
  "options",
  [
    pytest.param({}, marks=pytest.mark.slow),
    pytest.param({"recompute_grad": True}, marks=pytest.mark.slow),
    pytest.param({"gradient_accumulation_steps": 2}, marks=pytest.mark.slow),
  ],
)
def test_what_is_lowered_is_what_a_run_computes(tmp_path, options):
  """Runs the lowered step and the training loop of a run on a CPU, with the same weights and batch. They must agree.

  The lowered step takes the values of all variables as arguments, and returns the new ones.
  """
  lowered = Step(program("pretraining", **options), tmp_path, MODEL)
  config = OptimizerConfig(optimizer="lamb")
  train = TrainConfig(gradient_accumulation_steps=options.get("gradient_accumulation_steps", 1), train_batch_size=4)
  device = tf.distribute.OneDeviceStrategy("CPU:0")
  with device.scope():
    model = lowered.task.build_model()
    optimizer = make_optimizer(config, make_schedule(config, train.num_train_steps, 4))
    run = Trainer(lowered.task, model, optimizer, TrainingPlan(strategy=device, train=train, optimizer=config))
  optimizer.iterations.assign(2000)
  index_of_variable = {variable.ref(): index for index, variable in enumerate(lowered.variables)}
  # Under mixed precision Keras wraps the variables of a layer.
  unwrapped = {name: getattr(variable, "_variable", variable) for name, variable in lowered.trainer.state().items()}
  index_of_name = {name: index_of_variable[variable.ref()] for name, variable in unwrapped.items()}
  assert set(index_of_name) == set(run.state())
  before = [np.zeros(variable.shape, variable.dtype.as_numpy_dtype) for variable in lowered.variables]
  for name, variable in run.state().items():
    before[index_of_name[name]] = variable.numpy()
  rng = np.random.default_rng(0)
  specs = batch_specs(lowered.data, 4)
  batch = {name: tf.constant(rng.integers(0, 2, spec.shape), spec.dtype) for name, spec in specs.items()}

  device.run(tf.function(run.replica_step), args=(batch,))
  step = tf.function(lambda values: lowered(values, batch, tf.constant(0), 1))
  after = step([tf.constant(value) for value in before])
  for name, variable in run.state().items():
    index = index_of_name[name]
    change = np.abs(variable.numpy() - before[index]).max()
    assert change > 0, name
    np.testing.assert_allclose(after[index], variable.numpy(), rtol=1e-5, atol=1e-3 * change, err_msg=name)


def made_up_trial(batch: int, fixed: float, per_sequence: float, limit: float = 15.75) -> dict[str, Any]:
  """Returns the compiler's result for a program that takes `fixed` + batch * `per_sequence` GiB."""
  used = int((fixed + batch * per_sequence) * GIB)
  if used > limit * GIB:
    return {"needs": used, "limit": int(limit * GIB), "seconds": 1.0}
  variables = int(0.6 * fixed * GIB)
  return {"argument": variables, "output": variables, "alias": variables, "temporary": used - variables, "code": 0,
          "flops": 2e12 * batch, "bytes_accessed": 5e9 * batch, "seconds": 1.0}  # fmt: skip


@pytest.mark.parametrize(("fixed", "per_sequence"), [(0.2, 0.21), (5.0, 0.9), (9.0, 0.004), (14.0, 1.8), (1.0, 0.0001)])
@pytest.mark.parametrize("first", [1, 30, 700])
def test_the_search_finds_the_limit_in_few_compilations(fixed, per_sequence, first):
  trials: dict[int, Any] = {}
  while (batch := search.next_batch(trials, 16 * GIB, first)) is not None:
    assert batch not in trials
    trials[batch] = made_up_trial(batch, fixed, per_sequence)
  expected = max((b for b in search.GRID if fixed + b * per_sequence <= 15.75), default=None)
  assert max((b for b in trials if search.fits(trials[b])), default=None) == expected
  assert len(trials) <= 7


def test_nothing_fits():
  trials = {1: made_up_trial(1, 20.0, 1.0)}
  assert search.next_batch(trials, 16 * GIB, 1) is None


def test_batches_are_multiples_of_the_accumulation_steps():
  trials: dict[int, Any] = {}
  while (batch := search.next_batch(trials, 16 * GIB, 5, 4)) is not None:
    trials[batch] = made_up_trial(batch, 1.0, 0.6)
  assert all(batch % 4 == 0 for batch in trials)
  assert max(b for b in trials if search.fits(trials[b])) == 24


def test_the_table_says_what_was_compiled():
  trials = {24: made_up_trial(24, 1.0, 0.6), 32: made_up_trial(32, 1.0, 0.6)}
  lines = report.format_table({(program("pretraining", recompute_grad=True), "v3"): trials}).splitlines()
  header, row = ([cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], lines[2]))
  values = dict(zip(header, row, strict=True))
  assert values["step"] == "pretraining, recompute_grad"
  assert (values["largest batch per core"], values["does not fit"]) == ("24", "32 (20.2 GiB)")
  assert (values["HBM GiB"], values["variables"], values["GFLOP per sequence"]) == ("15.40", "0.60", "2000")
  assert float(values["roofline ms per step"]) == pytest.approx(24 * 2e12 / 61.5e12 * 1e3, abs=1)
  assert values["bound by"] == "matrices"


def test_a_loop_has_no_flops_since_the_compiler_counts_its_body_once():
  trials = {24: made_up_trial(24, 1.0, 0.6), 32: made_up_trial(32, 1.0, 0.6)}
  lines = report.format_table({(program("pretraining", gradient_accumulation_steps=4), "v3"): trials}).splitlines()
  header, row = ([cell.strip() for cell in line[2:-2].split(" | ")] for line in (lines[0], lines[2]))
  values = dict(zip(header, row, strict=True))
  assert (values["step"], values["HBM GiB"]) == ("pretraining, 4 accumulation steps", "15.40")
  assert values["TFLOP per step"] == values["roofline ms per step"] == values["bound by"] == ""


@pytest.mark.parametrize(("batch", "largest"), [(1, "none"), (24, "not known yet")])
def test_the_table_tells_what_fits_nowhere_from_what_is_not_found_yet(batch, largest):
  trials = {batch: made_up_trial(batch, 20.0, 1.0)}
  row = report.format_table({(program("pretraining"), "v3"): trials}).splitlines()[2]
  assert row.strip("| ").split(" | ")[4:5] == [largest]


@pytest.mark.slow
@pytest.mark.skipif(_has_profile(), reason="the profile is there")
def test_without_the_profile_one_line_says_how_to_get_it(tmp_path):
  command = [sys.executable, str(SCRIPT), f"--output_dir={tmp_path}"]
  done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
  assert done.returncode == 2
  assert re.fullmatch(r"error: tensorflow-tpu, .* not installed: .*`make setup-tpu`.*\n", done.stderr)


@needs_profile
@pytest.mark.parametrize("step", STEPS)
def test_every_step_lowers(tmp_path, step):
  lowered = Step(program(step), tmp_path, MODEL)
  text = lowered.stablehlo(4, NUM_CORES)
  products = [line for line in text.splitlines() if "stablehlo.dot" in line]
  assert len(products) > 8 * MODEL.num_hidden_layers
  assert sum("bf16" in line for line in products) > 20 * MODEL.num_hidden_layers
  assert "xf64>" not in text
  assert text.count('"stablehlo.all_reduce"') > len(lowered.trainer.weights)
  assert "dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>" in text


@needs_profile
@pytest.mark.parametrize("options", [{"recompute_grad": True}, {"gradient_accumulation_steps": 2}, {"one_hot": True}])
def test_options_lower(tmp_path, options):
  plain = Step(program("pretraining"), tmp_path, MODEL).stablehlo(4, NUM_CORES)
  other = Step(program("pretraining", **options), tmp_path, MODEL).stablehlo(4, NUM_CORES)
  count = lambda text: len(re.findall(r"stablehlo\.dot", text))  # noqa: E731
  if "recompute_grad" in options:
    assert count(other) > count(plain)
  elif "one_hot" in options:
    assert count(other) == count(plain) + 2  # there and back
  else:
    assert "stablehlo.while" in other
    assert "stablehlo.while" not in plain


@needs_profile
def test_recomputing_takes_less_memory_and_more_arithmetic(tmp_path):
  """The compiler must not detect that both computations are the same, and remove one of them."""
  deep = dataclasses.replace(MODEL, num_hidden_layers=6)
  compiler = Worker("benchmarks.tpu.compiler")
  trials = []
  for recompute_grad in (False, True):
    lowered = Step(program("pretraining", recompute_grad=recompute_grad), tmp_path, deep)
    path = tmp_path / "step.mlir"
    path.write_text(lowered.stablehlo(512, NUM_CORES), encoding="utf-8")
    trials.append(compiler.ask({"path": str(path), "chip": "v5e"}))
  compiler.close()
  kept, recomputed = trials
  assert recomputed["temporary"] < 0.8 * kept["temporary"]
  assert recomputed["flops"] > 1.1 * kept["flops"]


@needs_profile
def test_the_script_compiles_and_takes_up_where_it_was_stopped(tmp_path):
  flags = ["--steps=pretraining", "--models=albert_tiny", "--lengths=128", "--chips=v5e", f"--output_dir={tmp_path}"]
  trials = tmp_path / "tpu_aot_trials.jsonl"
  made = {"program": dataclasses.asdict(Program(step="pretraining", model="albert_tiny", length=128)), "chip": "v5e"}
  # A search that is almost finished: only one batch size between these two is left to compile.
  known = {**made, "batch_size": 512, "trial": made_up_trial(512, 0.1, 0.001)}
  refused = {**made, "batch_size": 1024, "trial": {"needs": 17 * GIB, "limit": 15 * GIB, "seconds": 1.0}}
  trials.write_text(json.dumps(known) + "\n" + json.dumps(refused) + "\n", encoding="utf-8")
  command = [sys.executable, str(SCRIPT), *flags]
  done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
  assert len(trials.read_text(encoding="utf-8").splitlines()) == 3
  trial = json.loads(trials.read_text(encoding="utf-8").splitlines()[2])
  assert trial["batch_size"] == 768
  tiny = MODELS["albert_tiny"]
  products = 12 * tiny.hidden_size**2 * tiny.num_hidden_layers + 2 * 128 * tiny.hidden_size * tiny.num_hidden_layers
  assert trial["trial"]["flops"] > 6 * 768 * 128 * products
  assert trial["trial"]["alias"] >= 12 * trial["trial"]["parameters"]
  table = next(tmp_path.glob("tpu_aot_2*.md")).read_text(encoding="utf-8")
  assert "| pretraining | albert_tiny | 128 | v5e | 768 | 1024 (17.0 GiB) |" in table
  assert str(next(tmp_path.glob("tpu_aot_2*.md"))) in done.stdout
  again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
  assert "batch" not in again.stdout
