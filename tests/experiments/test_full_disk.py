"""A full disk ends experiments and leaderboards with one line and code 2, and the same command continues."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from albert import app, leaderboard
from albert.config.model import named_model
from albert.errors import RunError, UserError
from albert.experiments import __main__ as experiments
from albert.experiments import runner
from tests.experiments.plans import ToyPlan, read_rows
from tests.script_flags import defined_flags, parsed_flags
from tests.tasks.race.folders import write_made_up_race

_NO_SPACE = os.strerror(errno.ENOSPC)
_REMEDY = "is full: make space there. Everything finished is kept, and the same command continues"


def run_plan(plan: ToyPlan) -> None:
  with runner.refuse_full_disk(plan.inputs.output_dir):
    runner.run_plan(plan)


@pytest.mark.parametrize("code", [1, 2])
def test_a_command_reports_a_full_disk(tmp_path: Path, code: int) -> None:
  script = f"print('error: run/model: cannot write it ({_NO_SPACE})'); raise SystemExit({code})"
  plan = ToyPlan(tmp_path, {"two": script})
  with pytest.raises(UserError, match=rf"^two, seed 12345: .* ended with code {code} \(.*No space left") as caught:
    run_plan(plan)
  assert "\n" not in str(caught.value)
  assert (_REMEDY in str(caught.value)) == (code == 1)  # code 2 is the command's own answer to bad input
  assert [row["variant"] for row in read_rows(plan)] == ["one"]
  run_plan(ToyPlan(tmp_path))
  assert len(read_rows(plan)) == 4


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_results_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
  """The second row. Its command is not run again."""
  rename = os.replace
  num_rows = 0

  def fail_at_the_second(source: str, target: str) -> None:
    nonlocal num_rows
    num_rows += os.path.basename(target) == runner.RESULTS_FILE
    if num_rows == 2:
      raise OSError(number, os.strerror(number), source, None, target)
    rename(source, target)

  plan = ToyPlan(tmp_path)
  with monkeypatch.context() as patch:
    patch.setattr(os, "replace", fail_at_the_second)
    with pytest.raises(UserError, match=rf"results\.jsonl.*\({os.strerror(number)}\).*{_REMEDY}"):
      run_plan(plan)
  assert [row["variant"] for row in read_rows(plan)] == ["one"]
  run_plan(plan)
  assert len(read_rows(plan)) == 4
  assert (Path(plan.directory) / "log.txt").read_text().count("$ ") == 4


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
  for error in (RunError("the loss is not finite"), OSError(errno.EIO, os.strerror(errno.EIO))):
    with pytest.raises(type(error)) as caught, runner.refuse_full_disk(str(tmp_path)):
      raise error
    assert caught.value is error


def test_the_error_of_a_command_has_no_space_for_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Its output is on the full disk, too, so it is empty."""
  monkeypatch.setattr(os, "statvfs", mock.Mock(return_value=mock.Mock(f_bavail=15, f_frsize=4096)))
  plan = ToyPlan(tmp_path, {"one": "raise SystemExit(1)"})
  with pytest.raises(UserError, match=rf"ended with code 1 \(no output\); .*the disk of {tmp_path} {_REMEDY}"):
    run_plan(plan)


def test_both_commands_name_the_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(runner, "run_plan", mock.Mock(side_effect=OSError(errno.ENOSPC, _NO_SPACE)))
  weights = mock.Mock(**{"require_config.return_value": named_model("albert_base")})
  monkeypatch.setattr(leaderboard, "find_weights", lambda path: weights)
  race = write_made_up_race(tmp_path, num_passages=1)
  for command, words in (
    (experiments, ["--run=masking", "--scale=smoke"]),
    (leaderboard, ["--init_checkpoint=weights", f"--race_dir={race}", "--gflops=10"]),
  ):
    with defined_flags(command.define_flags), parsed_flags(*words, f"--output_dir={tmp_path}"):
      with pytest.raises(UserError, match=f"{_NO_SPACE}; the disk of {tmp_path} {_REMEDY}") as caught:
        command.main()
      assert app._exit_code_and_line(caught.value) == (2, f"error: {caught.value}")
