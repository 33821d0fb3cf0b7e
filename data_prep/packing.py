"""Packs instances into arrays of small integers, called words, until they are written to the shards.

The words are uint16, or uint32 for vocabularies of more than 65,536 pieces. A packed instance consists of

    number of tokens, number of predictions, position of the second segment's first token, label,
    the tokens' ids, the predictions' positions, the predictions' original ids.
"""

from __future__ import annotations

import numpy as np

from albert.data import schema
from albert.data.masking import MaskedTokens
from albert.io.records import RecordWriter, encode_batch
from data_prep.token_sequences import InstanceTokens

# Number of instances that are encoded at a time.
_BATCH_SIZE = 1024
_HEADER_WORDS = 4


def word_dtype(vocab_size: int) -> np.dtype:
  """Returns the type of a word for a vocabulary of this size."""
  return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def concatenated_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Returns the indices starts[i] to starts[i] + lengths[i] - 1 for all i, concatenated."""
  result_starts = np.cumsum(lengths) - lengths
  return np.arange(int(lengths.sum())) + np.repeat(starts - result_starts, lengths)


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
  prediction_rows = np.searchsorted(tokens.row_splits, masked.positions, side="right") - 1
  num_predictions = np.bincount(prediction_rows, minlength=num_tokens.size)
  sizes = _HEADER_WORDS + num_tokens + 2 * num_predictions
  starts = np.cumsum(sizes) - sizes
  words = np.empty(int(sizes.sum()), dtype)
  for index, values in enumerate((num_tokens, num_predictions, tokens.b_starts, labels)):
    words[starts + index] = values
  id_starts = starts + _HEADER_WORDS
  position_starts = id_starts + num_tokens
  label_starts = position_starts + num_predictions
  words[concatenated_ranges(id_starts, num_tokens)] = masked.ids
  positions_in_row = masked.positions - tokens.row_splits[prediction_rows]
  words[concatenated_ranges(position_starts, num_predictions)] = positions_in_row
  words[concatenated_ranges(label_starts, num_predictions)] = masked.labels
  return words, sizes


def unpack(
  words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, np.ndarray]:
  """Unpacks instances to the features of TFRecord examples (albert.data.schema).

  Args:
    words: [W], the words of instances, not only of those to unpack.
    starts: [B], position in `words` where each instance to unpack begins.
    max_seq_length: S, the length that tokens are padded to.
    max_predictions_per_seq: P, the length that predictions are padded to.

  Returns:
    Feature name -> [B, S], [B, P] or, for the label, [B, 1].
  """
  header = (words[starts + index].astype(np.int64)[:, None] for index in range(_HEADER_WORDS))
  num_tokens, num_predictions, b_start, label = header
  id_start = starts[:, None] + _HEADER_WORDS
  # Words are read for S tokens and P predictions of every instance. Those after its own are then set to 0.
  column = np.arange(max_seq_length)
  is_token = column < num_tokens
  ids = words.take(id_start + column, mode="clip") * is_token
  prediction_column = np.arange(max_predictions_per_seq)
  is_prediction = prediction_column < num_predictions
  position_index = id_start + num_tokens + prediction_column
  label_index = position_index + num_predictions
  return {
    schema.INPUT_IDS: ids,
    schema.INPUT_MASK: is_token,
    schema.SEGMENT_IDS: is_token & (column >= b_start),
    schema.MASKED_LM_POSITIONS: words.take(position_index, mode="clip") * is_prediction,
    schema.MASKED_LM_IDS: words.take(label_index, mode="clip") * is_prediction,
    schema.MASKED_LM_WEIGHTS: is_prediction.astype(np.float32),
    schema.NEXT_SENTENCE_LABELS: label,
  }


def write_examples(
  writer: RecordWriter, words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> None:
  """Writes instances as TFRecord examples. See `unpack` for the arguments."""
  for first in range(0, starts.size, _BATCH_SIZE):
    features = unpack(words, starts[first : first + _BATCH_SIZE], max_seq_length, max_predictions_per_seq)
    for record in encode_batch(features):
      writer.write(record)
