"""Progress: a bar if stderr is a terminal, otherwise plain lines."""

from __future__ import annotations

import re
import sys
import time

import pytest

from albert.io import progress as progress_module
from albert.io.progress import Progress, elapsed_time


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
    now += 9
    progress.update(1000)  # after two minutes there are fewer lines
    now += 1
    progress.update(1000)
  assert capsys.readouterr().err.splitlines() == [
    "writing: 25%, 1.00k of 4.00k examples in 00:20 (50 examples/s), 01:00 left",
    "writing: 50%, 2.00k of 4.00k examples in 02:00 (16.67 examples/s), 02:00 left",
    "writing: 100%, 4.00k of 4.00k examples in 02:10 (30.77 examples/s)",
    "writing: 100%, 4.00k of 4.00k examples in 02:10 (30.77 examples/s)",
  ]


def test_progress_of_nothing_is_100_percent(capsys: pytest.CaptureFixture[str]) -> None:
  with Progress(0, "B", "reading"):
    pass
  assert capsys.readouterr().err.startswith("reading: 100%, 0 of 0B")


def test_elapsed_time_is_shown_until_the_computation_ends(
  capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(progress_module, "_FIRST_INTERVAL", 0.01)
  with elapsed_time("training"):
    time.sleep(0.2)
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) > 1
  assert set(lines) == {"training: 00:00"}
  time.sleep(0.05)
  assert not capsys.readouterr().err


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
  with Progress(10, "B", "reading") as progress:
    progress.update(10)
  assert re.search(r"reading: 100%\|.*10\.0/10\.0", capsys.readouterr().err)
