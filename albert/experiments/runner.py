"""Runs the commands of a plan, for one or several trials at a time. After each trial it writes a row of results.

If a plan was stopped, the next call continues it.
"""

from __future__ import annotations

import dataclasses
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
from typing import Any, Protocol

import msgspec

from albert.config.model import ModelConfig
from albert.errors import RunError, Stopped, UserError
from albert.experiments import costs, late_flags
from albert.experiments.commands import Command
from albert.experiments.plan import ScoreSource, Trial
from albert.io import files, json_values
from albert.runs import log_lines, output_files
from albert.runs.directory_lock import DirectoryLock

RESULTS_FILE = "results.jsonl"
# The command lines that were run, and the folder of their outputs.
_COMMAND_LOG, _OUTPUT_FOLDER = "log.txt", "logs"
# The exit code of a command that refuses its input.
_USER_ERROR = 2


class TrialPlan(Protocol):
  """What `run_plan` needs of a plan."""

  @property
  def name(self) -> str:
    """The name of the experiment."""

  @property
  def directory(self) -> str:
    """The directory of the results. A plan's rows are in its file results.jsonl."""

  def preparation_commands(self) -> list[Command]:
    """Returns the commands that all trials need."""

  def trials(self) -> list[Trial]:
    """Returns all trials in the order of computation."""


def run_plan(plan: TrialPlan, jobs: int = 1) -> list[dict[str, Any]]:
  """Runs the trials that have no row of results yet, and returns the rows of all trials of the plan.

  A row is written when its trial is done. Rows of other plans in the same directory are kept, but not returned.

  Args:
    plan: the plan of the experiment.
    jobs: number of trials that run at the same time, each on its share of the processors.
  Returns: a dict for each trial: variant, seed, digest, parameters, examples_per_second, training_seconds of the
    pretraining, and scores by name.
  Raises:
    RunError: a command failed. The message has the last line of its output; a file in logs/ has all of it.
    Stopped: a signal was received. The running commands have saved their state.
    UserError: another process runs experiments in the same directory, or a command refuses its input.
  """
  with DirectoryLock(plan.directory, "running experiments"):
    return _run_with_lock(plan, jobs)


def _run_with_lock(plan: TrialPlan, jobs: int) -> list[dict[str, Any]]:
  files.makedirs(files.join(plan.directory, _OUTPUT_FOLDER))
  rows = _ResultRows(plan.directory)
  trials = plan.trials()
  missing_trials = [trial for trial in trials if trial.digest not in rows.by_digest]
  print(f"{plan.name}: {len(trials) - len(missing_trials)} of {len(trials)} trials are done", flush=True)
  with _CommandRunner(plan.directory, jobs) as command_runner:
    queue = _TrialQueue(plan.preparation_commands(), missing_trials, command_runner, rows)
    with ThreadPoolExecutor(jobs) as workers:
      for _ in range(jobs):
        workers.submit(queue.work)
  command_runner.raise_failure()
  # At a small scale, several variants may have the same commands. These share a row in the file.
  return [{**rows.by_digest[trial.digest], "variant": trial.variant.name} for trial in trials]


class ResultRow(msgspec.Struct):
  """A line of results.jsonl. A score that is NaN is stored as null."""

  variant: str
  seed: int
  digest: str
  parameters: int
  examples_per_second: float | None
  scores: dict[str, float | None]
  training_seconds: float | None = None

  def to_dict(self) -> dict[str, Any]:
    """Returns the row as a dict, with NaN in place of null scores."""
    scores = {name: math.nan if value is None else value for name, value in self.scores.items()}
    return {**msgspec.structs.asdict(self), "scores": scores}


