"""The messages between client.py and the processes that it measures.

The processes may run in environments without this project's dependencies, so this module imports only the standard
library and NumPy.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import machine

READY = "ready"


def make_parser() -> argparse.ArgumentParser:
  """Makes the parser of the arguments that client.Peer passes.

  The argument `config` is a JSON object of the fields of albert.config.model.ModelConfig.
  """
  parser = argparse.ArgumentParser()
  parser.add_argument("--config", type=json.loads, required=True)
  for name in ("batch_size", "length", "predictions", "threads"):
    parser.add_argument(f"--{name}", type=int, required=True)
  parser.add_argument("--precision", choices=("float32", "bfloat16"), required=True)
  return parser


def random_batch(options: argparse.Namespace) -> dict[str, Any]:
  """Makes a random batch without padding.

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
  num_special = 5  # ids 0 to 4 are special tokens
  return {
    "input_ids": rng.integers(num_special, options.config["vocab_size"], shape),
    "segment_ids": np.broadcast_to(np.arange(options.length) >= options.length // 2, shape).astype(np.int64),
    "positions": positions,
    "labels": rng.integers(num_special, options.config["vocab_size"], positions.shape),
    "order": rng.integers(0, 2, options.batch_size),
  }


def serve(do_steps: Callable[[int], float]) -> None:
  """Does training steps on request. Each line of standard input is a number of steps.

  At the start it does two steps, and prints READY and the seconds of the first one. For each request it prints the
  seconds that the steps took, the last loss and the peak memory in MiB.

  Args:
    do_steps: does the given number of steps and returns the last loss.
  """
  start = time.perf_counter()
  do_steps(1)  # compiles, allocates
  first_step = time.perf_counter() - start
  do_steps(1)
  print(READY, first_step, flush=True)
  for line in sys.stdin:
    start = time.perf_counter()
    loss = do_steps(int(line))
    print(time.perf_counter() - start, loss, machine.memory(), flush=True)
