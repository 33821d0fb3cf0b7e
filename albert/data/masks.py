"""Masked-LM targets: selects spans of whole words, and replaces their tokens (ALBERT, section 4.1).

All functions are pure: they take and return arrays, and random numbers are computed from keys that are arguments. A
batch is B rows (sequences) of different lengths. Their tokens are concatenated to T tokens. Row b consists of the
tokens row_splits[b] to row_splits[b + 1] - 1. The result for a row depends only on that row and its key.

Legend: T tokens, B rows, R some of the rows, W words, C candidate starts of a span, N spans, M masked tokens.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from albert.data import random_streams

# To place a span, _CANDIDATES_PER_ROUND random starts are tried in each of _MAX_TRIES rounds. If none of them fits, one
# of all fitting starts is chosen. With other numbers, other spans are drawn, but with the same distribution.
_CANDIDATES_PER_ROUND = 2
_MAX_TRIES = 4
# Number of random numbers that are drawn for a row in each round, whether they are used or not: one to draw n, one for
# each candidate start, and one to choose among all fitting starts.
_DRAWS_PER_ROUND = _CANDIDATES_PER_ROUND + 2
# Spans are drawn from sub-stream 0 of a row's random stream. albert.data.masks uses sub-stream 1.
_SPAN_STREAM = 0


@dataclasses.dataclass(frozen=True)
class MaskedSpans:
  """N selected spans of tokens, in no particular order. Every array is int64 [N].

  Attributes:
    rows: the row of each span.
    starts, ends: the span consists of the tokens starts to ends - 1 (indices into T).
    num_words: number of words in the span.
    drawn_words: the n that was drawn. num_words is smaller if the budget had not enough tokens left for n words, or if
      no span of n words was possible in the row.
  """

  rows: np.ndarray
  starts: np.ndarray
  ends: np.ndarray
  num_words: np.ndarray
  drawn_words: np.ndarray


def ngram_probabilities(ngram: int) -> np.ndarray:
  """Returns the probability of spans of n = 1, ..., ngram words: proportional to 1/n (ALBERT, section 4.1).

  Args:
    ngram: largest n.

  Returns:
    float64 [ngram].
  """
  weights = 1.0 / np.arange(1, ngram + 1)
  return weights / weights.sum()


class _Words:
  """The W words of all rows, and which of them are already in a span.

  A run is a sequence of words without a special token between them. A span must lie within one run.

  Args: see select_spans.

  Attributes:
    start, end: int64 [W + ngram], word w consists of the tokens start[w] to end[w] - 1. The arrays are padded by
      `ngram` entries, so that start[w + i] is a valid index for i < ngram, even for the last word.
    run: int64 [W + ngram], number of the run that a word belongs to; -1 for padding, so that no span contains padding.
    covered: bool [W + ngram], True for words in a selected span.
    row_splits_in_words: int64 [B + 1], row b consists of the words row_splits_in_words[b] to
      row_splits_in_words[b + 1] - 1. (The argument row_splits counts tokens.)
  """

  def __init__(self, word_starts: np.ndarray, maskable: np.ndarray, row_splits: np.ndarray, ngram: int):
    # The comments show the values for one row of six tokens, [CLS] _new er _era [SEP] _now. It has three words: tokens
    # 1 and 2, token 3, and token 5. Its word_starts are 0 1 0 1 0 1, its maskable is 0 1 1 1 0 1.
    # Whether a token is the first one of its row, or follows a special token.
    after_break = np.empty(maskable.size, bool)
    after_break[:1] = True
    after_break[1:] = ~maskable[:-1]
    after_break[row_splits[:-1][row_splits[:-1] < maskable.size]] = True  # 1 1 0 0 0 1
    starts_word = maskable & (word_starts | after_break)  # 0 1 0 1 0 1
    # A word ends before the next edge.
    edges = np.flatnonzero(starts_word | ~maskable | after_break)  # 0 1 3 4 5
    next_edges = np.append(edges[1:], maskable.size)  # 1 3 4 5 6
    is_word = starts_word[edges]  # 0 1 1 0 1
    starts, ends = edges[is_word], next_edges[is_word]  # 1 3 5 and 3 4 6
    runs = np.cumsum(after_break[starts])  # 1 1 2
    padding = np.full(ngram, -1, np.int64)
    self.start = np.concatenate([starts, padding])
    self.end = np.concatenate([ends, padding])
    self.run = np.concatenate([runs, padding])
    self.covered = np.zeros(starts.size + ngram, bool)
    self.row_splits_in_words = np.searchsorted(starts, row_splits)
    self.ngram = ngram

  def words_in_span(self, first_words: np.ndarray, max_words: np.ndarray, max_tokens: np.ndarray) -> np.ndarray:
    """Computes how many words a span would have that starts at each given word.

    Args:
      first_words: int64, indices of words. The three arguments broadcast.
      max_words: number of words that the span should have.
      max_tokens: largest number of tokens in the span. A span with more tokens is shortened by whole words.

    Returns:
      int64 of the broadcast shape: the number of words. It is 0 if no span can start at the word: because the span
      would leave its run, because it would contain a covered word, or because its first word has more than max_tokens
      tokens.
    """
    start, run = self.start[first_words], self.run[first_words]
    num_words = np.zeros(first_words.shape, np.int64)
    is_blocked = np.zeros(first_words.shape, bool)
    for index in range(self.ngram):
      word = first_words + index
      may_extend = (index < max_words) & (num_words == index)  # all words of the span before this one fit
      is_in_run = self.run[word] == run
      is_blocked |= may_extend & ~is_in_run
      num_words += may_extend & is_in_run & (self.end[word] - start <= max_tokens)
    for index in range(self.ngram):
      is_blocked |= (index < num_words) & self.covered[first_words + index]
    return np.where(is_blocked, 0, num_words)

  def cover(self, first_words: np.ndarray, num_words: np.ndarray) -> None:
    """Marks the words of spans as covered: `num_words` words each, from `first_words` on."""
    for index in range(self.ngram):
      self.covered[first_words[index < num_words] + index] = True


def _concatenate_ranges(starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Concatenates ranges of integers, and returns the integers and the index of each one's range.

  For example, starts [3, 10] and stops [6, 12] give [3, 4, 5, 10, 11] and [0, 0, 0, 1, 1].
  """
  sizes = stops - starts
  owners = np.repeat(np.arange(sizes.size), sizes)
  offsets = np.cumsum(sizes) - sizes  # index of each range's first integer in the result; 0 and 3 in the example
  return np.arange(owners.size) - offsets[owners] + starts[owners], owners


