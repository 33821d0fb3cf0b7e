"""Seconds a pretraining step takes here and in other libraries, measured in turns on one machine.

  python benchmarks/bench_step.py --peers_python=.venv-parity/bin/python --output=benchmarks/results/step.md

The same model without dropout, the same batch, the same work: forward, masked LM on --predictions positions and
sentence order, backward, clipping by the global norm, optimizer (LAMB here, AdamW in the others). Each library has a
process of its own that stays alive; rounds go from one to the next, so that all see the same machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from absl import flags  # noqa: E402

from albert import app  # noqa: E402
from albert.config.model import MODELS, ModelConfig  # noqa: E402
from albert.errors import UserError  # noqa: E402
from albert.experiments import costs  # noqa: E402
from benchmarks import machine  # noqa: E402
from benchmarks.peers.client import PEERS, Peer, parse_shape, without_dropout  # noqa: E402

FLAGS = flags.FLAGS
COLUMNS = (
  "batch x length",
  "precision",
  "library",
  "s/step, median",
  "range",
  "times ours",
  "GFLOP/s",
  "first step, s",
  "memory, MiB",
)


def measure(config: ModelConfig, batch_size: int, length: int, precision: str) -> list[Peer]:
  """All libraries after all rounds."""
  # One after the other: compiling takes all cores.
  peers = [
    Peer(name, config, batch_size, length, FLAGS.predictions, precision, python=FLAGS.peers_python)
    for name in FLAGS.libraries
  ]
  for _ in range(FLAGS.rounds):
    for peer in peers:
      peer.run(FLAGS.steps)
  for peer in peers:
    peer.close()
  return peers


def rows(shape: str, precision: str, peers: list[Peer], flop: float) -> list[str]:
  """Lines of Markdown, one a library. A ratio is the median of those of the rounds."""
  lines = []
  for peer in peers:
    median = statistics.median(peer.seconds)
    ratio = statistics.median(a / b for a, b in zip(peer.seconds, peers[0].seconds, strict=True))
    lines.append(
      f"| {shape} | {precision} | {peer.name} | {median:.3f} | {min(peer.seconds):.3f} to {max(peer.seconds):.3f} | "
      f"{ratio:.2f} | {flop / median / 1e9:.0f} | {peer.first:.1f} | {peer.memory:,.0f} |"
    )
  return lines


def main() -> None:
  """Measures every shape in every precision, prints the table, writes it."""
  if unknown := set(FLAGS.libraries) - set(PEERS):
    raise UserError(f"--libraries: {min(unknown)!r} is none of {', '.join(PEERS)}")
  shapes = {text: parse_shape(text, f"--shapes: {text!r}") for text in FLAGS.shapes}
  config = without_dropout(FLAGS.model)
  rate = costs.matrix_flops() / 1e9
  lines = [
    f"# A pretraining step beside other libraries, {time.strftime('%Y-%m-%d')}",
    "",
    f"Machine: {machine.describe()}. {FLAGS.model} without dropout, {FLAGS.predictions} masked positions; "
    f"{FLAGS.rounds} rounds of {FLAGS.steps} steps each in turns. NumPy multiplies float32 matrices at {rate:.0f} "
    "GFLOP/s here. GFLOP/s of a step count the whole model, whether or not a library computes all of it.",
    "",
    "```",
    " ".join(["python benchmarks/bench_step.py", *sys.argv[1:]]),
    "```",
    "",
    f"| {' | '.join(COLUMNS)} |",
    "|" + "---|" * len(COLUMNS),
  ]
  print("\n".join(lines), flush=True)
  for shape, (batch_size, length) in shapes.items():
    flop = costs.step_flops(config, batch_size=batch_size, seq_length=length, predictions=FLAGS.predictions)
    for precision in FLAGS.precisions:
      new = rows(shape, precision, measure(config, batch_size, length, precision), flop)
      print("\n".join(new), flush=True)
      lines += new
  if FLAGS.output:
    Path(FLAGS.output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
  flags.DEFINE_enum("model", "albert_base", list(MODELS), "model")
  flags.DEFINE_string("peers_python", "", "Python that has torch, transformers and keras-hub (default: this one)")
  flags.DEFINE_list("libraries", list(PEERS), "what to measure; the first one is what the others are compared with")
  flags.DEFINE_list("shapes", ["8x128", "2x512"], "batch x length of each measurement")
  flags.DEFINE_list("precisions", ["float32", "bfloat16"], "arithmetic of each measurement")
  flags.DEFINE_integer("predictions", 20, "masked positions of a sequence", lower_bound=1)
  flags.DEFINE_integer("steps", 3, "steps of a turn", lower_bound=1)
  flags.DEFINE_integer("rounds", 7, "turns of each library", lower_bound=1)
  flags.DEFINE_string("output", "", "Markdown file to write")
  app.run(main)
