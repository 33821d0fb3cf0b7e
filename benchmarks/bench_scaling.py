"""Measures how the time and memory of a pretraining step grow with sequence length, batch size and depth.

  python benchmarks/bench_scaling.py --output_dir=benchmarks/results

It writes a table and a figure. Each point is measured in a process of its own. In each round, every process of a sweep
does one step, so that changes of the machine's speed affect all of them.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import MODELS, ModelConfig  # noqa: E402
from albert.errors import UserError  # noqa: E402
from albert.runs import figures  # noqa: E402
from albert.settings import costs  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.peers.client import OURS, Peer, without_dropout  # noqa: E402

FLAGS = flags.FLAGS
# Tokens in a sequence, in the sweeps over batch size and depth.
SHORT_LENGTH = 128


class Point(NamedTuple):
  """A point of a sweep.

  Attributes:
    batch_size: sequences in a batch.
    length: tokens in a sequence.
    layers: layers of the model.
    recompute_grad: whether gradient checkpointing is on.
  """

  batch_size: int
  length: int
  layers: int
  recompute_grad: bool = False

  @property
  def tokens(self) -> int:
    return self.batch_size * self.length


class Measurement(NamedTuple):
  """The measurement of a point.

  Attributes:
    seconds: seconds of the step in each round.
    memory: peak memory of the process in MiB.
    flop: floating-point operations of a step.
  """

  seconds: list[float]
  memory: float
  flop: float

  @property
  def median(self) -> float:
    return statistics.median(self.seconds)


def sweeps(layers: int) -> dict[str, list[Point]]:
  """Returns the points of each sweep, by the name of the quantity that grows.

  Args:
    layers: number of layers in the sweeps over length and batch size.
  """
  tokens = FLAGS.tokens
  return {
    "length": [Point(max(1, tokens // length), length, layers) for length in FLAGS.lengths],
    "batch": [Point(batch, SHORT_LENGTH, layers) for batch in FLAGS.batches],
    "depth": [
      Point(max(1, tokens // SHORT_LENGTH), SHORT_LENGTH, depth, recompute_grad)
      for depth in FLAGS.depths
      for recompute_grad in (False, True)
    ],
  }


def measure(points: list[Point], model: ModelConfig) -> list[Measurement]:
  """Measures all points in alternating rounds, and returns the measurements in the order of the points."""
  configs = [dataclasses.replace(model, num_hidden_layers=point.layers) for point in points]
  predictions = FLAGS.predictions
  peers = [
    Peer(
      OURS, config, point.batch_size, point.length, predictions, FLAGS.precision, recompute_grad=point.recompute_grad
    )
    for point, config in zip(points, configs, strict=True)
  ]
  for _ in range(FLAGS.rounds):
    for peer in peers:
      peer.run(1)
  for peer in peers:
    peer.close()
  return [
    Measurement(
      peer.seconds,
      peer.memory,
      costs.step_flops(config, batch_size=point.batch_size, seq_length=point.length, predictions=predictions),
    )
    for point, config, peer in zip(points, configs, peers, strict=True)
  ]


def format_row(sweep: str, point: Point, measured: Measurement) -> str:
  """Formats a row of the table."""
  scale = 1e6 / point.tokens  # converts seconds per step to microseconds per token
  activations = "recomputed" if point.recompute_grad else "stored"
  return (
    f"| {sweep} | {point.batch_size} x {point.length} | {point.layers} | {activations} | {measured.median:.3f} | "
    f"{measured.median * scale:.0f} ({min(measured.seconds) * scale:.0f} to {max(measured.seconds) * scale:.0f}) | "
    f"{measured.flop / measured.median / 1e9:.0f} | {measured.memory:,.0f} |"
  )


def draw_figure(path: Path, results: dict[str, dict[Point, Measurement]]) -> None:
  """Draws the figure: time per token by length and by batch size, memory by depth."""
  figure = figures.new_figure(12, 3.6)
  length_axes, batch_axes, depth_axes = figure.subplots(1, 3)

  def plot_line(axes: Any, xs: list[int], ys: list[float], label: str | None = None) -> None:
    axes.plot(xs, ys, marker="o", label=label)
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.set_ylim(0, max([1.1 * y for y in ys] + [axes.get_ylim()[1]]))

  def microseconds_per_token(sweep: str) -> list[float]:
    return [1e6 * measured.median / point.tokens for point, measured in results[sweep].items()]

  for axes in (length_axes, batch_axes):
    axes.set_xscale("log", base=2)
    axes.set_ylabel("µs per token")
  plot_line(length_axes, [point.length for point in results["length"]], microseconds_per_token("length"))
  length_axes.set_xlabel(f"tokens in a sequence ({FLAGS.tokens} in a batch)")
  plot_line(batch_axes, [point.batch_size for point in results["batch"]], microseconds_per_token("batch"))
  batch_axes.set_xlabel(f"sequences of {SHORT_LENGTH} tokens in a batch")
  for recompute_grad, label in ((False, "activations stored"), (True, "--recompute_grad")):
    points = [point for point in results["depth"] if point.recompute_grad is recompute_grad]
    memory = [results["depth"][point].memory for point in points]
    plot_line(depth_axes, [point.layers for point in points], memory, label)
  depth_axes.set_xlabel(f"layers ({max(1, FLAGS.tokens // SHORT_LENGTH)} x {SHORT_LENGTH})")
  depth_axes.set_ylabel("peak memory, MiB")
  depth_axes.legend(frameon=False)
  path.write_bytes(figures.png(figure))


def main() -> None:
  """Measures the sweeps, prints the table, and writes the table and the figure."""
  model = without_dropout(FLAGS.model)
  for name in ("lengths", "batches", "depths"):
    try:
      FLAGS[name].value = [int(value) for value in FLAGS[name].value]
    except ValueError as error:
      raise UserError(f"--{name}={','.join(FLAGS[name].value)}: give whole numbers separated by commas") from error
  directory = Path(FLAGS.output_dir)
  directory.mkdir(parents=True, exist_ok=True)
  stem = f"scaling_{time.strftime('%Y-%m-%d')}"
  lines = [
    f"# A pretraining step by length, batch and depth, {time.strftime('%Y-%m-%d')}",
    "",
    f"Machine: {machine.describe()}. {FLAGS.model} without dropout, {FLAGS.precision}, {FLAGS.predictions} masked "
    f"positions; {FLAGS.rounds} alternating rounds of one step. NumPy multiplies float32 matrices at "
    f"{costs.matmul_flops_per_second() / 1e9:.0f} GFLOP/s here. Memory is the peak of the process, TensorFlow and LAMB "
    "included.",
    "",
    "```",
    " ".join(["python benchmarks/bench_scaling.py", *sys.argv[1:]]),
    "```",
    "",
    f"![time per token by length and batch size, memory by depth]({stem}.png)",
    "",
    "| sweep | batch x length | layers | activations | s/step, median | µs per token (range) | GFLOP/s | memory, MiB |",
    "|---|---|---|---|---|---|---|---|",
  ]
  print("\n".join(lines), flush=True)
  results: dict[str, dict[Point, Measurement]] = {}
  for sweep, points in sweeps(model.num_hidden_layers).items():
    results[sweep] = dict(zip(points, measure(points, model), strict=True))
    rows = [format_row(sweep, point, measured) for point, measured in results[sweep].items()]
    print("\n".join(rows), flush=True)
    lines += rows
    # A sweep takes minutes, so the table is written after each sweep. If the command is stopped, nothing is lost.
    (directory / f"{stem}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
  draw_figure(directory / f"{stem}.png", results)


if __name__ == "__main__":
  flags.DEFINE_enum("model", "albert_base", list(MODELS), "model")
  flags.DEFINE_list("lengths", ["64", "128", "256", "512"], "sequence lengths in tokens")
  flags.DEFINE_list("batches", ["1", "2", "4", "8", "16"], f"batch sizes, for sequences of {SHORT_LENGTH} tokens")
  flags.DEFINE_list("depths", ["3", "6", "12", "24"], "numbers of layers")
  flags.DEFINE_integer(
    "tokens", 1024, "number of tokens in a batch, for the sweeps over length and depth", lower_bound=1
  )
  flags.DEFINE_integer("predictions", 20, "number of masked positions in a sequence", lower_bound=1)
  flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "compute dtype")
  flags.DEFINE_integer("rounds", 5, "number of rounds, with one step of each point", lower_bound=1)
  flags.DEFINE_string("output_dir", "output/bench", "directory to write scaling_DATE.md and scaling_DATE.png to")
  app.run(main)
