"""A run that collapses stops, its last good checkpoint is kept, and a new run goes on from there."""

from __future__ import annotations

import json
import math
import shlex
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from albert.config.run import RunConfig, TrainConfig
from albert.errors import RunError, UserError
from albert.runs.logs import read_metrics
from albert.runs.watch import Means, WatchSettings
from albert.training.run import RunWatch
from tests.integration.conftest import script_fixture
from tests.run_outputs import read_json, read_json_lines
from tests.script_flags import run_script
from tests.synthetic import TINY_MODEL_FLAGS, write_shards

ROOT = Path(__file__).parents[2]
_defined_flags = script_fixture("pretraining")
# run_pretraining.py with a rate of 1 after 1,000 steps.
COLLAPSING_SCRIPT = """
import tensorflow as tf
from albert.optimizers.schedules import WarmupPolynomialDecay
rate = WarmupPolynomialDecay.__call__
WarmupPolynomialDecay.__call__ = lambda self, step: tf.where(tf.cast(step, tf.int32) < 1000, rate(self, step), 1.0)
import run_pretraining
run_pretraining.main()
"""


def make_watch(directory: Path, first_step: int = 0, *, stops: bool = True) -> tuple[RunWatch, Any]:
  settings = WatchSettings(Means(6.0, 0.06), ["a rate of 1 (--learning_rate=0.1)"], stops)
  task: Any = types.SimpleNamespace(watch_settings=lambda config: settings)
  cluster: Any = types.SimpleNamespace(is_chief=True, is_true_in_chief=bool)
  config = RunConfig(output_dir="run", train=TrainConfig(num_train_steps=2000, seed=5))
  plan: Any = types.SimpleNamespace(config=config, train=config.train)
  steps = [100, 300, 500, 600, 700]
  checkpoints: Any = types.SimpleNamespace(steps=lambda: steps, path=lambda step: f"run/checkpoints/step-{step}")
  schedule: Any = types.SimpleNamespace(warmup_steps=10)
  return RunWatch(task, plan, plan, cluster, checkpoints, str(directory), first_step, schedule), checkpoints


def train(watch: RunWatch, directory: Path, first_step: int, last_step: int) -> None:
  """Logs a loss that falls to 3 and is 5.9 after step 620."""
  for step in range(first_step + 20, last_step + 1, 20):
    loss = 5.9 if step > 620 else max(3.0, 7 - step / 50)
    line = {"step": step, "loss": loss, "masked_lm_loss": loss, "masked_lm_accuracy": 0.06 + (6 - min(loss, 6)) / 10}
    with open(directory / "metrics.jsonl", "a", encoding="utf-8") as file:
      file.write(json.dumps(line | watch.annotate(line, 300.0 if step < 2000 else math.inf)) + "\n")
    watch.check(step, {})


@pytest.mark.parametrize("killed_at", [0, 400, 640])
def test_a_collapse_stops_the_run_at_the_same_step_also_if_it_was_resumed(killed_at: int, tmp_path: Path) -> None:
  watch, checkpoints = make_watch(tmp_path)
  train(watch, tmp_path, 0, killed_at)
  watch, checkpoints = make_watch(tmp_path, killed_at)
  with pytest.raises(RunError) as caught:
    train(watch, tmp_path, killed_at, 2000)
  line = read_metrics(str(tmp_path))[-1]
  assert line["step"] == 740
  assert str(caught.value) == f"stopped at step 740: {line['event']}; or go on here with --on_collapse=warn"
  assert line["event"] == (
    "collapse: at step 740 the masked LM loss is 5.9 and the accuracy 0.07 (guessing: 6 and 0.06); the loss was 3 at "
    "step 320; likely cause: a rate of 1 (--learning_rate=0.1); to go on from before it, give the same command with "
    "--resume_from=run/checkpoints/step-600 --output_dir=run-2 --seed=6 --learning_rate=0.00088"
  )
  assert checkpoints.healthy_step == 620
  assert (tmp_path / "curves.png").exists()
  watch, _ = make_watch(tmp_path, 740)  # after a checkpoint that --on_collapse=warn has saved
  with pytest.raises(RunError, match=r"^stopped at step 760: collapse: at step 740 .*--learning_rate=0.00088;"):
    train(watch, tmp_path, 740, 2000)


