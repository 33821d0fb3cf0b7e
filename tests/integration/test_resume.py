"""A run that a signal ended resumes, and ends with the same weights, bit for bit, as an uninterrupted run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run_outputs import assert_equal_bits, checkpoint_steps, read_checkpoint
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
