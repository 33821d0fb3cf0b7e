"""The features of a pretraining record: names, lengths, types and ranges, for the writer and the reader of shards."""

from __future__ import annotations

import dataclasses

from albert.config.command_flags import INT32_MAX

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

  Raises:
    ValueError: a type other than these, or a length below 1.
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
