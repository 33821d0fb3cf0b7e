"""Masks and sentence-order pairs of single examples, for use without data preparation.

Data preparation makes the same masks for many sequences at a time (`albert/data/masks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert.data import masks
from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer

# S tokens of a sequence, M masked tokens.

IN_ORDER, SWAPPED = 0, 1


class MaskedSequence(NamedTuple):
  """A sequence with masked tokens, the input of pretraining.

  Attributes:
    ids: int32 [S], the ids after masking.
    positions: int32 [M], the positions of the masked tokens, ascending.
    labels: int32 [M], their original ids.
  """

  ids: np.ndarray
  positions: np.ndarray
  labels: np.ndarray


class SentencePair(NamedTuple):
  """Two segments for sentence-order prediction.

  Attributes:
    first, second: ids of the segments, without special tokens.
    label: 0 if they are in their original order, 1 if they are swapped.
  """

  first: list[int]
  second: list[int]
  label: int


def mask_tokens(
  ids: Sequence[int] | np.ndarray,
  tokenizer: Tokenizer,
  *,
  rng: np.random.Generator,
  masked_lm_prob: float = 0.15,
  max_predictions: int | None = None,
  ngram: int = 3,
) -> MaskedSequence:
  """Selects n-grams of whole words and masks their tokens (ALBERT, section 4.1).

  No argument is changed, except the state of `rng`.

  Spans of n words are selected with p(n) proportional to 1/n until enough tokens are selected. Of these, 80% become
  [MASK], 10% a random token, and 10% stay as they are.

  Args:
    ids: S ids. [CLS], [SEP] and <pad> are never masked.
    tokenizer: the tokenizer of the ids. Its vocabulary says where words start, and which tokens may replace others.
    rng: the source of all random numbers.
    masked_lm_prob: share of the S tokens to mask. As in the original code, special tokens count as tokens here.
    max_predictions: largest number of masked tokens; None for no limit.
    ngram: largest number of words in a span.

  Returns:
    A MaskedSequence. The number of masked tokens is between 1 and max_predictions, or 0 if no token can be masked.

  Raises:
    UserError: an id is outside the vocabulary, or an argument is out of range.

  Example:
    >>> import numpy as np
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> ids = tokenizer(["They drank the pub dry."])["input_ids"][0]
    >>> masked = albert.mask_tokens(ids, tokenizer, rng=np.random.default_rng(0), max_predictions=2)
    >>> all(masked.labels == ids[masked.positions])
    True
  """
  if not 0 < masked_lm_prob <= 1:
    raise UserError(f"masked_lm_prob is {masked_lm_prob}: give a share above 0 and up to 1")
  if ngram < 1:
    raise UserError(f"ngram is {ngram}: give at least 1")
  if max_predictions is not None and max_predictions < 1:
    raise UserError(f"max_predictions is {max_predictions}: give at least 1")
  array = np.asarray(ids, np.int32)
  if array.ndim != 1:
    raise UserError(f"ids have the shape {list(array.shape)}: give the ids of one sequence")
  outside = array[(array < 0) | (array >= tokenizer.vocab_size)]
  if outside.size:
    tokenizer.piece(int(outside[0]))  # raises the error
  special_ids = tokenizer.special_ids
  key = rng.integers(2**64, size=1, dtype=np.uint64)
  lengths = np.array([array.size])
  masked = masks.mask_tokens(
    array,
    tokenizer.word_starts[array],
    ~np.isin(array, [special_ids.pad, special_ids.cls, special_ids.sep]),
    np.array([0, array.size]),
    budgets=masks.num_predictions(lengths, masked_lm_prob, max_predictions or max(1, array.size)),
    keys=key,
    ngram=ngram,
    mask_id=special_ids.mask,
    random_ids=np.flatnonzero(~tokenizer.is_special),
  )
  return MaskedSequence(masked.ids, masked.positions.astype(np.int32), masked.labels)


def sentence_order_pair(
  first: Sequence[int], second: Sequence[int], *, rng: np.random.Generator, max_tokens: int | None = None
) -> SentencePair:
  """Swaps two consecutive segments with probability 1/2 (sentence-order prediction; ALBERT, section 3.1).

  While the pair is too long, its longer segment (the second one if both are equally long) loses its first or its last
  token, with probability 1/2 each, as in the original code. No argument is changed, except the state of `rng`.

  Args:
    first: ids of a segment, at least one.
    second: ids of the segment that follows it in the same document, at least one.
    rng: the source of all random numbers.
    max_tokens: largest number of ids in both together, which is max_seq_length - 3 for `[CLS] first [SEP] second
      [SEP]`; at least 2. None for no limit.

  Returns:
    A SentencePair.

  Raises:
    UserError: a segment is empty, or max_tokens is less than 2.

  Example:
    >>> import numpy as np
    >>> import albert
    >>> albert.sentence_order_pair([11, 12], [13, 14, 15], rng=np.random.default_rng(0))
    SentencePair(first=[11, 12], second=[13, 14, 15], label=0)
  """
  if not len(first) or not len(second):
    raise UserError(f"segments of {len(first)} and {len(second)} ids: give two segments of at least one id each")
  if max_tokens is not None and max_tokens < 2:
    raise UserError(f"max_tokens is {max_tokens}: give at least 2, one for each segment")
  first_ids, second_ids = list(map(int, first)), list(map(int, second))
  label = IN_ORDER
  if rng.random() < 0.5:
    first_ids, second_ids, label = second_ids, first_ids, SWAPPED
  while max_tokens is not None and len(first_ids) + len(second_ids) > max_tokens:
    longer = first_ids if len(first_ids) > len(second_ids) else second_ids
    position = 0 if rng.random() < 0.5 else -1
    longer.pop(position)
  return SentencePair(first_ids, second_ids, label)
