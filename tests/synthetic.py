"""Small data for tests: shards of numbered examples, their manifest, and a tiny model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albert.config.model import ModelConfig
from albert.data.manifest import Manifest, ShardInfo, file_sha256
from albert.io.records import RecordWriter, encode_example

SEQ_LENGTH = 16
PREDICTIONS = 3
VOCAB_SIZE = 61

TINY_MODEL = ModelConfig(
  vocab_size=VOCAB_SIZE,
  embedding_size=8,
  hidden_size=24,
  num_hidden_layers=2,
  num_attention_heads=3,
  intermediate_size=40,
  max_position_embeddings=32,
)

TINY_MODEL_FLAGS = [
  f"--{name}={value}"
  for name, value in TINY_MODEL.to_dict().items()
  if name
  in (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
  )
]


def example(number: int, rng: np.random.Generator, length: int = SEQ_LENGTH) -> dict[str, np.ndarray]:
  """Returns a pretraining example whose tokens encode its number, and whose masked tokens a model can learn.

  The last two tokens before the last [SEP] are the digits of its number in base VOCAB_SIZE. Each masked token equals
  the token before it.
  """
  real = int(rng.integers(length - 4, length + 1))
  ids = rng.integers(5, VOCAB_SIZE, length)
  positions = np.sort(rng.choice(np.arange(2, real - 3), PREDICTIONS, replace=False))
  ids[0], ids[real - 1] = 2, 3
  ids[positions] = ids[positions - 1]
  ids[real - 3], ids[real - 2] = divmod(number, VOCAB_SIZE)
  labels = ids[positions].copy()
  ids[positions] = 4
  ids[real:] = 0
  kept = PREDICTIONS - number % 2  # examples differ in their number of predictions
  weights = (np.arange(PREDICTIONS) < kept).astype(np.float32)
  return {
    "input_ids": ids,
    "input_mask": (np.arange(length) < real).astype(np.int64),
    "segment_ids": ((np.arange(length) >= length // 2) & (np.arange(length) < real)).astype(np.int64),
    "masked_lm_positions": np.where(weights > 0, positions, 0),
    "masked_lm_ids": np.where(weights > 0, labels, 0),
    "masked_lm_weights": weights,
    "next_sentence_labels": np.array([number % 2]),
  }


def example_numbers(input_ids: np.ndarray, input_mask: np.ndarray) -> list[int]:
  """Returns the numbers of the examples in a batch, which `example` encoded in their tokens."""
  ends = input_mask.sum(axis=1)
  return [int(row[end - 3]) * VOCAB_SIZE + int(row[end - 2]) for row, end in zip(input_ids, ends, strict=True)]


def write_shards(
  directory: Path, sizes: list[int], *, compress: bool = False, seed: int = 3, length: int = SEQ_LENGTH
) -> list[str]:
  """Writes shards with the given numbers of examples, which are numbered from 0 over all shards. Returns the paths."""
  directory.mkdir(parents=True, exist_ok=True)
  rng = np.random.default_rng(seed)
  number, paths = 0, []
  for index, size in enumerate(sizes):
    path = str(directory / f"part-{index:02d}.tfrecord")
    with RecordWriter(path, compress=compress) as writer:
      for _ in range(size):
        writer.write(encode_example(example(number, rng, length)))
        number += 1
    paths.append(path)
  return paths


def write_manifest(directory: Path, paths: Sequence[str], sizes: Sequence[int], **changes: Any) -> Manifest:
  """Writes a manifest beside shards with these numbers of examples. `changes` replaces some of its fields."""
  listed = zip(paths, sizes, strict=True)
  manifest = Manifest(
    kind="pretraining",
    settings={},
    vocab_sha256="0" * 64,
    vocab_size=VOCAB_SIZE,
    num_documents=1,
    num_tokens=1,
    shards=tuple(ShardInfo(Path(p).name, n, Path(p).stat().st_size, file_sha256(p)) for p, n in listed),
  )
  manifest = dataclasses.replace(manifest, **changes)
  manifest.save(str(directory))
  return manifest
