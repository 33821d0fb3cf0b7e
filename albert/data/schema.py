"""The one contract between the writer and the reader of TFRecords: feature names, lengths and types."""

from __future__ import annotations

import dataclasses

from albert.config.ranges import INT32_MAX

# Positions in one record; the names are the original scripts', so that their shards train here too.
INPUT_IDS = "input_ids"
INPUT_MASK = "input_mask"
SEGMENT_IDS = "segment_ids"
MASKED_LM_POSITIONS = "masked_lm_positions"
MASKED_LM_IDS = "masked_lm_ids"
MASKED_LM_WEIGHTS = "masked_lm_weights"
NEXT_SENTENCE_LABELS = "next_sentence_labels"


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
  """One fixed-length feature of a record.

  Attributes:
    name: of the feature.
    length: number of values.
    dtype: "int64" or "float32".
    limit: every int64 value is at least 0 and below it; 0 if the greatest value is not known. Every float32 value is a
      weight, from 0 to 1.
  """

  name: str
  length: int
  dtype: str
  limit: int = 0

  def __post_init__(self) -> None:
    if self.dtype not in {"int64", "float32"}:
      raise ValueError(f"feature {self.name}: dtype must be int64 or float32, got {self.dtype!r}")
    if self.length < 1:
      raise ValueError(f"feature {self.name}: length must be >= 1, got {self.length}")

  @property
  def bounds(self) -> tuple[int, int]:
    """The least and the greatest value."""
    if self.dtype == "float32":
      return 0, 1
    return 0, (self.limit or INT32_MAX) - 1


def pretraining_features(
  max_seq_length: int, max_predictions_per_seq: int, vocab_size: int = 0, type_vocab_size: int = 0
) -> tuple[FeatureSpec, ...]:
  """Features of a pretraining record, S = max_seq_length and P = max_predictions_per_seq.

  input_ids, input_mask, segment_ids [S]; masked_lm_positions, masked_lm_ids [P]; masked_lm_weights [P]
  (float32: 1 for a prediction, 0 for padding); next_sentence_labels [1] (1: swapped, or a random second
  segment; 0: in order, or no sentence prediction).

  Args:
    max_seq_length: S.
    max_predictions_per_seq: P.
    vocab_size: of the model, which no id may reach; 0 where it is not known.
    type_vocab_size: of the model, which no segment may reach; 0 where it is not known.
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
