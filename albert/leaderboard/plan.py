"""Plans the commands from a checkpoint to the submissions: several seeds and an ensemble of each task.

The commands are those that a user would type. As in albert.experiments, each has a file that it writes last, and the
names of directories contain a hash of the settings and of the data.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from albert.config.model import ModelConfig
from albert.config.recipes import Recipe, read_recipe
from albert.config.run import TrainConfig
from albert.experiments import costs
from albert.experiments.catalog import Variant
from albert.experiments.commands import Command, command_line, digest
from albert.experiments.inputs import hash_files
from albert.experiments.late_flags import BestRun
from albert.experiments.plan import ScoreSource, Trial
from albert.experiments.scales import Scale
from albert.io import files
from albert.leaderboard.benchmarks import FIRST_TASK, Benchmark
from albert.runs import output_files

FIRST_SEED = 12345
_STATISTICS = ("median", "minimum", "maximum")


@dataclasses.dataclass(frozen=True)
class TaskPlan:
  """The directories of a task.

  Attributes:
    benchmark: the task.
    directory: the output_dir of all runs.
    final: the directory with the predictions to submit: that of the ensemble, or of the only run.
  """

  benchmark: Benchmark
  directory: str
  final: str


class LeaderboardPlan:
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
    scale: Scale,
    output_dir: str,
    num_runs: int,
  ):
    self.benchmarks = sorted(benchmarks, key=lambda benchmark: benchmark.name != FIRST_TASK)
    self.num_runs = num_runs
    self.model = model
    self.directory = output_dir
    self._init_checkpoint = init_checkpoint
    self._scale = scale
    self._commands: dict[str, list[Command]] = {}
    self.tasks: dict[str, TaskPlan] = {}
    self._recipes = {benchmark.name: self._find_recipe(benchmark) for benchmark in self.benchmarks}
    for benchmark in self.benchmarks:
      self._plan_task(benchmark)

  def preparation_commands(self) -> list[Command]:
    """Returns no command: all tasks start from the given checkpoint."""
    return []

  def trials(self) -> list[Trial]:
    """Returns a trial for each task, MNLI first."""
    return [self._make_trial(benchmark) for benchmark in self.benchmarks]

  def _plan_task(self, benchmark: Benchmark) -> None:
    """Plans the commands of a task. The first command contains those of MNLI, if the task starts from its model."""
    flags = self._flags(benchmark)
    commands: list[Command] = []
    late_flag = None
    identity: dict[str, Any] = {**flags, "init_checkpoint": self._init_checkpoint, "num_runs": self.num_runs}
    if benchmark.starts_from_mnli and FIRST_TASK in self.tasks:
      first = self.tasks[FIRST_TASK].directory
      commands = list(self._commands[FIRST_TASK])
      late_flag = BestRun(first)
      flags["fresh_head"] = True
      identity["init_checkpoint"] = first
    else:
      flags["init_checkpoint"] = self._init_checkpoint
    identity["data"] = hash_files(benchmark.data)
    directory = files.join(self.directory, "runs", f"{benchmark.name}-{digest(identity)}")
    words = command_line(
      benchmark.script,
      output_dir=directory,
      num_runs=self.num_runs,
      seed=FIRST_SEED,
      do_train=True,
      do_eval=True,
      **flags,
    )
    final, record = directory, files.join(directory, output_files.TRAINING_LOSS)
    last_file = benchmark.submission[-1] if flags.get("do_predict") else output_files.EVAL_RESULTS
    if self.num_runs > 1:
      final, last_file, record = files.join(directory, "ensemble"), output_files.RUNS, ""
    name = f"{benchmark.name}: {self.num_runs} run(s)"
    commands.append(Command(name, words, files.join(directory, last_file), late_flag, training_record=record))
    if self.num_runs > 1:
      words = command_line("albert.ensemble", inputs=files.join(directory, "run-*"), output_dir=final)
      completion_file = files.join(final, output_files.EVAL_RESULTS)
      commands.append(Command(f"{benchmark.name}: ensemble", words, completion_file))
    self.tasks[benchmark.name] = TaskPlan(benchmark, directory, final)
    self._commands[benchmark.name] = commands

  def _find_recipe(self, benchmark: Benchmark) -> Recipe:
    """Returns the recipe of a task: the script's, or the one that is for these weights, as race_v2 for ALBERT v2."""
    recipe = read_recipe(benchmark.recipe, benchmark.recipe_task)
    other = recipe.better_recipe_for(self.model)
    return read_recipe(other, benchmark.recipe_task) if other else recipe

  def _flags(self, benchmark: Benchmark) -> dict[str, Any]:
    """Returns the flags of a task, with the values of the scale in place of the recipe's."""
    flags = dict(benchmark.flags)
    recipe = self._recipes[benchmark.name].name
    if recipe != benchmark.recipe:
      flags["recipe"] = recipe
    if self._scale.is_reduced:
      flags |= {**self._scale.finetuning_flags(benchmark.script), "select_checkpoint": "best"}
      flags["eval_every_steps"] = max(1, self._scale.finetuning["num_train_steps"] // 2)
    return flags

  def _make_trial(self, benchmark: Benchmark) -> Trial:
    task, commands = self.tasks[benchmark.name], self._commands[benchmark.name]
    scores: dict[str, ScoreSource] = {}
    for metric in benchmark.metrics:
      if self.num_runs == 1:
        results_file = files.join(task.directory, output_files.EVAL_RESULTS)
        scores[f"{metric} median"] = ScoreSource(results_file, metric, benchmark.factor)
        continue
      for statistic in _STATISTICS:
        runs_file = files.join(task.directory, output_files.RUNS)
        scores[f"{metric} {statistic}"] = ScoreSource(runs_file, metric, benchmark.factor, statistic)
      results_file = files.join(task.final, output_files.EVAL_RESULTS)
      scores[f"{metric} ensemble"] = ScoreSource(results_file, metric, benchmark.factor)
    run = files.join(task.directory, f"run-{FIRST_SEED}") if self.num_runs > 1 else task.directory
    variant = Variant(name=benchmark.name, model="", fields={}, data={})
    trial_digest = digest([command.words[1:] for command in commands])
    return Trial(variant, FIRST_SEED, trial_digest, self.model, commands, scores, run)

  def describe(self, flops_per_second: float) -> str:
    """Returns a table of the estimated cost of each task.

    Args:
      flops_per_second: speed of training, in floating-point operations per second.
    """
    lines, total_hours = ["task\trecipe\tstarts from\truns\tsteps\tbatch\ttokens\tGFLOP per step\thours"], 0.0
    for benchmark in self.benchmarks:
      recipe = self._recipes[benchmark.name]
      sections = recipe.sections
      values = {**sections.get("train", {}), **sections.get("data", {}), **self._flags(benchmark)}
      num_steps = values.get("num_train_steps", TrainConfig().num_train_steps)
      batch_size, seq_length = values["train_batch_size"], values["max_seq_length"]
      step_flops = costs.step_flops(self.model, batch_size=batch_size, seq_length=seq_length, predictions=0)
      hours = self.num_runs * num_steps * step_flops / flops_per_second / 3600
      total_hours += hours
      start = FIRST_TASK if benchmark.starts_from_mnli and FIRST_TASK in self.tasks else "the checkpoint"
      lines.append(
        f"{benchmark.name}\t{recipe.name}\t{start}\t{self.num_runs}\t{num_steps}\t{batch_size}\t{seq_length}\t"
        f"{step_flops / 1e9:,.1f}\t{hours:,.2f}"
      )
    num_runs = self.num_runs * len(self.benchmarks)
    speed = math.floor(flops_per_second / 1e9)
    lines.append(
      f"{len(self.benchmarks)} tasks, {num_runs} runs; training takes at most about {total_hours:,.2f} hours at "
      f"{speed:,} GFLOP/s, because shorter texts are padded to fewer tokens"
    )
    return "\n".join(lines)
