"""Masking has the paper's statistics, and its replacements equal those of a slow version in plain Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from albert.data import masks
from tests.data.reference_draws import LOW_64_BITS, draw, to_int_below, to_unit_float

CLS_ID, SEP_ID, MASK_ID = 2, 3, 4
RANDOM_IDS = np.arange(5, 50)


@pytest.mark.parametrize(("length", "expected"), [(512, 77), (128, 19), (3, 1), (10, 2), (600, 77)])
def test_num_predictions_is_rounded_and_limited_as_in_the_original(length: int, expected: int) -> None:
  # For 10 tokens, round(1.5) = 2: Python's round() rounds a half to the even number.
  assert masks.num_predictions(np.array([length]), 0.15, 77).tolist() == [expected]


class Rows(NamedTuple):
  """Rows of `[CLS] a [SEP] b [SEP]` with random tokens and keys; the arrays of tokens are [rows, length]."""

  ids: np.ndarray
  word_starts: np.ndarray
  maskable: np.ndarray
  keys: np.ndarray


def _make_rows(num_rows: int, length: int, seed: int) -> Rows:
  rng = np.random.default_rng(seed)
  ids = rng.integers(5, 50, (num_rows, length))
  word_starts = rng.random((num_rows, length)) < 0.75
  maskable = np.ones((num_rows, length), bool)
  maskable[:, [0, length // 3, -1]] = False
  ids[:, 0], ids[:, [length // 3, -1]] = CLS_ID, SEP_ID
  keys = rng.integers(0, LOW_64_BITS, num_rows, dtype=np.uint64)
  return Rows(ids, word_starts, maskable, keys)


def _mask(rows: Rows, budget: int) -> masks.MaskedTokens:
  num_rows, length = rows.ids.shape
  return masks.mask_tokens(
    rows.ids.ravel(),
    rows.word_starts.ravel(),
    rows.maskable.ravel(),
    np.arange(num_rows + 1) * length,
    budgets=np.full(num_rows, budget),
    keys=rows.keys,
    ngram=3,
    mask_id=MASK_ID,
    random_ids=RANDOM_IDS,
  )


def test_lengths_of_spans_replacements_and_positions_have_the_expected_frequencies() -> None:
  num_rows, length, budget = 4000, 128, 19
  masked = _mask(_make_rows(num_rows, length, seed=1), budget)
  num_spans = np.bincount(masked.spans.drawn_words, minlength=4)[1:]  # of 1, 2 and 3 words
  expected = [6 / 11, 3 / 11, 2 / 11]  # in proportion to 1 / n
  np.testing.assert_allclose(num_spans / num_spans.sum(), expected, atol=4 * 0.5 / np.sqrt(num_spans.sum()))
  assert masked.positions.size >= 0.999 * num_rows * budget
  input_ids = masked.ids[masked.positions]
  tolerance = 4 * 0.5 / np.sqrt(input_ids.size)  # four times the largest standard deviation of a fraction
  assert np.mean(input_ids == MASK_ID) == pytest.approx(0.8, abs=tolerance)
  assert np.mean(input_ids == masked.labels) == pytest.approx(0.1 + 0.1 / RANDOM_IDS.size, abs=tolerance)
  random_ids = input_ids[(input_ids != MASK_ID) & (input_ids != masked.labels)]
  assert set(random_ids.tolist()) == set(RANDOM_IDS.tolist())
  # Every position is masked equally often, except for special tokens and those near them.
  num_masks = np.bincount(masked.positions % length, minlength=length)
  assert num_masks[[0, length // 3, length - 1]].tolist() == [0, 0, 0]
  away_from_special_tokens = num_masks[50:120]  # [SEP] is at 42 and 127
  assert away_from_special_tokens.std() / away_from_special_tokens.mean() < 0.06  # 0.04 by chance for 600 masks each


def test_replacements_equal_those_of_plain_python() -> None:
  rows = _make_rows(3, 40, seed=2)
  masked = _mask(rows, budget=12)
  assert masked.positions.size > 30
  expected = rows.ids.ravel().tolist()
  for position in masked.positions.tolist():
    row, column = divmod(position, 40)
    stream = draw(int(rows.keys[row]), 1)  # stream 0 of a row's key is for the spans, stream 1 for the replacements
    action_draw = to_unit_float(draw(stream, 2 * column))
    random_id = int(RANDOM_IDS[to_int_below(draw(stream, 2 * column + 1), RANDOM_IDS.size)])
    if action_draw < 0.8:
      expected[position] = MASK_ID
    elif action_draw < 0.9:
      expected[position] = random_id
  assert masked.ids.tolist() == expected
