"""Runs a command with several seeds, or for several folds, and summarizes the metrics over the runs.

The ALBERT paper reports medians over several runs of fine-tuning (section 4.1).
"""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import tf_keras as keras

from albert.config.run import RunConfig
from albert.errors import UserError
from albert.estimator import Estimator
from albert.io import files
from albert.io.progress import log
from albert.runs import output_files
from albert.runs.logs import guessed_metric, rank_evaluation
from albert.tasks.base import Task
from albert.training.run import TrainingLoss, failure_warning, find_failure, read_training_loss
from albert.weights.checkpoints import CheckpointManager

_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
  "median": statistics.median,
  "mean": statistics.fmean,
  "standard_deviation": statistics.stdev,
  "minimum": min,
  "maximum": max,
}


def run_seeds(task: Task, config: RunConfig) -> None:
  """Trains, evaluates and predicts, as the config says, with each of num_runs seeds. With --folds, each run has a fold.

  Each seed has its own directory, output_dir/run-SEED. output_dir/runs.json gets the metrics of all runs, their median,
  mean and spread, and the name of the best run. Then the checkpoints of all runs except the best are deleted. A run
  that has already finished is not repeated. Later commands may add seeds, but must leave none out, because the best run
  must be one that has checkpoints.

  Args:
    task: the task of all runs.
    config: the settings. The seeds are train.seed, train.seed + 1, and so on.
  Raises:
    UserError: a finished run lacks predictions, and its checkpoints are deleted; or output_dir holds runs of seeds that
      the config leaves out. See Estimator for further errors.
  """
  configs = {
    seed: dataclasses.replace(
      config,
      output_dir=files.join(config.output_dir, f"run-{seed}"),
      num_runs=1,
      train=dataclasses.replace(config.train, seed=seed),
    )
    for seed in range(config.train.seed, config.train.seed + config.num_runs)
  }
  runs_file = files.join(config.output_dir, output_files.RUNS)
  earlier_seeds = output_files.read_runs(runs_file)["seeds"] if files.exists(runs_file) else []
  _check_seeds(runs_file, earlier_seeds, list(configs), task.runs_flag)
  # Earlier versions did not record the end of training for every task.
  for seed in earlier_seeds:
    record = files.join(configs[seed].output_dir, output_files.TRAINING_LOSS)
    results = files.join(configs[seed].output_dir, output_files.EVAL_RESULTS)
    if files.exists(results) and not files.exists(record):
      step = int(output_files.read_results(results).get("step", 0))
      files.write_json(record, msgspec.to_builtins(TrainingLoss(step, loss=None, guessing_loss=None, num_lines=0)))
  if config.do_predict:
    task.check_inputs(train=True, evaluate=True, predict=True)
    for seed_config in configs.values():
      _check_predictions(task, seed_config)
  metrics_of_seeds = {
    seed: _run_seed(task.of_run(index), seed_config) for index, (seed, seed_config) in enumerate(configs.items())
  }
  task.finish_runs([seed_config.output_dir for seed_config in configs.values()], config.output_dir)
  best_seed = _summarize(task, config.output_dir, metrics_of_seeds)
  best_dir, best_metrics = configs[best_seed].output_dir, metrics_of_seeds[best_seed]
  if failure := find_failure(best_dir, best_metrics, task.best_loss):
    log(failure_warning(failure, best_dir, task, config, is_command=task.runs_flag == "num_runs"))
  for seed, seed_config in configs.items():
    if seed != best_seed:
      files.remove_tree(files.join(seed_config.output_dir, output_files.CHECKPOINTS))


def _check_seeds(runs_file: str, earlier_seeds: Sequence[int], seeds: Sequence[int], flag: str) -> None:
  """Checks that a command compares all runs that runs.json compares, of which only the best has checkpoints."""
  if set(earlier_seeds) <= set(seeds):
    return
  first = min(*earlier_seeds, seeds[0])
  raise UserError(
    f"{runs_file}: has runs of the seeds {min(earlier_seeds)} to {max(earlier_seeds)}, of which only the best has "
    f"checkpoints, but this command's seeds are {seeds[0]} to {seeds[-1]}: give --seed={first} "
    f"--{flag}={max(*earlier_seeds, seeds[-1]) - first + 1} to compare all of them, or another --output_dir"
  )


def _check_predictions(task: Task, config: RunConfig) -> None:
  """Checks that a run, if it is finished, has its predictions, or a checkpoint to predict with."""
  missing = _missing_predictions(task, config)
  if missing and _is_finished(task, config) and not _checkpoints(task, config).steps():
    raise UserError(
      f"the run in {config.output_dir} is done, but has no {os.path.basename(missing[0])}, and its checkpoints are "
      "deleted: delete this directory to train the run again, or leave out --do_predict"
    )


