"""Two replicas compute what one device computes on the same global batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.synthetic import write_shards

ROOT = Path(__file__).parents[2]


def test_two_devices_equal_one(tmp_path: Path):
  write_shards(tmp_path / "shards", [30, 20, 30])
  runs = {}
  for devices in (1, 2):
    output_dir = tmp_path / f"devices-{devices}"
    command = [sys.executable, "-m", "tests.integration.mirrored", str(tmp_path / "shards" / "*")]
    subprocess.run([*command, str(output_dir), str(devices)], cwd=ROOT, check=True, capture_output=True, timeout=300)
    runs[devices] = np.load(output_dir / "weights.npz")
  names = runs[1].files
  assert names == runs[2].files
  worst = max(float(np.abs(runs[1][name] - runs[2][name]).max()) for name in names)
  assert worst < 2e-5
