"""The spans to mask equal those of a slow version in plain Python, and have the properties that masking needs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.data.masks import MaskedSpans, select_spans
from tests.data.reference_draws import LOW_64_BITS, draw, to_int_below, to_unit_float


def reference_words(word_starts: list[bool], maskable: list[bool]) -> list[list[int]]:
  words: list[list[int]] = []
  for token, (is_start, is_maskable) in enumerate(zip(word_starts, maskable, strict=True)):
    if not is_maskable:
      continue
    if is_start or token == 0 or not maskable[token - 1]:
      words.append([])
    words[-1].append(token)
  return words


class Span(NamedTuple):
  """A span to mask.

  Attributes:
    start, end: the first token, and the token after the last one.
    num_words: number of words in the span.
    drawn_words: the number of words that was drawn. A span is shorter if the budget does not suffice.
  """

  start: int
  end: int
  num_words: int
  drawn_words: int


def possible_span(
  words: list[list[int]], first_word: int, drawn_words: int, room: int, masked: set[int]
) -> Span | None:
  """Returns the span of `drawn_words` words from a word on, shortened to `room` tokens; None if it is impossible."""
  tokens: list[int] = []
  num_words = 0
  while num_words < drawn_words:
    next_word = words[first_word + num_words] if first_word + num_words < len(words) else []
    if not next_word or (tokens and next_word[0] != tokens[-1] + 1):
      return None
    if len(tokens) + len(next_word) > room:
      break
    tokens += next_word
    num_words += 1
  if not tokens or masked & set(tokens):
    return None
  return Span(tokens[0], tokens[-1] + 1, num_words, drawn_words)


def draw_number_of_words(bits: int, ngram: int) -> int:
  """Returns n from 1 to `ngram`, with a probability in proportion to 1 / n."""
  weights = [1 / n for n in range(1, ngram + 1)]
  point = to_unit_float(bits) * sum(weights)
  n = 1
  while n < ngram and point >= sum(weights[:n]):
    n += 1
  return n


def longest_possible_span(
  words: list[list[int]], drawn_words: int, room: int, masked: set[int], bits: int
) -> Span | None:
  """Returns a random one of the longest possible spans of at most `drawn_words` words; None if there is none."""
  for num_words in range(drawn_words, 0, -1):
    spans = [possible_span(words, first_word, num_words, room, masked) for first_word in range(len(words))]
    possible = [span for span in spans if span]
    if possible:
      return possible[to_int_below(bits, len(possible))]._replace(drawn_words=drawn_words)
  return None


def reference_spans(row: Row, ngram: int) -> list[Span]:
  """Returns the spans of a row, in the order in which they are selected."""
  words = reference_words(row.word_starts, row.maskable)
  stream = draw(row.key, 0)
  masked: set[int] = set()
  spans: list[Span] = []
  drawn_words = num_tries = num_rounds = 0
  while words and len(masked) < row.budget:
    # A round takes four draws: the number of words, two candidates for the first word, and one for the last try.
    bits = [draw(stream, num_rounds * 4 + index) for index in range(4)]
    num_rounds += 1
    if drawn_words == 0:
      drawn_words = draw_number_of_words(bits[0], ngram)
    room = row.budget - len(masked)
    candidates = [to_int_below(candidate_bits, len(words)) for candidate_bits in bits[1:3]]
    span = possible_span(words, candidates[0], drawn_words, room, masked)
    if span is None:
      span = possible_span(words, candidates[1], drawn_words, room, masked)
    num_tries += 1
    if span is None and num_tries >= 4:
      span = longest_possible_span(words, drawn_words, room, masked, bits[3])
      if span is None:
        break
    if span is not None:
      masked |= set(range(span.start, span.end))
      spans.append(span)
      drawn_words = num_tries = 0
  return spans


class Row(NamedTuple):
  """The arguments of select_spans for one row."""

  word_starts: list[bool]
  maskable: list[bool]
  budget: int
  key: int


@st.composite
def random_row(draw_from: st.DrawFn) -> Row:
  """Draws a row of up to 40 tokens with any word starts, special tokens, budget and key."""
  size = draw_from(st.integers(1, 40))
  word_starts = draw_from(st.lists(st.booleans(), min_size=size, max_size=size))
  maskable = draw_from(st.lists(st.sampled_from([True, True, True, True, False]), min_size=size, max_size=size))
  return Row(word_starts, maskable, draw_from(st.integers(0, 12)), draw_from(st.integers(0, LOW_64_BITS)))


def select_spans_of_rows(batch: list[Row], ngram: int) -> MaskedSpans:
  return select_spans(
    np.concatenate([row.word_starts for row in batch]),
    np.concatenate([row.maskable for row in batch]),
    row_offsets(batch),
    np.array([row.budget for row in batch]),
    np.array([row.key for row in batch], np.uint64),
    ngram=ngram,
  )


def row_offsets(batch: list[Row]) -> np.ndarray:
  """Returns the index of the first token of each row, and the number of all tokens."""
  return np.cumsum([0] + [len(row.maskable) for row in batch])


@settings(max_examples=150, deadline=None)
@given(st.lists(random_row(), min_size=1, max_size=6), st.integers(1, 4))
def test_spans_equal_the_reference_in_any_batch(batch: list[Row], ngram: int) -> None:
  spans = select_spans_of_rows(batch, ngram)
  offsets = row_offsets(batch)[spans.rows]
  starts_in_row, ends_in_row = spans.starts - offsets, spans.ends - offsets
  table = np.stack([starts_in_row, ends_in_row, spans.num_words, spans.drawn_words], axis=1)  # columns as in Span
  for index, row in enumerate(batch):
    row_spans = [Span(*columns) for columns in table[spans.rows == index].tolist()]
    assert row_spans == reference_spans(row, ngram)


def test_an_empty_batch_has_no_spans() -> None:
  nothing = np.zeros(0, bool)
  spans = select_spans(nothing, nothing, np.array([0]), np.zeros(0, int), np.zeros(0, np.uint64), ngram=3)
  assert spans.starts.size == 0
