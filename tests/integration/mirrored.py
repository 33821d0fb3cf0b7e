"""Trains on N logical CPU devices (a process has to split its CPU before TensorFlow starts). Run by a test."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow as tf


def main(input_file: str, output_dir: str, num_devices: int) -> None:
  """Trains six steps with MirroredStrategy over `num_devices` devices (1: OneDeviceStrategy); saves the weights."""
  cpu = tf.config.list_physical_devices("CPU")[0]
  tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
  from albert.config import OptimizerConfig, PretrainingConfig, RunConfig, TrainConfig
  from albert.estimator import Estimator
  from albert.tasks.pretraining import PretrainingTask
  from tests.synthetic import TINY_MODEL

  task = PretrainingTask(TINY_MODEL, PretrainingConfig(input_file=input_file, eval_input_file=input_file))
  config = RunConfig(
    output_dir=output_dir,
    optimizer=OptimizerConfig(num_warmup_steps=2, learning_rate=0.01),
    train=TrainConfig(
      train_batch_size=8,
      eval_batch_size=8,
      num_train_steps=6,
      distribution_strategy="mirrored" if num_devices > 1 else "one_device",
    ),
  )
  estimator = Estimator(task, config)
  assert estimator.strategy.num_replicas_in_sync == num_devices
  estimator.train()
  results = estimator.evaluate()
  weights = {name: variable.numpy() for name, variable in estimator.model.named_weights().items()}
  np.savez(f"{output_dir}/weights.npz", **weights, **{f"metric:{k}": np.float64(v) for k, v in results.items()})


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
