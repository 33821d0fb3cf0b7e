"""Runs a plan: one command after another, a row after each cell. The same command goes on where it stopped."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
from types import FrameType
from typing import Any

from albert import files, output_files
from albert.errors import RunError, Stopped
from albert.experiments import costs
from albert.experiments.plan import Cell, Plan, Step
from albert.training import log_lines

ROWS = "results.jsonl"
_LOG = "log.txt"


def run(plan: Plan) -> list[dict[str, Any]]:
  """Computes what is missing, and returns all rows.

  A row: variant, seed, digest, parameters, examples_per_second, and scores by name; written when its cell is done.
  Rows of another plan (other settings) in the same place are kept and not returned.

  Raises:
    RunError: a command failed; its last line is in the message, all it said in log.txt.
    Stopped: a signal came; the command under way has saved.
  """
  files.makedirs(plan.directory)
  path = files.join(plan.directory, ROWS)
  rows = {row["digest"]: row for row in log_lines.read(path, key="digest", kind=str)}
  cells = plan.cells()
  missing = [cell for cell in cells if cell.digest not in rows]
  print(f"{plan.experiment.name}: {len(cells) - len(missing)} of {len(cells)} cells are done", flush=True)
  with _Signals() as signals:
    for step in plan.preparation() if missing else ():
      _do(step, plan.directory, signals)
    for cell in missing:
      for step in cell.steps:
        _do(step, plan.directory, signals)
      rows[cell.digest] = row = _row(cell)
      files.write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows.values()))
      scores = ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
      print(f"{cell.variant.name}, seed {cell.seed}: {scores}", flush=True)
  return [rows[cell.digest] for cell in cells]


def _do(step: Step, directory: str, signals: _Signals) -> None:
  if files.exists(step.done):
    return
  print(f"  {step.name}", flush=True)
  with open(files.join(directory, _LOG), "a", encoding="utf-8") as log:
    log.write(f"$ {' '.join(step.command)}\n")
    log.flush()
    status = signals.call(step.command, log)
  if signals.number:
    raise Stopped(f"stopped in {step.name}; the same command goes on there", signals.number)
  if status or not files.exists(step.done):
    with open(log.name, encoding="utf-8", errors="replace") as log:
      last = [line.strip() for line in log if line.strip()][-1]
    raise RunError(f"{step.name} ended with code {status} ({last}); {log.name} has all it said, and the command")


class _Signals:
  """Passes SIGINT and SIGTERM on to the command under way, which saves, and remembers them."""

  def __init__(self) -> None:
    self.number = 0
    self._process: subprocess.Popen[bytes] | None = None
    self._previous: dict[int, Any] = {}

  def __enter__(self) -> _Signals:
    for number in (signal.SIGINT, signal.SIGTERM):
      self._previous[number] = signal.signal(number, self._pass_on)
    return self

  def _pass_on(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.number = number
    if self._process is not None:
      self._process.send_signal(number)

  def call(self, command: tuple[str, ...], log: Any) -> int:
    """Runs a command to its end; its exit code. A process group of its own: a terminal's Ctrl-C comes through us."""
    if self.number:
      return 0
    self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
      return self._process.wait()
    finally:
      self._process = None

  def __exit__(self, *unused: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)


def _row(cell: Cell) -> dict[str, Any]:
  scores = {}
  for score, result in cell.results.items():
    scores[score] = files.read_json(result.file)[result.metric] * result.factor
  speeds = [line["examples_per_second"] for line in log_lines.read(files.join(cell.run, output_files.METRICS))]
  return {
    "variant": cell.variant.name,
    "seed": cell.seed,
    "digest": cell.digest,
    "parameters": costs.parameters(cell.config),
    "examples_per_second": statistics.median(speeds) if speeds else None,
    "scores": scores,
  }
