"""Runs a plan: the commands of each cell in order, one or several cells at a time, a row after each. The same command
goes on where it stopped."""

from __future__ import annotations

import math
import os
import re
import signal
import statistics
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import msgspec

from albert.errors import RunError, Stopped, UserError
from albert.experiments import costs
from albert.experiments.plan import Cell, Plan, Step
from albert.io import files, json_values
from albert.runs import log_lines, output_files
from albert.runs.directory_lock import DirectoryLock

ROWS = "results.jsonl"
_COMMANDS = "log.txt"
_LOGS = "logs"


def run(plan: Plan, jobs: int = 1) -> list[dict[str, Any]]:
  """Computes what is missing, and returns all rows.

  A row: variant, seed, digest, parameters, examples_per_second, and scores by name; written when its cell is done.
  Rows of another plan (other settings) in the same place are kept and not returned.

  Args:
    jobs: cells that are computed at a time, each with its share of the processors.

  Raises:
    RunError: a command failed; its last line is in the message, all it said in a file of logs/.
    Stopped: a signal came; the commands under way have saved.
    UserError: another process computes cells in the same place.
  """
  with DirectoryLock(plan.directory, "running experiments"):
    return _run(plan, jobs)


def _run(plan: Plan, jobs: int) -> list[dict[str, Any]]:
  files.makedirs(files.join(plan.directory, _LOGS))
  rows = _Rows(plan)
  cells = plan.cells()
  missing = [cell for cell in cells if cell.digest not in rows.by_digest]
  print(f"{plan.experiment.name}: {len(cells) - len(missing)} of {len(cells)} cells are done", flush=True)
  with _Commands(plan.directory, jobs) as commands:
    queue = _Queue(plan.preparation(), missing, commands, rows)
    with ThreadPoolExecutor(jobs) as workers:
      for _ in range(jobs):
        workers.submit(queue.work)
  commands.check()
  return [rows.by_digest[cell.digest] for cell in cells]


class Row(msgspec.Struct):
  """A line of results.jsonl; null stands for what is not a number."""

  variant: str
  seed: int
  digest: str
  parameters: int
  examples_per_second: float | None
  scores: dict[str, float | None]

  def to_dict(self) -> dict[str, Any]:
    """The row, with NaN for scores that are not numbers."""
    scores = {name: math.nan if value is None else value for name, value in self.scores.items()}
    return {**msgspec.structs.asdict(self), "scores": scores}


class _Rows:
  """The rows of results.jsonl by the digest of their cell."""

  def __init__(self, plan: Plan) -> None:
    self._path = files.join(plan.directory, ROWS)
    rows = enumerate(log_lines.read(self._path, key="digest", kind=str), start=1)
    found = [json_values.convert(f"{self._path}, line {n}", row, Row, "delete the line") for n, row in rows]
    self.by_digest = {row.digest: row.to_dict() for row in found}

  def add(self, cell: Cell) -> None:
    """Reads the scores of a cell whose steps are done, and writes all rows."""
    self.by_digest[cell.digest] = row = _row(cell)
    files.write_atomically(self._path, "".join(json_values.dumps(row) + "\n" for row in self.by_digest.values()))
    scores = ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
    print(f"{cell.variant.name}, seed {cell.seed}: {scores}", flush=True)


class _Queue:
  """Cells in order. A worker takes the first that needs nothing which another worker is about to make."""

  def __init__(self, preparation: Sequence[Step], cells: Sequence[Cell], commands: _Commands, rows: _Rows) -> None:
    self._todo = [(cell, [*preparation, *cell.steps]) for cell in cells]
    self._commands, self._rows = commands, rows
    self._changed = threading.Condition()
    self._claimed: set[str] = set()

  def work(self) -> None:
    """Computes cells until none is left or a command has not come to its end."""
    while (taken := self._next()) is not None:
      cell, steps = taken
      try:
        for step in steps:
          if not self._commands.do(step):
            return
          self._release([step])
        with self._changed:
          self._rows.add(cell)
      except Exception as error:
        self._commands.fail(error)
        return
      finally:
        self._release(steps)

  def _next(self) -> tuple[Cell, list[Step]] | None:
    """A cell whose missing steps are now this worker's. Waits for one."""
    with self._changed:
      while self._todo and not self._commands.stopped.is_set():
        for number, (_, steps) in enumerate(self._todo):
          if not self._claimed.intersection(step.done for step in steps):
            self._claimed |= {step.done for step in steps if not files.exists(step.done)}
            return self._todo.pop(number)
        self._changed.wait()
    return None

  def _release(self, steps: Sequence[Step]) -> None:
    with self._changed:
      self._claimed.difference_update(step.done for step in steps)
      self._changed.notify_all()


