"""Selection of the spans to mask: compared with a slow reference in plain Python, and properties of the spans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.data.span_selection import MaskedSpans, ngram_probabilities, select_spans
from tests.data.reference_draws import MASK_64, below, draw, unit


def reference_words(word_starts: list[bool], maskable: list[bool]) -> list[list[int]]:
  """Returns the token indices of each word of a row."""
  words: list[list[int]] = []
  for token, (is_start, is_maskable) in enumerate(zip(word_starts, maskable, strict=True)):
    if not is_maskable:
      continue
    if is_start or token == 0 or not maskable[token - 1]:
      words.append([])
    words[-1].append(token)
  return words


def reference_span_size(words: list[list[int]], first_word: int, n: int, room: int, covered: set[int]) -> int:
  """Returns the number of words of a span of n words from a word on, shortened to `room` tokens; 0 if impossible."""
  span: list[int] = []
  count = 0
  while count < n:
    following = words[first_word + count] if first_word + count < len(words) else []
    if not following or (span and following[0] != span[-1] + 1):
      return 0  # out of the run
    if len(span) + len(following) > room:
      break
    span += following
    count += 1
  return 0 if covered & set(span) else count


def reference_spans(
  word_starts: list[bool], maskable: list[bool], budget: int, key: int, ngram: int
) -> list[tuple[int, int, int, int]]:
  """Returns (start, end, num_words, drawn_words) of each span of a row, in the order in which they are selected."""
  words = reference_words(word_starts, maskable)
  stream = draw(key, 0)
  weights = [1 / n for n in range(1, ngram + 1)]
  covered: set[int] = set()
  spans: list[tuple[int, int, int, int]] = []
  drawn_words = num_tries = num_rounds = 0
  while words and len(covered) < budget:
    bits = [draw(stream, num_rounds * 4 + index) for index in range(4)]
    num_rounds += 1
    if drawn_words == 0:
      point, drawn_words = unit(bits[0]) * sum(weights), 1
      while drawn_words < ngram and point >= sum(weights[:drawn_words]):
        drawn_words += 1
    room = budget - len(covered)
    candidates = [below(candidate_bits, len(words)) for candidate_bits in bits[1:3]]
    sizes = [(first, reference_span_size(words, first, drawn_words, room, covered)) for first in candidates]
    accepted = next((first_and_size for first_and_size in sizes if first_and_size[1]), None)
    num_tries += 1
    if accepted is None and num_tries >= 4:
      for n in range(drawn_words, 0, -1):
        sizes = [(first, reference_span_size(words, first, n, room, covered)) for first in range(len(words))]
        possible = [first_and_size for first_and_size in sizes if first_and_size[1]]
        if possible:
          accepted = possible[below(bits[3], len(possible))]
          break
      else:
        break
    if accepted is None:
      continue
    first_word, num_words = accepted
    start, end = words[first_word][0], words[first_word + num_words - 1][-1] + 1
    covered |= set(range(start, end))
    spans.append((start, end, num_words, drawn_words))
    drawn_words = num_tries = 0
  return spans


Row = tuple[list[bool], list[bool], int, int]


@st.composite
def rows(draw_from: st.DrawFn) -> Row:
  """Draws word_starts, maskable, budget and key of a row, in any combination."""
  size = draw_from(st.integers(1, 40))
  starts = draw_from(st.lists(st.booleans(), min_size=size, max_size=size))
  maskable = draw_from(st.lists(st.sampled_from([True, True, True, True, False]), min_size=size, max_size=size))
  return starts, maskable, draw_from(st.integers(0, 12)), draw_from(st.integers(0, MASK_64))


def select(batch: list[Row], ngram: int) -> MaskedSpans:
  return select_spans(
    np.concatenate([row[0] for row in batch]),
    np.concatenate([row[1] for row in batch]),
    np.cumsum([0] + [len(row[0]) for row in batch]),
    np.array([row[2] for row in batch]),
    np.array([row[3] for row in batch], np.uint64),
    ngram=ngram,
  )


@settings(max_examples=150, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=6), st.integers(1, 4))
def test_spans_equal_the_reference_in_any_batch(batch: list[Row], ngram: int) -> None:
  spans = select(batch, ngram)
  offsets = np.cumsum([0] + [len(row[0]) for row in batch])
  for index, row in enumerate(batch):
    is_in_row = spans.rows == index
    row_spans = zip(
      (spans.starts[is_in_row] - offsets[index]).tolist(),
      (spans.ends[is_in_row] - offsets[index]).tolist(),
      spans.num_words[is_in_row].tolist(),
      spans.drawn_words[is_in_row].tolist(),
      strict=True,
    )
    assert list(row_spans) == reference_spans(*row, ngram)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=6))
def test_spans_are_whole_words_without_special_tokens_within_budget(batch: list[Row]) -> None:
  spans = select(batch, 3)
  maskable = np.concatenate([row[1] for row in batch])
  offsets = np.cumsum([0] + [len(row[0]) for row in batch])
  covered = np.zeros(maskable.size, int)
  for start, end in zip(spans.starts, spans.ends, strict=True):
    covered[start:end] += 1
  assert covered.max() <= 1
  assert not covered[~maskable].any()
  for index, row in enumerate(batch):
    in_row = covered[offsets[index] : offsets[index + 1]]
    assert in_row.sum() <= row[2]
    for word in reference_words(row[0], row[1]):
      assert len(set(in_row[word])) == 1


def test_spans_of_an_example_by_hand() -> None:
  # [CLS] a b ##b [SEP] ##c d [SEP]: the continuation after [SEP] is a word. The budget suffices for all words.
  starts = np.array([0, 1, 1, 0, 0, 0, 1, 0], bool)
  maskable = np.array([0, 1, 1, 1, 0, 1, 1, 0], bool)
  spans = select_spans(starts, maskable, np.array([0, 8]), np.array([8]), np.array([7], np.uint64), ngram=1)
  assert sorted(zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)) == [(1, 2), (2, 4), (5, 6), (6, 7)]


def test_a_word_longer_than_the_budget_is_not_masked() -> None:
  starts = np.array([0, 1, 0, 0, 0], bool)
  maskable = np.array([0, 1, 1, 1, 0], bool)
  spans = select_spans(starts, maskable, np.array([0, 5]), np.array([2]), np.array([1], np.uint64), ngram=3)
  assert spans.rows.size == 0


def test_no_rows() -> None:
  nothing = np.zeros(0, bool)
  spans = select_spans(nothing, nothing, np.array([0]), np.zeros(0, int), np.zeros(0, np.uint64), ngram=3)
  assert spans.starts.size == 0


def test_ngram_probabilities() -> None:
  assert ngram_probabilities(3).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
