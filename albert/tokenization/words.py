"""Cuts a text into the words that a tagger tags. `albert.tokenization.in_graph.graph_words` does the same in a graph.

The rule "punctuation" cuts a text at whitespace. Then each punctuation mark or symbol at the start or the end of what
lies between two spaces is a word of its own, and so is each character of a script that is written without spaces.
"(Berlin)," has the words "(", "Berlin", ")" and ","; "U.S." has "U.S" and "."; "well-known" is one word. Combining
characters belong to the character before them. The rule "whitespace" cuts at whitespace only.
"""

from __future__ import annotations

import re
import unicodedata

from albert.tokenization.pieces import is_written_without_spaces

PUNCTUATION, WHITESPACE = "punctuation", "whitespace"
RULES = (PUNCTUATION, WHITESPACE)
# Classes of characters: letters, digits and the like; punctuation marks and symbols; characters of scripts that are
# written without spaces; combining characters.
LETTER, MARK, UNSPACED, COMBINING = 0, 1, 2, 3

_find_chunks = re.compile(r"\S+").finditer


def character_class(character: str) -> int:
  """Returns the class of a character that is not whitespace."""
  category = unicodedata.category(character)
  if category[0] == "M":
    return COMBINING
  if category[0] in "PS" or category == "Cn":
    return MARK
  return UNSPACED if is_written_without_spaces(character) else LETTER


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
  others = [number for number, value in enumerate(base_classes) if value != MARK]
  first_other, last_other = (others[0], others[-1]) if others else (len(bases), -1)
  starts = []
  was_single = False
  for number, (index, base_class) in enumerate(zip(bases, base_classes, strict=True)):
    is_single = base_class == UNSPACED or number < first_other or number > last_other
    if number == 0 or is_single or was_single:
      starts.append(index)
    was_single = is_single
  return starts
