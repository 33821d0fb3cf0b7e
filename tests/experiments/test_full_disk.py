"""A full disk ends experiments with one line and code 1, and the same command continues."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from albert.errors import RunError
from albert.experiments import runner
from tests.experiments.plans import ToyPlan, read_rows

_NO_SPACE = os.strerror(errno.ENOSPC)


def test_a_command_reports_a_full_disk(tmp_path: Path) -> None:
  script = f"print('error: run/model: cannot write it ({_NO_SPACE})'); raise SystemExit(1)"
  plan = ToyPlan(tmp_path, {"two": script})
  with pytest.raises(RunError, match=rf"^two, seed 12345: .* ended with code 1 \(.*{_NO_SPACE}"):
    runner.run_plan(plan)
  assert [row["variant"] for row in read_rows(plan)] == ["one"]
  runner.run_plan(ToyPlan(tmp_path))
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
    with pytest.raises(RunError, match=rf"results\.jsonl.*\({os.strerror(number)}\)"):
      runner.run_plan(plan)
  assert [row["variant"] for row in read_rows(plan)] == ["one"]
  runner.run_plan(plan)
  assert len(read_rows(plan)) == 4
  assert (Path(plan.directory) / "log.txt").read_text().count("$ ") == 4


def test_the_error_of_a_command_has_no_space_for_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Its output is on the full disk, too, so it is empty."""
  monkeypatch.setattr(os, "statvfs", mock.Mock(return_value=mock.Mock(f_bavail=15, f_frsize=4096)))
  plan = ToyPlan(tmp_path, {"one": "raise SystemExit(1)"})
  message = rf"ended with code 1 \(no output; the disk of {plan.directory} is full: make space"
  with pytest.raises(RunError, match=message):
    runner.run_plan(plan)
