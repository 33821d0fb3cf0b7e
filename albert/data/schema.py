"""The features of a pretraining record: names, lengths, types and ranges, for the writer and the reader of shards.

The checks of records name the file, the record and the feature that are wrong.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert.config.command_flags import INT32_MAX
from albert.errors import UserError
from albert.io import records
from albert.io.text import counted

# The names are those of the original ALBERT scripts, so shards written by these scripts can be read too.
INPUT_IDS = "input_ids"
INPUT_MASK = "input_mask"
SEGMENT_IDS = "segment_ids"
MASKED_LM_POSITIONS = "masked_lm_positions"
MASKED_LM_IDS = "masked_lm_ids"
MASKED_LM_WEIGHTS = "masked_lm_weights"
NEXT_SENTENCE_LABELS = "next_sentence_labels"


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
  """One feature of a record, with a fixed number of values.

  Attributes:
    name: key of the feature in the record.
    length: number of values.
    dtype: "int64" or "float32".
    limit: upper bound (exclusive) of int64 values, which are never negative; 0 if the bound is not known. float32
      values are weights between 0 and 1.
  """

  name: str
  length: int
  dtype: str
  limit: int = 0

  @property
  def bounds(self) -> tuple[int, int]:
    """The smallest and the largest allowed value."""
    if self.dtype == "float32":
      return 0, 1
    return 0, (self.limit or INT32_MAX) - 1


def pretraining_features(
  max_seq_length: int, max_predictions_per_seq: int, vocab_size: int = 0, type_vocab_size: int = 0
) -> tuple[FeatureSpec, ...]:
  """Returns the features of a pretraining record.

  With S = max_seq_length and P = max_predictions_per_seq, these are
  input_ids, input_mask and segment_ids, int64 [S];
  masked_lm_positions and masked_lm_ids, int64 [P];
  masked_lm_weights, float32 [P]: 1 for a prediction, 0 for padding;
  next_sentence_labels, int64 [1]: 1 if the segments are swapped (SOP) or the second one is random (NSP), else 0.

  Args:
    max_seq_length: S.
    max_predictions_per_seq: P.
    vocab_size: number of pieces of the vocabulary, the limit of ids; 0 if it is not known.
    type_vocab_size: number of segment types of the model, the limit of segment_ids; 0 if it is not known.
  """
  sequence, predictions = max_seq_length, max_predictions_per_seq
  return (
    FeatureSpec(INPUT_IDS, sequence, "int64", vocab_size),
    FeatureSpec(INPUT_MASK, sequence, "int64", 2),
    FeatureSpec(SEGMENT_IDS, sequence, "int64", type_vocab_size),
    FeatureSpec(MASKED_LM_POSITIONS, predictions, "int64", sequence),
    FeatureSpec(MASKED_LM_IDS, predictions, "int64", vocab_size),
    FeatureSpec(MASKED_LM_WEIGHTS, predictions, "float32"),
    FeatureSpec(NEXT_SENTENCE_LABELS, 1, "int64", 2),
  )


def explain_failure(paths: Sequence[str], features: Sequence[FeatureSpec]) -> None:
  """Reads all shards again, and raises an error for the first invalid record. Returns if all records are valid.

  Args:
    paths: the shards.
    features: the features that their records should have.

  Raises:
    UserError: a record is truncated, damaged, or has other features. The message names the file and the record.
  """
  for path in paths:
    for number, record in enumerate(records.read_records(path)):
      check_record(path, number, record, features)


def read_first_records(path: str, count: int) -> Iterator[dict[str, np.ndarray]]:
  """Yields the features of the first `count` records of a shard, or of all if it has fewer.

  Raises:
    UserError: the file has no records, or one of these is damaged.
  """
  number = -1
  for number, record in enumerate(itertools.islice(records.read_records(path), count)):
    yield records.decode_example(record, f"{path}, record {number} (counted from 0)")
  if number < 0:
    raise UserError(f"{path}: holds no records; leave it out or write it again")


def check_record(path: str, number: int, record: bytes, features: Sequence[FeatureSpec]) -> dict[str, np.ndarray]:
  """Decodes a record, and checks the lengths, types and ranges of its features. Returns name -> values.

  Args:
    path: the file, for the message.
    number: number of the record in the file, from 0.
    record: the serialized record.
    features: the features that it should have.

  Raises:
    UserError: the record has other features. The message names the file, the record and the feature.
  """
  location = f"{path}, record {number} (counted from 0)"
  example = records.decode_example(record, location)
  for feature in features:
    if feature.name not in example:
      remedy = ", or give --sentence_prediction=none" if feature.name == NEXT_SENTENCE_LABELS else ""
      raise UserError(f"{location}: has no {feature.name}: write the shards with create_pretraining_data{remedy}")
    values = example[feature.name]
    if len(values) != feature.length:
      given = counted(len(values), "value")
      raise UserError(f"{location}: {feature.name} has {given}, expected {feature.length}: give the shards' lengths")
    dtype = "texts" if values.dtype == object else values.dtype.name
    if feature.dtype != dtype:
      raise UserError(f"{location}: {feature.name} holds {dtype}, expected {feature.dtype}: write the shards again")
    low, high = feature.bounds
    is_wrong = ~((values >= low) & (values <= high))  # true for NaN
    if is_wrong.any():
      index = int(is_wrong.argmax())
      raise UserError(
        f"{location}: {feature.name}[{index}] is {values[index]}, it must be from {low} to {high}: give the shards of "
        "this model and vocabulary (--vocab_size, --type_vocab_size), or write them again"
      )
  return example
