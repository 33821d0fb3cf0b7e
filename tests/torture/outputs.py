"""Compares the files that two runs of the same command wrote: bit by bit, except for times and host names.

Used by the parts that stop commands: "kills", "processes", "signals", "disks" and "damage".
"""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from albert.io import local_files

# The fields of a log that depend on the speed or the time of a run.
_TIME_FIELDS = ("examples_per_second", "seconds", "time")
_LOGS = {"metrics.jsonl", "eval_metrics.jsonl"}
# Not compared byte by byte: checkpoints, which are compared tensor by tensor, and files that hold times.
_NOT_COMPARED = {"environment.json", "checkpoints", "tensorboard", "curves.png"}


def leftovers(directory: Path) -> list[str]:
  """Lists staging files, staging directories and lock files anywhere below `directory`."""
  matches = local_files.STAGING_NAME.match
  paths = (path for path in directory.rglob("*") if matches(path.name) or path.name.endswith(".lock"))
  return sorted(str(path.relative_to(directory)) for path in paths)


@functools.lru_cache(maxsize=64)
def read_tensors(prefix: str, mtime_ns: int) -> dict[str, bytes]:
  """Reads the tensors of a TensorFlow checkpoint by name. `mtime_ns` is part of the cache's key."""
  import tensorflow as tf

  reader = tf.train.load_checkpoint(prefix)
  return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in reader.get_variable_to_shape_map()}


def tensors_of(run: Path) -> dict[str, dict[str, bytes]]:
  """Reads all checkpoints of a run: {"step-4": {tensor name: bytes}}."""
  checkpoints = sorted((run / "checkpoints").glob("step-*"))
  return {path.name: read_tensors(str(path / "weights"), path.stat().st_mtime_ns) for path in checkpoints}


def read_log_lines(path: Path) -> list[dict[str, Any]]:
  """Reads the lines of a log, without the fields that hold times."""
  lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  return [{name: value for name, value in line.items() if name not in _TIME_FIELDS} for line in lines]


def difference_of_files(a: Path, b: Path) -> str | None:
  """Returns None if two directories hold the same files with the same bytes, else one line that says what differs."""
  if leftover_names := leftovers(a):
    return f"left over: {leftover_names}"
  names_a, names_b = _file_names(a), _file_names(b)
  if names_a != names_b:
    return f"files of only one of them: {sorted(map(str, names_a ^ names_b))}"
  different = [str(name) for name in sorted(names_a) if (a / name).read_bytes() != (b / name).read_bytes()]
  return f"files that differ: {different}" if different else None


def _file_names(directory: Path) -> set[Path]:
  return {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}


def difference_of_runs(a: Path, b: Path, *, stopped_at: int = 0) -> str | None:
  """Returns None if two runs have the same checkpoints, logs, results and predictions, else one line: what differs."""
  if leftover_names := leftovers(a):
    return f"left over: {leftover_names}"
  return _difference_of_checkpoints(a, b, stopped_at) or _difference_of_results(a, b, stopped_at)


def last_step(run: Path) -> int:
  """Returns the step of the newest checkpoint of a run, 0 if there is none."""
  return max((_step_of(path.name) for path in (run / "checkpoints").glob("step-*")), default=0)


def _step_of(name: str) -> int:
  return int(name.removeprefix("step-"))


def _difference_of_checkpoints(a: Path, b: Path, stopped_at: int) -> str | None:
  names_a = {path.name for path in (a / "checkpoints").iterdir()}
  names_b = {path.name for path in (b / "checkpoints").iterdir()}
  if not _has_expected_names(names_a, names_b, stopped_at):
    return f"checkpoints {sorted(names_a)} instead of {sorted(names_b)}"
  checkpoints_a, checkpoints_b = tensors_of(a), tensors_of(b)
  for step, tensors_b in checkpoints_b.items():
    tensors_a = checkpoints_a.get(step, tensors_b)  # a stopped run may lack the oldest checkpoint
    if tensors_a != tensors_b:
      different = [name for name in tensors_b if tensors_a.get(name) != tensors_b[name]]
      return f"{step}: tensors that differ: {different[:5]}"
  best_a, best_b = a / "checkpoints" / "best.json", b / "checkpoints" / "best.json"
  if best_b.is_file() and best_a.read_bytes() != best_b.read_bytes():
    return "best.json differs"
  return None if checkpoints_b else "no checkpoint"


def _has_expected_names(names: set[str], expected: set[str], stopped_at: int) -> bool:
  """Compares the names of checkpoints; see `difference_of_runs` for the steps that a stopped run may have."""
  steps, other_names = _split_names(names)
  expected_steps, expected_other_names = _split_names(expected)
  with_stop = expected_steps | {stopped_at}
  without_oldest = with_stop - {min(expected_steps, default=0)}
  return other_names == expected_other_names and steps in (expected_steps, with_stop, without_oldest)


def _split_names(names: set[str]) -> tuple[set[int], set[str]]:
  checkpoint_names = {name for name in names if name.startswith("step-")}
  return {_step_of(name) for name in checkpoint_names}, names - checkpoint_names


def _difference_of_results(a: Path, b: Path, stopped_at: int) -> str | None:
  names_a, names_b = {path.name for path in a.iterdir()}, {path.name for path in b.iterdir()}
  if names_a != names_b:
    return f"files of only one of them: {sorted(names_a ^ names_b)}"
  for name in sorted(names_a - _NOT_COMPARED):
    if name in _LOGS:
      lines_a, lines_b = read_log_lines(a / name), read_log_lines(b / name)
      is_equal = _without_line_of(stopped_at, lines_a) == _without_line_of(stopped_at, lines_b)
    elif (a / name).is_dir():
      is_equal = difference_of_files(a / name, b / name) is None
    else:
      is_equal = _content(a, name) == _content(b, name)
    if not is_equal:
      return f"{name} differs"
  return None


def _without_line_of(step: int, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """Drops the line that averages the steps before and after `step`. A line that ends exactly at `step` is kept."""
  if not step:
    return lines
  later_steps = [line["step"] for line in lines if line["step"] >= step]
  covering_step = min(later_steps, default=0)  # the line of this step averages the steps up to it
  if covering_step == step:
    return lines
  return [line for line in lines if line["step"] != covering_step]


def _content(run: Path, name: str) -> bytes:
  """Reads a file of a run. The path of the run, which the file may contain, is replaced by RUN."""
  return (run / name).read_bytes().replace(str(run).encode(), b"RUN")


_loading_lock = threading.Lock()


def answers(model: Path) -> dict[str, bytes]:
  """Returns the outputs of an exported model for three requests with made-up texts: {name of the output: bytes}."""
  import tensorflow as tf
  import tensorflow_text  # noqa: F401 - registers operations of the model

  with _loading_lock:
    signature = tf.saved_model.load(str(model)).signatures["serving_default"]
    names = sorted(signature.structured_input_signature[1])
    texts = {name: tf.constant([f"the teacher sold {name}", "nobody", ""]) for name in names}
    return {name: value.numpy().tobytes() for name, value in signature(**texts).items()}


def difference_of_models(a: Path, b: Path) -> str | None:
  """Compares the versions of an exported model in `a` with the one in `b`. Returns None if all give its answers."""
  if leftover_names := leftovers(a):
    return f"left over: {leftover_names}"
  expected = answers(next(b.glob("*/*")))
  versions = list(a.glob("*/*"))
  different = [str(version) for version in versions if answers(version) != expected]
  return f"other answers: {different}" if different or not versions else None
