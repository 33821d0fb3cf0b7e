"""The benchmark of the start of commands prints its table. The seconds are not tested."""

from __future__ import annotations

import re

import pytest

from tests.benchmarks import scripts


@pytest.mark.slow
def test_the_table_has_a_row_for_each_command() -> None:
  result = scripts.run("bench_startup.py", "--rounds=1", "--only=wrong value,albert.predict")
  assert result.returncode == 0, result.stderr
  rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+) \| ([\d.]+) \([\d. to]+\) \|$", result.stdout, re.MULTILINE)
  # The command, what it is timed until, and the target in seconds. The fourth column is the measured time.
  assert [row[:3] for row in rows] == [
    ("albert.predict", "first answer", "4"),
    ("run_pretraining.py, wrong value", "refusal", "0.7"),
    ("albert.predict, model", "refusal", "0.7"),
  ]
  assert all(float(row[3]) > 0 for row in rows)
