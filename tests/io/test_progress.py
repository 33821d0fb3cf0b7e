"""Progress: a bar if stderr is a terminal, otherwise plain lines."""

from __future__ import annotations

import re
import sys
import time

import pytest

import albert
from albert.errors import UserError, python_messages
from albert.io import progress as progress_module
from albert.io.progress import Progress, elapsed_time, log


def test_plain_lines_show_percentage_rate_and_time_left(
  capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  now = 100.0
  monkeypatch.setattr("time.monotonic", lambda: now)
  with Progress(4000, " examples", "writing") as progress:
    now += 3
    progress.update(100)  # too early for a line
    now += 17
    progress.update(900)
    now += 100
    progress.update(1000)
    now += 480
    progress.update(500)
    now += 19
    progress.update(1000)  # after ten minutes there is a line every 20 seconds at most
    now += 1
    progress.note = "loss 0.5"
    progress.update(500)
  assert capsys.readouterr().err.splitlines() == [
    "writing: 25%, 1000 of 4000 examples in 00:20 (50 examples/s), 01:00 left",
    "writing: 50%, 2000 of 4000 examples in 02:00 (16.67 examples/s), 02:00 left",
    "writing: 62%, 2500 of 4000 examples in 10:00 (4.167 examples/s), 06:00 left",
    "writing: 100%, 4000 of 4000 examples in 10:20 (6.452 examples/s), loss 0.5",
  ]


def test_the_time_left_follows_costs_and_pauses(
  capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  now = 100.0
  monkeypatch.setattr("time.monotonic", lambda: now)
  progress = Progress(50, " steps", "training", done=10)
  progress.cost, progress.pause_every = lambda step: step + 3 * max(0, step - 30), 20
  now += 10
  progress.update(10)
  with progress.pause():
    now += 40
  now += 10
  progress.update(10)
  assert capsys.readouterr().err.splitlines() == [
    "training: 40%, 20 of 50 steps in 00:10 (1 steps/s), 01:30 left",
    "training: 60%, 30 of 50 steps in 01:00 (1 steps/s), 02:40 left",  # with evaluations after 40 and 50 steps
  ]


def test_the_final_state_is_shown_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
  now = 100.0
  monkeypatch.setattr("time.monotonic", lambda: now)
  with Progress(40, " texts", "embedding") as progress:
    now += 10
    progress.update(40)
  assert capsys.readouterr().err == "embedding: 100%, 40 of 40 texts in 00:10 (4 texts/s)\n"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_short_computation_shows_nothing(
  is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
  with Progress(0, "B", "reading") as progress:
    progress.update(0)
  assert not capsys.readouterr().err


@pytest.mark.parametrize(
  ("verbosity", "shown"),
  [
    ("quiet", ["warning: w"]),
    ("normal", ["a line", "warning: w", "reading: 100%, 3 of 3B in 00:10 (0.3B/s)"]),
    ("verbose", ["a line", "a detail", "warning: w", "reading: 100%, 3 of 3B in 00:10 (0.3B/s)"]),
  ],
)
def test_the_verbosity_chooses_the_lines(
  verbosity: str, shown: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  before = albert.set_verbosity(verbosity)
  try:
    log("a line")
    log("a detail", is_detail=True)
    log("warning: w")
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress(3, "B", "reading")
    now = 10.0
    progress.update(3)
  finally:
    albert.set_verbosity(before)
  assert capsys.readouterr().err.splitlines() == shown


def test_lines_and_errors_name_arguments_in_python(capsys: pytest.CaptureFixture[str]) -> None:
  with python_messages({}):
    log("warning: give --scale=false in a new --output_dir")
  with pytest.raises(UserError, match=r"^model=x: leave the argument out$"), python_messages({"config_file": "model"}):
    raise UserError("--config_file=x: leave the flag out")
  log("give --scale=false")
  expected = ["warning: give scale=False in a new output_dir", "give --scale=false"]
  assert capsys.readouterr().err.splitlines() == expected


def test_an_unknown_verbosity_is_refused() -> None:
  with pytest.raises(UserError, match="verbosity is 'loud': give 'quiet', 'normal' or 'verbose'"):
    albert.set_verbosity("loud")


def test_elapsed_time_is_shown_until_the_computation_ends(
  capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(progress_module, "_FIRST_INTERVAL", 0.01)
  with elapsed_time("training"):
    time.sleep(0.2)
  lines = capsys.readouterr().err.splitlines()
  assert 1 < len(lines) < 7  # after 0.01, 0.02, 0.04 seconds and so on
  assert set(lines) == {"training: 00:00"}
  time.sleep(0.05)
  assert not capsys.readouterr().err


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  monkeypatch.setattr(progress_module, "_SECONDS_BEFORE_BAR", 0.0)
  with Progress(10, "B", "reading") as progress:
    progress.update(10)
  assert re.search(r"reading: 100%\|.*10/10", capsys.readouterr().err)
