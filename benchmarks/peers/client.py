"""A process that does training steps with one library when asked to; several stay alive and are asked in turns."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from albert.config.model import ModelConfig, named_model
from albert.errors import RunError, UserError
from benchmarks.machine import KERNELS
from benchmarks.peers.protocol import READY

OURS = "albert"
PEERS = {OURS: "albert_tf", "transformers": "transformers_torch", "keras_hub": "keras_hub_tf"}
ROOT = Path(__file__).resolve().parents[2]


def parse_shape(text: str, given: str) -> tuple[int, int]:
  """Batch and length of a text such as 8x128.

  Raises:
    UserError: it is not of that form; begins with `given`.
  """
  try:
    batch_size, length = (int(number) for number in text.split("x"))
  except ValueError as error:
    raise UserError(f"{given} is not BATCHxLENGTH, such as 8x128") from error
  return batch_size, length


def without_dropout(model: str) -> ModelConfig:
  """A named model as it is timed."""
  return dataclasses.replace(named_model(model), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def arguments(config: ModelConfig, batch_size: int, length: int, predictions: int, precision: str) -> list[str]:
  """The command line of a peer (protocol.py)."""
  values = {"config": json.dumps(config.to_dict()), "batch_size": batch_size, "length": length}
  values |= {"predictions": predictions, "precision": precision, "threads": os.cpu_count()}
  return [f"--{name}={value}" for name, value in values.items()]


class Peer:
  """Steps of one library on one batch.

  Attributes:
    first: seconds of the first step, which traces or compiles.
    seconds: of a step, one for each run().
    memory: the peak of the process, MiB.
  """

  def __init__(
    self,
    name: str,
    config: ModelConfig,
    batch_size: int,
    length: int,
    predictions: int,
    precision: str,
    *,
    python: str = "",
    recompute_grad: bool = False,
  ):
    self.name = name
    self.seconds: list[float] = []
    self.memory = 0.0
    words = arguments(config, batch_size, length, predictions, precision) + ["--recompute_grad"] * recompute_grad
    executable = sys.executable if name == OURS else python or sys.executable
    # The others run as their users have them: without the kernels that importing albert asks for.
    environment = {key: value for key, value in os.environ.items() if name == OURS or key != KERNELS}
    self._process = subprocess.Popen(
      [executable, str(ROOT / "benchmarks" / "peers" / f"{PEERS[name]}.py"), *words],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=environment,
    )
    words: list[str] = []
    while words[:1] != [READY]:  # other lines are its library's chatter
      words = self._line().split()
    self.first = float(words[1])

  def _line(self) -> str:
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      assert self._process.stderr is not None
      reason = self._process.stderr.read().strip().splitlines()[-1:]
      raise RunError(f"{self.name} ended: {' '.join(reason)}: `make bench` sets up what it needs; see --peers_python")
    return line

  def run(self, steps: int) -> None:
    """Does `steps` steps and notes the seconds of one."""
    assert self._process.stdin is not None
    self._process.stdin.write(f"{steps}\n")
    self._process.stdin.flush()
    seconds, _, memory = (float(word) for word in self._line().split())
    self.seconds.append(seconds / steps)
    self.memory = memory

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait(timeout=600)  # a machine with much else to do takes minutes
