"""Describes the devices of a run, and explains why TensorFlow cannot use a GPU that the machine has."""

from __future__ import annotations

import csv
import ctypes
import dataclasses
import glob
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.io.text import counted
from albert.weights.names import encoder_shapes, num_parameters

_GIB = 2**30
_INSTALL = "install TensorFlow with its CUDA libraries: make setup-gpu (docs/gpu.md)"
# Libraries that TensorFlow opens when it looks for GPUs, without their version.
_CUDA_LIBRARIES = ("libcudart", "libcublas", "libcudnn")
# The oldest driver of CUDA 12 on Linux (NVIDIA, CUDA Compatibility, minor version compatibility).
_OLDEST_DRIVER = (525, 60, 13)
_SECONDS_FOR_NVIDIA_SMI = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
  """A GPU that NVIDIA's driver reports.

  Attributes:
    name: its name, such as "NVIDIA A100-SXM4-40GB".
    memory_mib: its memory in MiB; 0 if it is not known.
  """

  name: str
  memory_mib: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class GpuFacts:
  """What the system says about its GPUs, independently of whether TensorFlow can use them.

  Attributes:
    gpus: the GPUs that the driver reports.
    driver_version: such as "550.54.15"; "" if it is not known.
    visible_devices: the environment variable CUDA_VISIBLE_DEVICES; None if it is not set.
    built_with_cuda: whether this TensorFlow can use GPUs at all.
    missing_libraries: the CUDA libraries that TensorFlow needs and that cannot be opened.
    has_device_files: whether this process may open /dev/nvidia*. A container without GPUs has none.
  """

  gpus: Sequence[Gpu] = ()
  driver_version: str = ""
  visible_devices: str | None = None
  built_with_cuda: bool = True
  missing_libraries: Sequence[str] = ()
  has_device_files: bool = True


def unused_gpu_warning(facts: GpuFacts) -> str | None:
  """Explains in one line why TensorFlow finds no GPU though the machine has one.

  Args:
    facts: what the system says. The function is called only if TensorFlow has found no GPU.

  Returns:
    The line, with the remedy; None if the machine has no GPU.
  """
  if not facts.gpus:
    return None
  return f"warning: {facts.gpus[0].name} is not used: {_reason_and_remedy(facts)}"


def _reason_and_remedy(facts: GpuFacts) -> str:
  visible = facts.visible_devices
  if visible is not None and (not visible.strip() or visible.strip().startswith("-1")):
    return f"CUDA_VISIBLE_DEVICES={visible!r} hides it: unset this variable to use the GPU"
  if not facts.built_with_cuda:
    return f"this TensorFlow was built without CUDA: {_INSTALL}"
  if facts.missing_libraries:
    return f"TensorFlow needs {', '.join(facts.missing_libraries)}, which cannot be opened: {_INSTALL}"
  driver_version = tuple(map(int, re.findall(r"\d+", facts.driver_version)))
  if driver_version and driver_version < _OLDEST_DRIVER:
    oldest = ".".join(map(str, _OLDEST_DRIVER))
    return f"its driver {facts.driver_version} is older than {oldest}, which CUDA 12 needs: install a newer driver"
  if not facts.has_device_files:
    return "this process cannot open /dev/nvidia*: give the container its GPUs (docker run --gpus all)"
  return "TensorFlow does not say why: run again with TF_CPP_MIN_LOG_LEVEL=0, which shows TensorFlow's messages"


def find_gpu_facts() -> GpuFacts:
  """Asks the system for its GPUs: nvidia-smi, or without it the files in /proc/driver/nvidia."""
  gpus, driver_version = _ask_nvidia_smi()
  if not gpus:
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
      with open(path, encoding="utf-8", errors="replace") as file:
        model = re.search(r"^Model:\s*(.+)$", file.read(), re.MULTILINE)
      gpus.append(Gpu(name=model[1] if model else "NVIDIA GPU"))
  if not gpus:
    return GpuFacts()
  device_files = glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dxg")  # in Windows' subsystem for Linux
  return GpuFacts(
    gpus=gpus,
    driver_version=driver_version,
    visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    built_with_cuda=tf.test.is_built_with_cuda(),
    missing_libraries=_missing_libraries(),
    has_device_files=any(os.access(path, os.R_OK | os.W_OK) for path in device_files),
  )


