"""Builds the token sequences of instances, and packs them, after masking, into the form that they have in block files.

A packed instance is a sequence of integers, called words. A word is a uint16, or a uint32 if the vocabulary has more
than 65,536 pieces. The words of an instance are, in this order:

    the number of tokens, the number of predictions, the position of the second segment's first token, the label,
    the id of each token after masking,
    the position of each prediction,
    the original id of each prediction.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from albert.data import schema
from albert.data.masks import MaskedTokens
from albert.io.records import RecordWriter, encode_batch
from data_prep.documents import Documents
from data_prep.examples.segments import InstanceSegments
from data_prep.examples.settings import PreparationSettings


def concatenated_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """Returns the indices starts[i] to starts[i] + lengths[i] - 1 for all i, concatenated."""
  range_offsets = np.cumsum(lengths) - lengths  # where each range begins in the result
  return np.arange(int(lengths.sum())) + np.repeat(starts - range_offsets, lengths)


class InstanceTokens(NamedTuple):
  """The token sequences of instances, concatenated.

  Attributes:
    ids: int32 [T], token ids, with [CLS] and [SEP].
    word_starts: bool [T], whether the token starts a word. It has no meaning for special tokens.
    maskable: bool [T], whether the token may be masked. Special tokens may not.
    row_splits: int64 [I + 1], instance i consists of the tokens row_splits[i] to row_splits[i + 1] - 1.
    b_starts: int64 [I], position of the second segment's first token in the instance; the instance's length if there
      is no second segment.
  """

  ids: np.ndarray
  word_starts: np.ndarray
  maskable: np.ndarray
  row_splits: np.ndarray
  b_starts: np.ndarray


def assemble(documents: Documents, instances: InstanceSegments, *, cls_id: int, sep_id: int) -> InstanceTokens:
  """Builds the token sequences [CLS] first segment [SEP] second segment [SEP], or [CLS] segment [SEP]."""
  a_lengths = instances.a_end - instances.a_start
  b_lengths = instances.b_end - instances.b_start
  has_second = b_lengths > 0
  row_lengths = a_lengths + 2 + np.where(has_second, b_lengths + 1, 0)
  row_splits = np.concatenate([[0], np.cumsum(row_lengths)])
  row_starts = row_splits[:-1]
  # The position in the documents that each token is copied from. Special tokens are copied from position 0; below,
  # their ids are replaced, and they are marked as not maskable.
  document_positions = np.zeros(int(row_splits[-1]), np.int64)
  b_starts = a_lengths + 2  # positions in the instances
  for segment_starts, lengths, positions_in_instances in (
    (instances.a_start, a_lengths, np.ones_like(a_lengths)),
    (instances.b_start, b_lengths, b_starts),
  ):
    copied_to = concatenated_ranges(row_starts + positions_in_instances, lengths)
    document_positions[copied_to] = concatenated_ranges(segment_starts, lengths)
  separators = np.concatenate([row_starts + b_starts - 1, row_splits[1:][has_second] - 1])
  ids = documents.ids[document_positions]
  ids[row_starts] = cls_id
  ids[separators] = sep_id
  maskable = ids != sep_id  # this leaves out [SEP], also where it separates documents within a segment
  maskable[row_starts] = False
  return InstanceTokens(ids, documents.word_starts[document_positions], maskable, row_splits, b_starts)


# Number of instances that are encoded at a time.
_BATCH_SIZE = 1024
_HEADER_WORDS = 4


def word_dtype(vocab_size: int) -> np.dtype:
  """Returns the type of a word for a vocabulary of this size."""
  return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def pack(
  tokens: InstanceTokens, masked: MaskedTokens, labels: np.ndarray, dtype: np.dtype
) -> tuple[np.ndarray, np.ndarray]:
  """Packs I instances: their tokens before masking, those after masking with the predictions, and labels [I].

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
  """Unpacks the instances that begin at `starts` [B] of `words` [W] to features (albert.data.schema).

  Tokens are padded to S = `max_seq_length`, predictions to P = `max_predictions_per_seq`.

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


def write_examples(writer: RecordWriter, words: np.ndarray, starts: np.ndarray, settings: PreparationSettings) -> None:
  """Writes packed instances as TFRecord examples. See `unpack`."""
  for first in range(0, starts.size, _BATCH_SIZE):
    batch = starts[first : first + _BATCH_SIZE]
    for record in encode_batch(unpack(words, batch, settings.max_seq_length, settings.max_predictions_per_seq)):
      writer.write(record)
