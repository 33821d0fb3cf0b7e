"""Cuts a text into the words that a tagger tags. `words_graph` does the same in a graph.

The rule "punctuation" cuts a text at whitespace, and each character of a script that is written without spaces,
Chinese punctuation marks included, is a word of its own. So is each punctuation mark or symbol at the start or the end
of what lies between two of these cuts. "(Berlin)," has the words "(", "Berlin", ")" and ","; "U.S." has "U.S" and ".";
"well-known" is one word; "在Bonn，有" has the words "在", "Bonn", "，" and "有". Combining characters belong to the
character before them. The rule "whitespace" cuts at whitespace only.
"""

from __future__ import annotations

import re
import unicodedata

from albert.tokenization.vocabulary import is_written_without_spaces

PUNCTUATION, WHITESPACE = "punctuation", "whitespace"
RULES = (PUNCTUATION, WHITESPACE)
# Classes of characters: letters, digits and the like; punctuation marks and symbols; characters of scripts that are
# written without spaces, and their punctuation; combining characters.
LETTER, MARK, UNSPACED, COMBINING = 0, 1, 2, 3
# Punctuation marks and symbols of Chinese and Japanese text outside the blocks of its scripts.
_FULL_WIDTH_MARKS = frozenset(map(chr, [*range(0xFF01, 0xFF66), *range(0xFFE0, 0xFFEF)]))

_find_chunks = re.compile(r"\S+").finditer


def character_class(character: str) -> int:
  """Returns the class of a character that is not whitespace."""
  category = unicodedata.category(character)
  if category[0] == "M":
    return COMBINING
  if is_written_without_spaces(character):
    return UNSPACED
  if category[0] in "PS" or category == "Cn":
    return UNSPACED if character in _FULL_WIDTH_MARKS else MARK
  return LETTER


def split_words(text: str, rule: str = PUNCTUATION) -> list[tuple[int, int]]:
  """Cuts a text into words.

  Args:
    text: any string.
    rule: "punctuation" or "whitespace", see above.
  Returns: the start and the end of each word, in characters.
  """
  words: list[tuple[int, int]] = []
  for chunk in _find_chunks(text):
    start, end = chunk.span()
    starts = [start] if rule == WHITESPACE else [start + offset for offset in _word_starts(chunk.group())]
    words += zip(starts, [*starts[1:], end], strict=True)
  return words


def _word_starts(chunk: str) -> list[int]:
  """Returns where the words of a chunk without whitespace start. The first one starts at 0."""
  classes = [character_class(character) for character in chunk]
  # The characters that a word may start with, and their classes.
  bases = [index for index, value in enumerate(classes) if value != COMBINING or index == 0]
  base_classes = [classes[index] for index in bases]
  leads, trails = _leading_marks(base_classes), _leading_marks(base_classes[::-1])[::-1]
  starts = []
  was_single = False
  for number, (index, base_class) in enumerate(zip(bases, base_classes, strict=True)):
    is_single = base_class == UNSPACED or leads[number] or trails[number]
    if number == 0 or is_single or was_single:
      starts.append(index)
    was_single = is_single
  return starts


def _leading_marks(classes: list[int]) -> list[bool]:
  """Returns for each class whether it is MARK, with only MARK since the start or the last UNSPACED."""
  result = []
  only_marks = True
  for value in classes:
    result.append(only_marks and value == MARK)
    only_marks = value == UNSPACED or result[-1]
  return result
