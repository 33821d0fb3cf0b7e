"""Splits paragraphs into sentences, with the library sentencex (rules and abbreviations for many languages).

benchmarks/results/sentences_2026-11-23.md compares it with other libraries.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import sentencex

from albert.errors import UserError

_QUOTATION_MARKS = '"“”„«»‹›'
_APOSTROPHES = "'‘’‚"
# An apostrophe that is not within a word is a quotation mark.
_APOSTROPHE_AS_MARK = re.compile(r"(?<!\w)['‘’‚]|['’](?!\w)")
# A quotation mark at a boundary between two sentences: before the white space between them, in it, or at the beginning
# of the next sentence. The searched text ends with the first character of the next sentence.
_MARK_AT_BOUNDARY = re.compile(r"[\"“”„«»‹›'‘’‚]\s*.?\Z", re.DOTALL)
# Number of characters before a boundary in which the quotation mark is searched.
_CHARS_BEFORE_BOUNDARY = 8
# A longer paragraph is split in windows of this size, since sentencex's time grows faster than the length of the text.
_WINDOW_CHARS = 10_000
# Boundaries in the last characters of a window are not used, since the text after the window may change them.
_UNCERTAIN_CHARS = 200
# The first character of a sentence that is not a space, a quotation mark, an opening bracket or a dash.
_FIRST_CHARACTER = re.compile(r"[^\s\"“”„«»‹›'‘’‚(\[–—-]")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-zA-Z0-9]+)*")
_NON_ASCII_SPACE = re.compile(r"[^\S\x00-\x7f]")
_MAX_SHOWN_CHARS = 60


def check_language(language: str) -> None:
  """Raises a UserError if a language is not given as a code."""
  if not _LANGUAGE.fullmatch(language):
    raise UserError(f"--language={language}: give an ISO 639 code, such as en, de or fr")


def _starts_in_lower_case(text: str, position: int) -> bool:
  """Whether the first word from a position on starts with a lower-case letter. Marks before the word are skipped."""
  if text[position : position + 1].isalpha():  # a fast path, which is nearly always taken
    return text[position].islower()
  match = _FIRST_CHARACTER.search(text, position)
  return match is not None and match[0].islower()


def _cut_at(text: str, ends: list[int]) -> Iterator[str]:
  """Cuts a text at positions, and yields its parts that are not blank, without white space around them."""
  start = 0
  for end in ends:
    if part := text[start:end].strip():
      yield part
    start = end


class SentenceSplitter:
  """Splits paragraphs of one language, an ISO 639 code, into sentences.

  sentencex does not split a quotation, however many sentences it has, so a speech in a novel would be a single
  sentence. Therefore the paragraph is split a second time, with spaces in place of its quotation marks. A boundary that
  is found only the second time is used if no quotation mark is beside it, since it is then inside a quotation. A
  boundary before a lower-case letter is not used, unless the paragraph has no capitals.

  A language that sentencex does not know is split by the rules of a related one, or of English.
  """

  def __init__(self, language: str = "en"):
    self._language = language

  def split(self, paragraph: str) -> Iterator[str]:
    """Yields the sentences of a paragraph, without white space around them. Raises a UserError if sentencex fails."""
    start = 0
    while len(paragraph) - start > _WINDOW_CHARS:
      window = paragraph[start : start + _WINDOW_CHARS]
      ends = [end for end in self._sentence_ends(window) if end <= len(window) - _UNCERTAIN_CHARS]
      if not ends:  # a very long sentence is cut at the window's last space, or at its end
        ends = [window.rfind(" ") + 1 or len(window)]
      yield from _cut_at(window, ends)
      start += ends[-1]
    last_window = paragraph[start:]
    yield from _cut_at(last_window, self._sentence_ends(last_window))

  def _sentence_ends(self, text: str) -> list[int]:
    """Returns the position after each sentence and the white space that follows it, ascending."""
    ends = self._find_ends(text)
    unquoted = text  # with a space in place of each quotation mark
    for mark in _QUOTATION_MARKS:
      unquoted = unquoted.replace(mark, " ")
    if any(mark in text for mark in _APOSTROPHES):
      unquoted = _APOSTROPHE_AS_MARK.sub(" ", unquoted)
    if unquoted != text:
      for end in self._find_ends(unquoted) - ends:
        if not _MARK_AT_BOUNDARY.search(text, max(0, end - _CHARS_BEFORE_BOUNDARY), end + 1):
          ends.add(end)
    if text != text.lower():  # it has capitals, as in "Who is it?" he asked.
      ends = {end for end in ends if not _starts_in_lower_case(text, end)}
    return sorted({*ends, len(text)})

  def _find_ends(self, text: str) -> set[int]:
    """Returns the position after each sentence and the white space that follows it, as sentencex finds them."""
    try:
      # sentencex 1.0 fails at a capital letter followed by a space that is not ASCII and a full stop.
      sentences = sentencex.segment(self._language, _NON_ASCII_SPACE.sub(" ", text))
    except BaseException as error:  # a failure of Rust code is no Exception
      if isinstance(error, KeyboardInterrupt | SystemExit):
        raise
      raise UserError(
        f"the text that begins with {text[:_MAX_SHOWN_CHARS]!r} cannot be split into sentences (sentencex: {error}): "
        "change or remove it, or give text with a sentence on each line"
      ) from error
    return set(itertools.accumulate(map(len, sentences)))
