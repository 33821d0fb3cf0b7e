"""The most probable tags, against all sequences of tags."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from albert.tasks.tagging.decoding import best_tags
from albert.tasks.tagging.schemes import SCHEMES, TagError


@pytest.mark.parametrize("name", SCHEMES)
def test_the_best_of_all_valid_sequences_is_found(name: str) -> None:
  scheme = SCHEMES[name]
  tags = scheme.tags(["X"])
  rng = np.random.default_rng(7)
  lengths = np.array([3, 1, 0, 4, 2])
  log_probabilities = rng.normal(size=(int(lengths.sum()), len(tags)))
  found = best_tags(log_probabilities, lengths, scheme.transitions(tags))
  start = 0
  for length in lengths:
    scores = log_probabilities[start : start + length]
    best_score, best = -np.inf, None
    for sequence in itertools.product(range(len(tags)), repeat=length):
      try:
        scheme.spans([tags[index] for index in sequence])
      except TagError:
        continue
      score = sum(scores[position, index] for position, index in enumerate(sequence))
      if score > best_score:
        best_score, best = score, sequence
    assert tuple(found[start : start + length]) == best
    start += length


def test_words_without_scores_are_outside_of_spans_or_inside_one_that_surrounds_them() -> None:
  scheme = SCHEMES["BILOU"]
  tags = scheme.tags(["X"])
  scores = np.full((5, len(tags)), -9.0)
  for word, tag in ((0, "O"), (2, "B-X"), (4, "L-X")):
    scores[word, tags.index(tag)] = 0.0
  scores[[1, 3]] = 0.0
  found = best_tags(scores, np.array([5]), scheme.transitions(tags))
  assert [tags[index] for index in found] == ["O", "O", "B-X", "I-X", "L-X"]


def test_no_texts_have_no_tags() -> None:
  assert best_tags(np.zeros((0, 3)), np.zeros(0, np.int64), SCHEMES["BIO"].transitions(["O", "B-X", "I-X"])).size == 0
