"""Masks and sentence-order pairs of single examples: those of data preparation, and the distributions of the paper."""

from __future__ import annotations

import numpy as np
import pytest

from albert.data import masking
from albert.data.pretraining_examples import mask_tokens, sentence_order_pair
from albert.errors import UserError
from albert.tokenization.tokenizer import CLS_ID, MASK_ID, SEP_ID, Tokenizer

TEXT = "The captain sold the garden behind the house, and then went home although it was raining. "


@pytest.fixture(scope="module")
def tokenizer(spm_model: str) -> Tokenizer:
  return Tokenizer(spm_model)


def test_masks_are_those_of_data_preparation(tokenizer):
  ids = tokenizer([TEXT * 3])["input_ids"][0]
  before = ids.copy()
  found = mask_tokens(ids, tokenizer, rng=np.random.default_rng(7), max_predictions=9)
  expected = masking.mask_tokens(
    ids,
    tokenizer.word_starts[ids],
    (ids != CLS_ID) & (ids != SEP_ID),
    np.array([0, ids.size]),
    budgets=masking.num_predictions(np.array([ids.size]), 0.15, 9),
    keys=np.random.default_rng(7).integers(2**64, size=1, dtype=np.uint64),
    ngram=3,
    mask_id=MASK_ID,
    random_ids=np.arange(5, tokenizer.vocab_size),
  )
  np.testing.assert_array_equal(found.ids, expected.ids)
  np.testing.assert_array_equal(found.positions, expected.positions)
  np.testing.assert_array_equal(found.labels, before[found.positions])
  np.testing.assert_array_equal(ids, before)
  assert len(found.positions) == 9
  assert {array.dtype for array in found} == {np.dtype(np.int32)}


def test_four_fifths_become_the_mask(tokenizer):
  ids, rng = tokenizer([TEXT * 4])["input_ids"][0], np.random.default_rng(1)
  masked = same = total = 0
  for _ in range(200):
    result = mask_tokens(ids, tokenizer, rng=rng)
    masked += int((result.ids[result.positions] == MASK_ID).sum())
    same += int((result.ids[result.positions] == result.labels).sum())
    total += len(result.labels)
    unmasked = np.setdiff1d(np.arange(ids.size), result.positions)
    np.testing.assert_array_equal(result.ids[unmasked], ids[unmasked])
  assert total == pytest.approx(200 * 0.15 * ids.size, rel=0.03)
  assert masked / total == pytest.approx(0.8, abs=0.03)
  assert same / total == pytest.approx(0.1, abs=0.03)


def test_nothing_to_mask(tokenizer):
  assert not mask_tokens([CLS_ID, SEP_ID], tokenizer, rng=np.random.default_rng(0)).positions.size


@pytest.mark.parametrize(
  ("ids", "options", "message"),
  [
    ([5, 10**6], {}, "id 1000000 is outside the"),
    ([5, -1], {}, "id -1 is outside the"),
    ([[5]], {}, r"ids have the shape \[1, 1\]"),
    ([5], {"masked_lm_prob": 0.0}, "masked_lm_prob is 0.0"),
    ([5], {"max_predictions": 0}, "max_predictions is 0"),
    ([5], {"ngram": 0}, "ngram is 0"),
  ],
)
def test_masks_of_what_is_no_sequence(tokenizer, ids, options, message):
  with pytest.raises(UserError, match=message):
    mask_tokens(ids, tokenizer, rng=np.random.default_rng(0), **options)


def test_half_of_the_pairs_are_swapped():
  rng = np.random.default_rng(3)
  pairs = [sentence_order_pair([1, 2], (3, 4, 5), rng=rng) for _ in range(2000)]
  assert np.mean([pair.label for pair in pairs]) == pytest.approx(0.5, abs=0.04)
  for pair in pairs:
    assert (pair.first, pair.second) == (([3, 4, 5], [1, 2]) if pair.label else ([1, 2], [3, 4, 5]))


def test_a_long_pair_is_cut_at_both_ends_of_the_longer_segment():
  rng = np.random.default_rng(3)
  kept = set()
  for _ in range(300):
    pair = sentence_order_pair(list(range(10, 14)), list(range(20, 29)), rng=rng, max_tokens=10)
    one, other = (pair.second, pair.first) if pair.label else (pair.first, pair.second)
    assert one == [10, 11, 12, 13]
    assert other == list(range(other[0], other[0] + 6))
    kept.add(other[0])
  assert kept == {20, 21, 22, 23}
  pair = sentence_order_pair([1, 2, 3], [4, 5, 6], rng=rng, max_tokens=5)
  assert (len(pair.first), len(pair.second)) == (3, 2)  # of equal ones the second loses a token


def test_pairs_that_cannot_be_made():
  rng = np.random.default_rng(3)
  with pytest.raises(UserError, match="segments of 0 and 1 ids"):
    sentence_order_pair([], [1], rng=rng)
  with pytest.raises(UserError, match="max_tokens is 1: give at least 2"):
    sentence_order_pair([1], [1], rng=rng, max_tokens=1)
