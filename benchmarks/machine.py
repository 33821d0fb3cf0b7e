"""What a result says of the machine it was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> str:
  """Such as "2 cores, AMD EPYC"."""
  try:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next(line.partition(": ")[2] for line in text.splitlines() if line.startswith("model name"))
  except (OSError, StopIteration):  # not Linux
    model = platform.processor() or platform.machine()
  return f"{os.cpu_count()} cores, {model}"