def _missing_predictions(task: Task, config: RunConfig) -> list[str]:
  """Returns the paths of the predictions files that the run does not have yet."""
  return [path for path in task.prediction_files(config.output_dir) if not files.exists(path)]


def _is_finished(task: Task, config: RunConfig) -> bool:
  """Whether training has ended, and the checkpoint that the config selects was evaluated after that."""
  training, path = read_training_loss(config.output_dir), files.join(config.output_dir, output_files.EVAL_RESULTS)
  if training is None or not files.exists(path):
    return False
  checkpoints = _checkpoints(task, config)
  if not checkpoints.steps():
    return True  # they were deleted after the evaluation
  best = checkpoints.best() if config.train.select_checkpoint == "best" else None
  return output_files.read_results(path).get("step") == (best or training).step


def _checkpoints(task: Task, config: RunConfig) -> CheckpointManager:
  directory = files.join(config.output_dir, output_files.CHECKPOINTS)
  return CheckpointManager(directory, keep=1, model_config=task.model_config)


def _run_seed(task: Task, config: RunConfig) -> dict[str, float]:
  """Trains, evaluates and predicts with one seed, unless that is done already. Returns the metrics."""
  path = files.join(config.output_dir, output_files.EVAL_RESULTS)
  keras.backend.clear_session()
  estimator = Estimator(task, config)
  estimator.has_logged_failure = True  # the warning comes once, after all runs
  is_finished = _is_finished(task, config)
  if is_finished:
    estimator.claim_output_dir()
    log(f"the run in {config.output_dir} is done: its results are taken from {path}")
  else:
    of_fold = f"fold {fold}: " if (fold := getattr(task.config, "fold", 0)) else ""
    log(f"{of_fold}run with seed {config.train.seed} in {config.output_dir}")
    estimator.train_and_evaluate()
  if config.do_predict and (not is_finished or _missing_predictions(task, config)):
    estimator.write_predictions()
  return output_files.read_results(path)


def _summarize(task: Task, output_dir: str, metrics_of_seeds: dict[int, dict[str, float]]) -> int:
  """Writes runs.json, prints the statistics, and returns the seed of the best run."""
  names = [name for name in next(iter(metrics_of_seeds.values())) if name != "step"]
  failed_seeds = []
  run_names = {}
  for number, (seed, metrics) in enumerate(metrics_of_seeds.items(), 1):
    run_names[seed] = f"fold {number} in run-{seed}" if task.runs_flag == "folds" else f"run-{seed}"
    directory = files.join(output_dir, f"run-{seed}")
    for name in (*names, task.best_metric):
      if name not in metrics:
        path = files.join(directory, output_files.EVAL_RESULTS)
        raise UserError(f"{path} lacks {name!r}: delete this file, and the same command evaluates the run again")
    if find_failure(directory, metrics, task.best_loss):
      failed_seeds.append(seed)

  def rank(seed: int) -> tuple[float, float]:
    value, loss = metrics_of_seeds[seed][task.best_metric], metrics_of_seeds[seed].get(task.best_loss)
    return rank_evaluation(value, loss, higher_is_better=task.higher_is_better)

  best_seed = max(metrics_of_seeds, key=rank)  # of equally good runs the first one
  summary: dict[str, Any] = {
    "seeds": list(metrics_of_seeds),
    "best_seed": best_seed,
    "best_run": f"run-{best_seed}",
    "failed_seeds": failed_seeds,
    "metrics": {},
  }
  for name in names:
    values = [metrics[name] for metrics in metrics_of_seeds.values()]
    all_are_finite = all(map(math.isfinite, values))
    statistics_of_metric: dict[str, float] = {
      statistic: function(values) if all_are_finite else math.nan for statistic, function in _STATISTICS.items()
    }
    summary["metrics"][name] = {**statistics_of_metric, "values": values}
    if guessed_metric(name)[1]:  # the same in all runs
      continue
    print(
      f"{name}: median {statistics_of_metric['median']:.6g}, mean {statistics_of_metric['mean']:.6g}, "
      f"standard deviation {statistics_of_metric['standard_deviation']:.3g} over {len(values)} runs",
      flush=True,
    )
  files.write_json(files.join(output_dir, output_files.RUNS), summary)
  if failed_seeds:
    names_of_failed = ", ".join(run_names[seed] for seed in failed_seeds)
    print(f"{len(failed_seeds)} of {len(metrics_of_seeds)} runs have not learned more than guessing: {names_of_failed}")
  best = metrics_of_seeds[best_seed][task.best_metric]
  print(f"best: {run_names[best_seed]} ({task.best_metric} {best:.6g})", flush=True)
  return best_seed
