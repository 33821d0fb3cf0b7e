"""Joins the ids of texts to sequences `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, for many texts at once.

`albert/tokenization/in_graph/graph_packing.py` does the same in TensorFlow ops.

Legend: N texts (or pairs of texts), T tokens of all texts, P tokens of all sequences.
"""

from __future__ import annotations

import numpy as np

from albert.errors import UserError
from albert.tokenization.pieces import PAD_ID, SpecialIds

# A pair (ids, offsets): the ids of N texts, concatenated, int32 [T], and integers [N + 1]. The ids of text n are
# ids[offsets[n] : offsets[n + 1]].
Ragged = tuple[np.ndarray, np.ndarray]


def pack_single(texts: Ragged, max_length: int, special_ids: SpecialIds) -> tuple[np.ndarray, np.ndarray]:
  """Makes the sequence `[CLS] text [SEP]` of each text. A text that is too long is truncated at its end.

  Args:
    texts: see Ragged; `Tokenizer.encode_batch_flat` returns it.
    max_length: maximum tokens of a sequence, [CLS] and [SEP] included.
    special_ids: the ids of [CLS] and [SEP], see `Tokenizer.special_ids`.

  Returns:
    ids: int32 [P], the ids of all sequences, concatenated.
    lengths: int32 [N], the number of tokens of each sequence.

  Raises:
    UserError: max_length leaves no room for a text.
  """
  ids, offsets = texts
  text_lengths = np.minimum(np.diff(offsets), _text_budget(max_length, 1))
  lengths = text_lengths + 2
  starts = np.cumsum(lengths) - lengths
  packed = np.empty(int(lengths.sum()), np.int32)
  packed[starts] = special_ids.cls
  packed[starts + lengths - 1] = special_ids.sep
  _copy_ranges(packed, starts + 1, ids, offsets[:-1], text_lengths)
  return packed, lengths.astype(np.int32)


def pack_pair(first: Ragged, second: Ragged, max_length: int, special_ids: SpecialIds) -> tuple[np.ndarray, np.ndarray]:
  """Makes the sequence `[CLS] a [SEP] b [SEP]` of each pair of texts.

  While a sequence is too long, the last token of the longer text is removed; of b if both are equally long.

  Args:
    first, second: the texts a and b of the pairs, see Ragged.
    max_length: maximum tokens of a sequence, [CLS] and [SEP] included.
    special_ids: the ids of [CLS] and [SEP], see `Tokenizer.special_ids`.

  Returns, Raises: see pack_single.
  """
  (ids_a, offsets_a), (ids_b, offsets_b) = first, second
  length_a, length_b = np.diff(offsets_a), np.diff(offsets_b)
  budget = _text_budget(max_length, 2)
  # The removal of single tokens that the docstring describes ends as follows. If both texts are longer than half of the
  # budget, each keeps half of it, and a keeps one token more if the budget is odd. Otherwise the shorter text is kept
  # whole, and the longer one keeps the rest of the budget.
  kept_a = np.minimum(length_a, np.maximum(budget - length_b, (budget + 1) // 2))
  kept_b = np.minimum(length_b, budget - kept_a)
  lengths = kept_a + kept_b + 3
  starts = np.cumsum(lengths) - lengths
  packed = np.empty(int(lengths.sum()), np.int32)
  packed[starts] = special_ids.cls
  packed[starts + 1 + kept_a] = special_ids.sep
  packed[starts + lengths - 1] = special_ids.sep
  _copy_ranges(packed, starts + 1, ids_a, offsets_a[:-1], kept_a)
  _copy_ranges(packed, starts + 2 + kept_a, ids_b, offsets_b[:-1], kept_b)
  return packed, lengths.astype(np.int32)


def padded(ids: np.ndarray, lengths: np.ndarray, *, pad_id: int = PAD_ID) -> dict[str, np.ndarray]:
  """Pads sequences to the longest one.

  Args:
    ids: int32 [P], the ids of all sequences, concatenated. Each sequence ends with [SEP].
    lengths: int32 [N], the number of tokens of each sequence.
    pad_id: the id of padding.

  Returns:
    input_ids, input_mask (1 for tokens, 0 for padding) and segment_ids (1 for the tokens after the first [SEP], 0 for
    those before it and for padding), int32 [N, S], where S is the largest length.
  """
  mask = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
  input_ids = np.full(mask.shape, pad_id, np.int32)
  input_ids[mask] = ids
  separators = ids[np.cumsum(lengths) - 1]  # the last token of each sequence
  is_separator = mask & (input_ids == separators[:, None])
  num_separators_before = np.cumsum(is_separator, axis=1) - is_separator
  return {
    "input_ids": input_ids,
    "input_mask": mask.astype(np.int32),
    "segment_ids": ((num_separators_before > 0) & mask).astype(np.int32),
  }


def _text_budget(max_length: int, num_segments: int) -> int:
  """Returns how many tokens of text a sequence can hold besides [CLS] and one [SEP] for each segment.

  Raises:
    UserError: there is no room for one token of each segment.
  """
  budget = max_length - 1 - num_segments
  if budget < num_segments:
    raise UserError(f"max_seq_length={max_length}: too short for [CLS], {num_segments} texts and [SEP] after each")
  return budget


def _copy_ranges(
  target: np.ndarray, target_starts: np.ndarray, source: np.ndarray, source_starts: np.ndarray, lengths: np.ndarray
) -> None:
  """Copies N ranges. Range n has `lengths[n]` values, from source[source_starts[n]] to target[target_starts[n]] on."""
  # 0, 1, ..., lengths[0] - 1, 0, 1, ..., lengths[1] - 1, ...
  index_in_range = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
  target[np.repeat(target_starts, lengths) + index_in_range] = source[
    np.repeat(source_starts, lengths) + index_in_range
  ]
