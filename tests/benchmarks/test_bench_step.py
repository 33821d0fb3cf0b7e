"""The comparison of training steps prints its table. The speed is not tested."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.benchmarks import scripts


def _run(**flags: object) -> subprocess.CompletedProcess[str]:
  return scripts.run("bench_step.py", *(f"--{name}={value}" for name, value in flags.items()))


def _libraries() -> list[str]:
  import importlib.util

  peers = {"transformers": ("torch", "transformers"), "keras_hub": ("keras_hub",)}
  return [name for name, modules in peers.items() if all(map(importlib.util.find_spec, modules))]


@pytest.mark.slow
def test_the_short_form_runs(tmp_path: Path) -> None:
  libraries = ["albert", *_libraries()]
  result = _run(
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
  assert rows[0][5] == "1.00"


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ({"shapes": "8"}, "--shapes: '8' is not BATCHxLENGTH"),
    ({"libraries": "albert,jax"}, "--libraries: 'jax' is unknown, the libraries are albert, transformers, keras_hub"),
  ],
)
def test_bad_flags_are_one_line(flags: dict[str, str], message: str) -> None:
  result = _run(**flags)
  assert result.returncode == 2
  assert message in result.stderr
