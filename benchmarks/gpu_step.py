"""Exports the pretraining step as StableHLO, to run it with JAX on a machine without TensorFlow.

  .venv-parity/bin/python benchmarks/gpu_step.py --model=albert_base --input_file='shards/*.tfrecord' \\
    --batch_sizes=32,64,128 --output_dir=packages/albert_base-128

`make test-parity` makes .venv-parity, which has TensorFlow and JAX. The package holds the program for each batch size,
records of the shards, and the modules that run it (docs/gpu.md).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import MODELS, named_model  # noqa: E402
from albert.config.run import OptimizerConfig, TrainConfig  # noqa: E402
from albert.errors import UserError  # noqa: E402

FLAGS = flags.FLAGS


def batch_sizes() -> list[int]:
  """Returns the values of --batch_sizes.

  Raises:
    UserError: a value is not a positive integer.
  """
  for text in FLAGS.batch_sizes:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
      raise UserError(f"--batch_sizes: {text!r} is not a positive integer, such as 32")
  return [int(text) for text in FLAGS.batch_sizes]


def main() -> None:
  sizes = batch_sizes()
  model = named_model(FLAGS.model)
  if FLAGS.vocab_size:
    model = dataclasses.replace(model, vocab_size=FLAGS.vocab_size)
  optimizer = OptimizerConfig(learning_rate=FLAGS.learning_rate, num_warmup_steps=FLAGS.num_warmup_steps)
  if importlib.util.find_spec("jax") is None:
    raise UserError(
      "jax is not installed: a step is exported in an environment with TensorFlow and JAX; `make test-parity` makes it "
      "in .venv-parity, then run .venv-parity/bin/python benchmarks/gpu_step.py"
    )
  from benchmarks.gpu import packaging

  output = Path(FLAGS.output_dir)
  packaging.write_package(
    output,
    model_name=FLAGS.model,
    model=model,
    input_file=FLAGS.input_file,
    batch_sizes=sizes,
    num_records=FLAGS.num_records or 4 * max(sizes),
    precision=FLAGS.precision,
    optimizer=optimizer,
    num_train_steps=FLAGS.num_train_steps,
  )
  print(f"written to {output}: {packaging.size(output) / 2**20:.1f} MiB")


if __name__ == "__main__":
  flags.DEFINE_enum("model", "albert_base", list(MODELS), "the model")
  flags.DEFINE_integer("vocab_size", 0, "number of pieces of the vocabulary; 0 for the model's", lower_bound=0)
  flags.DEFINE_string("input_file", None, "pretraining shards: paths or globs, with commas between them", required=True)
  flags.DEFINE_list("batch_sizes", ["32"], "batch sizes to export the step for")
  flags.DEFINE_integer("num_records", 0, "records to store; 0 for four of the largest batches", lower_bound=0)
  flags.DEFINE_enum("precision", "bfloat16", ["bfloat16", "float32"], "type of matrix products and activations")
  flags.DEFINE_float("learning_rate", OptimizerConfig.learning_rate, "peak learning rate of LAMB")
  flags.DEFINE_integer("num_warmup_steps", OptimizerConfig.num_warmup_steps, "steps of the warm-up")
  flags.DEFINE_integer("num_train_steps", TrainConfig.num_train_steps, "steps of the learning-rate schedule")
  flags.DEFINE_string("output_dir", None, "the package", required=True)
  app.run(main)
