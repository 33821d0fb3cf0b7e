"""Finds the learning rate of a pretraining run with short trial runs: run_pretraining.py --find_learning_rate.

The trial runs have the shards, the batch, the model and the seed of the run. Their learning rates are a factor of 2
apart. Warm-up, stages and decay take the same shares of their steps as in the run. albert.experiments.runner runs them:
a sweep that was stopped continues, and does not repeat finished rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from albert.config.run import resolve_warmup, training_addresses
from albert.errors import RunError, UserError
from albert.experiments import runner
from albert.experiments.runner import ScoreSource, Trial, TrialPlan, digest, python_command, training_files
from albert.io import files
from albert.io.progress import log
from albert.runs import figures, output_files
from albert.settings.dry_run import NOTHING_DONE
from albert.settings.resolve import ResolvedSettings
from albert.tasks.pretraining.files import PretrainingData

# Optimizer -> the lowest rate.
_LOWEST_RATES = {"lamb": 0.00025, "tfa_lamb": 0.00025, "adamw": 0.00003}
_NUM_RATES = 9
# The steps of a trial run are a share of the run's, within limits. Shorter runs learn only the frequencies of pieces.
_SHARE, _FEWEST_STEPS, _MOST_STEPS = 0.05, 200, 1000
# A network has learned more than the frequencies if its masked LM accuracy is above that of the most frequent piece by
# this factor.
_LEARNED = 1.05
# Flags of the command that the trial runs do not get.
_OWN_FLAGS = {"find_learning_rate", "output_dir", "dry_run", "num_runs", "do_predict"}
_OWN_FLAGS |= {"warmup_proportion", "save_checkpoints_steps", "start_over", "chip", "hours", "price_per_hour"}


class TrialResult(NamedTuple):
  """The result of a trial run on the held-out shards.

  Attributes:
    loss: the loss; NaN if the run ended because its loss was not finite.
    accuracy: the masked LM accuracy.
    baseline: the accuracy of always predicting the most frequent piece.
  """

  loss: float
  accuracy: float
  baseline: float

  @property
  def has_learned(self) -> bool:
    """Whether the network has learned more than the frequencies of pieces."""
    return math.isfinite(self.loss) and self.accuracy > _LEARNED * self.baseline


def choose_rate(results: Mapping[float, TrialResult]) -> float | None:
  """Chooses the learning rate of a run from short trial runs.

  Above some rate a network with shared layers falls back to the frequencies of pieces and stays there. Near this limit
  the loss of a short run is lowest, but a long run spends many more steps there. Above it a run is lost; at
  half of its best rate it is only a little worse. So the choice is at most half of the highest rate at which a trial
  run learned: the rate with the lowest loss among those that learned, or half of the highest if no lower one has.

  Args:
    results: rate -> result. The rates are a factor of 2 apart.
  Returns: the rate; None if no trial run has learned more than the frequencies, so that none can be preferred.
  """
  learned = sorted(rate for rate, result in results.items() if result.has_learned)
  if not learned:
    return None
  return min(learned[:-1], key=lambda rate: results[rate].loss, default=learned[-1] / 2)


class Sweep(TrialPlan):
  """The trial runs of a command; runner.run_plan runs them.

  Args:
    resolved: the settings of the command.
    data: its shards.
  """

  name = "find_learning_rate"

  def __init__(self, resolved: ResolvedSettings, data: PretrainingData):
    config, run_steps = resolved.config, resolved.config.train.num_train_steps
    optimizer = resolve_warmup(config.optimizer, run_steps, is_default=config.warmup_is_default)
    num_steps = min(run_steps, max(_FEWEST_STEPS, min(_MOST_STEPS, round(_SHARE * run_steps))))
    warmup = optimizer.warmup_proportion or optimizer.num_warmup_steps / run_steps
    self.directory = files.join(files.absolute(config.output_dir), self.name)
    self.num_steps, self._seed, self._model = num_steps, config.train.seed, resolved.model_config
    self.rates = [_LOWEST_RATES[optimizer.optimizer] * 2**exponent for exponent in range(_NUM_RATES)]
    self._flags = {
      **{name: value for name, value in resolved.settings.flags.items() if name not in _OWN_FLAGS},
      "eval_input_file": data.config.eval_input_file,
      "num_train_steps": num_steps,
      "max_train_seconds": 0,
      "num_warmup_steps": math.ceil(warmup * num_steps),
      "scale_learning_rate": False,
      "eval_every_steps": 0,
      "early_stopping_patience": 0,
      "keep_checkpoints": 1,
      "do_eval": True,
      "on_collapse": "warn",
    }
    self._digest = digest([self._flags, data.training_shards, data.heldout_shards])

  def trials(self) -> list[Trial]:
    """Returns a trial for each rate, the lowest first."""
    trials = []
    for rate in self.rates:
      name, run = f"rate {rate:g}", files.join(self.directory, f"{rate:g}-{self._digest}")
      makes = training_files(run)
      flags = {"output_dir": run, **self._flags, "learning_rate": rate}
      metrics = ("loss", "masked_lm_accuracy", "masked_lm_baseline_accuracy")
      scores = {metric: ScoreSource(makes[0], metric, factor=1.0) for metric in metrics}
      command = python_command(name, "run_pretraining", makes, **flags)
      trials.append(Trial(name, self._seed, self._model, [command], scores, run))
    return trials

  def run(self) -> dict[float, TrialResult]:
    """Runs the trials and returns rate -> result. Deletes the weights."""
    trials = self.trials()
    try:
      runner.run_plan(self)
    except RunError as error:  # higher rates would fail, too
      if "not finite" not in str(error):
        raise
      log(str(error))
    rows, results = runner.read_rows(self.directory), {}
    for rate, trial in zip(self.rates, trials, strict=True):
      row = rows.get(trial.digest)
      results[rate] = TrialResult(*row["scores"].values() if row else [math.nan] * 3)
      files.remove_tree(files.join(trial.run, output_files.CHECKPOINTS))
    return results


def find_learning_rate(resolved: ResolvedSettings) -> None:
  """Runs the trial runs of a command that pretrains, prints and draws their losses, and prints the rate to use.

  Raises:
    UserError: the command cannot train, there are no held-out shards, or output_dir holds a run already.
    RunError: a trial run failed, or no trial run learned more than the frequencies of pieces.
    Stopped: a signal was received; the same command continues.
  """
  config = resolved.config
  if not config.do_train or config.train.num_train_epochs:
    raise UserError("--find_learning_rate: give the flags of the run, with --do_train and --num_train_steps")
  if resolved.settings.existing_run:
    raise UserError(f"--output_dir={config.output_dir}: the run there has its learning rate: give another directory")
  if training_addresses(config.train):
    raise UserError("--find_learning_rate runs in one process: unset TF_CONFIG")
  runner.check_is_local(config.output_dir)
  data = resolved.read_inputs()
  if not isinstance(data, PretrainingData):
    raise UserError("--find_learning_rate: needs local shards: copy some of those on gs://")
  sweep = Sweep(resolved, data)
  share = len(sweep.rates) * sweep.num_steps / config.train.num_train_steps
  log(f"{len(sweep.rates)} rates, {sweep.num_steps:,} steps each: together {share:.0%} of the steps of the run")
  if config.dry_run:
    print(runner.format_commands(sweep))
    log(NOTHING_DONE)
    return
  results = sweep.run()
  rate = choose_rate(results)
  picture = files.join(sweep.directory, "losses.png")
  files.write_atomically(picture, _draw(results, rate))
  print("rate\theld-out loss\tmasked LM accuracy\tmost frequent piece")
  for tried, result in results.items():
    remark = "\tchosen" if tried == rate else "" if result.has_learned else "\tonly the frequencies of pieces, or less"
    print(f"{tried:g}\t{result.loss:.3f}\t{result.accuracy:.4f}\t{result.baseline:.4f}{remark}")
  log(f"wrote {picture}")
  if rate is None:
    remedy = "find the rate of two layers (--num_hidden_layers=2, another --output_dir) and take a quarter of it"
    if resolved.model_config.num_hidden_layers <= 2:
      remedy = "in another --output_dir, give more --num_train_steps or, for a narrow network, --initializer_range"
    raise RunError(f"no rate learned more than the frequencies of pieces in {sweep.num_steps} steps: {remedy}")
  print(f"use --learning_rate={rate:g}{' --noscale_learning_rate' if config.optimizer.scale_learning_rate else ''}")


def _draw(results: Mapping[float, TrialResult], chosen: float | None) -> bytes:
  """Draws the held-out losses over the rates."""
  figure, (axes,) = figures.new_panels(1)
  axes.semilogx(list(results), [result.loss for result in results.values()], ".-", base=2)
  if chosen:
    axes.axvline(chosen, color="gray")
  axes.set_xticks(list(results), [f"{rate:g}" for rate in results], rotation=40, fontsize=8)
  axes.set_xlabel("learning rate" + (f"; chosen: {chosen:g}" if chosen else ""))
  axes.set_title("held-out loss")
  return figures.png(figure)
