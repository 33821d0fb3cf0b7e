"""Fine-tunes a checkpoint on the paper's benchmarks, and writes a table of results and the files to submit.

python -m albert.leaderboard --init_checkpoint=downloads/albert_xxlarge --glue_dir=glue --output_dir=leaderboard
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import os
import sys

from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.model import ModelConfig, load_model_config
from albert.config.ranges import Range
from albert.errors import UserError
from albert.experiments import costs, result_directory, runner
from albert.experiments.inputs import TASK_DATA_FLAGS, check_glue_folder, check_race_folder, squad_files
from albert.experiments.scales import SCALES
from albert.io import files
from albert.leaderboard import benchmarks, results
from albert.leaderboard.benchmarks import GLUE_TASKS, Benchmark
from albert.leaderboard.plan import LeaderboardPlan
from albert.tasks.splits import DEV, TEST, TRAIN


def define_flags() -> None:
  """Defines the flags of this command."""
  for name, default, help_text in (
    ("init_checkpoint", None, "pretrained weights: any form that --init_checkpoint of the scripts takes"),
    ("output_dir", None, "directory for the runs, table.md and submission/"),
    *((name, "", help_text) for name, help_text in TASK_DATA_FLAGS.items()),
  ):
    command_flags.define("str", name, default, help_text)
  glue_help = (
    "tasks of GLUE; MNLI also predicts AX if the folder diagnostic is there, and RTE, STS-B and MRPC start from it"
  )
  flags.DEFINE_list("glue_tasks", list(GLUE_TASKS), glue_help, module_name=sys.argv[0])
  command_flags.define(
    "int", "num_runs", 5, "seeds of each task; with more than one also an ensemble", allowed=Range(1)
  )
  scale_help = (
    "paper: the paper's settings; small, smoke: a few steps, for small models and to check that everything runs"
  )
  command_flags.define("str", "scale", "paper", scale_help, choices=list(SCALES))
  gflops_help = (
    "speed that the estimate of the cost assumes, in GFLOP/s (default: half the speed of matrix products here)"
  )
  command_flags.define("float", "gflops", None, gflops_help, allowed=Range(0.001))
  command_flags.define("bool", "dry_run", False, "print the plan and its estimated cost, without running it")


def _make_benchmarks() -> list[Benchmark]:
  """Returns the tasks whose data the flags give."""
  flag_values = flags.FLAGS
  tasks: list[Benchmark] = []
  if flag_values.glue_dir:
    for name in flag_values.glue_tasks:
      if name not in GLUE_TASKS:
        raise UserError(f"--glue_tasks: {name!r} is not one of {', '.join(GLUE_TASKS)}")
      check_glue_folder(flag_values.glue_dir, name, predicts=True)
      tasks.append(benchmarks.glue_benchmark(name, flag_values.glue_dir))
  for flag, version in (("squad_v1", "1.1"), ("squad_v2", "2.0")):
    paths = flag_values[flag].value
    if paths:
      tasks.append(benchmarks.squad_benchmark(version, *squad_files(flag, paths)))
  if flag_values.race_dir:
    check_race_folder(flag_values.race_dir, (TRAIN, DEV, TEST))
    tasks.append(benchmarks.race_benchmark(flag_values.race_dir))
  if not tasks:
    raise UserError("no task: give --glue_dir, --squad_v1, --squad_v2 or --race_dir")
  return tasks


def _read_model(init_checkpoint: str) -> ModelConfig:
  """Returns the model of pretrained weights."""
  from albert.weights.files import open_weights

  weight_file = open_weights(init_checkpoint, flag="--init_checkpoint")
  if not weight_file.config_file:
    raise UserError(f"--init_checkpoint={init_checkpoint}: its directory has no model config (albert_config.json)")
  return load_model_config(weight_file.config_file)


def main() -> None:
  """Prints the plan and its cost, runs it, and writes the table and the submissions."""
  flag_values = flags.FLAGS
  for name in ("init_checkpoint", "output_dir"):
    if not flag_values[name].value:
      raise UserError(f"--{name} is missing (--help explains it)")
  result_directory.check_is_local(flag_values.output_dir)
  checkpoint = flag_values.init_checkpoint
  plan = LeaderboardPlan(
    _make_benchmarks(),
    init_checkpoint=checkpoint if files.is_remote(checkpoint) else os.path.abspath(checkpoint),
    model=_read_model(checkpoint),
    scale=SCALES[flag_values.scale],
    output_dir=os.path.abspath(flag_values.output_dir),
    num_runs=flag_values.num_runs,
  )
  print(plan.describe(costs.training_flops_per_second(flag_values.gflops)), flush=True)
  if flag_values.dry_run:
    return
  with result_directory.refuse_full_disk(flag_values.output_dir):
    rows = runner.run_plan(plan)
    table = results.format_table(plan, rows, checkpoint)
    files.write_atomically(files.join(plan.directory, results.TABLE_FILE), table)
    paths = results.write_submission(plan)
  print(table, end="")
  print(f"wrote {files.join(plan.directory, results.TABLE_FILE)} and {len(paths)} files to submit", file=sys.stderr)


def run_command() -> None:
  """Runs the command: albert-leaderboard, or python -m albert.leaderboard."""
  define_flags()
  app.run(main)


if __name__ == "__main__":
  run_command()
