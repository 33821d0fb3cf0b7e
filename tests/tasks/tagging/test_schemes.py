"""Tags, the spans that they mark (compared with seqeval), and the most probable tags (among all sequences of a few)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from seqeval import scheme as seqeval_schemes

from albert.tasks.tagging.schemes import SCHEMES, Span, TagError, best_tags

SEQEVAL = {"BIO": "IOB2", "BILOU": "BILOU", "BIOES": "IOBES", "IO": "IOB2"}


@pytest.mark.parametrize("name", SEQEVAL)
def test_all_valid_sequences_of_four_tags_have_the_spans_of_seqeval_and_come_back_from_them(name: str) -> None:
  scheme = SCHEMES[name]
  num_valid = 0
  for tags in itertools.product(scheme.tags(["X", "YY"]), repeat=4):
    try:
      spans = scheme.spans(tags)
    except TagError:
      continue
    num_valid += 1
    entities = seqeval_schemes.Entities([list(tags)], getattr(seqeval_schemes, SEQEVAL[name])).entities[0]
    assert [(entity.start, entity.end, entity.tag) for entity in entities] == spans
    assert scheme.tags_of_spans(spans, 4) == list(tags)
  # Spans are written in one way only, so each scheme can write as many sequences: w(n) of n words is w(n - 1), for O,
  # plus 2 w(n - m) for a span of m words and two types.
  counts = [1]
  for num_words in range(1, 5):
    counts.append(counts[-1] + 2 * sum(counts[:num_words]))
  assert num_valid == counts[4]


@pytest.mark.parametrize(
  ("scheme", "tags", "index", "message"),
  [
    ("BIO", "O I-PER", 1, "tag 'I-PER' follows 'O': in BIO a span begins with B-: correct it"),
    ("BIO", "I-PER", 0, "tag 'I-PER' is the first one of the sentence: in BIO a span begins with B-"),
    ("BIO", "B-LOC I-PER", 1, "tag 'I-PER' follows 'B-LOC'"),
    ("BIO", "O U-PER", 1, "tag 'U-PER' is not one of BIO .O, B-TYPE, I-TYPE.: give --scheme=BILOU"),
    ("BIO", "S-PER", 0, "give --scheme=BIOES"),
    ("BIO", "NNP", 0, "'NNP' is not one of BIO .*: correct it, or .* --tag_column, --scheme=plain if .* --scheme=IO"),
    ("BIO", "B-", 0, "tag 'B-' is not one of BIO"),
    ("BIO", "", 0, "tag '' is not one of BIO"),
    ("BILOU", "B-PER O", 1, "tag 'O' follows 'B-PER': in BILOU a span ends with L-: correct it"),
    ("BILOU", "O B-PER", 1, "tag 'B-PER' is the last one of the sentence: in BILOU .* ends with L-, .* is U-"),
    ("BILOU", "O L-PER", 1, "tag 'L-PER' follows 'O': in BILOU a span begins with B-: correct it"),
    ("BIOES", "B-PER L-PER", 1, "give --scheme=BILOU"),
  ],
)
def test_tags_that_break_the_scheme_are_named(scheme: str, tags: str, index: int, message: str) -> None:
  with pytest.raises(TagError, match=message) as error:
    SCHEMES[scheme].spans(tags.split(" "))
  assert error.value.index == index


def test_a_type_may_have_hyphens() -> None:
  assert SCHEMES["BIO"].spans(["B-a-b", "I-a-b", "B-a"]) == [Span(0, 2, "a-b"), Span(2, 3, "a")]


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
