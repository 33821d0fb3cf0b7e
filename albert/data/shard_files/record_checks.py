"""Checks the features of TFRecords, and names the file and the record that are wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from albert.data.shard_files.schema import NEXT_SENTENCE_LABELS, FeatureSpec
from albert.data.shard_files.shards import Shards
from albert.errors import UserError
from albert.io import records
from albert.io.wording import counted


def explain_failure(shards: Shards, features: Sequence[FeatureSpec]) -> None:
  """Reads all shards again, and raises an error for the first invalid record. Returns if all records are valid.

  Args:
    shards: the files to read.
    features: the features that their records should have.

  Raises:
    UserError: a record is truncated, damaged, or has other features. The message names the file and the record.
  """
  for path in shards.paths:
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


def check_record(path: str, number: int, record: bytes, features: Sequence[FeatureSpec]) -> None:
  """Checks the lengths, types and ranges of a record's features.

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
    length = len(example[feature.name])
    if length != feature.length:
      raise UserError(
        f"{location}: {feature.name} has {counted(length, 'value')}, expected {feature.length}; "
        "give the lengths that the shards were written with"
      )
    _check_values(location, feature, example[feature.name])


def _check_values(location: str, feature: FeatureSpec, values: np.ndarray) -> None:
  """Raises a UserError if a feature has another type, or a value out of its range."""
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
