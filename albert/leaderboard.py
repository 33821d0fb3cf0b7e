"""Fine-tunes a checkpoint on GLUE, SQuAD and RACE as the paper does, for a table of results and the files to submit.

  python -m albert.leaderboard --init_checkpoint=downloads/albert_xxlarge --glue_dir=glue \\
    --output_dir=leaderboard

The plan has several seeds and an ensemble of each task. Its commands are those that a user would type, and are run as
those of albert.experiments.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import dataclasses
import io
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from albert.config import command_flags
from albert.config.model import ModelConfig
from albert.config.recipes import Recipe
from albert.config.run import TrainConfig
from albert.errors import UserError
from albert.experiments import catalog, runner
from albert.experiments.inputs import DownstreamTask, define_plan_flags, given_tasks, hash_files
from albert.experiments.runner import ScoreSource, Trial, TrialPlan, digest, python_command, training_files
from albert.io import files
from albert.io.progress import log
from albert.runs import output_files
from albert.settings import costs
from albert.tasks.glue.files import TextData
from albert.tasks.glue.flags import ClassifierConfig
from albert.weights.files import find_weights

TABLE_FILE, SUBMISSION_FOLDER = "table.md", "submission"
# The archive for gluebenchmark.com.
GLUE_ARCHIVE = "glue.zip"
FIRST_SEED = 12345
_STATISTICS = ("median", "minimum", "maximum")
_NO_VALUE = "–"
# A date that does not depend on the clock, so that the same predictions give the same archive.
_DATE = (1980, 1, 1, 0, 0, 0)

# The task whose model RTE, STS-B and MRPC start from (ALBERT, appendix A.4).
FIRST_TASK = "MNLI"
STARTING_FROM_MNLI = ("RTE", "STS-B", "MRPC")
# Task of GLUE -> its metrics, each with the authors' result of a single model on the development set, in percent:
# https://github.com/google-research/albert, ALBERT-xxlarge after 1.5M steps. None: there is none.
GLUE_TASKS: dict[str, dict[str, float | None]] = {
  "MNLI": {"matched_accuracy": 90.8, "mismatched_accuracy": None},
  "QNLI": {"accuracy": 95.3},
  "QQP": {"accuracy": 92.2, "f1": None},
  "RTE": {"accuracy": 89.2},
  "SST-2": {"accuracy": 96.9},
  "MRPC": {"accuracy": 90.9, "f1": None},
  "CoLA": {"matthews_corrcoef": 71.4},
  "STS-B": {"pearson": 93.0, "spearman": None},
  "WNLI": {"accuracy": None},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Benchmark:
  """A task of a leaderboard.

  Attributes:
    name: the name in the table, and of the folder of its submission.
    task: the script, its flags, its data and its recipe.
    metrics: name of a metric -> the authors' result in percent, None if it is not known. The first one is shown first.
    factor: factor that converts our metrics to percent.
    submission: names of the files that the leaderboard asks for, in the output_dir of a run. A run writes them in this
      order.
  """

  name: str
  task: DownstreamTask
  metrics: Mapping[str, float | None]
  factor: float = 100.0
  submission: Sequence[str]


def make_benchmark(name: str, task: DownstreamTask) -> Benchmark:
  """Returns the leaderboard of a task.

  The submissions of GLUE have the names that gluebenchmark.com asks for. The test set of SQuAD is not public, so its
  submission has the answers of the development set. For RACE the authors give a result on the test set only, 86.5; ours
  is on the development set, so none is shown.

  Args:
    name: a name in GLUE, "squad_v1", "squad_v2" or "race".
    task: the task.
  """

  def with_flags(**more_flags: Any) -> DownstreamTask:
    return dataclasses.replace(task, flags={**task.flags, **more_flags})

  if name in GLUE_TASKS:
    glue_dir = task.flags["data_dir"]
    split_files = TextData(ClassifierConfig(task_name=name, data_dir=glue_dir))
    task = with_flags(do_predict=True)
    if name == FIRST_TASK:
      task = dataclasses.replace(task, data=",".join(files.join(glue_dir, folder) for folder in (name, "diagnostic")))
    submission = [split_files.formats[split].submission for split in split_files.prediction_splits()]
    return Benchmark(name=name, task=task, metrics=GLUE_TASKS[name], submission=submission)
  if name == "race":
    task = with_flags(do_predict=True)
    return Benchmark(name="RACE", task=task, metrics={"accuracy": None}, submission=["predictions_test.tsv"])
  has_null = name == "squad_v2"
  return Benchmark(
    name="SQuAD2.0" if has_null else "SQuAD1.1",
    # The recipes have no evaluations during training.
    task=with_flags(eval_every_steps=1000 if has_null else 500, select_checkpoint="best"),
    metrics={"f1": 90.2, "exact": 87.4} if has_null else {"f1": 94.8, "exact": 89.3},
    factor=1.0,
    submission=["predictions_dev.json", *(["null_odds_dev.json"] if has_null else [])],
  )


class TaskPlan(NamedTuple):
  """The commands of a task.

  Attributes:
    benchmark: the task.
    recipe: the recipe for the weights.
    flags: flags of the script, with the values of the scale that replace those of the recipe.
    start: what training starts from: the name of a task whose best model it is, or "the checkpoint".
    directory: the output_dir of all runs.
    final: the directory with the predictions to submit: that of the ensemble, or of the only run.
    trial: the scores and all commands, also those of the task that training starts from.
  """

  benchmark: Benchmark
  recipe: Recipe
  flags: Mapping[str, Any]
  start: str
  directory: str
  final: str
  trial: Trial


class LeaderboardPlan(TrialPlan):
  """The commands of all tasks. runner.run_plan runs them.

  Args:
    benchmarks: the tasks. MNLI is computed first.
    init_checkpoint: the pretrained weights.
    model: the model of these weights.
    scale: the scale; its `finetuning` replaces values of the recipes.
    output_dir: directory for runs, results and submissions.
    num_runs: number of seeds of each task. With one there is no ensemble.
  """

  name = "leaderboard"

  def __init__(
    self,
    benchmarks: Sequence[Benchmark],
    *,
    init_checkpoint: str,
    model: ModelConfig,
    scale: catalog.Scale,
    output_dir: str,
    num_runs: int,
  ):
    self.num_runs, self.model, self.directory = num_runs, model, output_dir
    self._init_checkpoint, self._scale = init_checkpoint, scale
    self.tasks: dict[str, TaskPlan] = {}
    for benchmark in sorted(benchmarks, key=lambda benchmark: benchmark.name != FIRST_TASK):
      self.tasks[benchmark.name] = self._plan_task(benchmark)

  def trials(self) -> list[Trial]:
    """Returns a trial for each task, MNLI first."""
    return [task.trial for task in self.tasks.values()]

  def _plan_task(self, benchmark: Benchmark) -> TaskPlan:
    """Plans the commands of a task. The first ones are those of MNLI, if the task starts from its model."""
    name, factor, script = benchmark.name, benchmark.factor, benchmark.task.script
    flags = benchmark.task.flags_for(self.model)
    if self._scale.is_reduced:
      flags |= {**self._scale.finetuning_flags(script), "select_checkpoint": "best"}
      flags["eval_every_steps"] = max(1, self._scale.finetuning["num_train_steps"] // 2)
    first = self.tasks.get(FIRST_TASK) if name in STARTING_FROM_MNLI else None
    init_checkpoint = first.directory if first else self._init_checkpoint  # of several runs it is the best one
    identity = {**flags, "init_checkpoint": init_checkpoint, "num_runs": self.num_runs}
    identity["data"] = hash_files(benchmark.task.data)
    directory = files.join(self.directory, "runs", f"{name}-{digest(identity)}")
    has_ensemble = self.num_runs > 1
    final = files.join(directory, "ensemble") if has_ensemble else directory
    results_file, runs_file = files.join(final, output_files.EVAL_RESULTS), files.join(directory, output_files.RUNS)

    commands = list(first.trial.commands) if first else []
    command_flags = {"output_dir": directory, "num_runs": self.num_runs, "seed": FIRST_SEED, "do_train": True}
    command_flags |= {"do_eval": True, **flags, **({"fresh_head": True} if first else {})}
    command_flags["init_checkpoint"] = init_checkpoint
    last_file = benchmark.submission[-1] if flags.get("do_predict") else output_files.EVAL_RESULTS
    makes = [runs_file] if has_ensemble else training_files(directory, last_file)
    commands.append(python_command(f"{name}: {self.num_runs} run(s)", script, makes, **command_flags))
    if has_ensemble:
      ensemble_flags = {"inputs": files.join(directory, "run-*"), "output_dir": final}
      commands.append(python_command(f"{name}: ensemble", "albert.ensemble", [results_file], **ensemble_flags))

    scores = {}
    for metric in benchmark.metrics:
      for statistic in _STATISTICS if has_ensemble else ():
        scores[f"{metric} {statistic}"] = ScoreSource(runs_file, metric, factor, statistic)
      scores[f"{metric} {'ensemble' if has_ensemble else 'median'}"] = ScoreSource(results_file, metric, factor)
    run = files.join(directory, f"run-{FIRST_SEED}") if has_ensemble else directory
    trial = Trial(name, FIRST_SEED, self.model, commands, scores, run)
    recipe, start = benchmark.task.recipe_for(self.model), FIRST_TASK if first else "the checkpoint"
    return TaskPlan(benchmark, recipe, flags, start, directory, final, trial)

  def describe(self, flops_per_second: float) -> str:
    """Returns a table of the estimated cost of each task.

    Args:
      flops_per_second: speed of training, in floating-point operations per second.
    """
    lines, total_hours = ["task\trecipe\tstarts from\truns\tsteps\tbatch\ttokens\tGFLOP per step\thours"], 0.0
    for name, task in self.tasks.items():
      sections = task.recipe.sections
      values = {**sections.get("train", {}), **sections.get("data", {}), **task.flags}
      num_steps = values.get("num_train_steps", TrainConfig().num_train_steps)
      batch_size, length = values["train_batch_size"], min(values["max_seq_length"], self.model.max_position_embeddings)
      step_flops = costs.step_flops(self.model, batch_size=batch_size, seq_length=length, predictions=0)
      hours = self.num_runs * num_steps * step_flops / flops_per_second / 3600
      total_hours += hours
      lines.append(
        f"{name}\t{task.recipe.name}\t{task.start}\t{self.num_runs}\t{num_steps}\t{batch_size}\t{length}\t"
        f"{step_flops / 1e9:,.1f}\t{hours:,.2f}"
      )
    num_runs, speed = self.num_runs * len(self.tasks), math.floor(flops_per_second / 1e9)
    lines.append(
      f"{len(self.tasks)} tasks, {num_runs} runs; training takes at most about {total_hours:,.2f} hours at "
      f"{speed:,} GFLOP/s, because shorter texts are padded to fewer tokens"
    )
    return "\n".join(lines)


def format_table(plan: LeaderboardPlan, rows: Sequence[Mapping[str, Any]], checkpoint: str) -> str:
  """Formats a Markdown table with a line for each metric of each task.

  Args:
    plan: the plan.
    rows: the results, one row per task.
    checkpoint: path of the pretrained weights, for the caption.
  """
  scores_of_task = {row["variant"]: row["scores"] for row in rows}
  header = ["task", "metric", "median", "lowest", "highest", "ensemble", "ALBERT-xxlarge (authors, one model)"]
  lines = [header, ["---"] * len(header)]
  for name, task in plan.tasks.items():
    scores = scores_of_task[name]
    for metric, result in task.benchmark.metrics.items():
      columns = (f"{metric} {column}" for column in (*_STATISTICS, "ensemble"))
      cells = [f"{scores[column]:.1f}" if column in scores else _NO_VALUE for column in columns]
      lines.append([name, metric, *cells, _NO_VALUE if result is None else f"{result:g}"])
  seeds = f"{plan.num_runs} seeds" if plan.num_runs > 1 else "one seed"
  caption = (
    f"{checkpoint}; development sets; {seeds}; percent. The authors' results: ALBERT-xxlarge after 1.5M steps, "
    "https://github.com/google-research/albert."
  )
  table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
  return f"# GLUE, SQuAD and RACE\n\n{caption}\n\n{table}\n"


def write_submission(plan: LeaderboardPlan) -> list[str]:
  """Copies the files to submit: those of GLUE into one folder and an archive, those of other tasks into folders.

  Args:
    plan: a plan whose trials are done.
  Returns: the paths of the files.
  """
  contents: dict[str, bytes] = {}
  directory = files.join(plan.directory, SUBMISSION_FOLDER)
  archive_file = io.BytesIO()
  with zipfile.ZipFile(archive_file, "w") as archive:
    for name, task in plan.tasks.items():
      for file_name in sorted(task.benchmark.submission):
        copied = files.join(directory, "GLUE" if name in GLUE_TASKS else name, file_name)
        contents[copied] = files.read(files.join(task.final, file_name))
    glue_paths = [path for path in contents if path.startswith(files.join(directory, "GLUE/"))]
    for path in sorted(glue_paths):
      archive.writestr(zipfile.ZipInfo(os.path.basename(path), _DATE), contents[path], zipfile.ZIP_DEFLATED)
  if glue_paths:
    contents[files.join(directory, GLUE_ARCHIVE)] = archive_file.getvalue()
  for path, content in contents.items():
    files.makedirs(os.path.dirname(path))
    files.write_atomically(path, content)
  return list(contents)


def define_flags() -> None:
  """Defines the flags of this command."""
  weights_help = "pretrained weights: any form that --init_checkpoint of the scripts takes"
  command_flags.define("str", "init_checkpoint", None, weights_help, required=True)
  command_flags.define("str", "output_dir", None, "directory for the runs, table.md and submission/", required=True)
  define_plan_flags(
    glue_tasks=list(GLUE_TASKS),
    glue_help="tasks of GLUE; MNLI also predicts AX if the folder diagnostic is there, and RTE, STS-B and MRPC start "
    "from it",
    scale="paper",
    scale_help="paper: the paper's settings; small, smoke: a few steps, for small models and to check that everything "
    "runs",
  )
  num_runs_help = "seeds of each task; with more than one also an ensemble"
  command_flags.define("int", "num_runs", 5, num_runs_help, allowed=command_flags.Range(1))


def main() -> None:
  """Prints the plan and its cost, runs it, and writes the table and the submissions."""
  values = flags.FLAGS
  runner.check_is_local(values.output_dir)
  tasks = given_tasks(tuple(GLUE_TASKS), predicts=True)
  if not tasks:
    raise UserError("no task: give --glue_dir, --squad_v1, --squad_v2 or --race_dir")
  plan = LeaderboardPlan(
    [make_benchmark(name, task) for name, task in tasks.items()],
    init_checkpoint=files.absolute(values.init_checkpoint),
    model=find_weights(values.init_checkpoint).require_config(),
    scale=catalog.read_scale(values.scale),
    output_dir=os.path.abspath(values.output_dir),
    num_runs=values.num_runs,
  )
  if values.print_commands:
    print(runner.format_commands(plan))
    return
  print(plan.describe(costs.training_flops_per_second(values.gflops)), flush=True)
  if values.dry_run:
    return
  rows = runner.run_plan(plan)
  table = format_table(plan, rows, values.init_checkpoint)
  files.write_atomically(files.join(plan.directory, TABLE_FILE), table)
  paths = write_submission(plan)
  print(table, end="")
  log(f"wrote {files.join(plan.directory, TABLE_FILE)} and {len(paths)} files to submit")


if __name__ == "__main__":
  startup.run_command_of(__name__)
