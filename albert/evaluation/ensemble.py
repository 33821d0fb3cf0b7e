"""Several runs of one task as one: `python -m albert.evaluation ensemble --inputs=run1,run2 --output_dir=both`.

It needs no model: it reads the predictions that the runs have written with --do_eval and --do_predict.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.tasks import registry

# What the runs of an ensemble must have in common.
_SHARED = ("task_name", "labels", "regression")


def ensemble(directories: Sequence[str], output_dir: str) -> dict[str, float]:
  """Makes one prediction of those of several runs, and writes it, its metrics and its submissions.

  Args:
    directories: output_dirs of the runs.
    output_dir: where to write; eval_results.json holds the metrics.
  Returns: the metrics; {} if no right answers are known.
  Raises:
    UserError: fewer than two runs, one of them twice, a directory that is none or is output_dir, or runs of different
      tasks or on different data.
  """
  if len(directories) < 2:
    raise UserError(f"--inputs names {len(directories)} run(s): give the output_dirs of two or more, commas between")
  _check_directories(directories, output_dir)
  configs = [_config(directory) for directory in directories]
  for directory, config in zip(directories[1:], configs[1:], strict=True):
    _compare(directories[0], configs[0], directory, config)
  task = configs[0].get("task", "")
  entry = registry.TASKS.get(task)
  if entry is None or not entry.ensemble:
    raise UserError(f"{directories[0]} is a run of {task!r}, which has no ensembles")
  files.makedirs(output_dir)
  metrics: dict[str, float] = registry.load(entry.ensemble)(directories, configs[0].get("data", {}), output_dir)
  if metrics:
    files.write_json(files.join(output_dir, output_files.EVAL_RESULTS), {"runs": len(directories), **metrics})
  return metrics


def _check_directories(directories: Sequence[str], output_dir: str) -> None:
  """UserError if a run is named twice, or is where the ensemble would be written."""
  places = [directory if files.is_remote(directory) else os.path.realpath(directory) for directory in directories]
  for n, (directory, place) in enumerate(zip(directories, places, strict=True)):
    if place in places[:n]:
      raise UserError(f"--inputs names {directory} twice: it would count twice in the average; name it once")
  if (output_dir if files.is_remote(output_dir) else os.path.realpath(output_dir)) in places:
    raise UserError(f"--output_dir={output_dir} is one of --inputs, whose predictions it would replace: give another")


def _config(directory: str) -> dict[str, Any]:
  path = files.join(directory, output_files.CONFIG)
  if not files.exists(path):
    raise UserError(f"--inputs: {directory} is not the output_dir of a run (it has no {output_files.CONFIG})")
  return output_files.read_config(path)


def _compare(first: str, ours: dict[str, Any], other: str, theirs: dict[str, Any]) -> None:
  pairs = [("task", ours.get("task"), theirs.get("task"))]
  pairs += [(key, ours.get("data", {}).get(key), theirs.get("data", {}).get(key)) for key in _SHARED]
  for key, one, two in pairs:
    if one != two:
      raise UserError(f"--inputs: {other} has {key} = {two!r}, {first} has {one!r}: give runs of one task")
