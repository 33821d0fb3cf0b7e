"""Masked-LM targets: which n-grams of whole words to hide, and what to put in their place.

Pure: arrays in, arrays out, randomness is an argument. Sequences of different lengths are laid end to end:
T tokens of B rows, row b being tokens row_splits[b] to row_splits[b + 1]. A row's result depends on that row
and its key alone.

Legend: T tokens, B rows, W words, M spans, K places tried at a time.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from albert.data import random_streams

# p(mask), p(random), p(kept) = 0.8, 0.1, 0.1 for each hidden piece (BERT, section 3.1; ALBERT keeps it).
_P_MASK = 0.8
_P_MASK_OR_RANDOM = 0.9
# Places drawn at a time, and how often, before the places that are left are searched one by one. Both are
# part of what a key means: other values give other spans of the same distribution.
_PLACES = 2
_TRIES = 4
# Draws of one step: the n-gram, the places, the choice among all places.
_DRAWS = _PLACES + 2
# Streams within a row's stream.
_SPANS, _REPLACEMENTS = 0, 1


@dataclasses.dataclass(frozen=True)
class MaskedSpans:
  """Chosen spans, in no particular order; every array is [M].

  Attributes:
    rows: row of the span.
    starts, ends: its tokens are starts to ends (not included), counted in T.
    num_words: how many words it holds.
    drawn_words: the n that was drawn; num_words is less where the budget or the row left no room for n.
  """

  rows: np.ndarray
  starts: np.ndarray
  ends: np.ndarray
  num_words: np.ndarray
  drawn_words: np.ndarray


@dataclasses.dataclass(frozen=True)
class MaskedTokens:
  """ids [T] after replacement; the hidden tokens' places in T, ascending, and their original ids."""

  ids: np.ndarray
  positions: np.ndarray
  labels: np.ndarray
  spans: MaskedSpans


def ngram_probabilities(ngram: int) -> np.ndarray:
  """p(n) for n = 1..ngram: proportional to 1/n (ALBERT, section 4.1)."""
  weights = 1.0 / np.arange(1, ngram + 1)
  return weights / weights.sum()


def num_predictions(lengths: np.ndarray, masked_lm_prob: float, max_predictions_per_seq: int) -> np.ndarray:
  """Tokens to hide in sequences of these lengths, [CLS] and [SEP] counted in, as the original counts."""
  wanted = np.maximum(1, np.rint(lengths * masked_lm_prob)).astype(np.int64)
  return np.minimum(wanted, max_predictions_per_seq)


