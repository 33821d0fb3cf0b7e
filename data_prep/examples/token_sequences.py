"""Builds the token sequences of instances from their segments: [CLS] first segment [SEP] second segment [SEP]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.documents import Documents
from data_prep.examples.segments import InstanceSegments


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
  """Builds the token sequences [CLS] first segment [SEP] second segment [SEP], or [CLS] segment [SEP].

  Args:
    documents: tokenized documents.
    instances: the segments of each instance.
    cls_id: id of [CLS].
    sep_id: id of [SEP].
  """
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
