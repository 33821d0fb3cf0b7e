"""Ids of texts -> [CLS] a [SEP] b [SEP], for many texts at once.

`albert/tokenization/graph.py` does the same in the TensorFlow graph.
"""

from __future__ import annotations

import numpy as np

from albert.errors import UserError
from albert.tokenization.tokenizer import CLS_ID, SEP_ID

# N texts (or pairs), T tokens of all texts, P tokens of all packed sequences.

# The ids of many texts end to end, int32 [T], and where each one starts and ends, int [N + 1].
Ragged = tuple[np.ndarray, np.ndarray]


def pack_single(texts: Ragged, max_length: int) -> tuple[np.ndarray, np.ndarray]:
  """[CLS] text [SEP] for each text, its end cut off if it does not fit.

  Args:
    texts: see Ragged, as `Tokenizer.encode_batch_flat` gives it.
    max_length: longest sequence.
  Returns: the ids of all sequences end to end int32 [P], and their lengths int32 [N].
  """
  ids, offsets = texts
  kept = np.minimum(np.diff(offsets), _budget(max_length, 1))
  lengths = kept + 2
  starts = np.cumsum(lengths) - lengths
  packed = np.empty(int(lengths.sum()), np.int32)
  packed[starts] = CLS_ID
  packed[starts + lengths - 1] = SEP_ID
  _copy(packed, starts + 1, ids, offsets[:-1], kept)
  return packed, lengths.astype(np.int32)


def pack_pair(first: Ragged, second: Ragged, max_length: int) -> tuple[np.ndarray, np.ndarray]:
  """[CLS] a [SEP] b [SEP] for each pair. While it does not fit, the longer of a and b loses its last token.

  Where both are as long, b loses it. Arguments and results as of pack_single.
  """
  (ids_a, offsets_a), (ids_b, offsets_b) = first, second
  length_a, length_b = np.diff(offsets_a), np.diff(offsets_b)
  budget = _budget(max_length, 2)
  kept_a = np.minimum(length_a, np.maximum(budget - length_b, (budget + 1) // 2))
  kept_b = np.minimum(length_b, budget - kept_a)
  lengths = kept_a + kept_b + 3
  starts = np.cumsum(lengths) - lengths
  packed = np.empty(int(lengths.sum()), np.int32)
  packed[starts] = CLS_ID
  packed[starts + 1 + kept_a] = SEP_ID
  packed[starts + lengths - 1] = SEP_ID
  _copy(packed, starts + 1, ids_a, offsets_a[:-1], kept_a)
  _copy(packed, starts + 2 + kept_a, ids_b, offsets_b[:-1], kept_b)
  return packed, lengths.astype(np.int32)


def _budget(max_length: int, num_segments: int) -> int:
  budget = max_length - 1 - num_segments
  if budget < num_segments:
    raise UserError(f"max_seq_length={max_length}: too short for [CLS], {num_segments} texts and [SEP] after each")
  return budget


def _copy(target: np.ndarray, places: np.ndarray, source: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
  """target[places[n] : + lengths[n]] = source[starts[n] : + lengths[n]], for each n."""
  counted = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
  target[np.repeat(places, lengths) + counted] = source[np.repeat(starts, lengths) + counted]
