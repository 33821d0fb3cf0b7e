"""What client.py and the processes it times say to each other. Imports nothing that an environment may lack."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import machine

READY = "ready"


def parser() -> argparse.ArgumentParser:
  """What client.Peer passes on; `config` holds the fields of albert.config.model.ModelConfig."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--config", type=json.loads, required=True)
  for name in ("batch_size", "length", "predictions", "threads"):
    parser.add_argument(f"--{name}", type=int, required=True)
  parser.add_argument("--precision", choices=("float32", "bfloat16"), required=True)
  return parser


def random_batch(options: argparse.Namespace) -> dict[str, Any]:
  """NumPy arrays: input_ids, segment_ids [B, S], positions, labels [B, P], order [B]. Every token is real."""
  import numpy as np

  rng = np.random.default_rng(0)
  shape = (options.batch_size, options.length)
  positions = np.stack(
    [np.sort(rng.choice(options.length, options.predictions, replace=False)) for _ in range(options.batch_size)]
  )
  return {
    "input_ids": rng.integers(5, options.config["vocab_size"], shape),
    "segment_ids": np.broadcast_to(np.arange(options.length) >= options.length // 2, shape).astype(np.int64),
    "positions": positions,
    "labels": rng.integers(5, options.config["vocab_size"], positions.shape),
    "order": rng.integers(0, 2, options.batch_size),
  }


def serve(step: Callable[[int], float]) -> None:
  """Answers "N" on standard input with the seconds that N steps took, the last loss and the peak of memory in MiB.

  `step(n)` does n training steps and returns the loss of the last.
  """
  start = time.perf_counter()
  step(1)  # compiles, allocates
  first = time.perf_counter() - start
  step(1)
  print(READY, first, flush=True)
  for line in sys.stdin:
    start = time.perf_counter()
    loss = step(int(line))
    print(time.perf_counter() - start, loss, machine.memory(), flush=True)