class _ResultRows:
  """The rows of results.jsonl.

  Attributes:
    by_digest: digest of a trial -> its row.
  """

  def __init__(self, directory: str) -> None:
    self._path = files.join(directory, RESULTS_FILE)
    self.by_digest: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(log_lines.read(self._path, key="digest", key_type=str), start=1):
      row = json_values.convert(f"{self._path}, line {number}", line, ResultRow, "delete the line")
      self.by_digest[row.digest] = row.to_dict()

  def add(self, trial: Trial) -> None:
    """Reads the scores of a trial whose commands are done, and writes all rows."""
    self.by_digest[trial.digest] = row = _make_row(trial)
    files.write_atomically(self._path, "".join(json_values.dumps(row) + "\n" for row in self.by_digest.values()))
    scores = ", ".join(f"{name} {value:.2f}" for name, value in row["scores"].items())
    print(f"{trial.variant.name}, seed {trial.seed}: {scores}", flush=True)


class _TrialQueue:
  """The trials that no worker has started yet. Workers are threads.

  Trials may share commands, and no command may run twice at the same time. So a worker takes the first trial that needs
  none of the files that other workers are making.
  """

  def __init__(
    self, preparation: Sequence[Command], trials: Sequence[Trial], command_runner: _CommandRunner, rows: _ResultRows
  ) -> None:
    self._waiting_trials = [(trial, [*preparation, *trial.commands]) for trial in trials]
    self._command_runner, self._rows = command_runner, rows
    self._state_changed = threading.Condition()
    self._files_in_progress: set[str] = set()

  def work(self) -> None:
    """Runs trials until none is left, or until a command fails or is stopped. Each worker thread calls it."""
    while (next_trial := self._take()) is not None:
      trial, commands = next_trial
      try:
        for command in commands:
          if not self._command_runner.run(command):
            return
          self._release([command])
        with self._state_changed:
          self._rows.add(trial)
      except Exception as error:
        self._command_runner.fail(error)
        return
      finally:
        self._release(commands)

  def _take(self) -> tuple[Trial, list[Command]] | None:
    """Waits for a trial that can run, and reserves its missing files for the calling worker.

    Returns: the trial and its commands, or None if no trial is left or all work was stopped.
    """
    with self._state_changed:
      while self._waiting_trials and not self._command_runner.stopped.is_set():
        for index, (_, commands) in enumerate(self._waiting_trials):
          completion_files = {command.completion_file for command in commands}
          if completion_files.isdisjoint(self._files_in_progress):
            self._files_in_progress |= {command.completion_file for command in commands if not command.is_complete()}
            return self._waiting_trials.pop(index)
        self._state_changed.wait()
    return None

  def _release(self, commands: Sequence[Command]) -> None:
    """Tells the other workers that this worker no longer makes the files of these commands."""
    with self._state_changed:
      self._files_in_progress.difference_update(command.completion_file for command in commands)
      self._state_changed.notify_all()


