"""A process that does training steps with one library when asked to; several stay alive and are asked in turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from albert.config import ModelConfig
from albert.errors import RunError
from benchmarks.machine import KERNELS
from benchmarks.peers.protocol import READY

OURS = "albert"
PEERS = {OURS: "albert_tf", "transformers": "transformers_torch", "keras_hub": "keras_hub_tf"}
ROOT = Path(__file__).resolve().parents[2]


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
    values = {"config": json.dumps(config.to_dict()), "batch_size": batch_size, "length": length}
    values |= {"predictions": predictions, "precision": precision, "threads": os.cpu_count()}
    arguments = [f"--{key}={value}" for key, value in values.items()] + ["--recompute_grad"] * recompute_grad
    executable = sys.executable if name == OURS else python or sys.executable
    # The others run as their users have them: without the kernels that importing albert asks for.
    environment = {key: value for key, value in os.environ.items() if name == OURS or key != KERNELS}
    self._process = subprocess.Popen(
      [executable, str(ROOT / "benchmarks" / "peers" / f"{PEERS[name]}.py"), *arguments],
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
    self._process.wait(timeout=60)
