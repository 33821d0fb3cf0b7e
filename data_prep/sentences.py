"""Splits paragraphs into sentences, with the library sentencex (rules and abbreviations for many languages).

benchmarks/results/sentences_2026-11-23.md compares it with other libraries.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import sentencex

from albert.errors import UserError

ENGLISH = "en"
# An apostrophe within a word is no quotation mark.
_APOSTROPHE_MARK = re.compile(r"(?<!\w)['‘’‚]|['’](?!\w)")
_APOSTROPHES = "'‘’‚"
_QUOTATION_MARKS = '"“”„«»‹›'
# A quotation mark beside the white space between two sentences, or in it. The pattern ends at the next sentence.
_MARK_AT_BOUNDARY = re.compile(r"[\"“”„«»‹›'‘’‚]\s*.?\Z", re.DOTALL)
_BEFORE = 8
# A longer paragraph is split in pieces of this size, since sentencex's time grows faster than the length of the text.
_MAX_CHARS = 10_000
_OVERLAP = 200
_FIRST_CHARACTER = re.compile(r"[^\s\"“”„«»‹›'‘’‚(\[–—-]")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-zA-Z0-9]+)*")


def check_language(language: str) -> None:
  """Checks that a language is given as a code.

  Raises:
    UserError: it is not.
  """
  if not _LANGUAGE.fullmatch(language):
    raise UserError(f"--language={language}: give an ISO 639 code, such as en, de or fr")


def _starts_in_lower_case(text: str, position: int) -> bool:
  """Whether the first word after a position, after quotation marks and brackets, starts with a lower-case letter."""
  if text[position : position + 1].isalpha():  # nearly always
    return text[position].islower()
  match = _FIRST_CHARACTER.search(text, position)
  return match is not None and match[0].islower()


def _without_quotation_marks(text: str) -> str:
  """Returns the text with a space in place of each quotation mark."""
  for mark in _QUOTATION_MARKS:
    text = text.replace(mark, " ")
  return _APOSTROPHE_MARK.sub(" ", text) if any(mark in text for mark in _APOSTROPHES) else text


def _cut(text: str, ends: list[int]) -> Iterator[str]:
  """Yields the parts of a text up to each of the positions, without white space around them."""
  start = 0
  for end in ends:
    if part := text[start:end].strip():
      yield part
    start = end


class SentenceSplitter:
  """Splits paragraphs of one language into sentences.

  sentencex keeps a quotation together, however many sentences it has, so a speech in a novel would be a single
  sentence. The paragraph is therefore split once more with spaces in place of its quotation marks. A boundary that is
  found only then counts if there is no quotation mark at it: it is inside a quotation. A sentence does not start with
  a lower-case letter, unless the paragraph has no capitals.

  Args:
    language: ISO 639 code. A language that sentencex does not know is split by the rules of a related one, or of
      English.
  """

  def __init__(self, language: str = ENGLISH):
    self._language = language

  def split(self, paragraph: str) -> Iterator[str]:
    """Yields the sentences of a paragraph, without white space around them."""
    start = 0
    while len(paragraph) - start > _MAX_CHARS:
      text = paragraph[start : start + _MAX_CHARS]
      # What follows the piece may change where the last sentences end.
      ends = [end for end in self._sentence_ends(text) if end <= len(text) - _OVERLAP]
      ends = ends or [text.rfind(" ") + 1 or len(text)]
      yield from _cut(text, ends)
      start += ends[-1]
    rest = paragraph[start:]
    yield from _cut(rest, self._sentence_ends(rest))

  def _sentence_ends(self, text: str) -> list[int]:
    """Returns the position after each sentence and the white space that follows it, ascending."""
    ends = self._find_ends(text)
    unquoted = _without_quotation_marks(text)
    if unquoted != text:
      inside = self._find_ends(unquoted)
      ends |= {end for end in inside - ends if not _MARK_AT_BOUNDARY.search(text, max(0, end - _BEFORE), end + 1)}
    if text != text.lower():  # "Who is it?" he asked. Text without capitals is left to sentencex.
      ends = {end for end in ends if not _starts_in_lower_case(text, end)}
    return sorted({*ends, len(text)})

  def _find_ends(self, text: str) -> set[int]:
    """Returns the position after each sentence and the white space that follows it."""
    return set(itertools.accumulate(map(len, sentencex.segment(self._language, text))))


def split_sentences(paragraph: str) -> Iterator[str]:
  """Yields the sentences of a paragraph of English prose."""
  return SentenceSplitter().split(paragraph)