class _CommandRunner:
  """Runs commands in processes. It forwards SIGINT and SIGTERM to them, so that they save their state and stop."""

  def __init__(self, directory: str, jobs: int) -> None:
    self.stopped = threading.Event()
    self._directory = directory
    self._signal_number = 0
    self._failure: Exception | None = None
    self._running: set[subprocess.Popen[bytes]] = set()
    self._interrupted: list[str] = []
    self._previous_handlers: dict[int, Any] = {}
    self._environment = dict(os.environ)
    if jobs > 1:
      self._environment["TF_NUM_INTRAOP_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))

  def __enter__(self) -> _CommandRunner:
    for number in (signal.SIGINT, signal.SIGTERM):
      self._previous_handlers[number] = signal.signal(number, self._forward_signal)
    return self

  def _forward_signal(self, number: int, frame: FrameType | None) -> None:
    del frame
    self._signal_number = number
    self._send_to_all(number)

  def fail(self, error: Exception) -> None:
    """Stops all commands because of an error. check() then raises the first such error."""
    self._failure = self._failure or error
    self._send_to_all(signal.SIGTERM)

  def _send_to_all(self, number: int) -> None:
    """Sends a signal to all running commands, and lets no further command start."""
    self.stopped.set()
    for process in list(self._running):
      process.send_signal(number)

  def raise_failure(self) -> None:
    """Raises an error if the commands did not all succeed.

    Raises:
      Stopped: a signal was received.
      Exception: the first error given to fail().
    """
    if self._signal_number:
      location = f" in {'; '.join(self._interrupted)}" if self._interrupted else ""
      raise Stopped(f"stopped{location}; the same command continues there", self._signal_number)
    if self._failure is not None:
      raise self._failure

  def run(self, command: Command) -> bool:
    """Runs a command, unless it is done already.

    Args:
      command: the command.
    Returns: True if the command is done, False if all commands were stopped.
    Raises:
      UserError: the command ended with code 2: it refuses its input.
      RunError: the command failed.
    """
    if command.is_complete():
      return True
    if self.stopped.is_set():
      return False
    if command.late_flag is not None:
      command = dataclasses.replace(command, words=(*command.words, command.late_flag.word()), late_flag=None)
    print(f"  {command.name}", flush=True)
    with files.open_file(files.join(self._directory, _COMMAND_LOG), "ab") as command_log:
      command_log.write(f"$ {' '.join(command.words)}\n".encode())
    output_file = files.join(self._directory, _OUTPUT_FOLDER, f"{re.sub('[^0-9A-Za-z]+', '-', command.name)}.txt")
    with files.open_file(output_file, "ab") as output:
      exit_code = self._call(command, output)
    if exit_code == 0 and command.is_complete():
      return True
    if self.stopped.is_set():
      self._interrupted.append(command.name)
      return False
    with open(output_file, encoding="utf-8", errors="replace") as output:
      lines = [line.strip() for line in output if line.strip()] or ["no output"]
    error = UserError if exit_code == _USER_ERROR else RunError
    raise error(f"{command.name} ended with code {exit_code} ({lines[-1]}); {output_file} has its whole output")

  def _call(self, command: Command, output: Any) -> int:
    """Runs a command in its own process group, so that Ctrl-C in a terminal reaches it only through this process."""
    process = subprocess.Popen(
      command.words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=self._environment
    )
    self._running.add(process)
    if self.stopped.is_set():  # a signal was received while the process was started
      process.terminate()
    try:
      return process.wait()
    finally:
      self._running.discard(process)

  def __exit__(self, *unused: object) -> None:
    for number, handler in self._previous_handlers.items():
      signal.signal(number, handler)


def _read_metrics(source: ScoreSource) -> dict[str, float]:
  """Reads the metrics of a run, or their statistic over several runs. A value that is null is NaN."""
  if not source.statistic:
    return output_files.read_results(source.file)
  metrics = output_files.read_runs(source.file)["metrics"]
  values = {name: statistics_of_metric[source.statistic] for name, statistics_of_metric in metrics.items()}
  return {name: math.nan if value is None else value for name, value in values.items()}


def _trained_model(trial: Trial) -> ModelConfig:
  """Returns the model of a trial whose commands are done, with the number of pieces that its vocabulary has."""
  if not trial.vocabulary:
    return trial.config
  from albert.tokenization.tokenizer import Tokenizer

  return dataclasses.replace(trial.config, vocab_size=Tokenizer(trial.vocabulary).vocab_size)


def _make_row(trial: Trial) -> dict[str, Any]:
  """Reads the scores and the speed of a trial whose commands are done."""
  scores = {}
  for score, source in trial.scores.items():
    metrics = _read_metrics(source)
    if source.metric not in metrics:
      raise UserError(f"{source.file} lacks {source.metric!r}: delete this file, and the same command makes it again")
    scores[score] = metrics[source.metric] * source.factor
  metrics_lines = log_lines.read(files.join(trial.run, output_files.METRICS))
  logged_speeds = [line.get("examples_per_second") for line in metrics_lines]
  speeds = [speed for speed in logged_speeds if isinstance(speed, int | float)]
  return {
    "variant": trial.variant.name,
    "seed": trial.seed,
    "digest": trial.digest,
    "parameters": costs.num_model_parameters(_trained_model(trial)),
    "examples_per_second": statistics.median(speeds) if speeds else None,
    "scores": scores,
    "training_seconds": late_flags.training_seconds(trial.run) if speeds else None,
  }
