"""The compact form of instances between their making and the shards: arrays of small integers, called words.

The words are uint16, or uint32 for vocabularies of more than 65,536 pieces. An instance consists of

    number of tokens, number of predictions, position of the second segment's first token, label,
    the tokens' ids, the predictions' positions, the predictions' original ids.
"""

from __future__ import annotations

import numpy as np

from albert.data import schema
from albert.data.masking import MaskedTokens
from albert.io.records import RecordWriter, encode_batch
from data_prep.token_sequences import InstanceTokens

# Instances that are encoded together.
_BATCH = 1024
_HEADER_WORDS = 4


def word_dtype(vocab_size: int) -> np.dtype:
  """The type of a word for a vocabulary of this size."""
  return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def concatenated_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """The indices starts[i] to starts[i] + lengths[i] - 1 for all i, concatenated."""
  before = np.cumsum(lengths) - lengths
  return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)


def pack(
  tokens: InstanceTokens, masked: MaskedTokens, labels: np.ndarray, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
  """Packs instances.

  Args:
    tokens: the tokens of I instances before masking.
    masked: their tokens after masking, and the predictions.
    labels: [I] sentence-order or next-sentence labels.
    dtype: the type of a word.

  Returns:
    The words of all instances, concatenated, and the number of words of each instance, int64 [I].
  """
  num_tokens = np.diff(tokens.row_splits)
  rows = np.searchsorted(tokens.row_splits, masked.positions, side="right") - 1
  num_masked = np.bincount(rows, minlength=num_tokens.size)
  sizes = _HEADER_WORDS + num_tokens + 2 * num_masked
  starts = np.cumsum(sizes) - sizes
  words = np.empty(int(sizes.sum()), dtype)
  for index, values in enumerate((num_tokens, num_masked, tokens.b_starts, labels)):
    words[starts + index] = values
  words[concatenated_ranges(starts + _HEADER_WORDS, num_tokens)] = masked.ids
  predictions = starts + _HEADER_WORDS + num_tokens
  words[concatenated_ranges(predictions, num_masked)] = masked.positions - tokens.row_splits[rows]
  words[concatenated_ranges(predictions + num_masked, num_masked)] = masked.labels
  return words, sizes


def unpack(
  words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, np.ndarray]:
  """Unpacks instances to the features of a TFRecord example (albert.data.schema).

  Args:
    words: the words of some instances.
    starts: [B], positions in `words` where the instances to unpack begin.
    max_seq_length: S, the length that tokens are padded to.
    max_predictions_per_seq: P, the length that predictions are padded to.

  Returns:
    Feature name -> [B, S], [B, P] or, for the label, [B, 1].
  """
  num_tokens, num_masked, b_start, label = (words[starts + i].astype(np.int64)[:, None] for i in range(4))
  starts = starts[:, None] + _HEADER_WORDS
  # Each row reads the words of its full width, and those after its end are set to 0.
  column = np.arange(max_seq_length)
  is_token = column < num_tokens
  ids = words.take(starts + column, mode="clip") * is_token
  slot = np.arange(max_predictions_per_seq)
  is_masked = slot < num_masked
  prediction = starts + num_tokens + slot
  return {
    schema.INPUT_IDS: ids,
    schema.INPUT_MASK: is_token,
    schema.SEGMENT_IDS: is_token & (column >= b_start),
    schema.MASKED_LM_POSITIONS: words.take(prediction, mode="clip") * is_masked,
    schema.MASKED_LM_IDS: words.take(prediction + num_masked, mode="clip") * is_masked,
    schema.MASKED_LM_WEIGHTS: is_masked.astype(np.float32),
    schema.NEXT_SENTENCE_LABELS: label,
  }


def write_examples(
  writer: RecordWriter, words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> None:
  """Writes instances as TFRecord examples. See `unpack` for the arguments."""
  for batch in range(0, starts.size, _BATCH):
    features = unpack(words, starts[batch : batch + _BATCH], max_seq_length, max_predictions_per_seq)
    for record in encode_batch(features):
      writer.write(record)
