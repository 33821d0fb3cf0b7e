"""The features of pretraining, and the checks of records, which name the file, the record and the feature."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from albert.data import pipeline, schema
from albert.data.schema import FeatureSpec, pretraining_features
from albert.data.shards import count_and_hash_shards
from albert.errors import UserError
from albert.io.records import RecordWriter
from tests.synthetic import NUM_PREDICTIONS, SEQ_LENGTH, VOCAB_SIZE, encode_example, example, write_shards


def test_pretraining_features_have_the_originals_names_lengths_types_and_ranges() -> None:
  assert pretraining_features(512, 77, vocab_size=30000, type_vocab_size=3) == (
    FeatureSpec("input_ids", 512, "int64", 30000),
    FeatureSpec("input_mask", 512, "int64", 2),
    FeatureSpec("segment_ids", 512, "int64", 3),
    FeatureSpec("masked_lm_positions", 77, "int64", 512),
    FeatureSpec("masked_lm_ids", 77, "int64", 30000),
    FeatureSpec("masked_lm_weights", 77, "float32"),
    FeatureSpec("next_sentence_labels", 1, "int64", 2),
  )


FEATURES = pretraining_features(SEQ_LENGTH, NUM_PREDICTIONS)


def test_damage_is_named_by_file_and_record(tmp_path: Path):
  paths = write_shards(tmp_path, [4, 4])
  content = bytearray(Path(paths[1]).read_bytes())
  content[len(content) // 2 + 40] ^= 1  # in the third of four records
  Path(paths[1]).write_bytes(bytes(content))
  with pytest.raises(UserError, match=r"part-01\.tfrecord.*record 2"):
    schema.explain_failure(paths, FEATURES)


def test_a_record_of_other_lengths_is_named(tmp_path: Path):
  shards = count_and_hash_shards(write_shards(tmp_path, [2]))
  with pytest.raises(UserError, match=r"record 0 .*input_ids has 16 values, expected 24"):
    schema.explain_failure(shards.paths, pretraining_features(24, NUM_PREDICTIONS))


@pytest.mark.parametrize(
  ("name", "value", "message"),
  [
    ("input_ids", 61, r"input_ids\[1\] is 61, it must be from 0 to 60: .*--vocab_size"),
    ("input_ids", -1, r"input_ids\[1\] is -1, it must be from 0 to 60"),
    ("input_ids", 2**32 + 5, r"input_ids\[1\] is 4294967301, it must be from 0 to 60"),
    ("input_mask", 2, r"input_mask\[1\] is 2, it must be from 0 to 1"),
    ("segment_ids", 2, r"segment_ids\[1\] is 2, it must be from 0 to 1: .*--type_vocab_size"),
    ("masked_lm_positions", SEQ_LENGTH, r"masked_lm_positions\[1\] is 16, it must be from 0 to 15"),
    ("masked_lm_ids", 61, r"masked_lm_ids\[1\] is 61, it must be from 0 to 60"),
    ("masked_lm_weights", np.nan, r"masked_lm_weights\[1\] is nan, it must be from 0 to 1"),
    ("masked_lm_weights", -1.0, r"masked_lm_weights\[1\] is -1.0, it must be from 0 to 1"),
    ("next_sentence_labels", 2, r"next_sentence_labels\[0\] is 2, it must be from 0 to 1"),
  ],
)
def test_a_value_out_of_range_fails_and_is_named(tmp_path: Path, name, value, message):
  features = example(0, np.random.default_rng(3))
  index = 0 if name == "next_sentence_labels" else 1
  features[name][index] = value
  path = tmp_path / "part.tfrecord"
  with RecordWriter(str(path)) as writer:
    for number in range(3):
      writer.write(encode_example(example(number, np.random.default_rng(number))))
    writer.write(encode_example(features))
  shards = count_and_hash_shards([str(path)])
  specs = pretraining_features(SEQ_LENGTH, NUM_PREDICTIONS, vocab_size=VOCAB_SIZE, type_vocab_size=2)
  with pytest.raises(tf.errors.InvalidArgumentError, match="out of its range"):
    list(pipeline.ShardDataset(shards, specs).evaluation_batches(batch_size=4))
  with pytest.raises(UserError, match=rf"part\.tfrecord, record 3 \(counted from 0\): {message}"):
    schema.explain_failure(shards.paths, specs)


def test_a_record_that_is_no_example_is_named(tmp_path: Path):
  path = tmp_path / "other.tfrecord"
  with RecordWriter(str(path)) as writer:
    writer.write(b"no example")
  with pytest.raises(UserError, match=r"other\.tfrecord, record 0 .*not a tf\.train\.Example"):
    schema.explain_failure([str(path)], FEATURES)


@pytest.mark.parametrize(
  ("name", "dtype", "message"),
  [
    ("input_ids", "f", "input_ids holds float32, expected int64"),
    ("masked_lm_weights", "i", "masked_lm_weights holds int64, expected float32"),
  ],
)
def test_a_feature_of_another_type_is_named(name: str, dtype: str, message: str):
  features = example(0, np.random.default_rng(3))
  record = encode_example(features | {name: features[name].astype(dtype)})
  with pytest.raises(UserError, match=rf"part, record 3 \(counted from 0\): {message}"):
    schema.check_record("part", 3, record, FEATURES)


def test_texts_in_a_feature_are_named():
  features = example(0, np.random.default_rng(3))
  record = tf.train.Example.FromString(encode_example(features))
  texts = tf.train.BytesList(value=[b"5"] * SEQ_LENGTH)
  record.features.feature["input_ids"].CopyFrom(tf.train.Feature(bytes_list=texts))
  with pytest.raises(UserError, match=r"part, record 3 .*: input_ids holds texts, expected int64"):
    schema.check_record("part", 3, record.SerializeToString(), FEATURES)


@pytest.mark.parametrize(
  ("name", "remedy"),
  [("masked_lm_weights", "data$"), ("next_sentence_labels", "data, or give --sentence_prediction=none")],
)
def test_a_missing_feature_is_named(name: str, remedy: str):
  features = example(0, np.random.default_rng(3))
  del features[name]
  message = rf"part, record 3 .*: has no {name}: write the shards with create_pretraining_{remedy}"
  with pytest.raises(UserError, match=message):
    schema.check_record("part", 3, encode_example(features), FEATURES)
