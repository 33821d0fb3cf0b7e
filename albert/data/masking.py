"""Masked-LM targets: selects n-grams of whole words and replaces their tokens (ALBERT, section 4.1).

All functions are pure: they take and return arrays, and random numbers come from keys that are arguments. A batch is B
rows (sequences) of different lengths. Their tokens are concatenated to T tokens; row b consists of the tokens from
row_splits[b] to row_splits[b + 1] - 1. The result of a row depends only on that row and its key.

Legend: T tokens, B rows, W words, M spans (in replace_tokens: masked tokens), C candidate starts of a span.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from albert.data import random_streams

# A masked token becomes [MASK] with probability 0.8, a random token with 0.1, and stays with 0.1 (BERT, section 3.1).
_P_MASK = 0.8
_P_MASK_OR_RANDOM = 0.9
# To place a span, _CANDIDATES random starts are tried in each of _MAX_TRIES rounds. If none is possible, all starts in
# the row are searched. Other values would give other spans for the same key, of the same distribution.
_CANDIDATES = 2
_MAX_TRIES = 4
# Random numbers used in a round: one for n, one for each candidate, one for the choice after a search.
_DRAWS_PER_ROUND = _CANDIDATES + 2
# Keys of the two sub-streams of a row's stream.
_SPANS, _REPLACEMENTS = 0, 1


@dataclasses.dataclass(frozen=True)
class MaskedSpans:
  """M selected spans of tokens, in no particular order. Every array is int64 [M].

  Attributes:
    rows: the row of each span.
    starts, ends: the span consists of the tokens starts to ends - 1 (indices into T).
    num_words: number of words in the span.
    drawn_words: the n that was drawn. num_words is smaller if the budget had no room for n words.
  """

  rows: np.ndarray
  starts: np.ndarray
  ends: np.ndarray
  num_words: np.ndarray
  drawn_words: np.ndarray


@dataclasses.dataclass(frozen=True)
class MaskedTokens:
  """Tokens after masking.

  Attributes:
    ids: int [T], the ids after replacement.
    positions: int64 [masked tokens], ascending indices into T of the masked tokens.
    labels: int [masked tokens], their original ids.
    spans: the spans that they belong to.
  """

  ids: np.ndarray
  positions: np.ndarray
  labels: np.ndarray
  spans: MaskedSpans


def ngram_probabilities(ngram: int) -> np.ndarray:
  """Returns the probability of spans of n = 1, ..., ngram words: proportional to 1/n (ALBERT, section 4.1).

  Args:
    ngram: largest n.

  Returns:
    float64 [ngram].
  """
  weights = 1.0 / np.arange(1, ngram + 1)
  return weights / weights.sum()


def num_predictions(lengths: np.ndarray, masked_lm_prob: float, max_predictions_per_seq: int) -> np.ndarray:
  """Returns how many tokens to mask in each sequence, computed as in the original ALBERT.

  Args:
    lengths: int [B], tokens of each sequence, [CLS] and [SEP] included.
    masked_lm_prob: share of the tokens to mask.
    max_predictions_per_seq: the largest number allowed.

  Returns:
    int64 [B], between 1 and max_predictions_per_seq.
  """
  unlimited = np.maximum(1, np.rint(lengths * masked_lm_prob)).astype(np.int64)
  return np.minimum(unlimited, max_predictions_per_seq)


class _Words:
  """The W words of all rows, and which of them are already in a span.

  A run is a sequence of words without a special token between them. A span must lie within one run.

  Attributes:
    start, end: int64 [W + ngram], word w consists of the tokens start[w] to end[w] - 1. The arrays are padded by
      `ngram` entries, so that a span may be looked up beyond the last word. No span can contain padding.
    run: int64 [W + ngram], number of the run that a word belongs to; -1 for padding.
    covered: bool [W + ngram], True for words in a selected span.
    row_splits: int64 [B + 1], row b consists of the words row_splits[b] to row_splits[b + 1] - 1.
  """

  def __init__(self, word_starts: np.ndarray, maskable: np.ndarray, row_splits: np.ndarray, ngram: int):
    after_break = np.empty(maskable.size, bool)
    after_break[:1] = True
    after_break[1:] = ~maskable[:-1]
    after_break[row_splits[:-1][row_splits[:-1] < maskable.size]] = True
    starts = maskable & (word_starts | after_break)
    edges = np.flatnonzero(starts | ~maskable | after_break)
    next_edge = np.append(edges[1:], maskable.size)
    is_word = starts[edges]
    first, last = edges[is_word], next_edge[is_word]  # [W]
    runs = np.cumsum(after_break[first])
    padding = np.full(ngram, -1, np.int64)
    self.start = np.concatenate([first, padding])
    self.end = np.concatenate([last, padding])
    self.run = np.concatenate([runs, padding])
    self.covered = np.zeros(first.size + ngram, bool)
    self.row_splits = np.searchsorted(first, row_splits)
    self.ngram = ngram

  def span_sizes(self, first_words: np.ndarray, num_words: np.ndarray, max_tokens: np.ndarray) -> np.ndarray:
    """Computes how many words a span would have that starts at each given word.

    Args:
      first_words: int64, indices of words. The three arguments broadcast.
      num_words: number of words that the span should have.
      max_tokens: largest number of tokens in the span. A span with more tokens is shortened by whole words.

    Returns:
      int64 of the broadcast shape: the number of words; 0 if no span can start at the word, because it would leave its
      run or contain a covered word, or because even its first word has more than max_tokens tokens.
    """
    start, run = self.start[first_words], self.run[first_words]
    sizes = np.zeros(first_words.shape, np.int64)
    is_blocked = np.zeros(first_words.shape, bool)
    for index in range(self.ngram):
      word = first_words + index
      is_next = (index < num_words) & (sizes == index)  # all words of the span before this one fit
      is_in_run = self.run[word] == run
      is_blocked |= is_next & ~is_in_run
      sizes += is_next & is_in_run & (self.end[word] - start <= max_tokens)
    for index in range(self.ngram):
      is_blocked |= (index < sizes) & self.covered[first_words + index]
    return np.where(is_blocked, 0, sizes)

  def cover(self, first_words: np.ndarray, sizes: np.ndarray) -> None:
    """Marks the words of spans as covered: `sizes` words each, from `first_words` on."""
    for index in range(self.ngram):
      self.covered[first_words[index < sizes] + index] = True


def _search(
  words: _Words, rows: np.ndarray, drawn: np.ndarray, room: np.ndarray, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Selects a span in each row uniformly among all possible ones.

  If no span of `drawn` words is possible in a row, n is lowered until one is.

  Args:
    words: the words of all rows.
    rows: int64 [R], the rows to search.
    drawn: int64 [R], the n to begin with.
    room: int64 [R], largest number of tokens in the span.
    bits: uint64 [R], random bits.

  Returns:
    first_words: int64 [R], the first word of each span.
    sizes: int64 [R], its number of words; 0 if no span is possible in the row any more.
  """
  first_words, sizes = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
  n = drawn.copy()
  open_rows = np.arange(rows.size)  # rows without a span so far
  while open_rows.size:
    first, stop = words.row_splits[rows[open_rows]], words.row_splits[rows[open_rows] + 1]
    row_words = stop - first
    ends = np.cumsum(row_words)
    owner = np.repeat(np.arange(open_rows.size), row_words)
    candidates = np.arange(ends[-1]) - np.repeat(ends - row_words - first, row_words)  # all words of the open rows
    candidate_sizes = words.span_sizes(candidates, n[open_rows][owner], room[open_rows][owner])
    num_possible = np.cumsum(candidate_sizes > 0)
    before_row = np.concatenate([[0], num_possible])[ends - row_words]
    in_row = np.concatenate([[0], num_possible])[ends] - before_row
    has_span = in_row > 0
    choice = before_row[has_span] + random_streams.below(bits[open_rows[has_span]], in_row[has_span])
    index = np.searchsorted(num_possible, choice, side="right")
    first_words[open_rows[has_span]] = candidates[index]
    sizes[open_rows[has_span]] = candidate_sizes[index]
    n[open_rows] -= 1
    open_rows = open_rows[~has_span & (n[open_rows] > 0)]
  return first_words, sizes


