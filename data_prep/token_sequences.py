"""Builds the token sequences of instances from their segments: [CLS] first segment [SEP] second segment [SEP]."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.documents import Documents
from data_prep.segments import InstanceSegments


class InstanceTokens(NamedTuple):
  """The token sequences of instances, concatenated.

  Attributes:
    ids: int32 [T], token ids, with [CLS] and [SEP].
    word_starts: bool [T], whether the token starts a word.
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
  length_a = instances.a_end - instances.a_start
  length_b = instances.b_end - instances.b_start
  has_second = length_b > 0
  row_lengths = length_a + 2 + np.where(has_second, length_b + 1, 0)
  row_splits = np.concatenate([[0], np.cumsum(row_lengths)])
  row_starts = row_splits[:-1]
  num_tokens = int(row_splits[-1])
  # The position in the documents that each token is copied from. Special tokens are copied from position 0, and
  # replaced at the end.
  source = np.zeros(num_tokens, np.int64)
  maskable = np.ones(num_tokens, bool)
  a_starts, b_starts = row_starts + 1, row_starts + length_a + 2
  for target_starts, source_starts, lengths in (
    (a_starts, instances.a_start, length_a),
    (b_starts, instances.b_start, length_b),
  ):
    # For all segments concatenated: the index of each token, and the index where each segment begins.
    index = np.arange(int(lengths.sum()))
    first_index = np.cumsum(lengths) - lengths
    target = index + np.repeat(target_starts - first_index, lengths)
    source[target] = index + np.repeat(source_starts - first_index, lengths)
  separators = np.concatenate([row_starts + length_a + 1, row_splits[1:][has_second] - 1])
  maskable[row_starts] = False
  maskable[separators] = False
  ids = documents.ids[source]
  word_starts = documents.word_starts[source]
  ids[row_starts] = cls_id
  ids[separators] = sep_id
  maskable &= ids != sep_id  # also excludes the separators between documents
  return InstanceTokens(ids, word_starts, maskable, row_splits, length_a + 2)
