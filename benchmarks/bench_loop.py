"""Measures the costs of pretraining besides its steps: input pipeline, host code, tracing and memory.

  python benchmarks/bench_loop.py --input_file='shards/*.tfrecord' --model=albert_tiny --steps=1000

It runs the training loop once on real shards. It prints the time of a step, the time that the input pipeline alone
needs for a batch, the time of the loop outside the calls that run steps, the number of times that the step was traced,
and the memory of the process during the run.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import albert  # noqa: E402, F401 - sets what TensorFlow reads when it is imported

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf  # noqa: E402
from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import named_model  # noqa: E402
from albert.config.run import OptimizerConfig, TrainConfig  # noqa: E402
from albert.data.dataset import InputContext  # noqa: E402
from albert.errors import UserError  # noqa: E402
from albert.io import files  # noqa: E402
from albert.optimizers.factory import make_optimizer  # noqa: E402
from albert.runs.logs import MetricsLog  # noqa: E402
from albert.tasks.base import Batch  # noqa: E402
from albert.tasks.pretraining.flags import PretrainingConfig  # noqa: E402
from albert.tasks.pretraining.model import PretrainingTask  # noqa: E402
from albert.training import distribution  # noqa: E402
from albert.training.distribution import distribute_training_batches  # noqa: E402
from albert.training.loop import StopRequest, Trainer  # noqa: E402
from albert.training.model_weights import dtype_policy  # noqa: E402
from albert.training.run_plan import TrainingPlan, resolve_precision  # noqa: E402
from albert.weights.checkpoints import CheckpointManager  # noqa: E402
from benchmarks import machine  # noqa: E402

FLAGS = flags.FLAGS
# Number of times that the memory is measured during a run.
NUM_MEMORY_SAMPLES = 10
# The input pipeline alone is measured in this many rounds of this many batches.
PIPELINE_ROUNDS, BATCHES_PER_ROUND = 7, 20


class TimedTrainer(Trainer):
  """A trainer that measures the seconds spent in training steps."""

  seconds = 0.0

  def train_steps(self, batches: Iterator[Batch], num_steps: tf.Tensor) -> None:
    """Runs steps and adds their time. On a CPU the call returns when the steps are done."""
    start = time.perf_counter()
    super().train_steps(batches, num_steps)
    self.seconds += time.perf_counter() - start

  def num_traces(self) -> int:
    """The number of times that TensorFlow has traced the function that runs steps."""
    # This class overrides train_steps; the count is that of the tf.function of the base class, bound to this object.
    return Trainer.train_steps.__get__(self, Trainer).experimental_get_tracing_count()


def _training_batches(task: PretrainingTask, config: TrainConfig) -> tf.data.Dataset:
  return task.training_data().training_batches(
    batch_size=config.train_batch_size,
    first_step=0,
    seed=config.seed,
    context=InputContext(host_index=0, num_hosts=1, num_replicas=1),
  )


def seconds_per_batch(batches: tf.data.Dataset) -> float:
  """Measures the seconds that the input pipeline alone needs for a batch, and returns their median."""
  iterator, seconds = iter(batches), []
  next(iterator)
  for _ in range(PIPELINE_ROUNDS):
    start = time.perf_counter()
    for _ in range(BATCHES_PER_ROUND):
      next(iterator)
    seconds.append((time.perf_counter() - start) / BATCHES_PER_ROUND)
  return statistics.median(seconds)


class RunCost(NamedTuple):
  """The costs of a run.

  Attributes:
    first_step: seconds of the first step, which is traced.
    other_steps: seconds of all other steps together.
    outside: seconds of the loop outside these steps.
    memory: MiB of the process, measured NUM_MEMORY_SAMPLES times.
    num_traces: number of times that the step was traced.
  """

  first_step: float
  other_steps: float
  outside: float
  memory: list[float]
  num_traces: int


def measure_run(task: PretrainingTask, config: TrainConfig, strategy: tf.distribute.Strategy) -> RunCost:
  """Trains with the training loop of a run, and measures it."""
  memory: list[float] = []

  def record_memory(step: int) -> float:
    """Is passed to the loop as the schedule of the learning rate, which the loop calls whenever it logs."""
    del step
    memory.append(machine.memory(machine.PRESENT_MEMORY))
    return 0.0

  with tempfile.TemporaryDirectory() as directory, strategy.scope():
    with dtype_policy(resolve_precision(config.precision, strategy)):
      model = task.build_model()
    plan = TrainingPlan(strategy=strategy, train=config)
    trainer = TimedTrainer(task, model, make_optimizer(OptimizerConfig(), 1e-4), plan)
    batches = iter(distribute_training_batches(strategy, config, task.training_data(), first_step=0))
    trainer.train_steps(batches, tf.constant(1))  # traces
    first_step, trainer.seconds = trainer.seconds, 0.0
    checkpoints = CheckpointManager(files.join(directory, "checkpoints"), keep=1, model_config=task.model_config)
    log = MetricsLog(directory, first_step=1, total_steps=config.num_train_steps)
    start = time.perf_counter()
    with StopRequest() as stop:
      trainer.train(batches, checkpoints, log, learning_rate=record_memory, stop=stop)
    loop_seconds = time.perf_counter() - start
    log.close()
    # The loop has saved a checkpoint at its end. Another save takes as long, so its time is subtracted.
    start = time.perf_counter()
    checkpoints.save(config.num_train_steps + 1, trainer.state())
    save_seconds = time.perf_counter() - start
  outside = loop_seconds - trainer.seconds - save_seconds
  return RunCost(first_step, trainer.seconds, outside, memory, trainer.num_traces())


def main() -> None:
  """Prints a Markdown table."""
  steps = FLAGS.steps
  if steps % NUM_MEMORY_SAMPLES:
    raise UserError(f"--steps={steps}: give a multiple of {NUM_MEMORY_SAMPLES}")
  config = TrainConfig(
    train_batch_size=FLAGS.batch_size,
    num_train_steps=steps,
    log_every_steps=steps // NUM_MEMORY_SAMPLES,
    save_checkpoints_steps=2 * steps,
    distribution_strategy="one_device",
  )
  strategy = distribution.make_strategy(config)
  precision = resolve_precision(config.precision, strategy)
  model_config = named_model(FLAGS.model)
  if FLAGS.vocab_size:
    model_config = dataclasses.replace(model_config, vocab_size=FLAGS.vocab_size)
  task_config = PretrainingConfig(
    input_file=FLAGS.input_file, masking=FLAGS.masking, spm_model_file=FLAGS.spm_model_file
  )
  task = PretrainingTask(model_config, task_config)
  batch_seconds = seconds_per_batch(_training_batches(task, config))
  cost = measure_run(task, config, strategy)
  step_seconds, outside_seconds = cost.other_steps / (steps - 1), cost.outside / (steps - 1)
  print(f"Machine: {machine.describe()}. {FLAGS.model}, {precision}, batches of {FLAGS.batch_size}, {steps} steps.\n")
  print("| | |\n|---|---|")
  print(f"| a step | {step_seconds * 1e3:.1f} ms; the first one, which traces, {cost.first_step:.1f} s |")
  batch_share, outside_share = batch_seconds / step_seconds, outside_seconds / step_seconds
  print(f"| a batch of the input pipeline alone | {batch_seconds * 1e3:.2f} ms, {batch_share:.2%} of a step |")
  print(f"| the loop outside its steps | {outside_seconds * 1e3:.3f} ms per step, {outside_share:.2%} |")
  print(f"| traces of the step | {cost.num_traces} |")
  memory = ", ".join(f"{mebibytes:.0f}" for mebibytes in cost.memory)
  print(f"| memory in MiB, every {config.log_every_steps} steps | {memory} |")


if __name__ == "__main__":
  flags.DEFINE_string("input_file", None, "comma-separated globs of shards", required=True)
  flags.DEFINE_string("model", "albert_tiny", "named model")
  flags.DEFINE_integer("vocab_size", 0, "size of the vocabulary; 0: the model's own", lower_bound=0)
  flags.DEFINE_integer("batch_size", 32, "number of sequences in a batch", lower_bound=1)
  flags.DEFINE_integer("steps", 1000, "number of steps", lower_bound=NUM_MEMORY_SAMPLES)
  flags.DEFINE_string("masking", "auto", "as in run_pretraining.py")
  flags.DEFINE_string("spm_model_file", "", "as in run_pretraining.py")
  app.run(main)
