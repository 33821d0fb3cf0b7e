"""--find_learning_rate: the rule that chooses a rate, and the commands of the short runs."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from albert.errors import RunError, UserError
from albert.experiments import runner
from albert.experiments.learning_rate import Sweep, TrialResult, choose_rate, find_learning_rate
from albert.settings.resolve import resolve_settings
from tests.run_outputs import read_json_lines
from tests.settings.test_sources import write_run
from tests.synthetic import TINY_MODEL_FLAGS, write_manifest, write_shards

LEARNED, FREQUENCIES, NOT_YET = 0.12, 0.055, 0.06  # accuracies; that of the most frequent piece is 0.06


@pytest.mark.parametrize(
  ("curve", "chosen"),
  [
    # The lowest loss is far below the limit.
    ([(7.0, NOT_YET), (6.1, LEARNED), (6.2, LEARNED), (6.3, LEARNED), (6.5, FREQUENCIES)], 0.002),
    # The highest rate that learns has the lowest loss: half of it.
    ([(7.0, NOT_YET), (6.8, LEARNED), (6.4, LEARNED), (6.1, LEARNED), (6.5, FREQUENCIES)], 0.004),
    ([(7.0, LEARNED), (6.8, LEARNED), (6.4, LEARNED), (6.1, LEARNED), (6.0, LEARNED)], 0.008),
    # A rate that fell back has a lower loss than rates that have not learned yet, but is never chosen.
    ([(7.5, NOT_YET), (7.0, NOT_YET), (6.6, LEARNED), (6.5, FREQUENCIES), (6.4, FREQUENCIES)], 0.002),
    ([(7.0, LEARNED), (6.5, LEARNED), (6.4, LEARNED), (math.nan, math.nan), (math.nan, math.nan)], 0.002),
    ([(7.5, NOT_YET), (7.0, NOT_YET), (6.6, NOT_YET), (6.5, FREQUENCIES), (math.nan, math.nan)], None),
  ],
)
def test_the_choice_is_below_the_highest_rate_that_learns(curve: list[tuple[float, float]], chosen: float | None):
  rates = [0.001 * 2**exponent for exponent in range(5)]
  results = {rate: TrialResult(*values, 0.06) for rate, values in zip(rates, curve, strict=True)}
  assert choose_rate(results) == chosen


def make_sweep(tmp_path: Path, **flags: object) -> Sweep:
  (shard,) = write_shards(tmp_path, [16])
  names = {"input_file": shard, "eval_input_file": shard, "output_dir": str(tmp_path / "run"), "do_train": True}
  resolved = resolve_settings("pretraining", names | {"find_learning_rate": True, "train_batch_size": 8} | flags)
  return Sweep(resolved, resolved.read_inputs())


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
  if "num_train_epochs" in flags:
    with pytest.raises(UserError, match=r"--num_train_epochs=3000: without a manifest.json of the shards"):
      make_sweep(tmp_path, **flags)
    write_manifest(tmp_path, sorted(map(str, tmp_path.glob("*.tfrecord"))), [16])
  trials = make_sweep(tmp_path, **flags, scale_learning_rate=True, num_runs=2, do_eval=True).trials()
  words = trials[0].commands[0].words
  assert {f"--num_train_steps={steps}", f"--num_warmup_steps={warmup}", "--train_batch_size=8"} <= set(words)
  assert {"--noscale_learning_rate", "--do_train", "--do_eval"} <= set(words)
  assert not [word for word in words if word.startswith(("--num_runs", "--find", "--warmup", "--num_train_epochs"))]
  rates = [float(word.split("=")[1]) for trial in trials for word in trial.commands[0].words if "g_rate=" in word]
  assert rates == pytest.approx([0.00025 * 2**exponent for exponent in range(9)])


def test_a_loss_that_is_not_finite_ends_the_sweep_and_other_failures_are_errors(tmp_path, monkeypatch):
  sweep = make_sweep(tmp_path)
  scores = {"loss": 5.0, "masked_lm_accuracy": 9.0, "masked_lm_baseline_accuracy": 6.0}
  rows = {trial.digest: {"scores": scores} for trial in sweep.trials()[:7]}
  messages = iter(["rate 0.032 ended with code 1 (step 7: the loss or its gradient is not finite)", "killed"])

  def fail(plan: Sweep) -> None:
    raise RunError(next(messages))

  monkeypatch.setattr(runner, "run_plan", fail)
  monkeypatch.setattr(runner, "read_rows", lambda directory: rows)
  results = sweep.run()
  assert [math.isnan(result.loss) for result in results.values()] == [False] * 7 + [True] * 2
  assert choose_rate(results) == 0.00025  # all losses are equal: the lowest rate
  with pytest.raises(RunError, match="killed"):
    sweep.run()


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
  (shard,) = write_shards(tmp_path, [16])
  flags = {"input_file": shard, "eval_input_file": shard, "output_dir": str(tmp_path / "run"), "do_train": True}

  def refuse(message: str, **changes: object) -> None:
    with pytest.raises(UserError, match=message):
      find_learning_rate(resolve_settings("pretraining", flags | changes))

  refuse("give the flags of the run, with --do_train", do_train=False)
  refuse("compares held-out losses: give --eval_input_file, or shards written with --eval_share", eval_input_file="")
  write_run(tmp_path / "old", task="pretraining")
  refuse("old: the run there has its learning rate: give another directory", output_dir=str(tmp_path / "old"))
  worker = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
  monkeypatch.setenv("TF_CONFIG", json.dumps(worker))
  refuse("runs in one process: unset TF_CONFIG")


@pytest.mark.slow
def test_a_killed_sweep_continues_and_does_not_repeat_finished_rates(tmp_path: Path):
  (shard,) = write_shards(tmp_path, [64])
  command = [sys.executable, "-m", "run_pretraining", "--find_learning_rate", "--do_train", *TINY_MODEL_FLAGS]
  command += [f"--input_file={shard}", f"--eval_input_file={shard}", f"--output_dir={tmp_path / 'run'}"]
  command += ["--recipe=none", "--num_train_steps=1000", "--train_batch_size=8"]
  directory = tmp_path / "run/find_learning_rate"
  process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
  while not (directory / "results.jsonl").exists():
    assert process.poll() is None
    time.sleep(0.1)
  children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
  for pid in (process.pid, *map(int, children)):
    os.kill(pid, signal.SIGKILL)
  process.wait()
  rows = read_json_lines(directory / "results.jsonl")
  assert 0 < len(rows) < 9
  finished = subprocess.run(command, capture_output=True, text=True, check=True)
  assert f"find_learning_rate: {len(rows)} of 9 trials are done" in finished.stdout
  assert "\tchosen\n" in finished.stdout
  assert "use --learning_rate=0.0" in finished.stdout.splitlines()[-1]
  assert read_json_lines(directory / "results.jsonl")[: len(rows)] == rows
  assert (directory / "losses.png").stat().st_size > 5000
  log = (directory / "log.txt").read_text()
  assert [log.count(f"--learning_rate={0.00025 * 2**number}\n") for number in range(len(rows))] == [1] * len(rows)
  assert not list(directory.glob("*/checkpoints"))
