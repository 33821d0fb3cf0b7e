"""Trains a task on one and on two logical CPU devices, and saves weights and metrics.

tests/integration/test_mirrored.py runs this program in a process of its own, because a CPU can be divided into devices
only before TensorFlow uses it.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
  from albert.tasks.base import Task


def make_pretraining_task(input_file: str, sentence_prediction: str) -> Task:
  """Makes a pretraining task that trains and evaluates on the same shards."""
  from albert.tasks.pretraining.flags import PretrainingConfig
  from albert.tasks.pretraining.model import PretrainingTask
  from tests.synthetic import TINY_MODEL

  # One layer, because the step of each replica is traced separately.
  model = dataclasses.replace(TINY_MODEL, num_hidden_layers=1)
  return PretrainingTask(
    model,
    PretrainingConfig(input_file=input_file, eval_input_file=input_file, sentence_prediction=sentence_prediction),
  )


def make_finetuning_task(directory: str) -> Task:
  """Makes the toy task with a directory that holds its files and spiece.model."""
  from albert.config.run import FinetuningConfig
  from tests.synthetic import TINY_MODEL
  from tests.tasks.toy import ToyData, ToyTask

  config = FinetuningConfig(spm_model_file=f"{directory}/spiece.model", max_seq_length=32)
  # Without dropout, because each replica draws other masks for its examples.
  return ToyTask(dataclasses.replace(TINY_MODEL, classifier_dropout_prob=0.0), ToyData(config, directory))


def train(task_kind: str, data_path: str, output_dir: str, num_devices: int) -> None:
  """Trains for six steps with MirroredStrategy (for one device: OneDeviceStrategy), and saves weights and metrics.

  In fine-tuning, the run on two devices uses gradient checkpointing. This must not change the results either.

  Args:
    task_kind: "pretraining"; "finetuning"; "compiled": pretraining in which the replicas compile their step;
      "sharded": pretraining in which the replicas divide the moments among them; or "float16": pretraining in float16,
      whose first steps overflow.
    data_path: the pattern of the shards, or the directory of the toy task.
    output_dir: the directory of the run, which also gets weights.npz: the weights, metrics and outputs.
    num_devices: 1 or 2.
  """
  from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
  from albert.estimator import Estimator
  from albert.optimizers import gradients
  from albert.runs.logs import read_metrics

  if task_kind == "finetuning":
    task = make_finetuning_task(data_path)
  else:  # without a sentence objective, the pooler has no gradient
    task = make_pretraining_task(data_path, "none" if task_kind == "sharded" else "sop")
  config = RunConfig(
    output_dir=output_dir,
    from_scratch=True,
    optimizer=OptimizerConfig(num_warmup_steps=2, learning_rate=0.01),
    train=TrainConfig(
      train_batch_size=8,
      eval_batch_size=8,
      num_train_steps=6,
      distribution_strategy="mirrored" if num_devices > 1 else "one_device",
      precision="float16" if task_kind == "float16" else "float32",
      jit_compile="true" if task_kind == "compiled" and num_devices > 1 else "false",
      recompute_grad=task_kind == "finetuning" and num_devices > 1,
      shard_optimizer_state=task_kind == "sharded" and num_devices > 1,
    ),
  )
  if task_kind == "float16":
    gradients.INITIAL_SCALE = 2.0**20
  estimator = Estimator(task, config)
  assert estimator.strategy.num_replicas_in_sync == num_devices
  estimator.train()
  for variable in estimator.model.named_weights().values():
    copies = estimator.strategy.experimental_local_results(variable)
    assert all(np.array_equal(copies[0], copy) for copy in copies), variable.name
  last_metrics = read_metrics(output_dir)[-1]
  results, outputs = estimator.evaluator.evaluate()
  arrays = {name: variable.numpy() for name, variable in estimator.model.named_weights().items()}
  arrays |= {f"metric:{name}": np.float64(number) for name, number in results.items()}
  for split, split_outputs in outputs.items():
    arrays |= {f"output:{split}:{name}": array for name, array in split_outputs.items()}
  arrays |= {f"log:{name}": np.float64(last_metrics.get(name, 0)) for name in ("loss_scale", "skipped_steps")}
  checkpoint = tf.train.load_checkpoint(f"{output_dir}/checkpoints/step-6/weights")
  arrays |= {
    f"checkpoint:{name}": checkpoint.get_tensor(name)
    for name in checkpoint.get_variable_to_shape_map()
    if name.endswith(("/adam_m", "/adam_v"))
  }
  np.savez(f"{output_dir}/weights.npz", **arrays)


def main(task_kind: str, data_path: str, output_dir: str) -> None:
  """Trains on one device in output_dir/devices-1, and on two in output_dir/devices-2."""
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  for num_devices in (1, 2):
    train(task_kind, data_path, f"{output_dir}/devices-{num_devices}", num_devices)


if __name__ == "__main__":
  main(*sys.argv[1:])
