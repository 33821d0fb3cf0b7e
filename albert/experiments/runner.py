"""Runs a plan, which is a list of commands with the files that each makes, and writes the results of its trials.

A command whose files exist is done, and is not run again. The names of directories contain a hash of the settings, so
files that exist were made with the same settings. A command waits for the earlier ones that write into a directory
which its command line names. When the commands of a trial are done, its scores become a row of results.jsonl. If a plan
was stopped, the next call continues it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

import msgspec

from albert.config.command_flags import format_flag
from albert.config.model import ModelConfig
from albert.errors import RunError, Stopped, UserError
from albert.io import files, json_text
from albert.runs import logs, output_files
from albert.runs.directory_lock import DirectoryLock
from albert.settings import costs

RESULTS_FILE, SCALE_FILE = "results.jsonl", "scale.json"
# The command lines that were run, and the folder of their outputs.
_COMMAND_LOG, _OUTPUT_FOLDER = "log.txt", "logs"
# The exit code of a command that refuses its input.
_USER_ERROR = 2
_SECONDS_BETWEEN_POLLS = 0.05
# A disk with fewer free bytes counts as full. A command that fails there may not be able to print its error.
_LITTLE_SPACE = 64 << 10


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of a plan.

  Attributes:
    name: a description of what the command makes, for messages.
    words: the command line.
    makes: files that exist when the command is done. A training has two: somebody may have evaluated the unfinished run
      and so have written its results, but not the record of the end of training.
  """

  name: str
  words: tuple[str, ...]
  makes: tuple[str, ...]

  def is_done(self) -> bool:
    """Whether the command was run to its end."""
    return all(map(files.exists, self.makes))

  def needs(self, other: Command) -> bool:
    """Whether the command line names a directory in which the other command makes its files."""
    return any(os.path.dirname(path) in word for path in other.makes for word in self.words)


def python_command(name: str, module: str, makes: Sequence[str], **flags: Any) -> Command:
  """Returns the command `python -m module --flag=value ...`."""
  words = (sys.executable, "-m", module, *(format_flag(flag, value) for flag, value in flags.items()))
  return Command(name, words, tuple(makes))


def training_files(output_dir: str, last_file: str = output_files.EVAL_RESULTS) -> tuple[str, str]:
  """Returns the files of a run that has ended: its last file, and the record of the end of training."""
  return files.join(output_dir, last_file), files.join(output_dir, output_files.TRAINING_LOSS)


def digest(values: Any) -> str:
  """Returns a short hash of JSON values, for names of directories."""
  return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:10]


@dataclasses.dataclass(frozen=True)
class ScoreSource:
  """The file that a score is read from.

  Attributes:
    file: a JSON file with metrics.
    metric: name of the metric.
    factor: factor that converts the metric to percent.
    statistic: statistic of the metric over several runs, for a runs.json; empty for a file of metrics.
  """

  file: str
  metric: str
  factor: float = 100.0
  statistic: str = ""


@dataclasses.dataclass(frozen=True)
class Trial:
  """One variant with one seed. It gives one row of the results.

  Attributes:
    variant: name of the variant.
    seed: the seed.
    config: the config of the model.
    commands: all commands that the scores depend on, in an order in which they can be run.
    scores: name of a score -> where it is read from.
    run: output_dir of the training whose speed is recorded.
    vocabulary: path of the vocabulary, if its size may differ from that of `config`; "" if it cannot.
  """

  variant: str
  seed: int
  config: ModelConfig
  commands: Sequence[Command]
  scores: Mapping[str, ScoreSource]
  run: str
  vocabulary: str = ""

  @property
  def digest(self) -> str:
    """A hash of all commands, without the path of the Python interpreter.

    It covers the contents of the user's files, because the names of directories do.
    """
    return digest([command.words[1:] for command in self.commands])


class TrialPlan(Protocol):
  """What `run_plan` needs of a plan."""

  name: str
  directory: str  # with the results; the plan's rows are in its file results.jsonl

  def preparation_commands(self) -> list[Command]:
    """Returns the commands that all trials need."""
    return []

  def trials(self) -> list[Trial]:
    """Returns all trials in the order of computation."""


