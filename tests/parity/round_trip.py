"""Comparisons of weights that are converted and converted back, which must keep every bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from albert.convert.convert_checkpoint import convert
from albert.weights.files import open_weights
from tests.convert.files_of_weights import CONFIG, write_tf1
from tests.golden.make_tiny_albert import random_weights
from tests.parity.rows import Row


def rows(directory: Path, checkpoint: str = "") -> Iterator[Row]:
  """Converts TF1 -> ours -> Hugging Face -> ours -> TF1, and compares the bytes at both ends.

  Args:
    directory: to write to.
    checkpoint: the original's, its config beside it; empty: one with random weights, groups and inner blocks.
  """
  what = "the original's checkpoint" if checkpoint else "random weights, 2 groups of 2 inner blocks"
  source = checkpoint or write_tf1(directory / "tf1", CONFIG, random_weights(CONFIG, 3))
  convert(source, str(directory / "ours"), "albert")
  convert(str(directory / "ours"), str(directory / "huggingface"), "huggingface")
  convert(str(directory / "huggingface"), str(directory / "ours_again"), "albert")
  convert(str(directory / "ours_again"), str(directory / "tf1_again"), "tf1")
  start = _arrays(source)
  # The order of bytes in a tensor bundle is that of the sorted names, so the data files must agree as they are.
  data = [directory / name / "step-0" / "weights.data-00000-of-00001" for name in ("ours", "ours_again")]
  first, second = (np.frombuffer(path.read_bytes(), np.uint8) for path in data)
  assert first.size == second.size
  ours = f"TF1 -> ours -> Hugging Face -> ours, {what}: bytes that differ"
  yield Row(ours, f"{first.size} bytes of ours", float(np.count_nonzero(first != second)), 0.0)
  again = _arrays(str(directory / "tf1_again" / "model.ckpt"))
  back = f"... -> TF1, {what}: bytes that differ"
  yield Row(back, f"{sum(v.nbytes for v in start.values())} bytes of TF1", float(_different_bytes(again, start)), 0.0)


def _arrays(path: str) -> dict[str, np.ndarray]:
  file = open_weights(path)
  return {name: file.read(name) for name in file.names}


def _different_bytes(found: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> int:
  assert found.keys() == truth.keys()
  assert all(found[name].shape == value.shape for name, value in truth.items())
  return sum(int(np.count_nonzero(found[n].view(np.uint8) != v.view(np.uint8))) for n, v in truth.items())
