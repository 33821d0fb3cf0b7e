"""--find_learning_rate: the rule that chooses a rate, and the commands of the short runs."""

from __future__ import annotations

import math
from pathlib import Path
from unittest.mock import Mock

import pytest

from albert.errors import RunError, UserError
from albert.experiments import runner
from albert.experiments.learning_rate import Sweep, TrialResult, choose_rate, find_learning_rate
from albert.settings.resolve import ResolvedSettings, resolve_settings
from tests.settings.test_sources import write_run
from tests.synthetic import write_shards

LEARNED, FREQUENCIES, NOT_YET = 0.12, 0.055, 0.06  # accuracies; 0.06 is that of the most frequent piece


@pytest.mark.parametrize(
  ("curve", "chosen"),
  [
    ([(7.0, NOT_YET), (6.1, LEARNED), (6.2, LEARNED), (6.3, LEARNED), (6.5, FREQUENCIES)], 0.002),
    ([(7.0, NOT_YET), (6.8, LEARNED), (6.4, LEARNED), (6.1, LEARNED), (6.5, FREQUENCIES)], 0.004),
    ([(7.5, NOT_YET), (7.0, NOT_YET), (6.6, LEARNED), (6.5, FREQUENCIES), (6.4, FREQUENCIES)], 0.002),
    ([(7.0, LEARNED), (6.5, LEARNED), (6.4, LEARNED), (math.nan, math.nan), (math.nan, math.nan)], 0.002),
    ([(7.5, NOT_YET), (7.0, NOT_YET), (6.6, NOT_YET), (6.5, FREQUENCIES), (math.nan, math.nan)], None),
  ],
)
def test_the_choice_is_below_the_highest_rate_that_learns(curve: list[tuple[float, float]], chosen: float | None):
  rates = [0.001 * 2**exponent for exponent in range(5)]
  results = {rate: TrialResult(*values, 0.06) for rate, values in zip(rates, curve, strict=True)}
  assert choose_rate(results) == chosen


def resolve(tmp_path: Path, **changes: object) -> ResolvedSettings:
  (shard,) = write_shards(tmp_path, [16])
  flags = {"input_file": shard, "eval_input_file": shard, "output_dir": str(tmp_path / "run"), "do_train": True}
  return resolve_settings("pretraining", flags | {"find_learning_rate": True, "train_batch_size": 8} | changes)


@pytest.mark.parametrize(
  ("flags", "steps", "warmup"),
  [
    ({"num_train_steps": 100_000, "num_warmup_steps": 5000}, 1000, 50),
    ({"num_train_steps": 10_000, "warmup_proportion": 0.2}, 500, 100),
    ({"num_train_steps": 1000, "num_warmup_steps": 0}, 200, 0),
    ({"num_train_steps": 100}, 100, 10),  # the default warm-up is longer than the run
  ],
)
def test_steps_and_warm_up_are_those_of_the_run_scaled(tmp_path: Path, flags: dict, steps: int, warmup: int):
  resolved = resolve(tmp_path, **flags, scale_learning_rate=True, num_runs=2, do_eval=True)
  trials = Sweep(resolved, resolved.read_inputs()).trials()
  words = trials[0].commands[0].words
  assert {f"--num_train_steps={steps}", f"--num_warmup_steps={warmup}", "--noscale_learning_rate"} <= set(words)
  assert not [word for word in words if word.startswith(("--num_runs", "--find", "--warmup", "--num_train_epochs"))]
  assert [trials[number].commands[0].words[-1][-5:] for number in (0, 4, 8)] == ["00025", "0.004", "0.064"]


def test_a_loss_that_is_not_finite_ends_the_sweep_and_other_failures_are_errors(tmp_path, monkeypatch):
  resolved = resolve(tmp_path)
  sweep = Sweep(resolved, resolved.read_inputs())
  scores = {"loss": 5.0, "masked_lm_accuracy": 9.0, "masked_lm_baseline_accuracy": 6.0}
  rows = {trial.digest: {"scores": scores} for trial in sweep.trials()[:7]}
  messages = ["rate 0.032 ended with code 1 (step 7: the loss or its gradient is not finite)", "killed"]

  monkeypatch.setattr(runner, "run_plan", Mock(side_effect=map(RunError, messages)))
  monkeypatch.setattr(runner, "read_rows", lambda directory: rows)
  assert [math.isnan(result.loss) for result in sweep.run().values()] == [False] * 7 + [True] * 2
  with pytest.raises(RunError, match="killed"):
    sweep.run()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_train_epochs": 2.0}, "give the flags of the run, with --do_train and --num_train_steps"),
    ({"do_train": False}, "give the flags of the run, with --do_train"),
    ({"output_dir": "old", "train_batch_size": 4}, "--output_dir=old: the run there has its learning rate"),
  ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, message: str):
  monkeypatch.chdir(tmp_path)
  write_run(Path("old"), task="pretraining")
  with pytest.raises(UserError, match=message):
    find_learning_rate(resolve(tmp_path, **changes))
