"""A killed run resumes, and ends with the same weights, bit for bit, as an uninterrupted run."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.synthetic import TINY_MODEL_FLAGS, write_shards

ROOT = Path(__file__).parents[2]
STEPS = 40


def command(directory: Path, name: str, extra: list[str]) -> list[str]:
  return [
    sys.executable,
    "run_pretraining.py",
    "--do_train",
    f"--input_file={directory / 'shards' / '*'}",
    f"--output_dir={directory / name}",
    *TINY_MODEL_FLAGS,
    "--hidden_dropout_prob=0.1",
    "--attention_probs_dropout_prob=0.1",
    "--train_batch_size=8",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=4",
    "--log_every_steps=4",
    "--save_checkpoints_steps=4",
    "--keep_checkpoints=100",
    "--gradient_accumulation_steps=2",
    *extra,
  ]


def run(directory: Path, name: str, extra: list[str]) -> None:
  subprocess.run(command(directory, name, extra), cwd=ROOT, check=True, capture_output=True, timeout=300)


def stop_when(directory: Path, name: str, extra: list[str], due: Callable[[], bool], sign: int) -> int:
  """Starts a run, sends the signal `sign` as soon as `due()` is true, and returns the exit code."""
  process = subprocess.Popen(command(directory, name, extra), cwd=ROOT, stderr=subprocess.DEVNULL)
  deadline = time.monotonic() + 240
  while not due():
    assert process.poll() is None, "the run ended before it could be stopped"
    assert time.monotonic() < deadline
    time.sleep(0.0005)
  process.send_signal(sign)
  return process.wait(timeout=240)


def final_state(directory: Path, name: str) -> dict[str, np.ndarray]:
  reader = tf.train.load_checkpoint(str(directory / name / "checkpoints" / f"step-{STEPS}" / "weights"))
  return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def assert_identical(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
  assert a.keys() == b.keys()
  assert any(name.endswith("adam_v") for name in a)
  for name, value in a.items():
    assert value.tobytes() == b[name].tobytes(), name


@pytest.mark.slow
def test_sigterm_saves_and_the_run_resumes_exactly(tmp_path: Path):
  write_shards(tmp_path / "shards", [30, 20, 30])
  run(tmp_path, "whole", [])
  metrics = tmp_path / "stopped" / "metrics.jsonl"
  code = stop_when(
    tmp_path,
    "stopped",
    ["--steps_per_loop=1"],
    lambda: metrics.exists() and metrics.stat().st_size > 0,
    signal.SIGTERM,
  )
  assert code == 128 + signal.SIGTERM
  saved = sorted(int(p.name[5:]) for p in (tmp_path / "stopped" / "checkpoints").glob("step-*"))
  assert 0 < saved[-1] < STEPS
  run(tmp_path, "stopped", [])
  assert_identical(final_state(tmp_path, "whole"), final_state(tmp_path, "stopped"))


@pytest.mark.slow
def test_kill_9_at_three_points_one_while_saving(tmp_path: Path):
  write_shards(tmp_path / "shards", [30, 20, 30])
  # A large vocabulary makes a checkpoint of 20 MB, so that the kill can hit while it is written.
  extra = ["--vocab_size=50000", "--embedding_size=32"]
  run(tmp_path, "whole", extra)
  checkpoints = tmp_path / "killed" / "checkpoints"
  rng = np.random.default_rng()
  for step in sorted(rng.choice(np.arange(1, STEPS // 4 - 1), 2, replace=False) * 4):
    due = lambda step=step: (checkpoints / f"step-{step}").exists()  # noqa: E731
    assert stop_when(tmp_path, "killed", extra, due, signal.SIGKILL) == -signal.SIGKILL
  newest = max(int(p.name[5:]) for p in checkpoints.glob("step-*"))
  saving = lambda: list(checkpoints.glob(f".step-{newest + 4}.*.tmp"))  # noqa: E731
  assert stop_when(tmp_path, "killed", extra, lambda: bool(saving()), signal.SIGKILL) == -signal.SIGKILL
  assert saving(), "the kill missed the writing of the checkpoint"
  run(tmp_path, "killed", extra)
  assert_identical(final_state(tmp_path, "whole"), final_state(tmp_path, "killed"))


@pytest.mark.slow
def test_a_second_run_in_the_same_directory_is_refused_and_the_first_is_unharmed(tmp_path: Path):
  write_shards(tmp_path / "shards", [30, 20, 30])
  metrics = tmp_path / "run" / "metrics.jsonl"
  first = subprocess.Popen(command(tmp_path, "run", ["--steps_per_loop=1"]), cwd=ROOT, stderr=subprocess.DEVNULL)
  while not metrics.exists():
    assert first.poll() is None
    time.sleep(0.01)
  first.send_signal(signal.SIGSTOP)  # so that it cannot end before the second run has looked for it
  second = subprocess.run(
    command(tmp_path, "run", []), cwd=ROOT, check=False, capture_output=True, text=True, timeout=300
  )
  first.send_signal(signal.SIGCONT)
  assert second.returncode == 2
  errors = [line for line in second.stderr.splitlines() if line.startswith("error: ")]
  assert len(errors) == 1
  assert f"process {first.pid} on host {platform.node()} is training there" in errors[0]
  assert first.wait(timeout=300) == 0
  steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
  assert steps == list(range(4, STEPS + 1, 4))
