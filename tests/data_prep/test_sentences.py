"""Splitting paragraphs into sentences, also in quotations and in other languages."""

from __future__ import annotations

import time

import pytest

from albert.errors import UserError
from benchmarks.bench_sentences import SAMPLES, measure_quality, read_paragraphs
from data_prep.sentences import SentenceSplitter, check_language


@pytest.mark.parametrize(
  "sentences",
  [
    ["The Rev. Septimus Harding was a clergyman.", "He lived in Barchester."],
    ['"Who is it?" said Mr. Bold.', "He went."],
    ['"I do not care!', 'You have given me something to think of."', "This was true."],
    ["'They are very nice,' she answered; 'but they are all alike.", "They say the same things.'"],
    ['"Where have you been?" he asked, and sat down.', '"At the mill."'],
    ["It's the dogs' dinner.", "Don't touch it!"],
    ["No capitals here."],
    ["the text has no capitals.", "nor has this sentence."],
  ],
)
def test_english_sentences_are_split(sentences: list[str]) -> None:
  assert list(SentenceSplitter().split("  ".join(sentences))) == sentences


def test_no_character_but_spaces_is_lost() -> None:
  text = ' "A!" (b) \t„C? D“ … e.g. x.\u00a0Y  '
  assert "".join("".join(SentenceSplitter().split(text)).split()) == "".join(text.split())
  assert list(SentenceSplitter().split(" \t ")) == []


@pytest.mark.parametrize("space", ["\u00a0", "\u2009", "\u202f", "\u3000", "\u2028", "\x85"])
def test_every_kind_of_space_separates_words(space: str) -> None:
  """sentencex itself fails at such a space between a capital letter and a full stop."""
  text = "This is it. I{0}. . . don't{0}know. Vitamin A{0}. That{0}is{0}all!{0}Really."
  expected = [part.format(space) for part in SentenceSplitter().split(text.format(" "))]
  assert [sentence.replace(space, " ") for sentence in SentenceSplitter().split(text.format(space))] == expected


def test_a_paragraph_of_any_length_is_split_in_the_same_way() -> None:
  sentences = [f'"Sentence {number} is here," said Mr. Bold.' for number in range(3000)]
  start = time.process_time()
  assert list(SentenceSplitter().split(" ".join(sentences))) == sentences
  assert time.process_time() - start < 10  # in proportion to the length
  words = ["word"] * 9000
  assert " ".join(SentenceSplitter().split(" ".join(words))) == " ".join(words)
  assert "".join(SentenceSplitter().split("x" * 25_000)) == "x" * 25_000


@pytest.mark.parametrize(("language", "min_f1"), [("en", 0.96), ("de", 0.93), ("fr", 0.90)])
def test_quality_on_marked_samples(language: str, min_f1: float) -> None:
  """The score is the F1 of sentence boundaries. benchmarks/bench_sentences.py compares it with other libraries."""
  paragraphs = read_paragraphs(SAMPLES / f"{language}.txt")
  num_found, num_wrong, num_missed = measure_quality(paragraphs, SentenceSplitter(language).split)
  assert 2 * num_found / (2 * num_found + num_wrong + num_missed) > min_f1


def test_a_language_must_be_a_code() -> None:
  with pytest.raises(UserError, match="--language=English: give an ISO 639 code"):
    check_language("English")
