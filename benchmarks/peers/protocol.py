"""The messages between client.py and the processes that it measures. It imports only the standard library and NumPy."""

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
  """The parser of the arguments that client.Peer passes. `config`: the fields of albert.config.model.ModelConfig."""
  parser = argparse.ArgumentParser()
  parser.add_argument("--config", type=json.loads, required=True)
  for name in ("batch_size", "length", "predictions", "threads"):
    parser.add_argument(f"--{name}", type=int, required=True)
  parser.add_argument("--precision", choices=("float32", "bfloat16"), required=True)
  return parser


def random_batch(options: argparse.Namespace) -> dict[str, Any]:
  """A random batch without padding.

  Returns:
    NumPy arrays: input_ids and segment_ids [B, S], positions and labels of the masked tokens [B, P], and the labels of
    sentence order [B], named "order".
  """
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
  """Reads numbers of steps from standard input, and does so many training steps for each.

  For each number it prints the seconds that the steps took, the last loss and the peak memory in MiB.

  Args:
    step: does the given number of steps and returns the last loss.
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
