"""Converts weights to other formats and back, and counts the bytes that differ. None may differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from albert.convert.convert_checkpoint import convert
from albert.weights.files import open_weights
from tests.convert.files_of_weights import CONFIG, write_tf1
from tests.golden.make_tiny_albert import random_weights
from tests.parity.rows import Row


def round_trip_rows(directory: Path, checkpoint: str = "") -> Iterator[Row]:
  """Converts TF1 -> ours -> Hugging Face -> ours -> TF1, and compares the bytes at both ends.

  Without a checkpoint of the original code, it is one with random weights, two groups and two inner blocks.
  """
  description = "the original's checkpoint" if checkpoint else "random weights, 2 groups of 2 inner blocks"
  source = checkpoint or write_tf1(directory / "tf1", CONFIG, random_weights(CONFIG, 3))
  convert(source, str(directory / "ours"), "albert")
  convert(str(directory / "ours"), str(directory / "huggingface"), "huggingface")
  convert(str(directory / "huggingface"), str(directory / "ours_again"), "albert")
  convert(str(directory / "ours_again"), str(directory / "tf1_again"), "tf1")
  tf1_weights = _read_weights(source)
  # A tensor bundle holds the tensors in the order of their names, so whole data files can be compared.
  bundles = [directory / name / "step-0" / "weights.data-00000-of-00001" for name in ("ours", "ours_again")]
  bytes_before, bytes_after = (np.frombuffer(path.read_bytes(), np.uint8) for path in bundles)
  assert bytes_before.size == bytes_after.size
  quantity = f"TF1 -> ours -> Hugging Face -> ours, {description}: bytes that differ"
  yield Row(quantity, f"{bytes_before.size} bytes of ours", float(np.count_nonzero(bytes_before != bytes_after)), 0.0)
  tf1_weights_after = _read_weights(str(directory / "tf1_again" / "model.ckpt"))
  quantity = f"... -> TF1, {description}: bytes that differ"
  num_bytes = sum(value.nbytes for value in tf1_weights.values())
  num_different = _count_different_bytes(tf1_weights_after, tf1_weights)
  yield Row(quantity, f"{num_bytes} bytes of TF1", float(num_different), 0.0)


def _read_weights(path: str) -> dict[str, np.ndarray]:
  file = open_weights(path)
  return {name: file.read(name) for name in file.entries}


def _count_different_bytes(weights: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> int:
  assert weights.keys() == expected.keys()
  assert all(weights[name].shape == value.shape for name, value in expected.items())
  return sum(
    int(np.count_nonzero(weights[name].view(np.uint8) != value.view(np.uint8))) for name, value in expected.items()
  )
