"""Measures the seconds of a pretraining step in this project and in other libraries, in alternating rounds.

  python benchmarks/bench_step.py --peers_python=.venv-parity/bin/python --output=benchmarks/results/step.md

All libraries train the same model without dropout on the same batch. A step is the forward pass with the losses of
masked LM (on --predictions positions) and sentence order, the backward pass, clipping by the global norm and the
optimizer (LAMB here, AdamW in the other libraries). Each library runs in a process that stays alive. In each round
every library does --steps steps, so that changes of the machine's speed affect all of them.
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
from albert.settings import costs  # noqa: E402
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
  """Measures all libraries in alternating rounds."""
  # Each process is ready before the next one starts, since compilation uses all cores.
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


def format_rows(shape: str, precision: str, peers: list[Peer], flop: float) -> list[str]:
  """Formats a row of the table for each library. The ratio to the first library is the median over the rounds."""
  lines = []
  for peer in peers:
    median = statistics.median(peer.seconds)
    rounds = zip(peer.seconds, peers[0].seconds, strict=True)
    ratio = statistics.median(seconds / first_seconds for seconds, first_seconds in rounds)
    lines.append(
      f"| {shape} | {precision} | {peer.name} | {median:.3f} | {min(peer.seconds):.3f} to {max(peer.seconds):.3f} | "
      f"{ratio:.2f} | {flop / median / 1e9:.0f} | {peer.first_step:.1f} | {peer.memory:,.0f} |"
    )
  return lines


def main() -> None:
  """Measures every shape in every precision, prints the table and writes it."""
  if unknown := set(FLAGS.libraries) - set(PEERS):
    raise UserError(f"--libraries: {min(unknown)!r} is unknown, the libraries are {', '.join(PEERS)}")
  shapes = {text: parse_shape(text, f"--shapes: {text!r}") for text in FLAGS.shapes}
  config = without_dropout(FLAGS.model)
  matmul_gflops = costs.matmul_flops_per_second() / 1e9
  lines = [
    f"# A pretraining step beside other libraries, {time.strftime('%Y-%m-%d')}",
    "",
    f"Machine: {machine.describe()}. {FLAGS.model} without dropout, {FLAGS.predictions} masked positions; "
    f"{FLAGS.rounds} alternating rounds of {FLAGS.steps} steps. NumPy multiplies float32 matrices at "
    f"{matmul_gflops:.0f} GFLOP/s here. GFLOP/s of a step count the whole model, whether or not a library computes all "
    "of it.",
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
      rows = format_rows(shape, precision, measure(config, batch_size, length, precision), flop)
      print("\n".join(rows), flush=True)
      lines += rows
  if FLAGS.output:
    Path(FLAGS.output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
  flags.DEFINE_enum("model", "albert_base", list(MODELS), "model")
  flags.DEFINE_string(
    "peers_python", "", "Python interpreter with torch, transformers and keras-hub (default: this one)"
  )
  flags.DEFINE_list("libraries", list(PEERS), "libraries to measure; the others are compared with the first one")
  flags.DEFINE_list("shapes", ["8x128", "2x512"], "batch size x sequence length of each measurement")
  flags.DEFINE_list("precisions", ["float32", "bfloat16"], "compute dtype of each measurement")
  flags.DEFINE_integer("predictions", 20, "number of masked positions in a sequence", lower_bound=1)
  flags.DEFINE_integer("steps", 3, "number of steps of each library in a round", lower_bound=1)
  flags.DEFINE_integer("rounds", 7, "number of rounds", lower_bound=1)
  flags.DEFINE_string("output", "", "Markdown file to write")
  app.run(main)