def _ask_nvidia_smi() -> tuple[list[Gpu], str]:
  """Returns the GPUs and the version of the driver; ([], "") if nvidia-smi is missing or fails."""
  query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
  try:
    answer = subprocess.run(query, capture_output=True, text=True, timeout=_SECONDS_FOR_NVIDIA_SMI, check=True)
  except (OSError, subprocess.SubprocessError):
    return [], ""
  rows = [row for row in csv.reader(answer.stdout.splitlines(), skipinitialspace=True) if len(row) == 3]
  gpus = [Gpu(name=name, memory_mib=int(memory) if memory.isdecimal() else 0) for name, memory, _ in rows]
  return gpus, rows[0][2] if rows else ""


def _missing_libraries() -> list[str]:
  """Returns the CUDA libraries that can be opened neither by name nor in the packages nvidia-* of this Python."""
  build = tf.sysconfig.get_build_info()
  cuda, cudnn = (str(build.get(key, "")).partition(".")[0] for key in ("cuda_version", "cudnn_version"))
  missing = []
  for library in _CUDA_LIBRARIES:
    name = f"{library}.so.{cudnn if library == 'libcudnn' else cuda}"
    if any(glob.glob(os.path.join(path, "nvidia", "*", "lib", name)) for path in sys.path):
      continue
    try:
      ctypes.CDLL(name)
    except OSError:
      missing.append(name)
  return missing


def describe_devices(strategy: tf.distribute.Strategy, precision: str, facts: GpuFacts) -> str:
  """Returns a line that names the devices of a run, their memory and the precision.

  Args:
    strategy: the strategy over the devices.
    precision: the compute dtype.
    facts: what the system says about its GPUs; only their memory is used.
  """
  replicas = strategy.num_replicas_in_sync
  if isinstance(strategy, tf.distribute.TPUStrategy):
    return f"device: TPU, {counted(replicas, 'core')}, {precision}"
  gpus = tf.config.list_physical_devices("GPU")
  if gpus:
    details = tf.config.experimental.get_device_details(gpus[0])
    name = details.get("device_name", "GPU")
    memory = next((gpu.memory_mib for gpu in facts.gpus if gpu.name in (name, f"NVIDIA {name}")), 0)
    size = f"{memory / 1024:.0f} GiB" if memory else "memory unknown"
    count = f"{replicas} x " if replicas > 1 else ""
    return f"device: {count}{name}, {size}{' each' if replicas > 1 and memory else ''}, {precision}"
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  return f"device: CPU, {counted(cores, 'core')}, {_memory_bytes() / _GIB:.0f} GiB, {precision}"


def check_memory(model: ModelConfig, strategy: tf.distribute.Strategy, *, trains: bool) -> None:
  """Checks that a machine without a GPU or TPU has enough memory for the weights, and for their moments if it trains.

  Activations are not counted, because their size depends on the batch.

  Raises:
    UserError: weights and moments take more than the machine's memory.
  """
  if isinstance(strategy, tf.distribute.TPUStrategy) or tf.config.list_logical_devices("GPU"):
    return
  parameters = num_parameters(encoder_shapes(model))
  needed_bytes = parameters * 4 * (3 if trains else 1)  # float32
  if needed_bytes > _memory_bytes():
    raise UserError(
      f"a model with hidden_size {model.hidden_size}, intermediate_size {model.intermediate_size} and vocab_size "
      f"{model.vocab_size} has {parameters:.3g} parameters, which take {needed_bytes / _GIB:,.0f} GiB"
      f"{' with the moments of the optimizer' if trains else ''}; this machine has {_memory_bytes() / _GIB:,.0f} GiB "
      "of memory: give a smaller model"
    )


def _memory_bytes() -> int:
  return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
