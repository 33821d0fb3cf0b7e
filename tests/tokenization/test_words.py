"""The words of texts, in Python and in a graph."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.tokenization.words import RULES, WHITESPACE, split_words
from albert.tokenization.words_graph import split_words as split_in_graph

# Texts, and their words by the rule "punctuation".
WORDS = {
  "(Berlin), U.S. well-known": "( Berlin ) , U.S . well-known",
  "Germany's  $5.50\t\n“no”...": "Germany's $ 5.50 “ no ” . . .",
  "-- ?!": "- - ? !",
  "東京 in 2020年. ": "東 京 in 2020 年 .",
  "昨天，ALBERT（A.B.）去了Bonn。U.S.": "昨 天 ， ALBERT （ A.B . ） 去 了 Bonn 。 U.S .",
  "3.5米，AT&T公司...": "3.5 米 ， AT&T 公 司 . . .",
  "cafe\u0301! \u0301x \u0301": "cafe\u0301 ! \u0301x \u0301",
  "❤\ufe0fok": "❤\ufe0f ok",
  "": "",
  " \u00a0 ": "",
}
CHARACTERS = "ab1.,(-'\" \n\u00a0\u0301é東กЖ❤\ufe0f\u200d\U0001f680\U00030000\ue000"


@pytest.mark.parametrize(("text", "words"), WORDS.items())
def test_words_by_the_rule_punctuation(text: str, words: str) -> None:
  ranges = split_words(text)
  assert [text[start:end] for start, end in ranges] == words.split()


def test_words_by_the_rule_whitespace() -> None:
  text = "(Berlin),  U.S.\u3000東京"
  assert [text[start:end] for start, end in split_words(text, WHITESPACE)] == ["(Berlin),", "U.S.", "東京"]


def assert_same_words(texts: list[str], rule: str) -> None:
  found = split_in_graph(tf.constant(texts, tf.string), rule)
  expected = [split_words(text, rule) for text in texts]
  assert found.starts.to_list() == [[start for start, _ in ranges] for ranges in expected]
  assert found.ends.to_list() == [[end for _, end in ranges] for ranges in expected]
  words = [[text[start:end].encode() for start, end in ranges] for text, ranges in zip(texts, expected, strict=True)]
  assert found.words.to_list() == words


@pytest.mark.parametrize("rule", RULES)
def test_words_are_those_of_the_rule_in_python(rule: str) -> None:
  assert_same_words(list(WORDS), rule)
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
