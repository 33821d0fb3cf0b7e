"""Runs the commands of a plan, one or several cells at a time, and writes a row of results after each cell.

A plan that was stopped continues where it stopped.
"""

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


def run_plan(plan: Plan, jobs: int = 1) -> list[dict[str, Any]]:
  """Computes the cells that have no row yet, and returns the rows of all cells.

  A row is written when its cell is done. Rows of other plans in the same directory are kept, but not returned.

  Args:
    plan: the plan of the experiment.
    jobs: number of cells that are computed at the same time, each on its share of the processors.
  Returns: a dict for each cell: variant, seed, digest, parameters, examples_per_second, and scores by name.
  Raises:
    RunError: a command failed. The message has the last line of its output; a file in logs/ has the whole output.
    Stopped: a signal was received; the running commands have saved.
    UserError: another process runs experiments in the same directory.
  """
  with DirectoryLock(plan.directory, "running experiments"):
    return _run_with_lock(plan, jobs)


def _run_with_lock(plan: Plan, jobs: int) -> list[dict[str, Any]]:
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


class ResultRow(msgspec.Struct):
  """A line of results.jsonl. A score that is null is not a number."""

  variant: str
  seed: int
  digest: str
  parameters: int
  examples_per_second: float | None
  scores: dict[str, float | None]

  def to_dict(self) -> dict[str, Any]:
    """Returns the row as a dict, with NaN for scores that are null."""
    scores = {name: math.nan if value is None else value for name, value in self.scores.items()}
    return {**msgspec.structs.asdict(self), "scores": scores}


class _Rows:
  """The rows of results.jsonl, by the digest of their cells."""

  def __init__(self, plan: Plan) -> None:
    self._path = files.join(plan.directory, ROWS)
    rows = enumerate(log_lines.read(self._path, key="digest", kind=str), start=1)
    parsed = [json_values.convert(f"{self._path}, line {n}", row, ResultRow, "delete the line") for n, row in rows]
    self.by_digest = {row.digest: row.to_dict() for row in parsed}

  def add(self, cell: Cell) -> None:
    """Reads the scores of a cell whose steps are done, and writes all rows."""
    self.by_digest[cell.digest] = row = _row(cell)
    files.write_atomically(self._path, "".join(json_values.dumps(row) + "\n" for row in self.by_digest.values()))
    scores = ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
    print(f"{cell.variant.name}, seed {cell.seed}: {scores}", flush=True)


class _Queue:
  """The cells that are left. A worker takes the first cell none of whose files is being made by another worker."""

  def __init__(self, preparation: Sequence[Step], cells: Sequence[Cell], commands: _Commands, rows: _Rows) -> None:
    self._todo = [(cell, [*preparation, *cell.steps]) for cell in cells]
    self._commands, self._rows = commands, rows
    self._changed = threading.Condition()
    self._claimed: set[str] = set()

  def work(self) -> None:
    """Computes cells until none is left, or until a command fails or is stopped."""
    while (next_cell := self._next()) is not None:
      cell, steps = next_cell
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
    """Waits for a cell that can be computed, and reserves its missing steps for the calling worker.

    Returns: the cell and its steps, or None if no cell is left or all work was stopped.
    """
    with self._changed:
      while self._todo and not self._commands.stopped.is_set():
        for number, (_, steps) in enumerate(self._todo):
          if not self._claimed.intersection(step.last_file for step in steps):
            self._claimed |= {step.last_file for step in steps if not files.exists(step.last_file)}
            return self._todo.pop(number)
        self._changed.wait()
    return None

  def _release(self, steps: Sequence[Step]) -> None:
    with self._changed:
      self._claimed.difference_update(step.last_file for step in steps)
      self._changed.notify_all()


class _Commands:
  """The running commands. SIGINT and SIGTERM are passed on to them, so that they save and stop."""

  def __init__(self, directory: str, jobs: int) -> None:
    self.stopped = threading.Event()
    self._directory = directory
    self._signal = 0
    self._failure: Exception | None = None
    self._running: set[subprocess.Popen[bytes]] = set()
    self._interrupted_steps: list[str] = []
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
    """Stops all commands because of an error. check() raises the first of these errors."""
    self._failure = self._failure or error
    self._stop(signal.SIGTERM)

  def _stop(self, number: int) -> None:
    self.stopped.set()
    for process in list(self._running):
      process.send_signal(number)

  def check(self) -> None:
    """Raises an error if the commands did not all succeed.

    Raises:
      Stopped: a signal was received.
      Exception: the first error given to fail().
    """
    if self._signal:
      where = f" in {'; '.join(self._interrupted_steps)}" if self._interrupted_steps else ""
      raise Stopped(f"stopped{where}; the same command continues there", self._signal)
    if self._failure is not None:
      raise self._failure

  def do(self, step: Step) -> bool:
    """Runs the command of a step, unless the step is done already.

    Returns: True if the step is done, False if the commands were stopped.
    Raises:
      RunError: the command failed.
    """
    if files.exists(step.last_file):
      return True
    if self.stopped.is_set():
      return False
    print(f"  {step.name}", flush=True)
    with files.open_file(files.join(self._directory, _COMMANDS), "ab") as commands:
      commands.write(f"$ {' '.join(step.command)}\n".encode())
    path = files.join(self._directory, _LOGS, f"{re.sub('[^0-9A-Za-z]+', '-', step.name)}.txt")
    with files.open_file(path, "ab") as log:
      status = self._call(step, log)
    if status == 0 and files.exists(step.last_file):
      return True
    if self.stopped.is_set():
      self._interrupted_steps.append(step.name)
      return False
    with open(path, encoding="utf-8", errors="replace") as log:
      output = [line.strip() for line in log if line.strip()] or ["no output"]
    raise RunError(f"{step.name} ended with code {status} ({output[-1]}); {path} has its whole output")

  def _call(self, step: Step, log: Any) -> int:
    """Runs a command in its own process group, so that Ctrl-C in a terminal reaches it only through this process."""
    process = subprocess.Popen(
      step.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=self._environment
    )
    self._running.add(process)
    if self.stopped.is_set():  # a signal was received while the process was started
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
    metrics = output_files.read_results(result.file)
    if result.metric not in metrics:
      raise UserError(f"{result.file} lacks {result.metric!r}: delete this file, and the same command makes it again")
    scores[score] = metrics[result.metric] * result.factor
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