class _Words:
  """The words of all rows, padded by `ngram` words that nothing fits on.

  A run is a stretch of words without a special token between them; spans stay inside one.
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
    first, last = edges[is_word], next_edge[is_word]
    runs = np.cumsum(after_break[first])
    nowhere = np.full(ngram, -1, np.int64)
    self.start = np.concatenate([first, nowhere])
    self.end = np.concatenate([last, nowhere])
    self.run = np.concatenate([runs, nowhere])
    self.covered = np.zeros(first.size + ngram, bool)
    self.row_splits = np.searchsorted(first, row_splits)
    self.ngram = ngram

  def fit(self, places: np.ndarray, words: np.ndarray, room: np.ndarray) -> np.ndarray:
    """How many words a span has that starts at each place: `words`, fewer if `room` tokens hold no more.

    0 where nothing can start: the span would reach over a covered word or out of its run, or no word fits.
    The three arguments broadcast.
    """
    start, run = self.start[places], self.run[places]
    count = np.zeros(places.shape, np.int64)
    blocked = np.zeros(places.shape, bool)
    for index in range(self.ngram):
      there = places + index
      # What lies beyond the run is never measured: it may be another row.
      reached = (index < words) & (count == index)
      inside = self.run[there] == run
      blocked |= reached & ~inside
      count += reached & inside & (self.end[there] - start <= room)
    for index in range(self.ngram):
      blocked |= (index < count) & self.covered[places + index]
    return np.where(blocked, 0, count)

  def cover(self, places: np.ndarray, count: np.ndarray) -> None:
    for index in range(self.ngram):
      self.covered[places[index < count] + index] = True


def _search(
  words: _Words, rows: np.ndarray, drawn: np.ndarray, room: np.ndarray, bits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """For each row a uniform choice among all places where n words fit, n the greatest that fits anywhere.

  Returns:
    places, and word counts there; a count of 0 says that nothing fits in the row any more.
  """
  places, counts = np.zeros(rows.size, np.int64), np.zeros(rows.size, np.int64)
  wanted = drawn.copy()
  open_rows = np.arange(rows.size)
  while open_rows.size:
    first, stop = words.row_splits[rows[open_rows]], words.row_splits[rows[open_rows] + 1]
    sizes = stop - first
    ends = np.cumsum(sizes)
    owner = np.repeat(np.arange(open_rows.size), sizes)
    candidates = np.arange(ends[-1]) - np.repeat(ends - sizes - first, sizes)
    fit = words.fit(candidates, wanted[open_rows][owner], room[open_rows][owner])
    reached = np.cumsum(fit > 0)
    before = np.concatenate([[0], reached])[ends - sizes]
    options = np.concatenate([[0], reached])[ends] - before
    found = options > 0
    choice = before[found] + random_streams.below(bits[open_rows[found]], options[found])
    index = np.searchsorted(reached, choice, side="right")
    places[open_rows[found]] = candidates[index]
    counts[open_rows[found]] = fit[index]
    wanted[open_rows] -= 1
    open_rows = open_rows[~found & (wanted[open_rows] > 0)]
  return places, counts


def select_spans(
  word_starts: np.ndarray,
  maskable: np.ndarray,
  row_splits: np.ndarray,
  budgets: np.ndarray,
  keys: np.ndarray,
  *,
  ngram: int,
) -> MaskedSpans:
  """Chooses non-overlapping n-grams of whole words in every row, until its budget of tokens is spent.

  n is drawn with p(n) proportional to 1/n, then a place uniformly. A place where the span would overlap
  another or leave its run is passed over and n is kept, so the drawn n of the accepted spans follow p(n)
  exactly. (Drawing n anew, as the original does, would favour short spans.) Where the budget is too small
  for n words, the longest shorter n-gram at that place is taken; where a row has no place for n words, n
  is lowered.

  Args:
    word_starts: bool [T], the token starts a word. A token after an unmaskable one starts its own.
    maskable: bool [T], False on special tokens and padding.
    row_splits: int [B + 1].
    budgets: int [B], the greatest number of tokens to choose in each row.
    keys: uint64 [B], the row's random stream.
    ngram: greatest number of words in a span.
  """
  words = _Words(word_starts, maskable, row_splits, ngram)
  row_words = np.diff(words.row_splits)
  streams = random_streams.draw(keys, _SPANS)
  thresholds = np.cumsum(ngram_probabilities(ngram))[:-1]
  room = budgets.astype(np.int64)
  drawn = np.zeros(room.size, np.int64)
  misses = np.zeros(room.size, np.int64)
  chosen: list[tuple[np.ndarray, ...]] = []
  active = np.flatnonzero((room > 0) & (row_words > 0))
  step = 0
  while active.size:
    counters = np.arange(step * _DRAWS, (step + 1) * _DRAWS)
    bits = random_streams.draw(streams[active, None], counters)
    fresh = active[drawn[active] == 0]
    drawn[fresh] = 1 + np.searchsorted(thresholds, random_streams.unit(bits[drawn[active] == 0, 0]), side="right")
    wanted, left = drawn[active], room[active]
    places = words.row_splits[active, None] + random_streams.below(bits[:, 1:-1], row_words[active, None])
    fit = words.fit(places, wanted[:, None], left[:, None])
    pick = (fit > 0).argmax(axis=1)
    line = np.arange(active.size)
    place, count = places[line, pick], fit[line, pick]
    misses[active] += 1
    search = np.flatnonzero((count == 0) & (misses[active] >= _TRIES))
    full = np.zeros(active.size, bool)
    if search.size:
      place[search], count[search] = _search(words, active[search], wanted[search], left[search], bits[search, -1])
      full[search] = count[search] == 0
    taken = count > 0
    place, count = place[taken], count[taken]
    rows = active[taken]
    words.cover(place, count)
    start, end = words.start[place], words.end[place + count - 1]
    chosen.append((rows, start, end, count, wanted[taken]))
    room[rows] -= end - start
    drawn[rows], misses[rows] = 0, 0
    active = active[(room[active] > 0) & ~full]
    step += 1
  if not chosen:
    return MaskedSpans(*(np.zeros(0, np.int64) for _ in range(5)))
  return MaskedSpans(*(np.concatenate(parts) for parts in zip(*chosen, strict=True)))


def replace_tokens(
  ids: np.ndarray,
  positions: np.ndarray,
  columns: np.ndarray,
  keys: np.ndarray,
  *,
  mask_id: int,
  random_ids: np.ndarray,
) -> np.ndarray:
  """A copy of ids [T] with the tokens at `positions` replaced: 80% [MASK], 10% random, 10% kept.

  Args:
    ids: int [T].
    positions: int [M], indices into T.
    columns: int [M], the position within its own row (it numbers the draws).
    keys: uint64 [M], the row's random stream.
    mask_id: id of [MASK].
    random_ids: the ids a random replacement is drawn from, uniformly.
  """
  streams = random_streams.draw(keys, _REPLACEMENTS)
  action = random_streams.unit(random_streams.draw(streams, 2 * columns))
  other = random_ids[random_streams.below(random_streams.draw(streams, 2 * columns + 1), random_ids.size)]
  shown = np.where(action < _P_MASK, mask_id, np.where(action < _P_MASK_OR_RANDOM, other, ids[positions]))
  replaced = ids.copy()
  replaced[positions] = shown
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
  """Chooses spans (`select_spans`) and replaces their tokens (`replace_tokens`), for B rows at once."""
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
