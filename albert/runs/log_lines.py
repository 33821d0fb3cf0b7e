"""Reads the logs of a run, which have one JSON object per line. Imports no TensorFlow, so that a report starts fast."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from albert.errors import UserError
from albert.io import files, json_values
from albert.runs import output_files

# An integer that is at least 0, as a type of msgspec.
Step = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# The key of the number of the stage, in lines of a run that is divided into stages.
STAGE_KEY = "stage"


def read(path: str, *, key: str = "step", key_type: Any = Step) -> list[dict[str, Any]]:
  """Reads the lines of a log.

  Args:
    path: path of the log.
    key: a key that every line must have.
    key_type: the type of its value, for msgspec.
  Returns:
    A dict for each line; an empty list if the file does not exist. Numbers that are not finite, which a run that
    diverges may log, are None. A last line that is incomplete, because the process was killed, is left out.
  Raises:
    UserError: a line is not a JSON object with this key. The message names file and line.
  """
  if not files.exists(path):
    return []
  with files.open_file(path) as file:
    lines = file.read().split(b"\n")
  schema = msgspec.defstruct("Line", [(key, key_type)])
  parsed_lines = []
  for number, line in enumerate(lines, start=1):
    is_last = number == len(lines)  # no newline follows the line: it is empty, or the process was killed
    try:
      values = json_values.parse(f"{path}, line {number}", line, dict[str, Any], "delete the line", nan_is_null=True)
      json_values.convert(f"{path}, line {number}", values, schema, "delete the line")
    except UserError:
      if is_last:
        break
      raise
    parsed_lines.append(values)
  return parsed_lines


def stage_ends(lines: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
  """Finds the ends of the stages of a run, for marks in pictures.

  Args:
    lines: the lines of metrics.jsonl, in the order of the steps.
  Returns: (last step, name such as "stage 1") of each stage but the last one; [] if the run is not divided into stages.
  """
  return [
    (line["step"], f"stage {line[STAGE_KEY]}")
    for line, next_line in itertools.pairwise(lines)
    if isinstance(line.get(STAGE_KEY), int) and line[STAGE_KEY] != next_line.get(STAGE_KEY)
  ]


def training_seconds(run: str) -> float:
  """Returns the time of the training steps of a run: the examples of each stage, divided by its median speed.

  Start-up and evaluations do not count, and a few slow steps do not change the median.

  Args:
    run: the output_dir of a finished run.
  Raises:
    UserError: the run has logged no speed, or has not ended.
  """
  lines = [
    line
    for line in read(files.join(run, output_files.METRICS))
    if isinstance(line.get("examples_per_second"), int | float)
  ]
  if not lines or not files.exists(files.join(run, output_files.TRAINING_LOSS)):
    problem = "training has not ended" if lines else f"{output_files.METRICS} has no examples_per_second"
    raise UserError(f"{run}: {problem}: repeat the command that trains it, or delete it to train it again")
  config = output_files.read_config(files.join(run, output_files.CONFIG))
  num_steps = lines[-1]["step"]
  whole_run = {"first_step": 0, "last_step": num_steps, "train_batch_size": config["train"]["train_batch_size"]}
  seconds = 0.0
  for number, stage in enumerate(config.get("stages") or [whole_run], start=1):
    # A stage that is too short to be logged has the speed of the whole run.
    of_stage = [line for line in lines if line.get(STAGE_KEY, number) == number] or lines
    # The first line includes the time to build the graph.
    speed = statistics.median(line["examples_per_second"] for line in of_stage[1:] or of_stage)
    steps = max(0, min(stage["last_step"], num_steps) - stage["first_step"])  # the run may have stopped early
    seconds += steps * float(stage["train_batch_size"]) / speed
  return seconds
