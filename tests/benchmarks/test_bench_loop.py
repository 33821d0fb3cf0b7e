"""The benchmark of the training loop prints its table. The speed is not tested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks import scripts
from tests.synthetic import write_shards

SCRIPT = "bench_loop.py"


@pytest.mark.slow
def test_the_table_has_traces_memory_and_time(tmp_path: Path) -> None:
  write_shards(tmp_path, [30, 20])
  flags = ["--model=albert_tiny", "--batch_size=2", "--steps=10", "--masking=static"]
  result = scripts.run(SCRIPT, f"--input_file={tmp_path}/*.tfrecord", *flags)
  assert result.returncode == 0, result.stderr
  cells = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", result.stdout, re.MULTILINE))
  assert cells["traces of the step"] == "1"
  assert len(cells["memory in MiB, every 1 steps"].split(", ")) == 9  # the first of ten steps is not measured
  assert float(cells["a step"].split()[0]) > 0


@pytest.mark.slow
def test_a_number_of_steps_that_is_no_multiple_of_ten_is_an_error_of_one_line() -> None:
  result = scripts.run(SCRIPT, "--input_file=none", "--steps=15")
  assert (result.returncode, result.stderr) == (2, "error: --steps=15: give a multiple of 10\n")
