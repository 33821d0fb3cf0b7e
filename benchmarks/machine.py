"""Describes the machine of a measurement, and measures the memory of the process."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

# The environment variable that selects TensorFlow's kernels of oneDNN. Importing albert sets it.
ONEDNN_VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
# Lines of /proc/self/status: the resident memory at present, and the peak of the resident memory.
PRESENT_MEMORY, PEAK_MEMORY = "VmRSS", "VmHWM"


def describe() -> str:
  """Returns a description of the machine, such as "2 cores, AMD EPYC"."""
  try:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    model = next(line.partition(": ")[2] for line in text.splitlines() if line.startswith("model name"))
  except (OSError, StopIteration):  # not Linux
    model = platform.processor() or platform.machine()
  return f"{os.cpu_count()} cores, {model}"


def memory(kind: str = PEAK_MEMORY) -> float:
  """Returns the memory of this process in MiB.

  On Linux it is read from /proc, since the peak that getrusage reports may be that of the parent process.

  Args:
    kind: PRESENT_MEMORY or PEAK_MEMORY.
  """
  try:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{kind}:")[2].split()[0]) / 1024
  except OSError:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # on macOS: always the peak, in bytes
