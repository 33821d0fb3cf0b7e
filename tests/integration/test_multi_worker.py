"""Two processes on one machine (MultiWorkerMirroredStrategy, TF_CONFIG) give the same results as one process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from albert.errors import UserError
from albert.training import cluster
from tests.synthetic import TINY_MODEL_FLAGS, write_shards

ROOT = Path(__file__).parents[2]
STEPS = 12


def command(directory: Path, name: str, *extra: str) -> list[str]:
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
    *extra,
  ]


def free_ports(count: int) -> list[int]:
  sockets = [socket.socket() for _ in range(count)]
  for one in sockets:
    one.bind(("localhost", 0))
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


def start_workers(directory: Path, name: str, *extra: str, count: int = 2) -> list[subprocess.Popen[str]]:
  """Starts the processes of one run. Their output goes to NAME-INDEX.log."""
  workers = [f"localhost:{port}" for port in free_ports(count)]
  processes = []
  for index in range(count):
    config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
    log = (directory / f"{name}-{index}.log").open("a")
    processes.append(
      subprocess.Popen(
        command(directory, name, *extra),
        cwd=ROOT,
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
      )
    )
  return processes


def wait(processes: list[subprocess.Popen[str]], timeout: float = 1800) -> list[int]:
  """Waits for the processes and returns their exit codes. Those that still run after the timeout are killed."""
  try:
    return [process.wait(timeout=timeout) for process in processes]
  finally:
    for process in processes:
      process.kill()


def wait_for_step_4(directory: Path, name: str, process: subprocess.Popen[str], timeout: float = 900) -> None:
  """Returns as soon as the run has saved its first checkpoint. `process`: one of its processes."""
  deadline = time.monotonic() + timeout
  while not (directory / name / "checkpoints" / "step-4").exists():
    assert process.poll() is None, log_of(directory, name, 1)
    if time.monotonic() > deadline:
      process.kill()  # then the other processes stop
      pytest.fail(f"{name} has not come to step 4 in {timeout} s")
    time.sleep(0.001)


def log_of(directory: Path, name: str, index: int) -> str:
  return (directory / f"{name}-{index}.log").read_text()


def metrics(directory: Path, name: str) -> list[dict[str, float]]:
  lines = (directory / name / "metrics.jsonl").read_text().splitlines()
  return [{k: v for k, v in json.loads(line).items() if k != "examples_per_second"} for line in lines]


def state(directory: Path, name: str) -> dict[str, np.ndarray]:
  reader = tf.train.load_checkpoint(str(directory / name / "checkpoints" / f"step-{STEPS}" / "weights"))
  return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}


def assert_alike(lines: list[dict[str, float]], expected_lines: list[dict[str, float]]) -> None:
  assert [line["step"] for line in lines] == [line["step"] for line in expected_lines]
  for one, other in zip(lines, expected_lines, strict=True):
    assert one == pytest.approx(other, rel=1e-5, abs=1e-7)


@pytest.mark.slow
def test_two_processes_train_and_evaluate_as_one(tmp_path: Path):
  write_shards(tmp_path / "shards", [20, 19, 20, 21])
  assert wait(start_workers(tmp_path, "two", "--do_eval", "--eval_every_steps=6")) == [0, 0], log_of(tmp_path, "two", 0)
  one = command(tmp_path, "one", "--do_eval", "--eval_every_steps=6", "--input_parts=2")
  subprocess.run(one, cwd=ROOT, check=True, capture_output=True, timeout=900)
  assert len(metrics(tmp_path, "two")) == STEPS // 2
  assert_alike(metrics(tmp_path, "two"), metrics(tmp_path, "one"))
  two_processes, one_process = state(tmp_path, "two"), state(tmp_path, "one")
  assert two_processes.keys() == one_process.keys()
  assert max(float(np.abs(two_processes[name] - one_process[name]).max()) for name in two_processes) < 2e-5
  results = [json.loads((tmp_path / name / "eval_results.json").read_text()) for name in ("two", "one")]
  assert results[0] == pytest.approx(results[1], rel=1e-5)
  assert results[0]["masked_lm_loss"] < metrics(tmp_path, "one")[0]["masked_lm_loss"]
  # The chief alone writes; what the other one needed is gone with it.
  assert sorted(p.name for p in (tmp_path / "two").iterdir()) == sorted(p.name for p in (tmp_path / "one").iterdir())
  settings = [json.loads((tmp_path / name / "config.json").read_text())["train"] for name in ("two", "one")]
  assert settings[0]["input_parts"] == settings[1]["input_parts"] == 2
  # A run keeps the number of input parts that it began with, whatever the number of processes.
  subprocess.run(command(tmp_path, "two"), cwd=ROOT, check=True, capture_output=True, timeout=900)
  assert json.loads((tmp_path / "two" / "config.json").read_text())["train"]["input_parts"] == 2
  other = [*command(tmp_path, "two"), "--input_parts=1"]
  refused = subprocess.run(other, cwd=ROOT, check=False, capture_output=True, text=True, timeout=900)
  assert refused.returncode == 2
  assert "input_parts" in refused.stderr


@pytest.mark.slow
def test_a_killed_process_stops_the_run_which_resumes_exactly(tmp_path: Path):
  write_shards(tmp_path / "shards", [20, 19, 20, 21])
  dropout = ["--hidden_dropout_prob=0.1", "--attention_probs_dropout_prob=0.1", "--steps_per_loop=1"]
  assert wait(start_workers(tmp_path, "whole", *dropout)) == [0, 0], log_of(tmp_path, "whole", 0)

  processes = start_workers(tmp_path, "killed", *dropout)
  wait_for_step_4(tmp_path, "killed", processes[1])
  processes[1].send_signal(signal.SIGKILL)
  assert wait(processes) == [1, -signal.SIGKILL], log_of(tmp_path, "killed", 0)
  error = [line for line in log_of(tmp_path, "killed", 0).splitlines() if line.startswith("error: ")]
  assert len(error) == 1
  assert "another of the 2 processes is gone" in error[0]
  assert "start all processes again with the same command, and they continue from step-" in error[0]
  assert not (tmp_path / "killed" / "checkpoints" / f"step-{STEPS}").exists()

  assert wait(start_workers(tmp_path, "killed", *dropout)) == [0, 0], log_of(tmp_path, "killed", 0)
  whole, resumed = state(tmp_path, "whole"), state(tmp_path, "killed")
  assert {name: value.tobytes() for name, value in whole.items()} == {n: v.tobytes() for n, v in resumed.items()}
  assert metrics(tmp_path, "whole")[2:] == metrics(tmp_path, "killed")[2:]


@pytest.mark.slow
def test_a_signal_to_one_process_saves_and_stops_all(tmp_path: Path):
  write_shards(tmp_path / "shards", [20, 20])
  processes = start_workers(tmp_path, "stopped", "--steps_per_loop=1", "--num_train_steps=100000")
  wait_for_step_4(tmp_path, "stopped", processes[1])
  processes[1].terminate()
  assert wait(processes) == [128 + signal.SIGTERM] * 2, log_of(tmp_path, "stopped", 0)
  assert "and saved; the same command resumes there" in log_of(tmp_path, "stopped", 0)


BAD_CONFIGS: dict[str, tuple[Any, str]] = {
  "no JSON": ("{", r'TF_CONFIG: not JSON .*: give it as \{"cluster"'),
  "no task": ({"cluster": {"worker": ["a:1"]}}, "TF_CONFIG lacks .task.: give it as"),
  "beyond the end": ({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}, "is not in its cluster"),
  "another kind": ({"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}, "is not in its cluster"),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_a_bad_tf_config_gives_one_line(case, monkeypatch):
  value, message = BAD_CONFIGS[case]
  monkeypatch.setenv("TF_CONFIG", value if isinstance(value, str) else json.dumps(value))
  with pytest.raises(UserError, match=message):
    cluster.process_addresses()


def test_the_chief_comes_first(monkeypatch):
  value = {"cluster": {"worker": ["b:1", "c:1"], "chief": ["a:1"]}, "task": {"type": "worker", "index": 1}}
  monkeypatch.setenv("TF_CONFIG", json.dumps(value))
  assert cluster.process_addresses() == ["a:1", "b:1", "c:1"]
