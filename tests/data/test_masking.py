"""Masking: replacements compared with a slow reference in plain Python, and statistics of the masks."""

from __future__ import annotations

import numpy as np
import pytest

from albert.data import masking
from tests.data.reference_draws import MASK_64, below, draw, unit

MASK_ID = 4
RANDOM_IDS = np.arange(5, 50)


@pytest.mark.parametrize(("length", "expected"), [(512, 77), (128, 19), (3, 1), (10, 2), (600, 77)])
def test_num_predictions(length: int, expected: int) -> None:
  # round(10 * 0.15) = round(1.5) = 2: half to even, as the original's round().
  assert masking.num_predictions(np.array([length]), 0.15, 77).tolist() == [expected]


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