def select_spans(
  word_starts: np.ndarray,
  maskable: np.ndarray,
  row_splits: np.ndarray,
  budgets: np.ndarray,
  keys: np.ndarray,
  *,
  ngram: int,
) -> MaskedSpans:
  """Selects non-overlapping n-grams of whole words in each row, until the row's budget of tokens is used up.

  For each span, n is drawn with p(n) proportional to 1/n, then the first word uniformly. If the span would overlap
  another one or leave its run, another first word is drawn for the same n, so the drawn n of all spans follow p(n)
  exactly. (The original ALBERT draws n again, which favours short spans.) If n words have more tokens than the budget
  has left, the span is shortened. If no span of n words is possible in the row, n is lowered.

  Args:
    word_starts: bool [T], True for tokens that start a word. A token after a token that is not maskable always does.
    maskable: bool [T], False for special tokens and padding.
    row_splits: int [B + 1], row b consists of the tokens row_splits[b] to row_splits[b + 1] - 1.
    budgets: int [B], largest number of tokens to select in each row.
    keys: uint64 [B], key of each row's random stream.
    ngram: largest number of words in a span.
  """
  words = _Words(word_starts, maskable, row_splits, ngram)
  row_words = np.diff(words.row_splits)
  streams = random_streams.draw(keys, _SPANS)
  thresholds = np.cumsum(ngram_probabilities(ngram))[:-1]
  room = budgets.astype(np.int64)
  drawn = np.zeros(room.size, np.int64)  # n of the span that a row is looking for; 0: not drawn yet
  tries = np.zeros(room.size, np.int64)
  selected: list[tuple[np.ndarray, ...]] = []
  active = np.flatnonzero((room > 0) & (row_words > 0))
  step = 0
  while active.size:
    counters = np.arange(step * _DRAWS_PER_ROUND, (step + 1) * _DRAWS_PER_ROUND)
    bits = random_streams.draw(streams[active, None], counters)
    needs_n = drawn[active] == 0
    drawn[active[needs_n]] = 1 + np.searchsorted(thresholds, random_streams.unit(bits[needs_n, 0]), side="right")
    n, room_left = drawn[active], room[active]
    candidates = words.row_splits[active, None] + random_streams.below(bits[:, 1:-1], row_words[active, None])  # [., C]
    candidate_sizes = words.span_sizes(candidates, n[:, None], room_left[:, None])
    first_possible = (np.arange(active.size), (candidate_sizes > 0).argmax(axis=1))
    first_word, size = candidates[first_possible], candidate_sizes[first_possible]
    tries[active] += 1
    search = np.flatnonzero((size == 0) & (tries[active] >= _MAX_TRIES))
    is_full = np.zeros(active.size, bool)
    if search.size:
      first_word[search], size[search] = _search(words, active[search], n[search], room_left[search], bits[search, -1])
      is_full[search] = size[search] == 0
    has_span = size > 0
    first_word, size = first_word[has_span], size[has_span]
    rows = active[has_span]
    words.cover(first_word, size)
    start, end = words.start[first_word], words.end[first_word + size - 1]
    selected.append((rows, start, end, size, n[has_span]))
    room[rows] -= end - start
    drawn[rows], tries[rows] = 0, 0
    active = active[(room[active] > 0) & ~is_full]
    step += 1
  if not selected:
    return MaskedSpans(*(np.zeros(0, np.int64) for _ in range(5)))
  return MaskedSpans(*(np.concatenate(parts) for parts in zip(*selected, strict=True)))


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
    columns: int [M], position of each masked token within its row; it selects the random numbers of the row's stream.
    keys: uint64 [M], key of the random stream of each masked token's row.
    mask_id: id of [MASK].
    random_ids: the ids that random tokens are drawn from, uniformly.

  Returns:
    int [T], a new array.
  """
  streams = random_streams.draw(keys, _REPLACEMENTS)
  action = random_streams.unit(random_streams.draw(streams, 2 * columns))
  random_tokens = random_ids[random_streams.below(random_streams.draw(streams, 2 * columns + 1), random_ids.size)]
  random_or_same = np.where(action < _P_MASK_OR_RANDOM, random_tokens, ids[positions])
  replaced = ids.copy()
  replaced[positions] = np.where(action < _P_MASK, mask_id, random_or_same)
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
  """
  spans = select_spans(word_starts, maskable, row_splits, budgets, keys, ngram=ngram)
  edges = np.zeros(ids.size + 1, np.int64)
  edges[spans.starts] += 1
  edges[spans.ends] -= 1
  positions = np.flatnonzero(np.cumsum(edges)[:-1] > 0)
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
