"""The benchmark of the example server prints its table. The seconds are not tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import scripts


@pytest.mark.serving
def test_the_table_has_a_row_for_each_number_of_clients(models: Path) -> None:
  result = scripts.run("bench_server.py", f"--model={models / 'cola'}", "--num_requests=12", "--clients=1,4")
  assert result.returncode == 0, result.stderr
  rows = re.findall(r"^\| ([^|]+) \| (\d+) \| ([\d.,]+) \|", result.stdout, re.MULTILINE)
  assert [row[:2] for row in rows] == [("calls in one process", "12"), ("1 client", "12"), ("4 clients", "12")]
