"""Splits paragraphs of English prose into sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator

# The space between two sentences, unless the word before it is an abbreviation.
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(]?[A-Z0-9])")
_ABBREVIATION = re.compile(
  r"(?:^|[\s(])(?:e\.g|i\.e|etc|vs|cf|al|fig|figs|eq|eqs|sec|no|vol|pp|p|ch|approx|resp|incl|ref|refs|ed|eds"
  r"|dr|mr|mrs|prof|inc|st|w\.r\.t|[A-Z])\.$",
  re.I,
)


def split_sentences(paragraph: str) -> Iterator[str]:
  """Splits a paragraph of English prose into sentences.

  A full stop after a common abbreviation or an initial does not end a sentence.
  """
  start = 0
  for match in _SENTENCE_END.finditer(paragraph):
    sentence = paragraph[start : match.start()]
    if _ABBREVIATION.search(sentence):
      continue
    yield paragraph[start : match.end()].strip()
    start = match.end()
  if rest := paragraph[start:].strip():
    yield rest
