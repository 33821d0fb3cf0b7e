"""Words of texts in a graph are those of `albert.tokenization.words`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.tokenization.in_graph.graph_words import split_words as split_in_graph
from albert.tokenization.words import RULES, split_words

TEXTS = [
  "(Berlin), U.S. well-known",
  "",
  "Germany's  $5.50\t\n“no”...",
  " \u00a0 ",
  "-- ?!",
  "東京 in 2020年. ",
  "昨天，ALBERT（A.B.）去了Bonn。U.S.",
  "cafe\u0301! \u0301x \u0301",
  "❤\ufe0fok 👩\u200d🚀",
]
CHARACTERS = "ab1.,(-'\" \n\u00a0\u0301é東กЖ❤\ufe0f\u200d\U0001f680\U00030000\ue000"


def assert_same_words(texts: list[str], rule: str) -> None:
  found = split_in_graph(tf.constant(texts, tf.string), rule)
  expected = [split_words(text, rule) for text in texts]
  assert found.starts.to_list() == [[start for start, _ in ranges] for ranges in expected]
  assert found.ends.to_list() == [[end for _, end in ranges] for ranges in expected]
  words = [[text[start:end].encode() for start, end in ranges] for text, ranges in zip(texts, expected, strict=True)]
  assert found.words.to_list() == words


@pytest.mark.parametrize("rule", RULES)
def test_words_are_those_of_the_rule_in_python(rule: str) -> None:
  assert_same_words(TEXTS, rule)
  assert_same_words([], rule)
  assert_same_words([""], rule)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(CHARACTERS, max_size=12), max_size=4), st.sampled_from(RULES))
def test_words_of_random_texts(texts: list[str], rule: str) -> None:
  assert_same_words(texts, rule)


def test_parts_of_texts_and_bytes_that_are_not_utf_8() -> None:
  found = split_in_graph(tf.constant([b"in \xffRome", "Zoë!".encode()]), "punctuation")
  assert found.starts.to_list() == [[0, 3, 4], [0, 3]]
  rows, starts, ends = (np.array(values, np.int32) for values in ([1, 0], [0, 3], [3, 5]))
  parts = found.texts_of(tf.constant(rows), tf.constant(starts), tf.constant(ends))
  assert [part.decode() for part in parts.numpy()] == ["Zoë", "\ufffdR"]
