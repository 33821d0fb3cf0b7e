"""Runs the step that TPUs run with --shard_optimizer_state on several devices of a processor, with JAX.

tests/benchmarks/test_tpu_aot.py runs this program in a process of its own, because JAX divides a processor into
devices only before it is used: --xla_force_host_platform_device_count=4 in XLA_FLAGS.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export

from albert.config.run import OptimizerConfig, TrainConfig
from albert.data.dataset import InputContext
from albert.optimizers.factory import make_optimizer
from albert.optimizers.schedules import make_schedule
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training.loop import Trainer
from albert.training.run_plan import TrainingPlan
from benchmarks.gpu.packaging import portable_artifact
from benchmarks.tpu.lowering import Step
from benchmarks.tpu.programs import Program
from tests.synthetic import TINY_MODEL

jax.config.update("jax_enable_x64", True)  # the number of updates is int64

NUM_CORES = 4
OPTIMIZER = OptimizerConfig(learning_rate=0.02, num_warmup_steps=2)
NUM_STEPS = 5
BATCH_SIZE = 16


def run_on_cores(step: Step, weights: dict[str, np.ndarray], batches: list[dict[str, np.ndarray]]) -> dict[str, Any]:
  """Updates on NUM_CORES devices, each with its rows of the batches; returns name -> the weights of each core."""
  wrapped = {name: getattr(variable, "_variable", variable) for name, variable in step.trainer.weights.items()}
  names = {variable.ref(): name for name, variable in wrapped.items()}
  values = [
    np.broadcast_to(
      weights[names[variable.ref()]]
      if variable.ref() in names
      else np.full(variable.shape, -1 if "first_bad_step" in variable.name else 0, variable.dtype.as_numpy_dtype),
      (NUM_CORES, *variable.shape),
    )
    for variable in step.variables
  ]
  rows = BATCH_SIZE // NUM_CORES
  features = [[array.reshape(NUM_CORES, rows, *array.shape[1:]) for array in batch.values()] for batch in batches]
  program = portable_artifact(step.stablehlo(rows, NUM_CORES))
  types = jax.tree.map(
    lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype),
    (values, features[0], np.zeros(NUM_CORES, np.int32)),
  )
  # A placeholder with the types of the program, whose module is replaced (see benchmarks.gpu.jax_step).
  placeholder = export.export(jax.jit(lambda variables, *unused: variables, keep_unused=True))(*types)
  exported = dataclasses.replace(placeholder, mlir_module_serialized=program)
  update = jax.pmap(exported.call)
  for batch in features:
    values = update(values, batch, np.arange(NUM_CORES, dtype=np.int32))
  return {
    names[variable.ref()]: np.asarray(value)
    for variable, value in zip(step.variables, values, strict=True)
    if variable.ref() in names
  }


def main(input_file: str, output_file: str, gradient_accumulation_steps: str) -> None:
  """Trains on one device without sharding, and on NUM_CORES with it."""
  task = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=input_file))
  data = task.training_data()
  examples = data.training_batches(batch_size=BATCH_SIZE, first_step=0, seed=0, context=InputContext(0, 1, 1))
  batches = [{name: value.numpy() for name, value in batch.items()} for batch in examples.take(NUM_STEPS)]
  device = tf.distribute.OneDeviceStrategy("CPU:0")
  train = TrainConfig(num_train_steps=20, train_batch_size=BATCH_SIZE)
  with device.scope():
    optimizer = make_optimizer(OPTIMIZER, make_schedule(OPTIMIZER, train.num_train_steps, BATCH_SIZE))
    plan = TrainingPlan(strategy=device, train=train, optimizer=OPTIMIZER)
    trainer = Trainer(task, task.build_model(), optimizer, plan)
  initial = {name: variable.numpy() for name, variable in trainer.weights.items()}
  trainer.train_steps(iter(tf.data.Dataset.from_tensor_slices(_stack(batches))), tf.constant(NUM_STEPS))
  one_device = {name: variable.numpy() for name, variable in trainer.weights.items()}

  program = Program(
    step="pretraining",
    model="albert_tiny",
    length=TINY_MODEL.max_position_embeddings,
    num_cores=NUM_CORES,
    shard_optimizer_state=True,
    gradient_accumulation_steps=int(gradient_accumulation_steps),
  )
  step = Step(
    program,
    Path(output_file).parent,
    TINY_MODEL,
    task_and_data=(task, data),
    precision="float32",
    optimizer=OPTIMIZER,
    num_train_steps=train.num_train_steps,
  )
  cores = run_on_cores(step, initial, batches)
  arrays = {"initial": initial, "one_device": one_device, "cores": cores}
  named = {f"{key}/{name}": array for key, weights in arrays.items() for name, array in weights.items()}
  np.savez(output_file, allow_pickle=False, **named)


def _stack(batches: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  return {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}


if __name__ == "__main__":
  main(*sys.argv[1:])
