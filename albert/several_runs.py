"""Does what a config asks for, once or with several seeds (medians over seeds, as in ALBERT, section 4.1)."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tf_keras as keras

from albert.config.run import RunConfig
from albert.errors import UserError
from albert.estimator import Estimator
from albert.io import files
from albert.runs import output_files
from albert.runs.metrics_log import log
from albert.tasks.base import Task
from albert.training import cluster
from albert.training.prediction_sources import prediction_sources_of
from albert.weights.checkpoints import CheckpointManager

_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
  "median": statistics.median,
  "mean": statistics.fmean,
  "standard_deviation": statistics.stdev,
  "minimum": min,
  "maximum": max,
}


def run(task: Task, config: RunConfig) -> None:
  """Trains, evaluates and predicts, as the flags say.

  With num_runs > 1 each run has a directory of its own, output_dir/run-SEED, with its predictions. runs.json tells
  the metrics of all, their median, mean and spread, and which run is the best; when all runs have predicted, the
  checkpoints of the others are deleted.

  Raises:
    UserError: nothing to do, several runs without training and evaluation, or a finished run that can no longer
      predict.
  """
  if not (config.do_train or config.do_eval or config.do_predict):
    raise UserError("nothing to do: give --do_train, --do_eval or --do_predict")
  if config.num_runs == 1:
    Estimator(task, config).run()
    return
  if not (config.do_train and config.do_eval):
    raise UserError(
      f"--num_runs={config.num_runs} compares runs: give --do_train and --do_eval, too; to use the best run, give "
      f"its directory (see {output_files.RUNS}) as --output_dir"
    )
  if cluster.addresses():
    raise UserError(f"--num_runs={config.num_runs}: several processes (TF_CONFIG) train one run: leave it out")
  if config.predictions_file:
    raise UserError(
      f"--predictions_file={config.predictions_file} names one file, and each of {config.num_runs} runs predicts: "
      "leave it out, each run writes to its own directory"
    )
  seeds = range(config.train.seed, config.train.seed + config.num_runs)
  _check_finished_runs(task, config, seeds)
  results = {seed: _run_one(task, _of_seed(config, seed)) for seed in seeds}
  best = _summarize(task, config, results)
  for seed in seeds:
    if seed != best:
      files.remove_tree(files.join(_of_seed(config, seed).output_dir, output_files.CHECKPOINTS))


def _check_finished_runs(task: Task, config: RunConfig, seeds: Iterable[int]) -> None:
  """UserError if a finished run lacks the predictions that are asked for, and its checkpoints are deleted."""
  if not config.do_predict:
    return
  task.check_inputs(train=True, evaluate=True, predict=True)
  for one in (_of_seed(config, seed) for seed in seeds):
    sources = prediction_sources_of(task, one)
    if _is_finished(one) and not sources.are_complete() and not _steps(task, one):
      raise UserError(
        f"{one.output_dir} is done, but has no predictions of {sources.describe_inputs()}, and its checkpoints are "
        "deleted: delete it to train it again, or leave out --do_predict"
      )


def _is_finished(config: RunConfig) -> bool:
  return files.exists(files.join(config.output_dir, output_files.EVAL_RESULTS))


def _steps(task: Task, config: RunConfig) -> list[int]:
  directory = files.join(config.output_dir, output_files.CHECKPOINTS)
  return CheckpointManager(directory, keep=1, model_config=task.model_config).steps()


def _of_seed(config: RunConfig, seed: int) -> RunConfig:
  return dataclasses.replace(
    config,
    output_dir=files.join(config.output_dir, f"run-{seed}"),
    num_runs=1,
    train=dataclasses.replace(config.train, seed=seed),
  )


def _run_one(task: Task, config: RunConfig) -> dict[str, float]:
  """The evaluation of one run, which also predicts; of a run that has ended, the one it wrote."""
  path = files.join(config.output_dir, output_files.EVAL_RESULTS)
  keras.backend.clear_session()
  estimator = Estimator(task, config)
  if _is_finished(config):
    estimator.claim_output_dir(task.training_data())
    log(f"{config.output_dir} is done: its results are taken from {path}")
  else:
    log(f"run with seed {config.train.seed} in {config.output_dir}")
    estimator.train()
    estimator.evaluate()
  if config.do_predict and not prediction_sources_of(task, config).are_complete():
    estimator.predict()
  return output_files.read_results(path)


def _common_metrics(task: Task, config: RunConfig, results: Mapping[int, Mapping[str, float]]) -> list[str]:
  """The metrics of the first run, without the step. UserError if a run lacks one of them, or the one to compare by."""
  names = [name for name in next(iter(results.values())) if name != "step"]
  for seed, result in results.items():
    for name in (*names, task.best_metric):
      if name not in result:
        path = files.join(_of_seed(config, seed).output_dir, output_files.EVAL_RESULTS)
        raise UserError(f"{path} lacks {name!r}: delete this file, and the same command evaluates the run again")
  return names


def _summarize(task: Task, config: RunConfig, results: dict[int, dict[str, float]]) -> int:
  """Writes runs.json and prints it; the seed of the best run."""
  names = _common_metrics(task, config, results)
  sign = 1 if task.higher_is_better else -1
  ranks = {seed: sign * result[task.best_metric] for seed, result in results.items()}
  best = max(ranks, key=lambda seed: -math.inf if math.isnan(ranks[seed]) else ranks[seed])
  summary: dict[str, Any] = {"seeds": list(results), "best_seed": best, "best_run": f"run-{best}", "metrics": {}}
  for name in names:
    values = [result[name] for result in results.values()]
    is_finite = all(map(math.isfinite, values))
    numbers: dict[str, float] = {
      key: function(values) if is_finite else math.nan for key, function in _STATISTICS.items()
    }
    summary["metrics"][name] = {**numbers, "values": values}
    print(
      f"{name}: median {numbers['median']:.6g}, mean {numbers['mean']:.6g}, "
      f"standard deviation {numbers['standard_deviation']:.3g} over {len(values)} runs",
      flush=True,
    )
  files.write_json(files.join(config.output_dir, output_files.RUNS), summary)
  print(f"best: run-{best} ({task.best_metric} {results[best][task.best_metric]:.6g})", flush=True)
  return best
