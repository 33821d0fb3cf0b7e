"""Two processes on one machine (MultiWorkerMirroredStrategy, TF_CONFIG) train as one process does, resume and stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.config.run import RunConfig, TrainConfig, process_addresses, process_index
from albert.errors import UserError
from albert.settings.resolve import check_actions
from tests.run_outputs import assert_equal_bits, checkpoint_steps, read_checkpoint, read_json, read_json_lines
from tests.synthetic import TINY_MODEL_FLAGS, write_shards

ROOT = Path(__file__).parents[2]
STEPS = 12


def make_command(directory: Path, name: str, *extra_flags: str) -> list[str]:
  """Returns the command of a run, whose output_dir is directory/name."""
  shards = directory / "shards" / "*"
  return [
    sys.executable,
    "run_pretraining.py",
    "--do_train",
    f"--input_file={shards}",
    f"--eval_input_file={shards}",
    f"--output_dir={directory / name}",
    *TINY_MODEL_FLAGS,
    "--train_batch_size=8",
    "--eval_batch_size=8",
    f"--num_train_steps={STEPS}",
    "--num_warmup_steps=2",
    "--log_every_steps=2",
    "--save_checkpoints_steps=4",
    "--precision=float32",
    *extra_flags,
  ]


def find_free_ports(count: int) -> list[int]:
  sockets = [socket.socket() for _ in range(count)]
  for bound_socket in sockets:
    bound_socket.bind(("localhost", 0))
  ports = [bound_socket.getsockname()[1] for bound_socket in sockets]
  for bound_socket in sockets:
    bound_socket.close()
  return ports


def start_workers(
  directory: Path, name: str, *extra_flags: str, indices: Sequence[int] = (0, 1)
) -> list[subprocess.Popen[str]]:
  """Starts the two processes of a run, or some of them. Their output goes to NAME-INDEX.log."""
  addresses = [f"localhost:{port}" for port in find_free_ports(2)]
  processes = []
  for index in indices:
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    log = (directory / f"{name}-{index}.log").open("a")
    process = subprocess.Popen(
      make_command(directory, name, *extra_flags),
      cwd=ROOT,
      env={**os.environ, "TF_CONFIG": json.dumps(config)},
      stdout=log,
      stderr=subprocess.STDOUT,
      text=True,
    )
    processes.append(process)
  return processes


def wait(processes: list[subprocess.Popen[str]], timeout: float = 1800) -> list[int]:
  """Waits for the processes and returns their exit codes. Kills the processes that still run after the timeout."""
  try:
    return [process.wait(timeout=timeout) for process in processes]
  finally:
    for process in processes:
      process.kill()


def wait_for_step_4(directory: Path, name: str, process: subprocess.Popen[str], timeout: float = 900) -> None:
  """Waits until a run has saved its first checkpoint. Fails if one of its processes ends before, or after a timeout."""
  deadline = time.monotonic() + timeout
  while not (directory / name / "checkpoints" / "step-4").exists():
    assert process.poll() is None, read_log(directory, name, 1)
    if time.monotonic() > deadline:
      process.kill()  # then the other process stops
      pytest.fail(f"{name} has not come to step 4 in {timeout} s")
    time.sleep(0.001)


def read_log(directory: Path, name: str, index: int) -> str:
  return (directory / f"{name}-{index}.log").read_text()


def read_metrics(output_dir: Path) -> list[dict[str, float]]:
  """Reads metrics.jsonl without the speed, which differs from run to run."""
  lines = read_json_lines(output_dir / "metrics.jsonl")
  for line in lines:
    del line["examples_per_second"]
  return lines


@pytest.mark.slow
def test_two_processes_train_and_evaluate_as_one(tmp_path: Path):
  write_shards(tmp_path / "shards", [20, 19, 20, 21])
  flags = ["--do_eval", "--eval_every_steps=6"]
  assert wait(start_workers(tmp_path, "two", *flags)) == [0, 0], read_log(tmp_path, "two", 0)
  command = make_command(tmp_path, "one", *flags, "--input_parts=2")
  subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900)
  one, two = tmp_path / "one", tmp_path / "two"

  metrics_of_one, metrics_of_two = read_metrics(one), read_metrics(two)
  assert len(metrics_of_two) == STEPS // 2
  for line, expected_line in zip(metrics_of_two, metrics_of_one, strict=True):
    assert line == pytest.approx(expected_line, rel=1e-5, abs=1e-7)
  state_of_one, state_of_two = read_checkpoint(one, STEPS), read_checkpoint(two, STEPS)
  assert state_of_two.keys() == state_of_one.keys()
  for name, tensor in state_of_one.items():
    np.testing.assert_allclose(state_of_two[name], tensor, rtol=0, atol=2e-5, err_msg=name)
  results = read_json(two / "eval_results.json")
  assert results == pytest.approx(read_json(one / "eval_results.json"), rel=1e-5)
  assert results["masked_lm_loss"] < metrics_of_one[0]["masked_lm_loss"]
  # Only the chief writes files that remain.
  assert {path.name for path in two.iterdir()} == {path.name for path in one.iterdir()}
  assert read_json(one / "config.json")["train"]["input_parts"] == 2
  assert read_json(two / "config.json")["train"]["input_parts"] == 2

  # A run keeps the number of input parts that it began with, whatever the number of processes.
  subprocess.run(make_command(tmp_path, "two"), cwd=ROOT, check=True, capture_output=True, timeout=900)
  assert read_json(two / "config.json")["train"]["input_parts"] == 2
  command = make_command(tmp_path, "two", "--input_parts=1")
  refused = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=900)
  assert refused.returncode == 2
  assert "input_parts" in refused.stderr


@pytest.mark.slow
def test_if_a_process_is_killed_the_run_stops_and_resumes_with_the_same_bits(tmp_path: Path):
  write_shards(tmp_path / "shards", [20, 19, 20, 21])
  flags = ["--hidden_dropout_prob=0.1", "--attention_probs_dropout_prob=0.1", "--steps_per_loop=1"]
  assert wait(start_workers(tmp_path, "uninterrupted", *flags)) == [0, 0], read_log(tmp_path, "uninterrupted", 0)

  processes = start_workers(tmp_path, "killed", *flags)
  wait_for_step_4(tmp_path, "killed", processes[1])
  processes[1].send_signal(signal.SIGKILL)
  assert wait(processes) == [1, -signal.SIGKILL], read_log(tmp_path, "killed", 0)
  (error,) = [line for line in read_log(tmp_path, "killed", 0).splitlines() if line.startswith("error: ")]
  assert "another of the 2 processes is gone" in error
  assert "start all processes again with the same command, and they continue from step-" in error
  assert checkpoint_steps(tmp_path / "killed")[-1] < STEPS

  assert wait(start_workers(tmp_path, "killed", *flags)) == [0, 0], read_log(tmp_path, "killed", 0)
  assert_equal_bits(read_checkpoint(tmp_path / "killed", STEPS), read_checkpoint(tmp_path / "uninterrupted", STEPS))
  # The first two lines are those of steps 2 and 4, before the kill.
  assert read_metrics(tmp_path / "killed")[2:] == read_metrics(tmp_path / "uninterrupted")[2:]


@pytest.mark.slow
def test_a_signal_to_one_process_saves_and_stops_both_processes(tmp_path: Path):
  write_shards(tmp_path / "shards", [20, 20])
  processes = start_workers(tmp_path, "stopped", "--steps_per_loop=1", "--num_train_steps=100000")
  wait_for_step_4(tmp_path, "stopped", processes[1])
  processes[1].terminate()
  assert wait(processes) == [128 + signal.SIGTERM] * 2, read_log(tmp_path, "stopped", 0)
  assert "and saved; the same command resumes there" in read_log(tmp_path, "stopped", 0)


@pytest.mark.thorough
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_process_that_waits_for_one_that_never_starts(tmp_path: Path, signal_number: signal.Signals):
  write_shards(tmp_path / "shards", [20, 20])
  first = start_workers(tmp_path, "waiting", indices=[0])[0]
  try:
    deadline = time.monotonic() + 120
    while "waiting until all 2 processes" not in read_log(tmp_path, "waiting", 0) and time.monotonic() < deadline:
      time.sleep(0.1)
    first.send_signal(signal_number)
    assert first.wait(timeout=60) == 128 + signal_number
  finally:
    first.kill()
  assert read_log(tmp_path, "waiting", 0).endswith(
    f"waiting until all 2 processes of TF_CONFIG have started\nstopped by {signal_number.name}\n"
  )


# Name of the case -> (TF_CONFIG as a text or as the content of its JSON, a part of the error).
BAD_CONFIGS: dict[str, tuple[Any, str]] = {
  "no JSON": ("{", r'TF_CONFIG: not JSON .*: give it as \{"cluster"'),
  "no task": ({"cluster": {"worker": ["a:1"]}}, "TF_CONFIG: lacks 'task': give it as"),
  "beyond the end": ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}, "is not in its cluster"),
  "no port": ({"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}, "TF_CONFIG.*: give it as"),
  "one address twice": (
    {"cluster": {"chief": ["a:1"], "worker": ["b:1", "a:1"]}, "task": {"type": "worker", "index": 0}},
    "TF_CONFIG: two processes have the address a:1: give each one an address of its own",
  ),
  "another kind": ({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}, "is not in its cluster"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_bad_tf_config_is_refused(case, monkeypatch):
  config, message = BAD_CONFIGS[case]
  monkeypatch.setenv("TF_CONFIG", config if isinstance(config, str) else json.dumps(config))
  for read in (process_addresses, lambda: check_actions(RunConfig(output_dir="x", do_train=True, dry_run=True))):
    with pytest.raises(UserError, match=message):
      read()


def test_tf_config_must_be_set_for_several_workers_and_not_for_several_runs(monkeypatch):
  with pytest.raises(UserError, match=r"multi_worker_mirrored needs .* TF_CONFIG; it is not set"):
    check_actions(
      RunConfig(output_dir="x", do_train=True, train=TrainConfig(distribution_strategy="multi_worker_mirrored"))
    )
  config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))
  check_actions(RunConfig(output_dir="x", do_train=True))
  with pytest.raises(UserError, match=r"--num_runs=2: several processes \(TF_CONFIG\) can train one run only"):
    check_actions(RunConfig(output_dir="x", do_train=True, do_eval=True, num_runs=2))


def test_the_chief_is_the_first_process(monkeypatch):
  config = {"cluster": {"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}}
  monkeypatch.setenv("TF_CONFIG", json.dumps(config))
  assert process_addresses() == ["a:1", "b:1", "c:1"]
  assert process_index() == 2