def run_plan(plan: TrialPlan, jobs: int = 1) -> list[dict[str, Any]]:
  """Runs the trials that have no row of results yet, and returns the rows of all trials of the plan.

  A row is written when its trial is done. Rows of other plans in the same directory are kept, but not returned.

  Args:
    plan: the plan of the experiment.
    jobs: number of commands that run at the same time, each on its share of the processors.
  Returns: a dict for each trial: variant, seed, digest, parameters, examples_per_second, training_seconds of the
    pretraining, and scores by name.
  Raises:
    RunError: a command failed. The message has the last line of its output; a file in logs/ has all of it.
    Stopped: a signal was received. The running commands have saved their state.
    UserError: another process runs experiments in the same directory, or a command refuses its input.
  """
  with DirectoryLock(plan.directory, "running experiments"):
    files.makedirs(files.join(plan.directory, _OUTPUT_FOLDER))
    rows, trials = read_rows(plan.directory), plan.trials()
    missing_trials = [trial for trial in trials if trial.digest not in rows]
    print(f"{plan.name}: {len(trials) - len(missing_trials)} of {len(trials)} trials are done", flush=True)
    commands = _unfinished_commands(plan)  # also those that are running, so what needs them waits
    with _Processes(plan.directory, jobs) as processes:
      while not processes.signal_number:
        unfinished = {command.makes for command in commands}
        for trial in [trial for trial in missing_trials if unfinished.isdisjoint(c.makes for c in trial.commands)]:
          missing_trials.remove(trial)
          rows[trial.digest] = row = make_row(trial)
          text = "".join(json_text.dumps(row) + "\n" for row in rows.values())
          files.write_atomically(files.join(plan.directory, RESULTS_FILE), text)
          scores = ", ".join(f"{name} {value:.4g}" for name, value in row["scores"].items())
          print(f"{trial.variant}, seed {trial.seed}: {scores}", flush=True)
        running = processes.running.values()
        ready = [
          command
          for index, command in enumerate(commands)
          if command not in running and not any(map(command.needs, commands[:index]))
        ]
        for command in ready[: jobs - len(running)]:
          processes.start(command)
        if not running:
          break
        for command in processes.wait():
          commands.remove(command)
  # At a small scale, several variants may have the same commands. These share a row in the file.
  return [{**rows[trial.digest], "variant": trial.variant} for trial in trials]


def _unfinished_commands(*plans: TrialPlan) -> list[Command]:
  """Returns the commands that the trials without a row need, each once, in an order in which they can be run."""
  commands: dict[tuple[str, ...], Command] = {}
  for plan in plans:
    rows = read_rows(plan.directory)
    for trial in plan.trials():
      if trial.digest not in rows:
        for command in (*plan.preparation_commands(), *trial.commands):
          commands.setdefault(command.makes, command)
  return [command for command in commands.values() if not command.is_done()]


def format_commands(*plans: TrialPlan) -> str:
  """Returns the commands that are not done as lines for a shell."""
  return "\n".join(shlex.join(command.words) for command in _unfinished_commands(*plans))


