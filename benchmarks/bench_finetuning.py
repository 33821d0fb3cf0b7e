"""Measures how much time fine-tuning saves by padding each batch only to its longest example.

  python benchmarks/bench_finetuning.py --data_dir=glue --spm_model_file=30k-clean.model

For each task it prints the seconds per training step, once with batches padded to their longest example and once with
all batches padded to --max_seq_length, measured in alternating rounds. It also prints the largest difference between
the two in the loss of an example.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import albert  # noqa: E402, F401 - sets what TensorFlow reads when it is imported

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import named_model  # noqa: E402
from albert.config.run import OptimizerConfig, TrainConfig  # noqa: E402
from albert.data.dataset import InputContext  # noqa: E402
from albert.data.pipeline import EXAMPLE_WEIGHT  # noqa: E402
from albert.optimizers.factory import make_optimizer  # noqa: E402
from albert.tasks.glue.files import TextData  # noqa: E402
from albert.tasks.glue.flags import ClassifierConfig  # noqa: E402
from albert.tasks.glue.model import TextTask  # noqa: E402
from albert.tasks.splits import TRAIN  # noqa: E402
from albert.training.loop import Trainer  # noqa: E402
from albert.training.run_plan import TrainingPlan  # noqa: E402

FLAGS = flags.FLAGS


def _make_task(name: str, *, pad_to_max_length: bool) -> TextTask:
  config = ClassifierConfig(
    task_name=name,
    data_dir=FLAGS.data_dir,
    spm_model_file=FLAGS.spm_model_file,
    max_seq_length=FLAGS.max_seq_length,
    pad_to_max_length=pad_to_max_length,
  )
  model = dataclasses.replace(named_model(FLAGS.model), classifier_dropout_prob=0.0)
  if FLAGS.vocab_size:
    model = dataclasses.replace(model, vocab_size=FLAGS.vocab_size)
  return TextTask(model, TextData(config))


def _training_batches(task: TextTask) -> Iterator[Any]:
  stream = task.training_data().training_batches(
    batch_size=FLAGS.batch_size, first_step=0, seed=1, context=InputContext(host_index=0, num_hosts=1, num_replicas=1)
  )
  return iter(stream)


def _compute_losses(task: TextTask, model: Any, indices: np.ndarray) -> np.ndarray:
  """Returns the loss of each example of one batch, [N].

  The total loss is linear in the weights of the examples, so its gradient with respect to them holds these losses.
  """
  dataset = task.sets.dataset(TRAIN)
  batch = {name: tf.constant(values) for name, values in dataset._make_batch(indices).items()}
  weights = tf.ones(len(indices))
  with tf.GradientTape() as tape:
    tape.watch(weights)
    total = task.forward(model, batch | {EXAMPLE_WEIGHT: weights}, training=False).sums["loss"].total
  return tape.gradient(total, weights).numpy()


def _measure_task(name: str) -> None:
  """Measures a task and prints its row of the table.

  The keys of the dicts are True for batches that are padded to the full length, and False for those that are padded to
  their longest example.
  """
  strategy = tf.distribute.OneDeviceStrategy("CPU:0")
  tasks = {is_full: _make_task(name, pad_to_max_length=is_full) for is_full in (False, True)}
  config = TrainConfig(train_batch_size=FLAGS.batch_size, gradient_accumulation_steps=FLAGS.gradient_accumulation_steps)
  model = tasks[False].build_model()
  trainers = {}
  for is_full, task in tasks.items():
    optimizer = make_optimizer(OptimizerConfig(optimizer="adamw"), 1e-5)
    trainer = Trainer(task, model, optimizer, TrainingPlan(strategy=strategy, train=config))
    trainers[is_full] = (trainer, _training_batches(task))
  seconds: dict[bool, list[float]] = {False: [], True: []}
  steps_per_round = {False: FLAGS.steps, True: 1}
  for trainer, batches in trainers.values():
    trainer.train_steps(batches, tf.constant(1))  # compiles
  for _ in range(FLAGS.rounds):
    for is_full, (trainer, batches) in trainers.items():
      num_steps = steps_per_round[is_full]
      start = time.perf_counter()
      trainer.train_steps(batches, tf.constant(num_steps))
      float(trainer.accumulator.result_and_reset()["loss"])  # waits until the steps are done
      seconds[is_full].append((time.perf_counter() - start) / num_steps)
  indices = np.arange(FLAGS.compared)
  losses = {is_full: _compute_losses(task, model, indices) for is_full, task in tasks.items()}
  difference = np.abs(losses[False] - losses[True]).max()
  ratio = statistics.median(seconds[True]) / statistics.median(seconds[False])
  mean_length = tasks[False].sets.examples(TRAIN).longest_sequences.mean()
  print(
    f"| {name} | {mean_length:.0f} | {_format_seconds(seconds[False])} | {_format_seconds(seconds[True])} | "
    f"{ratio:.1f} | {difference:.1e} |",
    flush=True,
  )


def _format_seconds(seconds: list[float]) -> str:
  return f"{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"


def main() -> None:
  """Prints a Markdown table."""
  print(f"| task | tokens, mean | s/step by length | s/step at {FLAGS.max_seq_length} | ratio | largest difference |")
  print("|---|---|---|---|---|---|", flush=True)
  for name in FLAGS.tasks:
    _measure_task(name)


if __name__ == "__main__":
  flags.DEFINE_string("data_dir", None, "directory of GLUE", required=True)
  flags.DEFINE_string("spm_model_file", None, "SentencePiece model", required=True)
  flags.DEFINE_string("model", "albert_base", "named model")
  flags.DEFINE_integer("vocab_size", 0, "size of the vocabulary; 0: the model's own", lower_bound=0)
  flags.DEFINE_list("tasks", ["CoLA", "MRPC"], "tasks to measure")
  flags.DEFINE_integer("batch_size", 32, "number of examples in a batch", lower_bound=1)
  flags.DEFINE_integer("max_seq_length", 512, "length that the padded batches have", lower_bound=8)
  flags.DEFINE_integer(
    "steps", 5, "number of steps in a round with batches padded to their longest example", lower_bound=1
  )
  flags.DEFINE_integer("rounds", 3, "number of rounds", lower_bound=1)
  flags.DEFINE_integer("compared", 16, "number of examples whose losses are compared", lower_bound=1)
  flags.DEFINE_integer(
    "gradient_accumulation_steps", 1, "number of micro-batches per update, in both cases", lower_bound=1
  )
  app.run(main)
