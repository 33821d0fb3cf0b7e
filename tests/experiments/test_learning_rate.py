"""--find_learning_rate: the rule that chooses a rate, and the commands of the short runs."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from albert.errors import RunError, UserError
from albert.experiments import runner
from albert.experiments.learning_rate import Sweep, TrialResult, choose_rate, find_learning_rate
from albert.settings.resolve import ResolvedSettings, resolve_settings
from tests.run_outputs import read_json_lines
from tests.settings.test_sources import write_run
from tests.synthetic import TINY_MODEL_FLAGS, write_manifest, write_shards

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
    ({"num_train_epochs": 3000.0, "num_warmup_steps": 600}, 300, 30),  # 6,000 steps
  ],
)
def test_steps_and_warm_up_are_those_of_the_run_scaled(tmp_path: Path, flags: dict, steps: int, warmup: int):
  write_manifest(tmp_path, write_shards(tmp_path, [16]), [16])
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
    ({"num_train_epochs": 2.0}, "--num_train_epochs=2: without a manifest.json of the shards, give --num_train_steps"),
    ({"do_train": False}, "give the flags of the run, with --do_train"),
    ({"output_dir": "old", "train_batch_size": 4}, "--output_dir=old: the run there has its learning rate"),
  ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, message: str):
  monkeypatch.chdir(tmp_path)
  write_run(Path("old"), task="pretraining")
  with pytest.raises(UserError, match=message):
    find_learning_rate(resolve(tmp_path, **changes))


@pytest.mark.slow
def test_a_killed_sweep_continues_and_does_not_repeat_finished_rates(tmp_path: Path):
  (shard,) = write_shards(tmp_path, [64])
  command = [sys.executable, "-m", "run_pretraining", "--find_learning_rate", "--do_train", *TINY_MODEL_FLAGS]
  command += [f"--input_file={shard}", f"--eval_input_file={shard}", f"--output_dir={tmp_path / 'run'}"]
  command += ["--recipe=none", "--num_train_steps=60", "--train_batch_size=8"]
  directory = tmp_path / "run/find_learning_rate"
  process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  while not (directory / "results.jsonl").exists() and process.poll() is None:
    time.sleep(0.1)
  children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
  process.kill()
  for pid in map(int, children):
    os.kill(pid, signal.SIGKILL)
  rows = read_json_lines(directory / "results.jsonl")
  assert 0 < len(rows) < 9
  finished = subprocess.run(command, capture_output=True, text=True, check=False)
  assert f"find_learning_rate: {len(rows)} of 9 trials are done" in finished.stdout
  assert "no rate learned more than the frequencies of pieces in 60 steps" in finished.stderr
  assert read_json_lines(directory / "results.jsonl")[: len(rows)] == rows
  assert (directory / "losses.png").stat().st_size > 5000
  assert not list(directory.glob("*/checkpoints"))
