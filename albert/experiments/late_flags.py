"""Flags of a command whose values are known only when earlier commands of the plan are done."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Protocol

from albert.errors import UserError
from albert.io import files
from albert.runs import log_lines, output_files


class LateFlag(Protocol):
  """A flag whose value is read from the results of earlier commands."""

  def word(self) -> str:
    """Returns the flag with its value, as a word of the command line."""


@dataclasses.dataclass(frozen=True)
class TrainingSeconds:
  """--max_train_seconds with the time that another run has taken.

  Attributes:
    run: the output_dir of the other run.
  """

  run: str

  def word(self) -> str:
    """Returns --max_train_seconds with the time of the run's training steps in seconds."""
    return f"--max_train_seconds={training_seconds(self.run):.3f}"


@dataclasses.dataclass(frozen=True)
class BestRun:
  """--init_checkpoint with the best of several runs, or with the only one.

  Attributes:
    directory: the output_dir that was given with --num_runs.
  """

  directory: str

  def word(self) -> str:
    """Returns --init_checkpoint with the directory of the best run."""
    runs_file = files.join(self.directory, output_files.RUNS)
    if not files.exists(runs_file):
      return f"--init_checkpoint={self.directory}"
    return f"--init_checkpoint={files.join(self.directory, output_files.read_runs(runs_file)['best_run'])}"


def training_seconds(run: str) -> float:
  """Returns the time of the training steps of a run: its examples, divided by its median speed.

  Start-up and evaluations do not count, and a few slow steps do not change the median.

  Args:
    run: the output_dir of a finished run.
  Raises:
    UserError: the run has logged no speed.
  """
  lines = log_lines.read(files.join(run, output_files.METRICS))
  speeds = [line["examples_per_second"] for line in lines if isinstance(line.get("examples_per_second"), int | float)]
  if not speeds:
    raise UserError(
      f"{files.join(run, output_files.METRICS)} has no examples_per_second: delete {run} to train it again"
    )
  config = output_files.read_config(files.join(run, output_files.CONFIG))
  # The first line includes the time to build the graph.
  speed = statistics.median(speeds[1:] or speeds)
  return float(lines[-1]["step"]) * float(config["train"]["train_batch_size"]) / speed
