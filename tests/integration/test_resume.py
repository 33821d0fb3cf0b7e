"""A run that a signal ended resumes, and ends with the same weights, bit for bit, as an uninterrupted run."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.run_outputs import assert_equal_bits, checkpoint_steps, read_checkpoint, read_json_lines
from tests.synthetic import TINY_MODEL_FLAGS, write_shards

ROOT = Path(__file__).parents[2]
STEPS = 40


def make_command(directory: Path, name: str, *extra_flags: str) -> list[str]:
  """Returns the command of a run of 40 steps with dropout, whose output_dir is directory/name."""
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
    *extra_flags,
  ]


def run(directory: Path, name: str, *extra_flags: str) -> None:
  subprocess.run(make_command(directory, name, *extra_flags), cwd=ROOT, check=True, capture_output=True, timeout=300)


def run_and_signal(command: list[str], signal_number: int, is_due: Callable[[], bool]) -> int:
  """Starts a run, sends a signal as soon as `is_due()` is true, and returns the exit code."""
  process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
  deadline = time.monotonic() + 240
  while not is_due():
    assert process.poll() is None, "the run ended before the signal could be sent"
    assert time.monotonic() < deadline
    time.sleep(0.0005)
  process.send_signal(signal_number)
  return process.wait(timeout=240)


def assert_equal_final_states(resumed: Path, uninterrupted: Path) -> None:
  """Compares the weights and the optimizer state of two runs after their last step."""
  expected = read_checkpoint(uninterrupted, STEPS)
  assert any(name.endswith("adam_v") for name in expected)
  assert_equal_bits(read_checkpoint(resumed, STEPS), expected)


@pytest.mark.slow
def test_sigterm_saves_and_the_run_resumes_with_the_same_bits(tmp_path: Path):
  write_shards(tmp_path / "shards", [30, 20, 30])
  run(tmp_path, "uninterrupted")
  metrics_file = tmp_path / "stopped" / "metrics.jsonl"

  def has_metrics() -> bool:
    return metrics_file.exists() and metrics_file.stat().st_size > 0

  command = make_command(tmp_path, "stopped", "--steps_per_loop=1")
  assert run_and_signal(command, signal.SIGTERM, has_metrics) == 128 + signal.SIGTERM
  assert 0 < checkpoint_steps(tmp_path / "stopped")[-1] < STEPS
  run(tmp_path, "stopped")
  assert_equal_final_states(tmp_path / "stopped", tmp_path / "uninterrupted")


@pytest.mark.slow
def test_a_run_killed_three_times_resumes_with_the_same_bits(tmp_path: Path):
  write_shards(tmp_path / "shards", [30, 20, 30])
  # A large vocabulary makes a checkpoint of 20 MB. So there is time to kill the run while it writes a checkpoint.
  large_vocabulary = ["--vocab_size=50000", "--embedding_size=32"]
  run(tmp_path, "uninterrupted", *large_vocabulary)
  command = make_command(tmp_path, "killed", *large_vocabulary)
  checkpoints = tmp_path / "killed" / "checkpoints"

  # Two kills after random checkpoints. Checkpoints are saved at every fourth step.
  rng = np.random.default_rng()
  for step in sorted(rng.choice(np.arange(4, STEPS - 4, 4), 2, replace=False)):

    def is_saved(step: int = step) -> bool:
      return (checkpoints / f"step-{step}").exists()

    assert run_and_signal(command, signal.SIGKILL, is_saved) == -signal.SIGKILL

  # A kill while the next checkpoint is in its staging directory.
  next_step = checkpoint_steps(tmp_path / "killed")[-1] + 4

  def is_saving() -> bool:
    return any(checkpoints.glob(f".step-{next_step}.*.tmp"))

  assert run_and_signal(command, signal.SIGKILL, is_saving) == -signal.SIGKILL
  assert is_saving(), "the kill missed the writing of the checkpoint"
  run(tmp_path, "killed", *large_vocabulary)
  assert_equal_final_states(tmp_path / "killed", tmp_path / "uninterrupted")


@pytest.mark.slow
def test_a_second_run_in_the_same_directory_is_refused_and_the_first_continues(tmp_path: Path):
  write_shards(tmp_path / "shards", [30, 20, 30])
  metrics_file = tmp_path / "run" / "metrics.jsonl"
  command = make_command(tmp_path, "run", "--steps_per_loop=1")
  first = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
  while not metrics_file.exists():
    assert first.poll() is None
    time.sleep(0.01)
  first.send_signal(signal.SIGSTOP)  # so that the first run does not end before the second one starts
  command = make_command(tmp_path, "run")
  second = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=300)
  first.send_signal(signal.SIGCONT)
  assert second.returncode == 2
  (error,) = [line for line in second.stderr.splitlines() if line.startswith("error: ")]
  assert f"process {first.pid} on host {platform.node()} is training there" in error
  assert first.wait(timeout=300) == 0
  assert [line["step"] for line in read_json_lines(metrics_file)] == list(range(4, STEPS + 1, 4))
