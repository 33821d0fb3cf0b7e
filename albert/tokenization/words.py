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

from albert.tokenization.normalization import CharacterTable
from albert.tokenization.vocabulary import is_written_without_spaces

PUNCTUATION, WHITESPACE = "punctuation", "whitespace"
RULES = (PUNCTUATION, WHITESPACE)
# Classes of characters: letters, digits and the like; punctuation marks and symbols; characters of scripts that are
# written without spaces, and their punctuation; combining characters; whitespace.
LETTER, MARK, UNSPACED, COMBINING, SPACE = range(5)
# Punctuation marks and symbols of Chinese and Japanese text outside the blocks of its scripts.
_FULL_WIDTH_MARKS = frozenset(map(chr, [*range(0xFF01, 0xFF66), *range(0xFFE0, 0xFFEF)]))


def character_class(character: str) -> int:
  """Returns the class of a character."""
  category = unicodedata.category(character)
  if character.isspace():
    return SPACE
  if category[0] == "M":
    return COMBINING
  if is_written_without_spaces(character):
    return UNSPACED
  if category[0] in "PS" or category == "Cn":
    return UNSPACED if character in _FULL_WIDTH_MARKS else MARK
  return LETTER


# The text with a letter for the class of each character: L(etter), M(ark), U(nspaced), C(ombining) or a space.
_CLASSES = CharacterTable(lambda code_point: "LMUC "[character_class(chr(code_point))])
# A word is an unspaced character or a mark, or goes from a letter to the last one before the next unspaced character or
# space. Only at the start of what lies between spaces does a word begin with a combining character.
_find_words = re.compile("[UM]C*|[LC](?:[^U ]*L)?C*").finditer
_find_chunks = re.compile("[^ ]+").finditer


def split_words(text: str, rule: str = PUNCTUATION) -> list[tuple[int, int]]:
  """Cuts a text into words.

  Args:
    text: any string.
    rule: "punctuation" or "whitespace", see above.

  Returns:
    The start and the end of each word, in characters.

  Example:
    >>> split_words("in Bonn.")
    [(0, 2), (3, 7), (7, 8)]
  """
  find = _find_chunks if rule == WHITESPACE else _find_words
  return [match.span() for match in find(text.translate(_CLASSES))]
