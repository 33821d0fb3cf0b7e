"""Masking: compared with a slow reference in plain Python; properties of its spans, and its statistics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.data import masking
from albert.data.span_selection import MaskedSpans, ngram_probabilities, select_spans

MASK_64 = 2**64 - 1
MASK_ID = 4
RANDOM_IDS = np.arange(5, 50)


def draw(key: int, counter: int) -> int:
  """SplitMix64 in Python integers."""
  bits = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK_64
  bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
  bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK_64
  return bits ^ (bits >> 31)


def below(bits: int, bound: int) -> int:
  return ((bits >> 32) * bound) >> 32


def unit(bits: int) -> float:
  return (bits >> 11) * 2.0**-53


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


@pytest.mark.parametrize(("length", "expected"), [(512, 77), (128, 19), (3, 1), (10, 2), (600, 77)])
def test_num_predictions(length: int, expected: int) -> None:
  # round(10 * 0.15) = round(1.5) = 2: half to even, as the original's round().
  assert masking.num_predictions(np.array([length]), 0.15, 77).tolist() == [expected]


def test_ngram_probabilities() -> None:
  assert ngram_probabilities(3).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])


def _long_rows(num_rows: int, length: int, seed: int) -> tuple[np.ndarray, ...]:
  rng = np.random.default_rng(seed)
  ids = rng.integers(5, 50, (num_rows, length))
  starts = rng.random((num_rows, length)) < 0.75
  maskable = np.ones((num_rows, length), bool)
  maskable[:, [0, length // 3, -1]] = False
  ids[:, 0], ids[:, [length // 3, -1]] = 2, 3
  keys = rng.integers(0, MASK_64, num_rows, dtype=np.uint64)
  return ids.ravel(), starts.ravel(), maskable.ravel(), np.arange(num_rows + 1) * length, keys


def _mask(parts: tuple[np.ndarray, ...], budget: int) -> masking.MaskedTokens:
  ids, starts, maskable, row_splits, keys = parts
  return masking.mask_tokens(
    ids,
    starts,
    maskable,
    row_splits,
    budgets=np.full(keys.size, budget),
    keys=keys,
    ngram=3,
    mask_id=MASK_ID,
    random_ids=RANDOM_IDS,
  )


def test_statistics_against_closed_forms() -> None:
  num_rows, length, budget = 4000, 128, 19
  parts = _long_rows(num_rows, length, seed=1)
  masked = _mask(parts, budget)
  drawn = np.bincount(masked.spans.drawn_words, minlength=4)[1:]
  np.testing.assert_allclose(drawn / drawn.sum(), [6 / 11, 3 / 11, 2 / 11], atol=4 * 0.5 / np.sqrt(drawn.sum()))
  assert masked.positions.size >= 0.999 * num_rows * budget
  input_ids = masked.ids[masked.positions]
  tolerance = 4 * 0.5 / np.sqrt(input_ids.size)  # four times the largest standard deviation of a fraction
  assert np.mean(input_ids == MASK_ID) == pytest.approx(0.8, abs=tolerance)
  assert np.mean(input_ids == masked.labels) == pytest.approx(0.1 + 0.1 / RANDOM_IDS.size, abs=tolerance)
  random_ids = input_ids[(input_ids != MASK_ID) & (input_ids != masked.labels)]
  assert set(random_ids.tolist()) == set(RANDOM_IDS.tolist())
  # Spans are distributed evenly over the row, apart from effects of the span length at its ends.
  columns = np.bincount(masked.positions % length, minlength=length)
  assert columns[[0, length // 3, length - 1]].tolist() == [0, 0, 0]
  middle = columns[50:120]
  assert middle.std() / middle.mean() < 0.06


def test_labels_restore_the_text_and_only_masked_tokens_change() -> None:
  parts = _long_rows(50, 64, seed=2)
  masked = _mask(parts, 10)
  restored = masked.ids.copy()
  restored[masked.positions] = masked.labels
  np.testing.assert_array_equal(restored, parts[0])
  np.testing.assert_array_equal(masked.positions, np.unique(masked.positions))


def test_result_does_not_depend_on_the_batch() -> None:
  ids, starts, maskable, row_splits, keys = _long_rows(30, 64, seed=3)
  together = _mask((ids, starts, maskable, row_splits, keys), 10)
  for row in (0, 7, 29):
    part = slice(row * 64, (row + 1) * 64)
    alone = _mask((ids[part], starts[part], maskable[part], np.array([0, 64]), keys[row : row + 1]), 10)
    np.testing.assert_array_equal(alone.ids, together.ids[part])


def test_replacements_equal_reference() -> None:
  ids = np.arange(100, 140)
  positions = np.arange(0, 40, 3)
  keys = np.full(positions.size, 99, np.uint64)
  replaced = masking.replace_tokens(ids, positions, positions, keys, mask_id=MASK_ID, random_ids=RANDOM_IDS)
  stream = draw(99, 1)
  expected = ids.tolist()
  for position in positions.tolist():
    action_draw = unit(draw(stream, 2 * position))
    random_id = int(RANDOM_IDS[below(draw(stream, 2 * position + 1), RANDOM_IDS.size)])
    if action_draw < 0.8:
      expected[position] = MASK_ID
    elif action_draw < 0.9:
      expected[position] = random_id
  assert replaced.tolist() == expected
