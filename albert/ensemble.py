"""Averages the predictions of several runs of one task.

    python -m albert.ensemble --inputs=run1,run2 --output_dir=both

No model is loaded: the command reads the predictions files that the runs wrote with --do_eval and --do_predict.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

from collections.abc import Sequence
from typing import Any

from absl import flags

from albert.config import command_flags
from albert.errors import UserError
from albert.io import files
from albert.runs import output_files
from albert.runs.directory_lock import DirectoryLock
from albert.tasks import registry

# Settings of the task that must be the same in all runs.
_SHARED_SETTINGS = ("task_name", "labels", "regression")


def ensemble_runs(run_dirs: Sequence[str], output_dir: str) -> dict[str, float]:
  """Averages the predictions of several runs, and writes the averages and their metrics.

  Probabilities (of classes, options or answers) are averaged, or the predicted numbers of a regression.

  Args:
    run_dirs: the output_dirs of two or more runs of one task on the same data.
    output_dir: where to write. The files have the same names as those of a run, among them eval_results.json.

  Returns: Metric -> value; {} if none of the predictions has labels.

  Raises:
    UserError: there are fewer than two runs; a directory is given twice, is not the output_dir of a run, or is the
      output_dir of the ensemble; the runs have different tasks or data; or a run lacks predictions.
  """
  if len(run_dirs) < 2:
    raise UserError(f"--inputs names {len(run_dirs)} run(s): give the output_dirs of two or more, separated by commas")
  real_paths = [files.real_path(directory) for directory in run_dirs]
  if files.real_path(output_dir) in real_paths:
    raise UserError(f"--output_dir={output_dir} is one of --inputs, whose predictions it would replace: give another")
  configs: list[dict[str, Any]] = []
  for index, directory in enumerate(run_dirs):
    if real_paths[index] in real_paths[:index]:
      raise UserError(f"--inputs names {directory} twice: it would count twice in the average; name it once")
    path = files.join(directory, output_files.CONFIG)
    if not files.exists(path):
      raise UserError(f"--inputs: {directory} is not the output_dir of a run (it has no {output_files.CONFIG})")
    configs.append(output_files.read_config(path))
    for key in ("task", *_SHARED_SETTINGS):
      value, first_value = (config.get("data", {}).get(key, config.get(key)) for config in (configs[-1], configs[0]))
      if value != first_value:
        raise UserError(
          f"--inputs: {directory} has {key} = {value!r}, {run_dirs[0]} has {first_value!r}: give runs of one task"
        )
  task_name = configs[0].get("task", "")
  task = registry.TASKS.get(task_name)
  if task is None or task.average_runs is None:
    raise UserError(f"{run_dirs[0]} is a run of {task_name!r}, whose predictions cannot be averaged")
  with DirectoryLock(output_dir, "averaging"):
    metrics = task.average_runs(run_dirs, [config.get("data", {}) for config in configs], output_dir)
    if metrics:
      files.write_json(files.join(output_dir, output_files.EVAL_RESULTS), {"runs": len(run_dirs), **metrics})
  return metrics


def define_flags() -> None:
  """Defines the flags of this command."""
  command_flags.define("str", "inputs", None, "output_dirs of the runs, or globs, separated by commas", required=True)
  command_flags.define("str", "output_dir", None, "directory to write to", required=True)


def main() -> None:
  """Runs the command: averages the runs, writes the files and prints the metrics."""
  flag_values = flags.FLAGS
  run_dirs: list[str] = []
  for pattern in files.split_globs(flag_values.inputs):
    matches = files.matching_paths(pattern)
    if not matches:
      raise UserError(f"--inputs: {pattern} does not exist")
    run_dirs += matches
  for name, value in ensemble_runs(run_dirs, flag_values.output_dir).items():
    print(f"{name} = {value:.6g}")
  print(f"{len(run_dirs)} runs; wrote {flag_values.output_dir}")


if __name__ == "__main__":
  startup.run_command_of(__name__)
