"""Masked-LM targets: replaces the tokens of selected spans (ALBERT, section 4.1).

All functions are pure: they take and return arrays, and random numbers are computed from keys that are arguments. A
batch is B rows (sequences) of different lengths. Their tokens are concatenated to T tokens. Row b consists of the
tokens row_splits[b] to row_splits[b + 1] - 1. The result for a row depends only on that row and its key.

Legend: T tokens, B rows, M masked tokens.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from albert.data import random_streams
from albert.data.masks.span_selection import MaskedSpans, select_spans

# A masked token becomes [MASK] with probability 0.8, a random token with 0.1, and stays with 0.1 (BERT, section 3.1).
_P_MASK = 0.8
_P_MASK_OR_RANDOM = 0.9
# Replacements are drawn from sub-stream 1 of a row's random stream, and spans from sub-stream 0.
_REPLACEMENT_STREAM = 1


@dataclasses.dataclass(frozen=True)
class MaskedTokens:
  """Tokens after masking.

  Attributes:
    ids: int [T], the ids after replacement.
    positions: int64 [M], ascending indices into T of the masked tokens.
    labels: int [M], their original ids.
    spans: the spans that they belong to.
  """

  ids: np.ndarray
  positions: np.ndarray
  labels: np.ndarray
  spans: MaskedSpans


def num_predictions(lengths: np.ndarray, masked_lm_prob: float, max_predictions_per_seq: int) -> np.ndarray:
  """Returns how many tokens to mask in each sequence, computed as in the original ALBERT.

  Args:
    lengths: int [B], tokens of each sequence, [CLS] and [SEP] included.
    masked_lm_prob: fraction of the tokens to mask.
    max_predictions_per_seq: the largest number allowed.

  Returns:
    int64 [B], between 1 and max_predictions_per_seq.
  """
  unlimited = np.maximum(1, np.rint(lengths * masked_lm_prob)).astype(np.int64)
  return np.minimum(unlimited, max_predictions_per_seq)


def replace_tokens(
  ids: np.ndarray,
  positions: np.ndarray,
  columns: np.ndarray,
  keys: np.ndarray,
  *,
  mask_id: int,
  random_ids: np.ndarray,
) -> np.ndarray:
  """Replaces masked tokens: 80% become [MASK], 10% a random token, and 10% stay as they are.

  Args:
    ids: int [T].
    positions: int [M], indices into T of the masked tokens.
    columns: int [M], index of each masked token within its row. For the token in column c, the random numbers 2c and
      2c + 1 of its row's stream are used.
    keys: uint64 [M], key of the random stream of each masked token's row.
    mask_id: id of [MASK].
    random_ids: the ids that random tokens are drawn from, uniformly.

  Returns:
    int [T], a new array.
  """
  stream_keys = random_streams.draw(keys, _REPLACEMENT_STREAM)
  action_draws = random_streams.to_unit_float(random_streams.draw(stream_keys, 2 * columns))
  random_tokens = random_ids[
    random_streams.to_int_below(random_streams.draw(stream_keys, 2 * columns + 1), random_ids.size)
  ]
  random_or_same = np.where(action_draws < _P_MASK_OR_RANDOM, random_tokens, ids[positions])
  replaced = ids.copy()
  replaced[positions] = np.where(action_draws < _P_MASK, mask_id, random_or_same)
  return replaced


def mask_tokens(
  ids: np.ndarray,
  word_starts: np.ndarray,
  maskable: np.ndarray,
  row_splits: np.ndarray,
  *,
  budgets: np.ndarray,
  keys: np.ndarray,
  ngram: int,
  mask_id: int,
  random_ids: np.ndarray,
) -> MaskedTokens:
  """Masks the tokens of B rows: selects spans (`select_spans`) and replaces their tokens (`replace_tokens`).

  Args:
    ids: int [T].
    word_starts, maskable, row_splits, budgets, keys, ngram: see select_spans.
    mask_id, random_ids: see replace_tokens.

  Returns:
    The ids after masking, and the positions, labels and spans of the masked tokens.
  """
  spans = select_spans(word_starts, maskable, row_splits, budgets, keys, ngram=ngram)
  # +1 at the start of each span and -1 at its end; the cumulative sum is 1 inside spans and 0 outside.
  coverage_changes = np.zeros(ids.size + 1, np.int64)
  coverage_changes[spans.starts] += 1
  coverage_changes[spans.ends] -= 1
  positions = np.flatnonzero(np.cumsum(coverage_changes)[:-1] > 0)
  rows = np.searchsorted(row_splits, positions, side="right") - 1
  masked = replace_tokens(
    ids,
    positions,
    positions - row_splits[rows],
    keys[rows],
    mask_id=mask_id,
    random_ids=random_ids,
  )
  return MaskedTokens(ids=masked, positions=positions, labels=ids[positions], spans=spans)
