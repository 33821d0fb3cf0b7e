"""The comparison of training steps prints its table. The speed is not tested."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from tests.benchmarks import scripts


def _run_benchmark(**flags: object) -> subprocess.CompletedProcess[str]:
  return scripts.run("bench_step.py", *(f"--{name}={value}" for name, value in flags.items()))


def _installed_libraries() -> list[str]:
  """Those of the libraries in the comparison that are installed."""
  modules = {"transformers": ("torch", "transformers"), "keras_hub": ("keras_hub",)}
  return [name for name in modules if all(map(importlib.util.find_spec, modules[name]))]


@pytest.mark.slow
def test_the_table_has_a_row_for_each_installed_library(tmp_path: Path) -> None:
  libraries = ["albert", *_installed_libraries()]
  result = _run_benchmark(
    libraries=",".join(libraries),
    model="albert_tiny",
    shapes="2x16",
    predictions=3,
    precisions="float32",
    steps=1,
    rounds=2,
    output=tmp_path / "step.md",
  )
  assert result.returncode == 0, result.stderr
  text = (tmp_path / "step.md").read_text()
  assert text == result.stdout
  rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| 2x16 | float32 | ")]
  assert [row[2] for row in rows] == libraries
  assert all(float(row[3]) > 0 for row in rows)
  assert rows[0][5] == "1.00"  # the time of this project divided by itself


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"shapes": "8"}, "--shapes: '8' is not BATCHxLENGTH"),
    ({"libraries": "albert,jax"}, "--libraries: 'jax' is unknown, the libraries are albert, transformers, keras_hub"),
  ],
)
def test_a_bad_flag_is_an_error_that_names_it(flags: dict[str, str], message: str) -> None:
  result = _run_benchmark(**flags)
  assert result.returncode == 2
  assert message in result.stderr
