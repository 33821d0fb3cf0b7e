"""Starts processes that do training steps, each with one library, and measures them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from albert.config.model import ModelConfig, named_model
from albert.errors import RunError, UserError
from benchmarks.machine import ONEDNN_VARIABLE
from benchmarks.peers.protocol import READY

OURS = "albert"
# Name of a peer -> the script in this folder that its process runs.
PEERS = {OURS: "albert_tf", "transformers": "transformers_torch", "keras_hub": "keras_hub_tf"}
ROOT = Path(__file__).resolve().parents[2]


def parse_shape(text: str, flag_and_value: str) -> tuple[int, int]:
  """Parses a batch size and a sequence length, such as 8x128.

  Args:
    text: the text to parse.
    flag_and_value: the beginning of the error message, such as "--shape=8".

  Raises:
    UserError: the text does not have this form.
  """
  try:
    batch_size, length = (int(number) for number in text.split("x"))
  except ValueError as error:
    raise UserError(f"{flag_and_value} is not BATCHxLENGTH, such as 8x128") from error
  return batch_size, length


def without_dropout(model: str) -> ModelConfig:
  """Returns the config of a named model, without dropout."""
  return dataclasses.replace(named_model(model), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def make_arguments(config: ModelConfig, batch_size: int, length: int, predictions: int, precision: str) -> list[str]:
  """Returns the arguments of a peer's process (see protocol.make_parser)."""
  arguments = {"config": json.dumps(config.to_dict()), "batch_size": batch_size, "length": length}
  arguments |= {"predictions": predictions, "precision": precision, "threads": os.cpu_count()}
  return [f"--{name}={value}" for name, value in arguments.items()]


class Peer:
  """A process that does training steps with one library, always on the same batch.

  Args:
    name: a key of PEERS.
    config: the model.
    batch_size: sequences in the batch.
    length: tokens in a sequence.
    predictions: masked positions in a sequence.
    precision: "float32" or "bfloat16".
    python: Python interpreter for libraries other than this project; "" for this one.
    recompute_grad: whether to use gradient checkpointing (only for this project).

  Attributes:
    first_step: seconds of the first step, which is traced or compiled.
    seconds: a list with the mean seconds of a step for each call of run().
    memory: peak memory of the process in MiB.
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
    options = make_arguments(config, batch_size, length, predictions, precision)
    if recompute_grad:
      options.append("--recompute_grad")
    executable = sys.executable if name == OURS else python or sys.executable
    # Importing albert selects oneDNN's kernels. Other libraries run without this setting, as they do for their users.
    environment = {key: value for key, value in os.environ.items() if name == OURS or key != ONEDNN_VARIABLE}
    self._process = subprocess.Popen(
      [executable, str(ROOT / "benchmarks" / "peers" / f"{PEERS[name]}.py"), *options],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
      env=environment,
    )
    words: list[str] = []
    while words[:1] != [READY]:  # other lines are output of the library
      words = self._read_line().split()
    self.first_step = float(words[1])

  def _read_line(self) -> str:
    assert self._process.stdout is not None
    line = self._process.stdout.readline()
    if not line:
      assert self._process.stderr is not None
      reason = self._process.stderr.read().strip().splitlines()[-1:]
      raise RunError(f"{self.name} ended: {' '.join(reason)}: `make bench` sets up what it needs; see --peers_python")
    return line

  def run(self, steps: int) -> None:
    """Does `steps` steps, and appends the mean seconds of a step to `seconds`."""
    assert self._process.stdin is not None
    self._process.stdin.write(f"{steps}\n")
    self._process.stdin.flush()
    seconds, _, memory = (float(word) for word in self._read_line().split())
    self.seconds.append(seconds / steps)
    self.memory = memory

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin is not None
    self._process.stdin.close()
    self._process.wait(timeout=600)  # on a busy machine this takes minutes
