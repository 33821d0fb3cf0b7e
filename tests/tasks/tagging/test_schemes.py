"""Tags and the spans that they mark. The second route is seqeval, and all sequences of a few tags."""

from __future__ import annotations

import itertools

import pytest
from seqeval import scheme as seqeval_schemes

from albert.tasks.tagging.schemes import SCHEMES, Span, TagError

SEQEVAL = {"BIO": "IOB2", "BILOU": "BILOU", "BIOES": "IOBES"}


@pytest.mark.parametrize("name", SCHEMES)
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
    ("BIO", "O I-PER", 1, r"tag 'I-PER' follows 'O': in BIO a span begins with B- \(files in IOB1 must be converted\)"),
    ("BIO", "I-PER", 0, "tag 'I-PER' is the first one of the sentence: in BIO a span begins with B-"),
    ("BIO", "B-LOC I-PER", 1, "tag 'I-PER' follows 'B-LOC'"),
    ("BIO", "O U-PER", 1, "tag 'U-PER' is not one of BIO .O, B-TYPE, I-TYPE.: give --scheme=BILOU"),
    ("BIO", "S-PER", 0, "give --scheme=BIOES"),
    ("BIO", "NNP", 0, "tag 'NNP' is not one of BIO .*: choose another --tag_column"),
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
