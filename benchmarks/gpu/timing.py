"""What the processes that run a step have in common: their arguments, the measurement, and the line that they print."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Measurement:
  """What a process measured. It prints it as a line of JSON.

  Attributes:
    device: the device's name.
    first_step_seconds: seconds of the first step, which is compiled.
    seconds_per_step: mean seconds of a step in each round after the first step.
    memory: peak bytes of the device's memory; 0 if the library does not know them.
    losses: the mean masked LM loss of the first step and of each round.
    versions: package -> version.
  """

  device: str
  first_step_seconds: float
  seconds_per_step: list[float]
  memory: int
  losses: list[float]
  versions: dict[str, str]

  def sequences_per_second(self, batch_size: int) -> float:
    """Returns the sequences per second in the median round."""
    return batch_size / statistics.median(self.seconds_per_step)


def make_parser(description: str | None) -> argparse.ArgumentParser:
  """Makes the parser of the arguments that all of these processes have."""
  parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("package", type=Path, help="directory that benchmarks/gpu_step.py wrote")
  parser.add_argument("--batch_size", type=int, required=True, help="sequences in a step")
  parser.add_argument("--rounds", type=int, default=5, help="number of rounds that are timed")
  parser.add_argument("--steps_per_round", type=int, default=10, help="steps in a round")
  parser.add_argument("--seed", type=int, default=0, help="seed of the initial weights")
  return parser


def measure(
  do_steps: Callable[[int], float],
  options: argparse.Namespace,
  device: str,
  peak_memory: Callable[[], int],
  versions: dict[str, str],
) -> Measurement:
  """Does one step, then the rounds, and prints the result.

  Args:
    do_steps: does the given number of steps, waits for the device and returns their mean masked LM loss.
    options: the arguments of make_parser.
    device: the device's name.
    peak_memory: returns the peak bytes of the device's memory.
    versions: package -> version.
  """
  seconds, losses = [], []
  for num_steps in (1, *[options.steps_per_round] * options.rounds):
    start = time.perf_counter()
    losses.append(do_steps(num_steps))
    seconds.append((time.perf_counter() - start) / num_steps)
  measurement = Measurement(device, seconds[0], seconds[1:], peak_memory(), losses, versions)
  print(json.dumps(dataclasses.asdict(measurement)), flush=True)
  return measurement
