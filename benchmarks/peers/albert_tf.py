"""Training steps of this project, with the Trainer that run_pretraining.py uses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import albert  # noqa: F401 - sets what TensorFlow reads when it is imported

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, TrainConfig
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.optimizers.factory import make_optimizer
from albert.tasks.pretraining.flags import PretrainingConfig
from albert.tasks.pretraining.model import PretrainingTask
from albert.training import distribution
from albert.training.loop import Trainer
from albert.training.model_weights import dtype_policy
from albert.training.run_plan import TrainingPlan, resolve_jit_compile, resolve_precision
from benchmarks.peers import protocol


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Parses the options. `argv`: None for the command line."""
  parser = protocol.make_parser()
  parser.add_argument("--recompute_grad", action="store_true")
  return parser.parse_args(argv)


def make_step(options: argparse.Namespace) -> Callable[[int], float]:
  """Returns a function that does the given number of steps on one batch and returns the last loss."""
  tf.config.experimental.enable_op_determinism()  # as in training runs
  tf.config.threading.set_intra_op_parallelism_threads(options.threads)
  config = TrainConfig(
    train_batch_size=options.batch_size, precision=options.precision, distribution_strategy="one_device"
  )
  strategy = distribution.make_strategy(config)
  task = PretrainingTask(ModelConfig(**options.config), PretrainingConfig())
  with strategy.scope():
    with dtype_policy(resolve_precision(config.precision, strategy)):
      model = task.build_model()
    model.encoder.recompute_grad = options.recompute_grad
    optimizer = make_optimizer(OptimizerConfig(), 1e-4)
    jit_compile = resolve_jit_compile(config.jit_compile, strategy, dict)  # all batches have one shape
    plan = TrainingPlan(strategy=strategy, train=config, jit_compile=jit_compile)
    trainer = Trainer(task, model, optimizer, plan)
  batch = protocol.random_batch(options)
  features = {
    "input_ids": batch["input_ids"].astype(np.int32),
    "input_mask": np.ones_like(batch["input_ids"], np.int32),
    "segment_ids": batch["segment_ids"].astype(np.int32),
    "masked_lm_positions": batch["positions"].astype(np.int32),
    "masked_lm_ids": batch["labels"].astype(np.int32),
    "masked_lm_weights": np.ones(batch["labels"].shape, np.float32),
    "next_sentence_labels": batch["order"].astype(np.int32)[:, None],
    EXAMPLE_WEIGHT: np.ones(options.batch_size, np.float32),
  }
  batches = iter(tf.data.Dataset.from_tensors(features).repeat())

  def do_steps(num_steps: int) -> float:
    trainer.train_steps(batches, tf.constant(num_steps))
    metrics = trainer.accumulator.result_and_reset()
    return metrics["masked_lm_loss"] + metrics["sentence_order_loss"]

  return do_steps


if __name__ == "__main__":
  protocol.serve(make_step(parse_options()))
