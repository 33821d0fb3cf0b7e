"""How the time and the memory of a pretraining step grow with length, batch and depth: a table and a picture.

  python benchmarks/bench_scaling.py --output_dir=benchmarks/results

Each point is a process of its own; those of a sweep stay alive and do steps in turns, so that all see the same machine.
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
from albert.experiments import costs  # noqa: E402
from albert.io import figures  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.peers.client import OURS, Peer, without_dropout  # noqa: E402

FLAGS = flags.FLAGS


class Point(NamedTuple):
  """A batch, and a model of so many layers."""

  batch_size: int
  length: int
  layers: int
  recompute_grad: bool = False

  @property
  def tokens(self) -> int:
    return self.batch_size * self.length


class Measured(NamedTuple):
  """Seconds of a step, one a round; MiB at the most; floating point operations of a step."""

  seconds: list[float]
  memory: float
  flop: float

  @property
  def median(self) -> float:
    return statistics.median(self.seconds)


def sweeps(layers: int) -> dict[str, list[Point]]:
  """The points by what grows."""
  tokens = FLAGS.tokens
  depth = [Point(max(1, tokens // 128), 128, number, again) for number in FLAGS.depths for again in (False, True)]
  return {
    "length": [Point(max(1, tokens // length), length, layers) for length in FLAGS.lengths],
    "batch": [Point(batch, 128, layers) for batch in FLAGS.batches],
    "depth": depth,
  }


def measure(points: list[Point], model: ModelConfig) -> list[Measured]:
  """All points in turns."""
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
    Measured(
      peer.seconds,
      peer.memory,
      costs.step_flops(config, batch_size=point.batch_size, seq_length=point.length, predictions=predictions),
    )
    for point, config, peer in zip(points, configs, peers, strict=True)
  ]


def row(sweep: str, point: Point, measured: Measured) -> str:
  """A line of Markdown."""
  each = 1e6 / point.tokens
  kept = "again" if point.recompute_grad else "kept"
  return (
    f"| {sweep} | {point.batch_size} x {point.length} | {point.layers} | {kept} | {measured.median:.3f} | "
    f"{measured.median * each:.0f} ({min(measured.seconds) * each:.0f} to {max(measured.seconds) * each:.0f}) | "
    f"{measured.flop / measured.median / 1e9:.0f} | {measured.memory:,.0f} |"
  )


def draw(path: Path, found: dict[str, dict[Point, Measured]]) -> None:
  """The picture: time a token by length and by batch, memory by depth."""
  figure = figures.new_figure(12, 3.6)
  by_length, by_batch, by_depth = figure.subplots(1, 3)

  def line(axes: Any, xs: list[int], ys: list[float], label: str | None = None) -> None:
    axes.plot(xs, ys, marker="o", label=label)
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.set_ylim(0, max([1.1 * y for y in ys] + [axes.get_ylim()[1]]))

  for axes, sweep, name in ((by_length, "length", "length"), (by_batch, "batch", "batch_size")):
    points = found[sweep]
    axes.set_xscale("log", base=2)
    times = [1e6 * measured.median / point.tokens for point, measured in points.items()]
    line(axes, [getattr(point, name) for point in points], times)
    axes.set_ylabel("µs a token")
  by_length.set_xlabel(f"tokens of a sequence ({FLAGS.tokens} a batch)")
  by_batch.set_xlabel("sequences of 128 tokens a batch")
  for again, label in ((False, "activations kept"), (True, "--recompute_grad")):
    points = {point: value for point, value in found["depth"].items() if point.recompute_grad is again}
    line(by_depth, [point.layers for point in points], [value.memory for value in points.values()], label)
  by_depth.set_xlabel(f"layers ({max(1, FLAGS.tokens // 128)} x 128)")
  by_depth.set_ylabel("peak memory, MiB")
  by_depth.legend(frameon=False)
  path.write_bytes(figures.png(figure))


def main() -> None:
  """Measures the sweeps, prints the table, writes it and the picture."""
  model = without_dropout(FLAGS.model)
  for name in ("lengths", "batches", "depths"):
    try:
      FLAGS[name].value = [int(value) for value in FLAGS[name].value]
    except ValueError as error:
      raise UserError(f"--{name}={','.join(FLAGS[name].value)}: give numbers with commas between") from error
  directory = Path(FLAGS.output_dir)
  directory.mkdir(parents=True, exist_ok=True)
  stem = f"scaling_{time.strftime('%Y-%m-%d')}"
  lines = [
    f"# A pretraining step by length, batch and depth, {time.strftime('%Y-%m-%d')}",
    "",
    f"Machine: {machine.describe()}. {FLAGS.model} without dropout, {FLAGS.precision}, {FLAGS.predictions} masked "
    f"positions; {FLAGS.rounds} rounds of a step each in turns. NumPy multiplies float32 matrices at "
    f"{costs.matrix_flops() / 1e9:.0f} GFLOP/s here. Memory is the peak of the process, TensorFlow and LAMB included.",
    "",
    "```",
    " ".join(["python benchmarks/bench_scaling.py", *sys.argv[1:]]),
    "```",
    "",
    f"![time a token by length and batch, memory by depth]({stem}.png)",
    "",
    "| sweep | batch x length | layers | activations | s/step, median | µs a token (range) | GFLOP/s | memory, MiB |",
    "|---|---|---|---|---|---|---|---|",
  ]
  print("\n".join(lines), flush=True)
  found: dict[str, dict[Point, Measured]] = {}
  for sweep, points in sweeps(model.num_hidden_layers).items():
    found[sweep] = dict(zip(points, measure(points, model), strict=True))
    new = [row(sweep, point, measured) for point, measured in found[sweep].items()]
    print("\n".join(new), flush=True)
    lines += new
    # Now, and not at the end: a sweep takes minutes, and what is measured is kept if the next one is stopped.
    (directory / f"{stem}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
  draw(directory / f"{stem}.png", found)


if __name__ == "__main__":
  flags.DEFINE_enum("model", "albert_base", list(MODELS), "model")
  flags.DEFINE_list("lengths", ["64", "128", "256", "512"], "tokens of a sequence")
  flags.DEFINE_list("batches", ["1", "2", "4", "8", "16"], "sequences of 128 tokens")
  flags.DEFINE_list("depths", ["3", "6", "12", "24"], "layers")
  flags.DEFINE_integer("tokens", 1024, "tokens of a batch, where length or depth grows", lower_bound=1)
  flags.DEFINE_integer("predictions", 20, "masked positions of a sequence", lower_bound=1)
  flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "arithmetic")
  flags.DEFINE_integer("rounds", 5, "steps of each point", lower_bound=1)
  flags.DEFINE_string("output_dir", "output/bench", "where scaling_DATE.md and .png are written")
  app.run(main)
