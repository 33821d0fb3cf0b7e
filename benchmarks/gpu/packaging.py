"""Exports a pretraining step as a package that runs without TensorFlow (see step_package)."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig
from albert.data.dataset import InputContext
from albert.settings import costs
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from benchmarks.gpu import step_package
from benchmarks.gpu.step_package import FeatureSpec, Manifest, VariableSpec
from benchmarks.tpu.lowering import ArgumentVariable, Step, batch_specs
from benchmarks.tpu.programs import Program

_PACKAGES = ("tensorflow", "tensorflow-tpu", "tf-keras", "jaxlib")


def portable_artifact(text: str) -> bytes:
  """Serializes a StableHLO program so that later versions of JAX and XLA can read it, too.

  Args:
    text: the program.

  Returns:
    A portable artifact of the oldest version of StableHLO that the installed jaxlib can write.
  """
  with mlir.make_ir_context():
    program = ir.Module.parse(text).operation.get_asm(enable_debug_info=False)
  return bytes(stablehlo.serialize_portable_artifact_str(program, stablehlo.get_minimum_version()))


def variable_spec(variable: ArgumentVariable, name: str) -> VariableSpec:
  """Describes a variable and its initial values.

  Args:
    variable: the variable.
    name: its name in a checkpoint; "" if checkpoints do not hold it.

  Raises:
    ValueError: the initializer is neither a truncated normal distribution nor one number for all elements.
  """
  spec = VariableSpec(name or variable.name.removesuffix(":0"), tuple(variable.shape), variable.dtype.name)
  source = variable.initial_value_or_function
  initializer: Any = getattr(source, "func", None)  # Keras passes functools.partial(initializer, shape, dtype=...)
  if type(initializer).__name__ == "TruncatedNormal":
    settings = initializer.get_config()
    if settings["mean"]:
      raise ValueError(f"the initial values of {spec.name} have the mean {settings['mean']} instead of 0")
    return dataclasses.replace(spec, stddev=settings["stddev"])
  with tf.init_scope():  # outside of the graph in which the variables were made
    initial = source() if callable(source) else tf.get_static_value(source) if tf.is_tensor(source) else source
  values = np.asarray(initial)
  if values.size and (values != values.flat[0]).any():
    raise ValueError(f"{spec.name} has initial values that differ, and no initializer that is known here")
  return dataclasses.replace(spec, initial=values.flat[0].item() if values.size else 0.0)


def _metrics(variables: Sequence[VariableSpec]) -> dict[str, tuple[int, int]]:
  """Returns metric -> numbers of the variables of its accumulator (albert.training.evaluator)."""
  numbers = {variable.name: number for number, variable in enumerate(variables)}
  names = [name.removesuffix("_total") for name in numbers if name.endswith("_total")]
  return {name: (numbers[f"{name}_total"], numbers[f"{name}_weight"]) for name in names}


def write_package(
  directory: Path,
  *,
  model_name: str,
  model: ModelConfig,
  input_file: str,
  batch_sizes: Sequence[int],
  num_records: int,
  precision: str,
  optimizer: OptimizerConfig,
  num_train_steps: int,
) -> Manifest:
  """Writes a package.

  Args:
    directory: the package, which is made.
    model_name: the name of the model, for tables.
    model: the model.
    input_file: pretraining shards, as for --input_file.
    batch_sizes: the batch sizes to lower the step for.
    num_records: number of records to store.
    precision: "bfloat16" or "float32".
    optimizer: the settings of the optimizer and of its schedule.
    num_train_steps: number of steps that the schedule is made for.

  Raises:
    UserError: the shards cannot be read, or do not fit the model.
  """
  task = PretrainingTask(model, PretrainingConfig(input_file=input_file))
  data = task.training_data()
  program = Program(step="pretraining", model=model_name, length=task.data.max_seq_length)
  step = Step(
    program,
    directory,
    model,
    task_and_data=(task, data),
    precision=precision,
    optimizer=optimizer,
    num_train_steps=num_train_steps,
  )
  directory.mkdir(parents=True, exist_ok=True)
  names = step.checkpoint_names()
  variables = tuple(variable_spec(v, names.get(number, "")) for number, v in enumerate(step.variables))
  features = batch_specs(data, 1)
  manifest = Manifest(
    model_name=model_name,
    model=model.to_dict(),
    length=task.data.max_seq_length,
    predictions=task.data.max_predictions,
    precision=precision,
    batch_sizes=tuple(batch_sizes),
    flops_per_sequence=costs.step_flops(
      model, batch_size=1, seq_length=task.data.max_seq_length, predictions=task.data.max_predictions
    ),
    optimizer=optimizer.to_dict(),
    num_train_steps=num_train_steps,
    versions=_installed_versions(),
    variables=variables,
    features=tuple(FeatureSpec(name, tuple(spec.shape[1:]), spec.dtype.name) for name, spec in features.items()),
    metrics=_metrics(variables),
  )
  records = next(
    iter(data.training_batches(batch_size=num_records, first_step=0, seed=0, context=InputContext(0, 1, 1)))
  )
  step_package.write_records(directory, {name: values.numpy() for name, values in records.items()})
  for batch_size in batch_sizes:
    artifact = portable_artifact(step.stablehlo(batch_size, 1, "CPU"))
    step_package.program_file(directory, batch_size).write_bytes(artifact)
  manifest.write(directory)
  _copy_runners(directory)
  return manifest


def _installed_versions() -> dict[str, str]:
  distributions = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
  return {name: distributions[name] for name in _PACKAGES if name in distributions}


def _copy_runners(directory: Path) -> None:
  """Copies the modules that run a package to it, so that `python -m benchmarks.gpu.jax_step .` works there."""
  target = directory / "benchmarks" / "gpu"
  target.mkdir(parents=True, exist_ok=True)
  for name in step_package.RUNNERS:
    shutil.copy(Path(__file__).with_name(f"{name}.py"), target)


def size(directory: Path) -> int:
  """Returns the bytes of all files of a package."""
  return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
