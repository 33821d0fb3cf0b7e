"""Comparison of what two runs of the same command left: bit by bit, except for times and host names."""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from albert.io import files

# What tells how fast a run was, or when.
_TIMES = ("examples_per_second", "seconds", "time")
# Logs are compared without their times, checkpoints by their tensors; pictures and events hold times.
_LOGS = {"metrics.jsonl", "eval_metrics.jsonl"}
_NOT_COMPARED = {"environment.json", "checkpoints", "tensorboard", "curves.png"}


def leftovers(directory: Path) -> list[str]:
  """Staging files and directories, and lock files, anywhere below `directory`."""
  found = (path for path in directory.rglob("*") if files.is_staging_name(path.name) or path.name.endswith(".lock"))
  return sorted(str(path.relative_to(directory)) for path in found)


@functools.lru_cache(maxsize=64)
def read_tensors(prefix: str, mtime_ns: int) -> dict[str, bytes]:
  import tensorflow as tf

  reader = tf.train.load_checkpoint(prefix)
  return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in reader.get_variable_to_shape_map()}


def tensors_of(run: Path) -> dict[str, dict[str, bytes]]:
  """Of each checkpoint of a run: the bytes of its tensors by name."""
  found = sorted((run / "checkpoints").glob("step-*"))
  return {path.name: read_tensors(str(path / "weights"), path.stat().st_mtime_ns) for path in found}


def log_lines(path: Path) -> list[dict[str, Any]]:
  """The lines of a log without times."""
  lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
  return [{name: value for name, value in line.items() if name not in _TIMES} for line in lines]


def difference_of_files(a: Path, b: Path) -> str | None:
  """None if the directories hold the same files with the same bytes, else one line."""
  if found := leftovers(a):
    return f"left over: {found}"
  names = [{path.relative_to(root) for path in root.rglob("*") if path.is_file()} for root in (a, b)]
  if names[0] != names[1]:
    return f"files of only one of them: {sorted(map(str, names[0] ^ names[1]))}"
  different = [str(name) for name in sorted(names[0]) if (a / name).read_bytes() != (b / name).read_bytes()]
  return f"files that differ: {different}" if different else None


def difference_of_runs(a: Path, b: Path, *, stopped_at: int = 0) -> str | None:
  """None if two runs of a run_*.py script left the same checkpoints, logs, results and predictions, else one line.

  Args:
    a, b: the directories of the runs.
    stopped_at: the step at which a signal stopped `a`, 0 if none did. `a` may have the checkpoint of this step, in
      addition to those of `b` or in place of the oldest of them. If the step lies between two lines of metrics.jsonl,
      the second line is not compared: it averages the steps after the stop alone.
  """
  if found := leftovers(a):
    return f"left over: {found}"
  return _difference_of_checkpoints(a, b, stopped_at) or _difference_of_results(a, b, stopped_at)


def last_step(run: Path) -> int:
  """The step of the newest checkpoint of a run, 0 if there is none."""
  return max((_step_of(path.name) for path in (run / "checkpoints").glob("step-*")), default=0)


def _step_of(name: str) -> int:
  return int(name.removeprefix("step-"))


def _difference_of_checkpoints(a: Path, b: Path, stopped_at: int) -> str | None:
  names = [sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (a, b)]
  steps = [{_step_of(name) for name in run if name.startswith("step-")} for run in names]
  others = [[name for name in run if not name.startswith("step-")] for run in names]
  with_stop = steps[1] | {stopped_at}
  if others[0] != others[1] or steps[0] not in (steps[1], with_stop, with_stop - {min(steps[1], default=0)}):
    return f"checkpoints {names[0]} instead of {names[1]}"
  states = [tensors_of(run) for run in (a, b)]
  for step, tensors in states[1].items():
    if step in states[0] and states[0][step] != tensors:
      different = [name for name in tensors if states[0][step].get(name) != tensors[name]]
      return f"{step}: tensors that differ: {different[:5]}"
  best = [run / "checkpoints" / "best.json" for run in (a, b)]
  if best[1].is_file() and best[0].read_bytes() != best[1].read_bytes():
    return "best.json differs"
  return None if states[1] else "no checkpoint"


def _difference_of_results(a: Path, b: Path, stopped_at: int) -> str | None:
  names = [{path.name for path in run.iterdir()} for run in (a, b)]
  if names[0] != names[1]:
    return f"files of only one of them: {sorted(names[0] ^ names[1])}"
  for name in sorted(names[0] - _NOT_COMPARED):
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
  """Without the line that averages the steps around `step`, unless a line ends there."""
  later = [line["step"] for line in lines if line["step"] >= step]
  return [line for line in lines if not step or line["step"] != min(later, default=0) or line["step"] == step]


def _content(run: Path, name: str) -> bytes:
  """A file's bytes; paths in the run as from its directory on."""
  return (run / name).read_bytes().replace(str(run).encode(), b"RUN")


_LOADING = threading.Lock()


def answers(model: Path) -> dict[str, bytes]:
  """What an exported model for pairs of sentences answers to three requests."""
  import tensorflow as tf
  import tensorflow_text  # noqa: F401 - its operations

  with _LOADING:
    signature = tf.saved_model.load(str(model)).signatures["serving_default"]
    names = sorted(signature.structured_input_signature[1])
    texts = {name: tf.constant([f"the teacher sold {name}", "nobody", ""]) for name in names}
    return {name: value.numpy().tobytes() for name, value in signature(**texts).items()}
