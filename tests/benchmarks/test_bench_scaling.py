"""bench_scaling.py writes its table and its figure. The speed is not tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import scripts

SCRIPT = "bench_scaling.py"


@pytest.mark.slow  # each of the six points is a process
def test_the_table_has_a_row_for_each_point(tmp_path: Path) -> None:
  size_flags = ["--lengths=16,32", "--batches=1,2", "--depths=1", "--tokens=64", "--predictions=3"]
  result = scripts.run(SCRIPT, "--model=albert_tiny", *size_flags, "--rounds=1", f"--output_dir={tmp_path}")
  assert result.returncode == 0, result.stderr
  (table,) = tmp_path.glob("scaling_*.md")
  assert table.read_text() == result.stdout
  rows = [line.split(" | ") for line in result.stdout.splitlines() if " x " in line and line.startswith("| ")]
  # The varied quantity, batch x length, and whether activations are stored or recomputed. The first row is the header.
  points = [(row[0], row[1], row[3]) for row in rows[1:]]
  assert points == [
    ("| length", "4 x 16", "stored"),
    ("| length", "2 x 32", "stored"),
    ("| batch", "1 x 128", "stored"),
    ("| batch", "2 x 128", "stored"),
    ("| depth", "1 x 128", "stored"),
    ("| depth", "1 x 128", "recomputed"),
  ]
  assert table.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_bad_number_is_an_error_of_one_line() -> None:
  result = scripts.run(SCRIPT, "--depths=3,six")
  assert (result.returncode, result.stderr) == (2, "error: --depths=3,six: give whole numbers separated by commas\n")
