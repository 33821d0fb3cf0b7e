"""The features of pretraining have the original's names, lengths, types and ranges."""

from __future__ import annotations

import pytest

from albert.data.shard_files.schema import FeatureSpec, pretraining_features


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


def test_a_feature_of_another_type_or_without_length_is_refused() -> None:
  with pytest.raises(ValueError, match="feature x: dtype must be int64 or float32, got 'int32'"):
    FeatureSpec("x", 1, "int32")
  with pytest.raises(ValueError, match="feature x: length must be >= 1, got 0"):
    FeatureSpec("x", 0, "int64")
