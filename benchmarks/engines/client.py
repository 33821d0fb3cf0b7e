"""Starts the process of an engine, and asks it for measurements."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.engines.registry import CALLS, FROZEN_WEIGHTS_VARIABLE, Engine
from benchmarks.machine import ONEDNN_VARIABLE

_WORKER = Path(__file__).with_name("worker.py")


class Measurement(NamedTuple):
  """One turn of an engine with one batch.

  Attributes:
    seconds: wall-clock seconds of a call.
    processor: processor seconds of a call, of all threads together.
  """

  seconds: float
  processor: float


class EngineProcess:
  """The process of an engine. It waits while other engines are measured.

  An engine that fails does not raise an error. Its process ends, and `failure` holds the reason.

  Args:
    engine: the engine.
    directory: directory of the models.
    batches_file: a file that registry.save_batches has written.
    threads: number of threads; 0 for the default of the library.
    time_limit: seconds for each answer of the process.

  Attributes:
    failure: why the engine has no results; "" if it has not failed.
    start: seconds of the imports ("import"), and of loading with the first answer ("load").
    turns: the measured turns with each batch.
    memory: peak memory of the process in MiB.
    probabilities: the last answers to each batch.
  """

  def __init__(self, engine: Engine, directory: Path, batches_file: Path, threads: int, time_limit: float):
    self.engine = engine
    self.failure = ""
    self.start: dict[str, float] = {}
    self.turns: dict[str, list[Measurement]] = {name: [] for name in CALLS}
    self.memory = 0.0
    self.probabilities: dict[str, np.ndarray] = {}
    self._time_limit = time_limit
    self._errors_file = directory / f"{engine.title}.log"
    # Importing albert sets the variable of oneDNN. A program that serves a model does not import albert.
    variables = (ONEDNN_VARIABLE, FROZEN_WEIGHTS_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in variables}
    # The time that torch.compile takes must not depend on earlier runs.
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(directory / "compiled"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    arguments = [engine.loader, str(directory / engine.model), str(batches_file), str(threads)]
    with self._errors_file.open("w") as errors:
      self._process = subprocess.Popen(
        [sys.executable, str(_WORKER), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env={**environment, **engine.environment},
      )
    answer = self._read_answer()
    if answer:
      self.start = answer

  def measure(self, batch_name: str, *, is_counted: bool) -> None:
    """Computes a batch, as often as CALLS says. `is_counted`: False for the round that warms up."""
    if self.failure:
      return
    assert self._process.stdin
    with contextlib.suppress(BrokenPipeError):  # then _read_answer finds the reason
      print(CALLS[batch_name] if is_counted else 1, batch_name, file=self._process.stdin, flush=True)
    answer = self._read_answer()
    if not answer:
      return
    self.probabilities[batch_name] = np.array(answer["probabilities"])
    self.memory = answer["memory"]
    if is_counted:
      self.turns[batch_name].append(Measurement(answer["seconds"], answer["processor"]))

  def close(self) -> None:
    """Ends the process."""
    assert self._process.stdin
    try:
      self._process.stdin.close()
      self._process.wait(timeout=self._time_limit)
    except (BrokenPipeError, subprocess.TimeoutExpired):
      self._process.kill()
      self._process.wait()

  def median(self, batch_name: str) -> Measurement:
    """The median wall-clock and processor seconds of a call."""
    turns = self.turns[batch_name]
    return Measurement(*(statistics.median(values) for values in zip(*turns, strict=True)))

  def largest_difference(self, reference: EngineProcess) -> float:
    """The largest difference of any probability from those of another engine."""
    return max(
      float(np.abs(values - reference.probabilities[name]).max()) for name, values in self.probabilities.items()
    )

  def _read_answer(self) -> dict[str, Any]:
    """Reads an answer of the process. Returns {} and sets `failure` if there is none within the time limit."""
    assert self._process.stdout
    timer = threading.Timer(self._time_limit, self._process.kill)
    timer.start()
    line = self._process.stdout.readline()
    is_late = not timer.is_alive()
    timer.cancel()
    if line:
      answer: dict[str, Any] = json.loads(line)
      return answer
    code = self._process.wait()
    errors = self._errors_file.read_text(encoding="utf-8", errors="replace")
    last_lines = [text for text in errors.splitlines() if text.strip()][-1:]
    reason = f"no answer within {self._time_limit:.0f} s" if is_late else " ".join([f"exit code {code}", *last_lines])
    self.failure = " ".join(reason.split())[:200]
    return {}