class _Commands:
  """Commands under way. SIGINT and SIGTERM are passed on to them, which save, and remembered."""

  def __init__(self, directory: str, jobs: int) -> None:
    self.stopped = threading.Event()
    self._directory = directory
    self._signal = 0
    self._failure: Exception | None = None
    self._running: set[subprocess.Popen[bytes]] = set()
    self._cut_short: list[str] = []
    self._previous: dict[int, Any] = {}
    self._environment = dict(os.environ)
    if jobs > 1:
      self._environment["TF_NUM_INTRAOP_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))

  def __enter__(self) -> _Commands:
    for number in (signal.SIGINT, signal.SIGTERM):
      self._previous[number] = signal.signal(number, self._pass_on)
    return self

  def _pass_on(self, number: int, frame: FrameType | None) -> None:
    del frame
    self._signal = number
    self._stop(number)

  def fail(self, error: Exception) -> None:
    """Stops all for a reason, of which check() raises the first."""
    self._failure = self._failure or error
    self._stop(signal.SIGTERM)

  def _stop(self, number: int) -> None:
    self.stopped.set()
    for process in list(self._running):
      process.send_signal(number)

  def check(self) -> None:
    """Raises Stopped if a signal came, or else what something failed with."""
    if self._signal:
      where = f" in {'; '.join(self._cut_short)}" if self._cut_short else ""
      raise Stopped(f"stopped{where}; the same command goes on there", self._signal)
    if self._failure is not None:
      raise self._failure

  def do(self, step: Step) -> bool:
    """Runs the command of a step that is not done. Returns whether it is done now; if not, all has been stopped.

    Raises:
      RunError: it failed.
    """
    if files.exists(step.done):
      return True
    if self.stopped.is_set():
      return False
    print(f"  {step.name}", flush=True)
    with files.open_file(files.join(self._directory, _COMMANDS), "ab") as commands:
      commands.write(f"$ {' '.join(step.command)}\n".encode())
    path = files.join(self._directory, _LOGS, f"{re.sub('[^0-9A-Za-z]+', '-', step.name)}.txt")
    with files.open_file(path, "ab") as log:
      status = self._call(step, log)
    if status == 0 and files.exists(step.done):
      return True
    if self.stopped.is_set():
      self._cut_short.append(step.name)
      return False
    with open(path, encoding="utf-8", errors="replace") as log:
      said = [line.strip() for line in log if line.strip()] or ["it said nothing"]
    raise RunError(f"{step.name} ended with code {status} ({said[-1]}); {path} has all it said")

  def _call(self, step: Step, log: Any) -> int:
    """A process group of its own: a terminal's Ctrl-C comes through us."""
    process = subprocess.Popen(
      step.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=self._environment
    )
    self._running.add(process)
    if self.stopped.is_set():  # the signal came while it was started
      process.terminate()
    try:
      return process.wait()
    finally:
      self._running.discard(process)

  def __exit__(self, *unused: object) -> None:
    for number, handler in self._previous.items():
      signal.signal(number, handler)


def _row(cell: Cell) -> dict[str, Any]:
  scores = {}
  for score, result in cell.results.items():
    found = output_files.read_results(result.file)
    if result.metric not in found:
      raise UserError(f"{result.file} lacks {result.metric!r}: delete this file, and the same command makes it again")
    scores[score] = found[result.metric] * result.factor
  logged = [line.get("examples_per_second") for line in log_lines.read(files.join(cell.run, output_files.METRICS))]
  speeds = [speed for speed in logged if isinstance(speed, int | float)]
  return {
    "variant": cell.variant.name,
    "seed": cell.seed,
    "digest": cell.digest,
    "parameters": costs.parameters(cell.config),
    "examples_per_second": statistics.median(speeds) if speeds else None,
    "scores": scores,
  }
