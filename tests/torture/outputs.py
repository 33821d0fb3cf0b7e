"""Compares the files that two runs of the same command wrote: bit by bit, except for times and host names."""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from albert.io import files

# The fields of a log that depend on the speed or the time of a run.
_TIMES = ("examples_per_second", "seconds", "time")
_LOGS = {"metrics.jsonl", "eval_metrics.jsonl"}
# Not compared byte by byte: checkpoints have a comparison of their own, and the others hold times.
_NOT_COMPARED = {"environment.json", "checkpoints", "tensorboard", "curves.png"}


def leftovers(directory: Path) -> list[str]:
  """Lists staging files, staging directories and lock files anywhere below `directory`."""
  left = (path for path in directory.rglob("*") if files.is_staging_name(path.name) or path.name.endswith(".lock"))
  return sorted(str(path.relative_to(directory)) for path in left)


@functools.lru_cache(maxsize=64)
def read_tensors(prefix: str, mtime_ns: int) -> dict[str, bytes]:
  """Reads the tensors of a TensorFlow checkpoint by name. `mtime_ns` only renews the cache when the file changes."""
  import tensorflow as tf

  reader = tf.train.load_checkpoint(prefix)
  return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in reader.get_variable_to_shape_map()}


def tensors_of(run: Path) -> dict[str, dict[str, bytes]]:
  """Reads all checkpoints of a run: {"step-4": {tensor name: bytes}}."""
  checkpoints = sorted((run / "checkpoints").glob("step-*"))
  return {path.name: read_tensors(str(path / "weights"), path.stat().st_mtime_ns) for path in checkpoints}


def log_lines(path: Path) -> list[dict[str, Any]]:
  """Reads the lines of a log, without the fields that hold times."""
  lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  return [{name: value for name, value in line.items() if name not in _TIMES} for line in lines]


def difference_of_files(a: Path, b: Path) -> str | None:
  """Returns None if two directories hold the same files with the same bytes, else one line that says what differs."""
  if left := leftovers(a):
    return f"left over: {left}"
  names_a, names_b = _file_names(a), _file_names(b)
  if names_a != names_b:
    return f"files of only one of them: {sorted(map(str, names_a ^ names_b))}"
  different = [str(name) for name in sorted(names_a) if (a / name).read_bytes() != (b / name).read_bytes()]
  return f"files that differ: {different}" if different else None


def _file_names(directory: Path) -> set[Path]:
  return {path.relative_to(directory) for path in directory.rglob("*") if path.is_file()}


def difference_of_runs(a: Path, b: Path, *, stopped_at: int = 0) -> str | None:
  """Returns None if two runs have the same checkpoints, logs, results and predictions, else what differs in one line.

  Args:
    a, b: the output directories of a run_*.py script.
    stopped_at: the step at which a signal stopped run `a`, 0 if none did. Run `a` may then have a checkpoint of this
      step, in addition to those of `b` or in place of the oldest one. The line of metrics.jsonl that covers the stop is
      not compared, because it averages only the steps after the stop.
  """
  if left := leftovers(a):
    return f"left over: {left}"
  return _difference_of_checkpoints(a, b, stopped_at) or _difference_of_results(a, b, stopped_at)


def last_step(run: Path) -> int:
  """Returns the step of the newest checkpoint of a run, 0 if there is none."""
  return max((_step_of(path.name) for path in (run / "checkpoints").glob("step-*")), default=0)


def _step_of(name: str) -> int:
  return int(name.removeprefix("step-"))


def _difference_of_checkpoints(a: Path, b: Path, stopped_at: int) -> str | None:
  names_a, names_b = ({path.name for path in (run / "checkpoints").iterdir()} for run in (a, b))
  if not _has_expected_names(names_a, names_b, stopped_at):
    return f"checkpoints {sorted(names_a)} instead of {sorted(names_b)}"
  checkpoints_a, checkpoints_b = tensors_of(a), tensors_of(b)
  for step, tensors_b in checkpoints_b.items():
    tensors_a = checkpoints_a.get(step, tensors_b)
    if tensors_a != tensors_b:
      different = [name for name in tensors_b if tensors_a.get(name) != tensors_b[name]]
      return f"{step}: tensors that differ: {different[:5]}"
  best_a, best_b = (run / "checkpoints" / "best.json" for run in (a, b))
  if best_b.is_file() and best_a.read_bytes() != best_b.read_bytes():
    return "best.json differs"
  return None if checkpoints_b else "no checkpoint"


def _has_expected_names(names: set[str], expected: set[str], stopped_at: int) -> bool:
  """Compares the names of checkpoints; see `difference_of_runs` for the steps that a stopped run may have."""
  steps, expected_steps = ({_step_of(name) for name in group if _is_step(name)} for group in (names, expected))
  others, expected_others = ({name for name in group if not _is_step(name)} for group in (names, expected))
  with_stop = expected_steps | {stopped_at}
  without_oldest = with_stop - {min(expected_steps, default=0)}
  return others == expected_others and steps in (expected_steps, with_stop, without_oldest)


def _is_step(name: str) -> bool:
  return name.startswith("step-")


def _difference_of_results(a: Path, b: Path, stopped_at: int) -> str | None:
  names_a, names_b = ({path.name for path in run.iterdir()} for run in (a, b))
  if names_a != names_b:
    return f"files of only one of them: {sorted(names_a ^ names_b)}"
  for name in sorted(names_a - _NOT_COMPARED):
    if name in _LOGS:
      is_equal = _without_line_of(stopped_at, log_lines(a / name)) == _without_line_of(stopped_at, log_lines(b / name))
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
  ends = [line["step"] for line in lines if line["step"] >= step]
  end_of_dropped = min(ends, default=0)
  return [line for line in lines if line["step"] != end_of_dropped or line["step"] == step]


def _content(run: Path, name: str) -> bytes:
  """Reads a file of a run, and writes RUN for the run's directory, which the file may name."""
  return (run / name).read_bytes().replace(str(run).encode(), b"RUN")


_LOADING = threading.Lock()


def answers(model: Path) -> dict[str, bytes]:
  """Returns the outputs of an exported model for three requests of made-up texts, as bytes by name."""
  import tensorflow as tf
  import tensorflow_text  # noqa: F401 - its operations

  with _LOADING:
    signature = tf.saved_model.load(str(model)).signatures["serving_default"]
    names = sorted(signature.structured_input_signature[1])
    texts = {name: tf.constant([f"the teacher sold {name}", "nobody", ""]) for name in names}
    return {name: value.numpy().tobytes() for name, value in signature(**texts).items()}
