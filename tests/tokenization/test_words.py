"""The words of texts."""

from __future__ import annotations

import pytest

from albert.tokenization.words import WHITESPACE, split_words


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("(Berlin), U.S. well-known", "( Berlin ) , U.S . well-known"),
    ("Germany's  $5.50\t\n“no”...", "Germany's $ 5.50 “ no ” . . ."),
    ("-- ?!", "- - ? !"),
    ("東京 in 2020年", "東 京 in 2020 年"),
    ("昨天，ALBERT（A.B.）去了Bonn。U.S.", "昨 天 ， ALBERT （ A.B . ） 去 了 Bonn 。 U.S ."),
    ("3.5米，AT&T公司...", "3.5 米 ， AT&T 公 司 . . ."),
    ("cafe\u0301! \u0301x", "cafe\u0301 ! \u0301x"),
    ("❤\ufe0fok", "❤\ufe0f ok"),
    ("", ""),
    (" \u00a0 ", ""),
  ],
)
def test_words_by_the_rule_punctuation(text: str, words: str) -> None:
  ranges = split_words(text)
  assert [text[start:end] for start, end in ranges] == words.split()


def test_words_by_the_rule_whitespace() -> None:
  text = "(Berlin),  U.S.\u3000東京"
  assert [text[start:end] for start, end in split_words(text, WHITESPACE)] == ["(Berlin),", "U.S.", "東京"]
