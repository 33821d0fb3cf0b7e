"""Packs instances into the compact form that they have in block files, after masking and before the shards are written.

A packed instance is a sequence of integers, called words. A word is a uint16, or a uint32 if the vocabulary has more
than 65,536 pieces. The words of an instance are, in this order:

    the number of tokens, the number of predictions, the position of the second segment's first token, the label,
    the id of each token after masking,
    the position of each prediction,
    the original id of each prediction.
"""

from __future__ import annotations

import numpy as np

from albert.data import schema
from albert.data.masks.masking import MaskedTokens
from albert.io.records import RecordWriter, encode_batch
from data_prep.examples.token_sequences import InstanceTokens, concatenated_ranges

# Number of instances that are encoded at a time.
_BATCH_SIZE = 1024
_HEADER_WORDS = 4


def word_dtype(vocab_size: int) -> np.dtype:
  """Returns the type of a word for a vocabulary of this size."""
  return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


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
  instance_of_prediction = np.searchsorted(tokens.row_splits, masked.positions, side="right") - 1
  num_predictions = np.bincount(instance_of_prediction, minlength=num_tokens.size)
  sizes = _HEADER_WORDS + num_tokens + 2 * num_predictions
  # Where each part of each instance begins in `words`.
  header_starts = np.cumsum(sizes) - sizes
  id_starts = header_starts + _HEADER_WORDS
  position_starts = id_starts + num_tokens
  original_id_starts = position_starts + num_predictions
  words = np.empty(int(sizes.sum()), dtype)
  words[header_starts] = num_tokens
  words[header_starts + 1] = num_predictions
  words[header_starts + 2] = tokens.b_starts
  words[header_starts + 3] = labels
  words[concatenated_ranges(id_starts, num_tokens)] = masked.ids
  positions_in_instance = masked.positions - tokens.row_splits[instance_of_prediction]
  words[concatenated_ranges(position_starts, num_predictions)] = positions_in_instance
  words[concatenated_ranges(original_id_starts, num_predictions)] = masked.labels
  return words, sizes


def unpack(
  words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, np.ndarray]:
  """Unpacks instances to the features of TFRecord examples (albert.data.schema).

  Args:
    words: [W], packed instances. It may hold more instances than those to unpack.
    starts: [B], the index in `words` of the first word of each instance to unpack.
    max_seq_length: S, the length that tokens are padded to.
    max_predictions_per_seq: P, the length that predictions are padded to.

  Returns:
    Feature name -> [B, S], [B, P] or, for the label, [B, 1].
  """
  # The header's numbers, each [B, 1].
  num_tokens, num_predictions, b_start, label = (
    words[starts + index].astype(np.int64)[:, None] for index in range(_HEADER_WORDS)
  )
  token_column = np.arange(max_seq_length)
  prediction_column = np.arange(max_predictions_per_seq)
  is_token = token_column < num_tokens  # [B, S]
  is_prediction = prediction_column < num_predictions  # [B, P]
  # For padding, these indices point to words of a later part or instance. Below, multiplying with is_token and
  # is_prediction replaces these words by 0.
  id_index = starts[:, None] + _HEADER_WORDS + token_column
  position_index = starts[:, None] + _HEADER_WORDS + num_tokens + prediction_column
  original_id_index = position_index + num_predictions
  return {
    schema.INPUT_IDS: words.take(id_index, mode="clip") * is_token,
    schema.INPUT_MASK: is_token,
    schema.SEGMENT_IDS: is_token & (token_column >= b_start),
    schema.MASKED_LM_POSITIONS: words.take(position_index, mode="clip") * is_prediction,
    schema.MASKED_LM_IDS: words.take(original_id_index, mode="clip") * is_prediction,
    schema.MASKED_LM_WEIGHTS: is_prediction.astype(np.float32),
    schema.NEXT_SENTENCE_LABELS: label,
  }


def write_examples(
  writer: RecordWriter, words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> None:
  """Writes packed instances as TFRecord examples. See `unpack` for the arguments."""
  for first in range(0, starts.size, _BATCH_SIZE):
    features = unpack(words, starts[first : first + _BATCH_SIZE], max_seq_length, max_predictions_per_seq)
    for record in encode_batch(features):
      writer.write(record)
