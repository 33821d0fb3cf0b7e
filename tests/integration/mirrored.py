"""Trains on one and on two logical CPU devices.

A test runs this program as a process, since a CPU can be split only before TensorFlow uses it.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
  from albert.tasks.base import Task


def pretraining(input_file: str) -> Task:
  """Returns the task of pretraining on shards."""
  from albert.config.run import PretrainingConfig
  from albert.tasks.pretraining import PretrainingTask
  from tests.synthetic import TINY_MODEL

  model = dataclasses.replace(TINY_MODEL, num_hidden_layers=1)  # each replica's step is traced by itself
  return PretrainingTask(model, PretrainingConfig(input_file=input_file, eval_input_file=input_file))


def finetuning(directory: str) -> Task:
  """Returns the toy task on a directory with its data and spiece.model."""
  from albert.config.run import FinetuningConfig
  from tests.synthetic import TINY_MODEL
  from tests.tasks.toy import ToyTask

  config = FinetuningConfig(spm_model_file=f"{directory}/spiece.model", max_seq_length=32)
  # Without dropout, since each replica draws other masks for its examples.
  return ToyTask(dataclasses.replace(TINY_MODEL, classifier_dropout_prob=0.0), config, directory)


def train(kind: str, source: str, output_dir: str, num_devices: int) -> None:
  """Trains for six steps with MirroredStrategy (for one device: OneDeviceStrategy), and saves weights and metrics.

  In fine-tuning, two devices use gradient checkpointing, which must not change the results either.
  """
  from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
  from albert.estimator import Estimator

  task = {"pretraining": pretraining, "finetuning": finetuning}[kind](source)
  config = RunConfig(
    output_dir=output_dir,
    from_scratch=True,
    optimizer=OptimizerConfig(num_warmup_steps=2, learning_rate=0.01),
    train=TrainConfig(
      train_batch_size=8,
      eval_batch_size=8,
      num_train_steps=6,
      distribution_strategy="mirrored" if num_devices > 1 else "one_device",
      recompute_grad=kind == "finetuning" and num_devices > 1,
    ),
  )
  estimator = Estimator(task, config)
  assert estimator.strategy.num_replicas_in_sync == num_devices
  estimator.train()
  results, outputs = estimator.evaluator.evaluate()
  arrays = {name: variable.numpy() for name, variable in estimator.model.named_weights().items()}
  arrays |= {f"metric:{name}": np.float64(value) for name, value in results.items()}
  for split, values in outputs.items():
    arrays |= {f"output:{split}:{name}": value for name, value in values.items()}
  np.savez(f"{output_dir}/weights.npz", **arrays)


def main(kind: str, source: str, output_dir: str) -> None:
  """Trains on one device in output_dir/devices-1, and on two in output_dir/devices-2."""
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
  for num_devices in (1, 2):
    train(kind, source, f"{output_dir}/devices-{num_devices}", num_devices)


if __name__ == "__main__":
  main(*sys.argv[1:])
