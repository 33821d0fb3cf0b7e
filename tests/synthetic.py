"""Small data for tests: shards of numbered examples, their manifest, and a tiny model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albert.config.model import ModelConfig
from albert.data.manifest import Manifest, ShardInfo, file_sha256
from albert.io.records import RecordWriter, encode_batch
from albert.tokenization.vocabulary import CLS_ID, MASK_ID, PAD_ID, SEP_ID

SEQ_LENGTH = 16
NUM_PREDICTIONS = 3  # length of an example's masked_lm_positions, with padding
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
DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}

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
  the token before it. So a token can be masked from position 2 (the one before it is not [CLS]) up to the digits.
  """
  num_tokens = int(rng.integers(length - 4, length + 1))
  is_token = np.arange(length) < num_tokens
  ids = rng.integers(MASK_ID + 1, VOCAB_SIZE, length)  # no special tokens
  positions = np.sort(rng.choice(np.arange(2, num_tokens - 3), NUM_PREDICTIONS, replace=False))
  ids[0], ids[num_tokens - 1] = CLS_ID, SEP_ID
  ids[positions] = ids[positions - 1]
  ids[num_tokens - 3], ids[num_tokens - 2] = divmod(number, VOCAB_SIZE)
  labels = ids[positions].copy()
  ids[positions] = MASK_ID
  ids[num_tokens:] = PAD_ID
  num_predictions = NUM_PREDICTIONS - number % 2  # examples differ in their number of predictions
  weights = (np.arange(NUM_PREDICTIONS) < num_predictions).astype(np.float32)
  return {
    "input_ids": ids,
    "input_mask": is_token.astype(np.int64),
    "segment_ids": (is_token & (np.arange(length) >= length // 2)).astype(np.int64),
    "masked_lm_positions": np.where(weights > 0, positions, 0),
    "masked_lm_ids": np.where(weights > 0, labels, 0),
    "masked_lm_weights": weights,
    "next_sentence_labels": np.array([number % 2]),
  }


def example_numbers(input_ids: np.ndarray, input_mask: np.ndarray) -> list[int]:
  """Returns the numbers of the examples in a batch, which `example` encoded in their tokens."""
  numbers = []
  for row, mask in zip(input_ids, input_mask, strict=True):
    num_tokens = mask.sum()
    first_digit, second_digit = row[num_tokens - 3 : num_tokens - 1]
    numbers.append(int(first_digit) * VOCAB_SIZE + int(second_digit))
  return numbers


def encode_example(features: Mapping[str, np.ndarray]) -> bytes:
  """Serializes one tf.train.Example of arrays [L]."""
  return encode_batch({name: np.reshape(values, (1, -1)) for name, values in features.items()})[0]


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
  shards = [
    ShardInfo(Path(path).name, size, Path(path).stat().st_size, file_sha256(path))
    for path, size in zip(paths, sizes, strict=True)
  ]
  manifest = Manifest(
    kind="pretraining",
    settings={},
    vocab_sha256="0" * 64,
    vocab_size=VOCAB_SIZE,
    num_documents=1,
    num_tokens=1,
    shards=tuple(shards),
  )
  manifest = dataclasses.replace(manifest, **changes)
  manifest.save(str(directory))
  return manifest