class _Processes:
  """The processes of commands. SIGINT and SIGTERM are sent on to them, so that they save their state and stop.

  Attributes:
    running: the processes and their commands.
    signal_number: the signal that was received; 0 if there was none. After a signal no process may be started.
  """

  def __init__(self, directory: str, jobs: int) -> None:
    self.running: dict[subprocess.Popen[bytes], Command] = {}
    self.signal_number = 0
    self._directory = directory
    self._environment = dict(os.environ)
    if jobs > 1:
      self._environment["TF_NUM_INTRAOP_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))

  def __enter__(self) -> _Processes:
    numbers = (signal.SIGINT, signal.SIGTERM)
    self._previous_handlers = {number: signal.signal(number, self._receive_signal) for number in numbers}
    return self

  def _receive_signal(self, number: int, frame: FrameType | None) -> None:
    del frame
    self.signal_number = number
    for process in list(self.running):
      process.send_signal(number)

  def _output_file(self, command: Command) -> str:
    return files.join(self._directory, _OUTPUT_FOLDER, f"{re.sub('[^0-9A-Za-z]+', '-', command.name)}.txt")

  def start(self, command: Command) -> None:
    """Starts a command in its own process group: Ctrl-C in a terminal reaches it only through this process."""
    print(f"  {command.name} (its output: {self._output_file(command)})", flush=True)
    with files.open_file(files.join(self._directory, _COMMAND_LOG), "ab") as command_log:
      command_log.write(f"$ {' '.join(command.words)}\n".encode())
    with files.open_file(self._output_file(command), "ab") as output:
      process = subprocess.Popen(
        command.words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=self._environment
      )
    self.running[process] = command
    if self.signal_number:  # it was received while the process was started
      process.send_signal(self.signal_number)

  def wait(self) -> list[Command]:
    """Waits until commands end, and returns them; [] after a signal. Raises UserError or RunError if one has failed."""
    ended: list[subprocess.Popen[bytes]] = []
    while not ended and not self.signal_number:
      time.sleep(_SECONDS_BETWEEN_POLLS)
      ended = [process for process in self.running if process.poll() is not None]
    if self.signal_number:
      return []
    for process in ended:
      command = self.running[process]
      if process.returncode == 0 and command.is_done():
        continue
      output_file = self._output_file(command)
      with open(output_file, encoding="utf-8", errors="replace") as output:
        problem = ([line.strip() for line in output if line.strip()] or ["no output"])[-1]
      disk = os.statvfs(self._directory)
      if disk.f_bavail * disk.f_frsize < _LITTLE_SPACE:
        problem += f"; the disk of {self._directory} is full: make space there, and the same command continues"
      error = UserError if process.returncode == _USER_ERROR else RunError
      raise error(
        f"{command.name} ended with code {process.returncode} ({problem}); {output_file} has its whole output"
      )
    return [self.running.pop(process) for process in ended]

  def __exit__(self, error_type: type[BaseException] | None, *unused: object) -> None:
    if error_type:
      for process in self.running:
        process.terminate()
    interrupted = [command.name for process, command in self.running.items() if process.wait() or not command.is_done()]
    for number, handler in self._previous_handlers.items():
      signal.signal(number, handler)
    if self.signal_number:
      location = f" in {'; '.join(interrupted)}" if interrupted else ""
      raise Stopped(f"stopped{location}; the same command continues there", self.signal_number)


class ResultRow(msgspec.Struct):
  """A line of results.jsonl. A score that is NaN is stored as null."""

  variant: str
  seed: int
  digest: str
  parameters: int
  examples_per_second: float | None
  scores: dict[str, float | None]
  training_seconds: float | None = None


def read_rows(directory: str) -> dict[str, dict[str, Any]]:
  """Returns digest of a trial -> its row in results.jsonl, with NaN in place of null scores."""
  rows = {}
  for row in logs.read(files.join(directory, RESULTS_FILE), ResultRow):
    scores = {name: math.nan if value is None else value for name, value in row["scores"].items()}
    rows[row["digest"]] = {**row, "scores": scores}
  return rows


def make_row(trial: Trial) -> dict[str, Any]:
  """Reads the scores and the speed of a trial whose commands are done, see `run_plan`."""
  scores = {}
  for score, source in trial.scores.items():
    metrics = read_metrics(source)
    if source.metric not in metrics:
      raise UserError(f"{source.file} lacks {source.metric!r}: delete this file, and the same command makes it again")
    scores[score] = metrics[source.metric] * source.factor
  config = trial.config
  if trial.vocabulary:
    from albert.tokenization.tokenizer import Tokenizer

    config = dataclasses.replace(config, vocab_size=Tokenizer(trial.vocabulary).vocab_size)
  lines = logs.lines_with_speed(trial.run)
  return {
    "variant": trial.variant,
    "seed": trial.seed,
    "digest": trial.digest,
    "parameters": costs.num_model_parameters(config),
    "examples_per_second": logs.median_speed(lines) if lines else None,
    "scores": scores,
    "training_seconds": logs.training_seconds(trial.run) if lines else None,
  }


def read_metrics(source: ScoreSource) -> dict[str, float]:
  """Reads the metrics of a run, or their statistic over several runs. A value that is null is NaN."""
  if not source.statistic:
    return output_files.read_results(source.file)
  metrics = output_files.read_runs(source.file)["metrics"]
  values = {name: statistics_of_metric[source.statistic] for name, statistics_of_metric in metrics.items()}
  return {name: math.nan if value is None else value for name, value in values.items()}


class _ScaleFile(msgspec.Struct):
  """The content of scale.json: the name of the scale of the results in a directory."""

  scale: str


def check_scale(directory: str, scale: str) -> None:
  """Checks that an experiment's directory has no results of another scale, which this command would replace.

  Args:
    directory: the directory of the experiment's results.
    scale: name of the scale of this command.
  Raises:
    UserError: the results there are of another scale.
  """
  path = files.join(directory, SCALE_FILE)
  recorded = files.read_json(path, _ScaleFile, "delete this file").scale if files.exists(path) else scale
  if recorded != scale:
    raise UserError(f"--scale={scale}: {directory} has results of --scale={recorded}: give it, or another --output_dir")


def check_is_local(output_dir: str) -> None:
  """Raises UserError if the value of --output_dir is on a remote file system."""
  if files.is_remote(output_dir):
    raise UserError(f"--output_dir={output_dir}: give a local directory, because the log is appended to")
