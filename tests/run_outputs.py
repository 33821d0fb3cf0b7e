"""Reads the files that a run leaves in its output directory. Tests of tasks, of training and of scripts use it."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read_json(path: Path) -> dict[str, Any]:
  content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
  return content


def read_json_lines(path: Path) -> list[dict[str, Any]]:
  """Reads a file with a JSON object on each line, such as metrics.jsonl."""
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_tsv(path: Path) -> list[dict[str, str]]:
  """Reads a TSV file with a header. Returns column -> text for each row."""
  with path.open(encoding="utf-8") as file:
    return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def checkpoint_steps(output_dir: Path) -> list[int]:
  """Returns the steps of a run's checkpoints, in ascending order."""
  return sorted(int(path.name.removeprefix("step-")) for path in (output_dir / "checkpoints").glob("step-*"))


def read_checkpoint(output_dir: Path, step: int | None = None) -> dict[str, np.ndarray]:
  """Reads all tensors (weights, optimizer state and step) of a run's checkpoint, by default of the newest one."""
  import tensorflow as tf

  if step is None:
    step = checkpoint_steps(output_dir)[-1]
  reader = tf.train.load_checkpoint(str(output_dir / "checkpoints" / f"step-{step}" / "weights"))
  return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_equal_bits(actual: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
  """Checks that both hold the same names, and for each name an array of the same type, shape and bits."""
  assert actual.keys() == expected.keys()
  for name, tensor in expected.items():
    assert (actual[name].dtype, actual[name].shape) == (tensor.dtype, tensor.shape), name
    assert actual[name].tobytes() == tensor.tobytes(), name
