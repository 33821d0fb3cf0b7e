"""Tests of running a plan. Finished commands are not repeated, and failed and stopped commands are reported."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from albert.errors import RunError, Stopped, UserError
from albert.experiments import runner
from albert.experiments.runner import Command
from albert.runs.directory_lock import DirectoryLock
from tests.experiments.plans import WRITE_ACCURACY, ToyPlan, make_plan, read_rows


def test_only_one_process_at_a_time_runs_a_plan(tmp_path: Path):
  plan = ToyPlan(tmp_path)
  with DirectoryLock(plan.directory, "running experiments"), pytest.raises(UserError, match="is running experiments"):
    runner.run_plan(plan)


def test_a_plan_continues_after_a_failed_trial_and_keeps_the_finished_rows(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
  failing_plan = ToyPlan(tmp_path, {"two": "print('first'); print('the reason'); raise SystemExit(3)"})
  with pytest.raises(RunError, match=r"two, seed 12345: pretraining ended with code 3 \(the reason\); .*logs/two-"):
    runner.run_plan(failing_plan)
  assert [row["variant"] for row in read_rows(failing_plan)] == ["one"]
  command_log = Path(failing_plan.directory) / "log.txt"
  with (Path(failing_plan.directory) / runner.RESULTS_FILE).open("a") as rows_file:
    rows_file.write('{"variant": "cut o')  # as if the process was killed while it wrote a row
  command_log.unlink()
  rows = runner.run_plan(ToyPlan(tmp_path))
  assert [(row["variant"], row["seed"], row["scores"]["sop"]) for row in rows] == [
    ("one", 12345, 50.0),
    ("two", 12345, 75.0),
    ("one", 12346, 51.0),
    ("two", 12346, 76.0),
  ]
  assert read_rows(failing_plan) == rows
  assert command_log.read_text().count("$ ") == 3
  capsys.readouterr()
  assert runner.run_plan(ToyPlan(tmp_path)) == rows
  assert capsys.readouterr().out == "toy: 4 of 4 trials are done\n"
  assert command_log.read_text().count("$ ") == 3


def test_variants_with_the_same_commands_are_computed_once_and_each_have_a_row(tmp_path: Path):
  """At the scale smoke, 2, 4 and 12 groups of layers are the same model."""
  plan = make_plan(tmp_path, "groups")
  trials = plan.trials()
  assert len({trial.digest for trial in trials}) == 2
  row: dict[str, Any] = {"seed": 12345, "parameters": 1, "examples_per_second": None, "scores": {}}
  lines = [json.dumps({"variant": trial.variant, "digest": trial.digest, **row}) for trial in trials[:2]]
  Path(plan.directory).mkdir()
  (Path(plan.directory) / runner.RESULTS_FILE).write_text("\n".join(lines) + "\n")
  rows = runner.run_plan(plan)
  assert [row["variant"] for row in rows] == ["1 group", "2 groups", "4 groups", "12 groups"]


def test_a_command_that_refuses_its_input_is_an_error_of_the_input(tmp_path: Path):
  plan = ToyPlan(tmp_path, {"two": "print('error: no such file'); raise SystemExit(2)"})
  with pytest.raises(UserError, match=r"two, seed 12345: pretraining ended with code 2 \(error: no such file\); "):
    runner.run_plan(plan)
  assert [row["variant"] for row in read_rows(plan)] == ["one"]
  assert len(runner.run_plan(ToyPlan(tmp_path))) == 4


def test_a_signal_is_passed_to_the_running_command(tmp_path: Path):
  wait_for_signal = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open(sys.argv[1] + '.up', 'w')
time.sleep(60)
"""
  plan = ToyPlan(tmp_path, {"two": wait_for_signal})
  started_file = tmp_path / "two-12345" / "eval_results.json.up"

  def send_signal() -> None:
    while not started_file.exists():
      time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)

  threading.Thread(target=send_signal, daemon=True).start()
  handler = signal.getsignal(signal.SIGTERM)
  with pytest.raises(Stopped, match="stopped in two, seed 12345: pretraining; the same command continues there"):
    runner.run_plan(plan)
  assert signal.getsignal(signal.SIGTERM) is handler
  assert len(runner.run_plan(ToyPlan(tmp_path))) == 4


def test_parallel_trials_share_the_processors_and_run_no_command_twice(tmp_path: Path):
  """The commands of both variants wait for each other, so they must run in parallel. The shared command runs once."""
  wait_for_other = """
import json, os, sys, time
own_dir = os.path.dirname(sys.argv[1])
other_dir = own_dir.replace('two-', 'one-') if 'two-' in own_dir else own_dir.replace('one-', 'two-')
assert os.path.exists(os.path.dirname(own_dir) + '/shared')
open(own_dir + '/up', 'w')
while not os.path.exists(other_dir + '/up'):
  time.sleep(0.01)
num_threads = float(os.environ['TF_NUM_INTRAOP_THREADS'])
json.dump({'sentence_order_accuracy': num_threads}, open(sys.argv[1], 'w'))
"""
  create_file = "import sys, time; time.sleep(0.3); open(sys.argv[1], 'x')"  # mode x fails if the file exists
  shared_file = str(tmp_path / "shared")
  shared = Command("shared", (sys.executable, "-c", create_file, shared_file), (shared_file,))
  rows = runner.run_plan(ToyPlan(tmp_path, {"one": wait_for_other, "two": wait_for_other}, shared), jobs=2)
  num_threads = max(1, (os.cpu_count() or 1) // 2)
  assert [row["scores"]["sop"] for row in rows] == [100.0 * num_threads] * 4  # scores are in percent
  assert sorted(read_rows(ToyPlan(tmp_path)), key=str) == sorted(rows, key=str)


def test_a_row_is_added_when_the_command_has_ended_and_not_when_its_file_exists(tmp_path: Path):
  rewrite_later = """
import json, os, sys, time
json.dump({'sentence_order_accuracy': 0.0}, open(sys.argv[1], 'w'))
while not os.path.exists(sys.argv[1].replace('one-', 'two-')):
  time.sleep(0.01)
time.sleep(0.5)
json.dump({'sentence_order_accuracy': float(sys.argv[2])}, open(sys.argv[1], 'w'))
"""
  write_later = f"""
import os, sys, time
while not os.path.exists(sys.argv[1].replace('two-', 'one-')):
  time.sleep(0.01)
{WRITE_ACCURACY}
"""
  rows = runner.run_plan(ToyPlan(tmp_path, {"one": rewrite_later, "two": write_later}), jobs=2)
  assert [row["scores"]["sop"] for row in rows] == [50.0, 75.0, 51.0, 76.0]


def test_a_trial_that_fails_stops_the_parallel_trials(tmp_path: Path):
  save_on_signal = """
import signal, sys, time
def save(*_):
  open(sys.argv[1] + '.saved', 'w')
  sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(sys.argv[1] + '.up', 'w')
time.sleep(60)
"""
  started_file = tmp_path / "one-12345" / "eval_results.json.up"
  fail = """
import os, sys, time
while not os.path.exists(sys.argv[1].replace('two-', 'one-') + '.up'):
  time.sleep(0.01)
print('the reason')
exit(3)
"""
  with pytest.raises(RunError, match=r"two, seed 12345: pretraining ended with code 3 \(the reason\)"):
    runner.run_plan(ToyPlan(tmp_path, {"one": save_on_signal, "two": fail}), jobs=2)
  assert started_file.with_suffix(".saved").exists()
  assert not (tmp_path / "toy" / runner.RESULTS_FILE).exists()
