"""Fine-tunes the toy task with --jit_compile=true, for test_compiled.py, which counts what XLA compiles.

It is a program of its own, because XLA reads its flags when TensorFlow is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def main(data_path: str, output_dir: str) -> None:
  """Trains 16 steps on batches of many lengths, and prints how often the step was traced."""
  from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
  from albert.estimator import Estimator
  from albert.training.loop import Trainer
  from tests.integration.mirrored import make_finetuning_task

  num_traces = 0
  replica_step = Trainer.replica_step

  def traced(trainer: Trainer, batch: Mapping[str, Any]) -> None:
    nonlocal num_traces
    num_traces += 1
    replica_step(trainer, batch)

  Trainer.replica_step = traced  # type: ignore[method-assign, assignment]
  train = TrainConfig(
    train_batch_size=2, eval_batch_size=2, num_train_steps=16, jit_compile="true", precision="float32"
  )
  config = RunConfig(
    output_dir=output_dir, from_scratch=True, optimizer=OptimizerConfig(num_warmup_steps=2), train=train
  )
  Estimator(make_finetuning_task(data_path), config).train()
  print(num_traces)


if __name__ == "__main__":
  main(*sys.argv[1:])
