"""Prints the time of a pretraining step by kind of operation, as TensorFlow's profiler measures it.

  python benchmarks/profile_step.py --shape=8x128

The times of operations that run in parallel are added, so on two cores the sum may be twice the time of the step.
"""

from __future__ import annotations

import collections
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import MODELS  # noqa: E402
from albert.settings import costs  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.peers.client import make_arguments, parse_shape, without_dropout  # noqa: E402

FLAGS = flags.FLAGS
# Kind -> texts in the names of its operations. An operation is of the first kind with a text that its name contains.
# The names of oneDNN's operations, such as _MklFusedMatMul, contain the names of TensorFlow's.
KINDS = {
  "products of attention": ("BatchMatMul",),
  "matrix products": ("MatMul", "Einsum"),
  "transposes, copies": ("Transpose", "Concat", "Pack", "Slice", "Gather", "Scatter", "Reshape", "Tile"),
  "sums over rows or tensors": ("Sum", "Mean", "AddN", "BiasAddGrad", "L2Loss"),
  "softmax": ("Softmax", "CrossEntropy"),
  "element by element": ("",),
}


def find_kind(operation: str) -> str:
  """Returns the kind of an operation with a name such as _MklFusedMatMul."""
  for kind, texts in KINDS.items():
    if any(text in operation for text in texts):
      return kind
  raise AssertionError("the last kind matches every name")


def seconds_by_operation(directory: str) -> dict[str, float]:
  """Reads the profile in a directory, and returns the seconds of each operation."""
  from tensorflow.tsl.profiler.protobuf import xplane_pb2

  (path,) = Path(directory).rglob("*.xplane.pb")
  space = xplane_pb2.XSpace()
  space.ParseFromString(path.read_bytes())
  seconds: dict[str, float] = collections.defaultdict(float)
  for plane in space.planes:
    names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
    for line in plane.lines if "CPU" in plane.name else ():
      for event in line.events:
        # Events with names such as node:Operation are kernels. Others, such as Class::Method, wait for kernels.
        if match := re.fullmatch(r".*[^:]:(\w+)", names[event.metadata_id]):
          seconds[match[1]] += event.duration_ps / 1e12
  return seconds


def main() -> None:
  """Prints a Markdown table."""
  batch_size, length = parse_shape(FLAGS.shape, f"--shape={FLAGS.shape}:")
  from benchmarks.peers import albert_tf  # imports TensorFlow, so only after the flags are checked

  model = without_dropout(FLAGS.model)
  options = albert_tf.parse_options(make_arguments(model, batch_size, length, FLAGS.predictions, FLAGS.precision))
  do_steps = albert_tf.make_step(options)
  do_steps(1)  # compiles
  step_seconds = []
  for _ in range(FLAGS.steps):
    start = time.perf_counter()
    do_steps(1)
    step_seconds.append(time.perf_counter() - start)
  import tensorflow as tf

  with tempfile.TemporaryDirectory() as directory:
    tf.profiler.experimental.start(directory)
    do_steps(1)
    tf.profiler.experimental.stop()
    by_operation = seconds_by_operation(directory)
  by_kind: dict[str, float] = dict.fromkeys(KINDS, 0.0)
  for operation, seconds in by_operation.items():
    by_kind[find_kind(operation)] += seconds
  flop = costs.step_flops(model, batch_size=batch_size, seq_length=length, predictions=FLAGS.predictions)
  median = statistics.median(step_seconds)
  print(
    f"Machine: {machine.describe()}. {FLAGS.model}, {FLAGS.shape}, {FLAGS.precision}: {median:.3f} s a step, median of "
    f"{FLAGS.steps}, {flop / median / 1e9:.0f} GFLOP/s; NumPy multiplies matrices at "
    f"{costs.matmul_flops_per_second() / 1e9:.0f}."
  )
  print("\n| | busy s | share |\n|---|---|---|")
  total = sum(by_kind.values())
  for kind, seconds in sorted(by_kind.items(), key=lambda item: -item[1]):
    print(f"| {kind} | {seconds:.3f} | {seconds / total:.1%} |")


if __name__ == "__main__":
  flags.DEFINE_enum("model", "albert_base", list(MODELS), "model, without dropout")
  flags.DEFINE_string("shape", "8x128", "batch size x sequence length")
  flags.DEFINE_string("precision", "float32", "as in run_pretraining.py")
  flags.DEFINE_integer("predictions", 20, "number of masked positions in a sequence", lower_bound=1)
  flags.DEFINE_integer("steps", 3, "number of measured steps", lower_bound=1)
  app.run(main)
