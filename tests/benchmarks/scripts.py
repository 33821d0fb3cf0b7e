"""Runs the scripts of benchmarks/ as a user does. The tests in this folder use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_DIRECTORY = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, *flags: str) -> subprocess.CompletedProcess[str]:
  """Runs `python benchmarks/SCRIPT FLAGS`. Any exit code is accepted."""
  return subprocess.run([sys.executable, str(_DIRECTORY / script), *flags], capture_output=True, text=True, check=False)