def test_with_warn_the_run_goes_on_and_the_progress_is_logged(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  watch, checkpoints = make_watch(tmp_path, stops=False)
  train(watch, tmp_path, 0, 2000)
  assert checkpoints.healthy_step == 620
  first, second, third = capsys.readouterr().err.splitlines()
  assert first.startswith("warning: collapse: at step 740 the masked LM loss is 5.9")
  assert second == (
    "step 1,000 of 2,000 (50.0%), 0:05:00 left; masked_lm_loss 5.9 (guessing 6); masked_lm_accuracy 0.07 (guessing "
    "0.06); best smoothed loss 3 at step 320; found: collapse"
  )
  assert third.startswith("step 2,000 of 2,000 (100.0%); masked_lm_loss ")
  assert [line["step"] for line in read_metrics(str(tmp_path)) if "status" in line] == [1000, 2000]


@pytest.mark.thorough
def test_a_checkpoint_that_cannot_be_resumed_from_gives_one_line(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  write_shards(tmp_path / "shards", [12, 9])
  flags = [f"--input_file={tmp_path}/shards/*", "--do_train", "--train_batch_size=8", "--num_warmup_steps=1"]
  run_script("pretraining", *flags, *TINY_MODEL_FLAGS, f"--output_dir={tmp_path}/old", "--num_train_steps=4")
  step_4 = tmp_path / "old" / "checkpoints" / "step-4"
  for more, message in [
    ([f"--resume_from={step_4}", "--dry_run"], "step-4: has 4 of 4 steps: give more --num_train_steps"),
    ([f"--resume_from={step_4.parent.parent}-1", "--dry_run"], "no checkpoint there; give .* RUN/checkpoints/step-N"),
    ([f"--resume_from={step_4}", "--num_train_steps=8", "--num_attention_heads=2"], "has num_attention_heads 3, this"),
    ([f"--resume_from={step_4}", "--num_train_steps=8", "--intermediate_size=99"], "step-4: bert/.* has shape"),
    ([f"--resume_from={step_4}", f"--init_checkpoint={step_4}"], "are both given: give one"),
    ([f"--resume_from={step_4}", f"--output_dir={tmp_path}/old"], "has resume_from = '' .*give another --output_dir"),
  ]:
    with pytest.raises(UserError, match=message):
      run_script("pretraining", *flags, f"--output_dir={tmp_path}/new", "--num_train_steps=4", *more)
  assert not (tmp_path / "new" / "checkpoints").exists()
  run_script(
    "pretraining", *flags, f"--output_dir={tmp_path}/new", "--num_train_steps=8", f"--resume_from={step_4}", "--seed=3"
  )
  assert "from its run: train.num_train_steps 8 (was 4), train.seed 3 (was 12345)\n" in capsys.readouterr().err
  assert [line["step"] for line in read_json_lines(tmp_path / "new" / "metrics.jsonl")] == [5, 6, 7, 8]
  config = read_json(tmp_path / "new" / "config.json")
  assert (config["resume_from"], config["train"]["seed"], config["data"]["on_collapse"]) == (str(step_4), 3, "stop")


def run(command: list[str], output_dir: Path, kill_at: int) -> tuple[int, str]:
  """Runs a command, and kills it once it has saved a step, unless that is 0. Returns its exit code and last line."""
  process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
  while kill_at and not (output_dir / "checkpoints" / f"step-{kill_at}").exists() and process.poll() is None:
    time.sleep(0.02)
  if kill_at:
    process.kill()
  return process.wait(900), process.communicate()[1].splitlines()[-1]


@pytest.mark.slow
def test_a_run_that_collapsed_goes_on_from_before_it_and_learns_more_also_with_kills(
  corpus_file: str, spm_model: str, tmp_path: Path
) -> None:
  shards = tmp_path / "shards"
  prepare = ["-m", "data_prep.create_pretraining_data", f"--input_file={corpus_file}", f"--spm_model_file={spm_model}"]
  prepare += [f"--output_dir={shards}", "--max_seq_length=32", "--num_shards=2", "--dupe_factor=4"]
  subprocess.run([sys.executable, *prepare], cwd=ROOT, check=True, capture_output=True)
  flags = [f"--input_file={shards}/*.tfrecord", "--do_train", "--num_train_steps=1600", "--train_batch_size=16"]
  flags += ["--num_hidden_layers=1", "--hidden_size=64", "--num_attention_heads=2", "--intermediate_size=128"]
  flags += ["--embedding_size=32", "--initializer_range=0.06", "--learning_rate=0.003", "--num_warmup_steps=100"]
  flags += ["--log_every_steps=25", "--save_checkpoints_steps=25", "--keep_checkpoints=2"]
  events, results = [], []
  for name, kills in (("whole", [0]), ("killed", [300, 1025, 0])):
    command = ["-c", COLLAPSING_SCRIPT, *flags, f"--output_dir={tmp_path / name}"]
    codes, errors = zip(*(run(command, tmp_path / name, step) for step in kills), strict=True)
    line = read_metrics(str(tmp_path / name))[-1]
    assert codes == (*[-signal.SIGKILL] * (len(kills) - 1), 1)
    assert (
      errors[-1] == f"error: stopped at step {line['step']}: {line['event']}; or go on here with --on_collapse=warn"
    )
    events.append(line["event"].replace(str(tmp_path / name), "RUN"))
  assert events[0] == events[1]
  best = min(line["masked_lm_loss"] for line in read_metrics(str(tmp_path / "whole")))
  advice = shlex.split(events[0].partition("give the same command with ")[2].replace("RUN", str(tmp_path / "whole")))
  for name, kills in (("new", [0]), ("new_killed", [1225, 0])):
    output_dir = tmp_path / name
    command = ["run_pretraining.py", *flags, *advice, f"--output_dir={output_dir}"]
    assert [run(command, output_dir, step)[0] for step in kills] == [-signal.SIGKILL] * (len(kills) - 1) + [0]
    lines = [line | {"examples_per_second": 0, "status": ""} for line in read_metrics(str(output_dir))]
    results.append((lines, (output_dir / "checkpoints" / "step-1600" / "weights.data-00000-of-00001").read_bytes()))
  assert results[0] == results[1]
  assert results[0][0][-1]["masked_lm_loss"] < best
