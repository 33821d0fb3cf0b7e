"""The Python API for masks and sentence-order pairs gives those of data preparation, with the paper's frequencies."""

from __future__ import annotations

import numpy as np
import pytest

from albert.data import masks
from albert.data.pretraining_examples import mask_tokens, sentence_order_pair
from albert.errors import UserError
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import CLS_ID, MASK_ID, SEP_ID

TEXT = "The captain sold the garden behind the house, and then went home although it was raining. "


@pytest.fixture(scope="module")
def tokenizer(spm_model: str) -> Tokenizer:
  return Tokenizer(spm_model)


def test_masks_are_those_of_data_preparation(tokenizer):
  ids = tokenizer([TEXT * 3])["input_ids"][0]
  original_ids = ids.copy()
  masked = mask_tokens(ids, tokenizer, rng=np.random.default_rng(7), max_predictions=9)
  expected = masks.mask_tokens(
    ids,
    tokenizer.word_starts[ids],
    (ids != CLS_ID) & (ids != SEP_ID),
    np.array([0, ids.size]),
    budgets=masks.num_predictions(np.array([ids.size]), 0.15, 9),
    keys=np.random.default_rng(7).integers(2**64, size=1, dtype=np.uint64),
    ngram=3,
    mask_id=MASK_ID,
    random_ids=np.arange(5, tokenizer.vocab_size),
  )
  np.testing.assert_array_equal(masked.ids, expected.ids)
  np.testing.assert_array_equal(masked.positions, expected.positions)
  np.testing.assert_array_equal(masked.labels, original_ids[masked.positions])
  np.testing.assert_array_equal(ids, original_ids)
  assert len(masked.positions) == 9
  assert {array.dtype for array in masked} == {np.dtype(np.int32)}


def test_special_tokens_are_never_masked(tokenizer):
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
def test_mask_tokens_refuses_bad_ids_and_options(tokenizer, ids, options, message):
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
  first_ids = set()  # of the longer segment after the cut
  for _ in range(300):
    pair = sentence_order_pair(list(range(10, 14)), list(range(20, 29)), rng=rng, max_tokens=10)
    shorter, longer = (pair.second, pair.first) if pair.label else (pair.first, pair.second)
    assert shorter == [10, 11, 12, 13]
    assert longer == list(range(longer[0], longer[0] + 6))
    first_ids.add(longer[0])
  # Three tokens are cut, of which 0 to 3 are at the beginning.
  assert first_ids == {20, 21, 22, 23}
  pair = sentence_order_pair([1, 2, 3], [4, 5, 6], rng=rng, max_tokens=5)
  assert (len(pair.first), len(pair.second)) == (3, 2)  # if both are equally long, the second one is cut


def test_pairs_without_ids_or_room_are_refused():
  rng = np.random.default_rng(3)
  with pytest.raises(UserError, match="segments of 0 and 1 ids"):
    sentence_order_pair([], [1], rng=rng)
  with pytest.raises(UserError, match="max_tokens is 1: give at least 2"):
    sentence_order_pair([1], [1], rng=rng, max_tokens=1)
