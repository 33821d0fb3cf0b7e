"""Tests of the rows that are held out of training data: shares of classes, quantiles of numbers, repeated texts."""

from __future__ import annotations

import collections
import hashlib
import random

import numpy as np
import pytest

from albert.tasks.splits import TextGroups

# (number of rows of each class, share, rows of each class that are held out)
SHARES = [
  ([30, 10], 0.1, [3, 1]),
  ([100, 7, 2], 0.2, [20, 1, 1]),
  ([5, 4], 0.01, [1, 1]),  # at least one
  ([3, 2], 0.99, [2, 1]),  # never all
]


@pytest.mark.parametrize(("sizes", "share", "expected"), SHARES)
def test_the_first_rows_of_each_class_by_their_hashes_are_held_out(
  sizes: list[int], share: float, expected: list[int]
) -> None:
  classes = np.repeat(np.arange(len(sizes)), sizes)
  texts = [f"text {number}" for number in range(len(classes))]
  chosen = TextGroups(texts, seed=7).choose_of_classes(classes.tolist(), share)
  by_hash = sorted(range(len(texts)), key=lambda row: hashlib.sha256(f"7\0{texts[row]}".encode()).digest())
  of_class = [[row for row in by_hash if classes[row] == index] for index in range(len(sizes))]
  assert chosen == sorted(row for rows, number in zip(of_class, expected, strict=True) for row in rows[:number])


def test_the_order_of_rows_does_not_matter_and_the_seed_does() -> None:
  texts = [f"text {number} \ud800" for number in range(50)]  # a lone surrogate, as JSON may have it
  classes = [number % 3 for number in range(50)]
  chosen = {texts[row] for row in TextGroups(texts, 1).choose_of_classes(classes, 0.2)}
  order = random.Random(3).sample(range(50), 50)
  shuffled = [texts[row] for row in order]
  again = TextGroups(shuffled, 1).choose_of_classes([classes[row] for row in order], 0.2)
  assert {shuffled[row] for row in again} == chosen
  assert {texts[row] for row in TextGroups(texts, 2).choose_of_classes(classes, 0.2)} != chosen


@pytest.mark.parametrize("seed", range(20))
def test_repeated_texts_stay_together(seed: int) -> None:
  rng = random.Random(seed)
  texts = [rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(200)]
  classes = [ord(text) % 2 for text in texts]
  groups = TextGroups(texts, seed)
  numbers = np.array([ord(text) for text in texts], np.float32)
  for chosen in (groups.choose_of_classes(classes, 0.25), groups.choose_of_numbers(numbers, 0.25)):
    held_out = {texts[row] for row in chosen}
    assert held_out
    assert held_out.isdisjoint(texts[row] for row in set(range(200)) - set(chosen))
  counts = collections.Counter(classes[row] for row in groups.choose_of_classes(classes, 0.25))
  for index, count in counts.items():
    # Groups of about 8 rows do not add up to exactly a quarter.
    assert 0.1 < count / classes.count(index) < 0.26


def test_a_text_that_is_more_than_the_share_is_held_out_only_if_nothing_else_can_be() -> None:
  assert TextGroups(["a"] * 9 + ["b"], 0).choose_of_classes([0] * 10, 0.1) == [9]
  chosen = TextGroups(["a"] * 9 + ["b"] * 5, 0).choose_of_classes([0] * 14, 0.1)
  assert chosen == [9, 10, 11, 12, 13]


def test_one_text_of_each_quantile_of_the_numbers_is_held_out() -> None:
  numbers = np.random.default_rng(0).permutation(40).astype(np.float32) / 7
  chosen = TextGroups([f"text {row}" for row in range(40)], 5).choose_of_numbers(numbers, 0.25)
  ranks = np.sort(np.argsort(np.argsort(numbers))[chosen])
  assert (ranks // 4).tolist() == list(range(10))