def _choose_one_per_owner(owners: np.ndarray, num_owners: int, bits: np.ndarray) -> np.ndarray:
  """Chooses one of the elements of each owner, all with the same probability.

  Args:
    owners: int64, ascending, the owner of each element.
    num_owners: number of owners.
    bits: uint64 [num_owners], random bits.
  Returns: int64 [num_owners], the index of the chosen element; -1 for an owner without elements.
  """
  counts = np.bincount(owners, minlength=num_owners)
  first_elements = np.cumsum(counts) - counts
  chosen = first_elements + random_streams.to_int_below(bits, np.maximum(counts, 1))
  return np.where(counts > 0, chosen, -1)


def _choose_among_all_spans(
  words: _Words, rows: np.ndarray, drawn_words: np.ndarray, room: np.ndarray, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Selects a span in each row uniformly among all possible ones.

  If no span of `drawn_words` words is possible in a row, n is lowered until one is.

  Args:
    words: the words of all rows.
    rows: int64 [R], the rows to search.
    drawn_words: int64 [R], the n to begin with.
    room: int64 [R], largest number of tokens in the span.
    bits: uint64 [R], random bits.

  Returns:
    first_words: int64 [R], the first word of each span.
    num_words: int64 [R], its number of words; 0 if the row has room for no further span.
  """
  first_words, num_words = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
  n = drawn_words.copy()
  unfinished = np.arange(rows.size)  # indices into `rows` of the rows without a span so far
  while unfinished.size:
    row = rows[unfinished]
    # Every word of the unfinished rows is a candidate. `owners` holds the index into `unfinished` of its row.
    candidates, owners = _concatenate_ranges(words.row_splits_in_words[row], words.row_splits_in_words[row + 1])
    candidate_words = words.words_in_span(candidates, n[unfinished][owners], room[unfinished][owners])
    possible = np.flatnonzero(candidate_words)  # indices into `candidates`
    # For each unfinished row, an index into `possible`; -1 if no span is possible in the row.
    chosen = _choose_one_per_owner(owners[possible], unfinished.size, bits[unfinished])
    has_span = chosen >= 0
    finished, selected = unfinished[has_span], possible[chosen[has_span]]
    first_words[finished], num_words[finished] = candidates[selected], candidate_words[selected]
    n[unfinished] -= 1
    unfinished = unfinished[~has_span & (n[unfinished] > 0)]
  return first_words, num_words


def _try_candidates(
  words: _Words, rows: np.ndarray, drawn_words: np.ndarray, room: np.ndarray, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Tries random starts of a span in each row, and selects the first one that is possible.

  Args:
    words, rows, drawn_words, room: see _choose_among_all_spans.
    bits: uint64 [R, C], random bits for the candidates.

  Returns:
    first_words, num_words: int64 [R]; num_words is 0 if no candidate is possible.
  """
  first_word_of_row = words.row_splits_in_words[rows]
  num_words_of_row = words.row_splits_in_words[rows + 1] - first_word_of_row
  candidates = first_word_of_row[:, None] + random_streams.to_int_below(bits, num_words_of_row[:, None])  # [R, C]
  candidate_words = words.words_in_span(candidates, drawn_words[:, None], room[:, None])
  # In each row, the index of the first candidate at which a span can start. If there is none, it is 0, and this
  # candidate has 0 words.
  chosen = np.arange(rows.size), (candidate_words > 0).argmax(axis=1)
  return candidates[chosen], candidate_words[chosen]


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
  another one or leave its run of words, n is kept and another first word is drawn. The drawn n therefore follow p(n)
  exactly. (The original ALBERT draws n again in this case, so it selects more short spans.) A span has fewer than n
  words in two cases: n words have more tokens than the budget has left, or no span of n words is possible in the row.

  Args:
    word_starts: bool [T], True for tokens that start a word. A token that follows a special token, or that is the first
      one of its row, counts as a word start, whatever its value here.
    maskable: bool [T], False for special tokens and padding.
    row_splits: int [B + 1], row b consists of the tokens row_splits[b] to row_splits[b + 1] - 1.
    budgets: int [B], largest number of tokens to select in each row.
    keys: uint64 [B], key of each row's random stream.
    ngram: largest number of words in a span.

  Returns:
    The spans, in no particular order.
  """
  words = _Words(word_starts, maskable, row_splits, ngram)
  n_thresholds = np.cumsum(ngram_probabilities(ngram))[:-1]
  stream_keys = random_streams.draw(keys, _SPAN_STREAM)
  room = budgets.astype(np.int64)  # tokens of each row that may still be selected
  drawn_words = np.zeros(room.size, np.int64)  # the n of the span that a row is looking for; 0 if it is not drawn yet
  tries = np.zeros(room.size, np.int64)  # rounds in which this span was looked for
  spans = [np.zeros([5, 0], np.int64)]  # the columns of MaskedSpans
  rows = np.flatnonzero((room > 0) & (np.diff(words.row_splits_in_words) > 0))  # that are looking for a span
  counters = np.arange(_DRAWS_PER_ROUND)
  while rows.size:  # in each round, a row gets at most one span
    bits = random_streams.draw(stream_keys[rows, None], counters)  # [R, _DRAWS_PER_ROUND]
    counters = counters + _DRAWS_PER_ROUND
    needs_n = drawn_words[rows] == 0
    draws = random_streams.to_unit_float(bits[needs_n, 0])
    drawn_words[rows[needs_n]] = 1 + np.searchsorted(n_thresholds, draws, side="right")
    first_words, num_words = _try_candidates(words, rows, drawn_words[rows], room[rows], bits[:, 1:-1])
    tries[rows] += 1
    failed = np.flatnonzero((num_words == 0) & (tries[rows] >= _MAX_TRIES))  # indices into `rows`
    first_words[failed], num_words[failed] = _choose_among_all_spans(
      words, rows[failed], drawn_words[rows[failed]], room[rows[failed]], bits[failed, -1]
    )
    # Rows in which not even the search of all spans found one are full.
    has_span = num_words > 0
    is_full = ~has_span & (tries[rows] >= _MAX_TRIES)
    found, first_words, num_words = rows[has_span], first_words[has_span], num_words[has_span]
    words.cover(first_words, num_words)
    starts, ends = words.start[first_words], words.end[first_words + num_words - 1]
    spans.append(np.stack([found, starts, ends, num_words, drawn_words[found]]))
    room[found] -= ends - starts
    drawn_words[found], tries[found] = 0, 0
    rows = rows[(room[rows] > 0) & ~is_full]
  return MaskedSpans(*np.concatenate(spans, axis=1))


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
  """Masks the tokens of B rows: selects spans (`select_spans`) and replaces their tokens.

  Args:
    ids: int [T].
    word_starts, maskable, row_splits, budgets, keys, ngram: see select_spans.
    mask_id: id of [MASK].
    random_ids: the ids that random tokens are drawn from, uniformly.

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
  # For the token in column c of its row, the random numbers 2c and 2c + 1 of the row's stream are used.
  stream_keys, columns = random_streams.draw(keys[rows], _REPLACEMENT_STREAM), positions - row_splits[rows]
  action_draws = random_streams.to_unit_float(random_streams.draw(stream_keys, 2 * columns))
  random_bits = random_streams.draw(stream_keys, 2 * columns + 1)
  random_tokens = random_ids[random_streams.to_int_below(random_bits, random_ids.size)]
  labels = ids[positions]
  random_or_same = np.where(action_draws < _P_MASK_OR_RANDOM, random_tokens, labels)
  masked = ids.copy()
  masked[positions] = np.where(action_draws < _P_MASK, mask_id, random_or_same)
  return MaskedTokens(ids=masked, positions=positions, labels=labels, spans=spans)
