"""What a result says of the machine it was measured on."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

# What importing albert sets, for the kernels of oneDNN.
KERNELS = "TF_ENABLE_ONEDNN_OPTS"
# Memory of a process: now, and at most so far.
NOW, PEAK = "VmRSS", "VmHWM"


def describe() -> str:
  """Such as "2 cores, AMD EPYC"."""
  try:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next(line.partition(": ")[2] for line in text.splitlines() if line.startswith("model name"))
  except (OSError, StopIteration):  # not Linux
    model = platform.processor() or platform.machine()
  return f"{os.cpu_count()} cores, {model}"


def memory(kind: str = PEAK) -> float:
  """MiB of this process. On Linux getrusage's peak is also that of the process that started this one."""
  try:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{kind}:")[2].split()[0]) / 1024
  except OSError:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # the peak, in bytes, on macOS
