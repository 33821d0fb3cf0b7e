"""Text normalization as in the original ALBERT: Unicode NFKD without combining characters, then lower case.

This module does not import TensorFlow, because data preparation starts many processes that need it.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable

import numpy as np

from albert.io.text import replace_surrogates

# Characters added by Unicode 14.0 to 15.1 that have a decomposition, a combining class or a case. Python 3.10
# implements Unicode 13.0 and does not know them. To get the same ids with every Python, they are never changed.
_ADDED_AFTER_UNICODE_13 = (
  "\u0888-\u089f\u08c9-\u08d2\u0c3c\u0ece\u1715\u180f\u1ac1-\u1ace\u1dfa\u2c2f\u2c5f\ua7c0\ua7c1\ua7d0-\ua7f4"
  "\ufbc2\U00010570-\U000105bc\U00010780-\U000107ba\U00010efd-\U00010eff\U00010f82-\U00010f85"
  "\U00011070-\U00011074\U000110c2\U00011241\U00011f00-\U00011f59\U00013439-\U00013455"
  "\U00016ac0-\U00016ac9\U0001aff0-\U0001affe\U0001cf00-\U0001cf46\U0001df00-\U0001df2a"
  "\U0001e030-\U0001e08f\U0001e2ae\U0001e4eb-\U0001e4f9"
)
_search_newer = re.compile(f"[{_ADDED_AFTER_UNICODE_13}]").search
_split_at_newer = re.compile(f"([{_ADDED_AFTER_UNICODE_13}]+)").split
_replace_non_ascii = re.compile(r"[^\x00-\x7f]+").sub


def has_newer_characters(text: str) -> bool:
  """Returns whether the text contains a character newer than Unicode 13.0, which normalization leaves unchanged."""
  return _search_newer(text) is not None


def decompose(code_point: int) -> str:
  """Returns the NFKD decomposition of one character, without combining characters.

  A text can be decomposed character by character: apart from replacing characters, NFKD only reorders combining
  characters, which are dropped here.

  Args:
    code_point: the character.

  Returns:
    Its decomposition: "" for a combining character, U+FFFD for a lone surrogate (UTF-8 cannot encode it), the character
    itself if it is newer than Unicode 13.0.
  """
  character = chr(code_point)
  if 0xD800 <= code_point <= 0xDFFF:
    return "\ufffd"
  if has_newer_characters(character):
    return character
  return "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))


def replacement(code_point: int, *, do_lower_case: bool, keep_accents: bool) -> str:
  """Returns what a character becomes in `normalize_text`, apart from lower case that is one character, too."""
  if not keep_accents:
    return decompose(code_point)
  character = replace_surrogates(chr(code_point))
  lowered = lower(character) if do_lower_case else character
  return lowered if len(lowered) > 1 else character  # only İ has a lower case of two characters


class CharacterTable(dict[int, str]):
  """What a function makes of each code point, as a table for `str.translate`; filled at first use."""

  def __init__(self, function: Callable[[int], str]):
    super().__init__()
    self._function = function

  def __missing__(self, code_point: int) -> str:
    self[code_point] = self._function(code_point)
    return self[code_point]


def character_counts(text: str, table: CharacterTable, *, convert_quotes: bool) -> np.ndarray:
  """Returns how many characters each character of a text becomes, uint8 [len(text)].

  Args:
    text: the text.
    table: holds chr(n) for a character that becomes n characters.
    convert_quotes: whether `` and '' become one character.
  """
  counts = np.frombuffer(bytearray(text.translate(table), "latin-1"), np.uint8)
  if convert_quotes:
    counts[[quotes.start() + 1 for quotes in re.finditer("``|''", text)]] = 0
  return counts


_DECOMPOSITIONS = CharacterTable(decompose)


@functools.lru_cache(maxsize=4096)
def _decompose_run(run: str) -> str:
  return run.translate(_DECOMPOSITIONS)


def _decompose_match(match: re.Match[str]) -> str:
  run = match.group()
  # In Western text the same short runs (quotes, dashes, accented letters) occur often. Longer runs rarely occur
  # twice and are not cached.
  return _decompose_run(run) if len(run) <= 4 else run.translate(_DECOMPOSITIONS)


def lower(text: str) -> str:
  """Lower-cases like `str.lower`, but treats characters newer than Unicode 13.0 as characters without case.

  This also matters for a Σ next to such a character: at the end of a word it becomes ς, and these characters do not
  count as part of the word.
  """
  if not has_newer_characters(text):
    return text.lower()
  parts = _split_at_newer(text)  # the parts with odd indices are the newer characters
  parts[::2] = [part.lower() for part in parts[::2]]
  return "".join(parts)


def normalize_text(
  text: str, *, do_lower_case: bool = True, convert_quotes: bool = False, keep_accents: bool = False
) -> str:
  """Normalizes a text as the original ALBERT's `preprocess_text` does.

  Whitespace is reduced to single spaces between words, characters are decomposed (NFKD), combining characters (accents)
  are dropped, and letters are lower-cased.

  Args:
    text: any string. Lone surrogates become U+FFFD.
    do_lower_case: whether to lower-case, like `str.lower` (Σ at the end of a word becomes ς).
    convert_quotes: whether to replace `` and '' by ". The original ALBERT does not do this.
    keep_accents: whether characters are neither decomposed nor dropped, as with transformers' setting of this name.

  Returns:
    The normalized text.
  """
  text = " ".join(text.split())
  if convert_quotes:
    text = text.replace("``", '"').replace("''", '"')
  if text.isascii():
    return text.lower() if do_lower_case else text
  text = replace_surrogates(text) if keep_accents else _replace_non_ascii(_decompose_match, text)
  return lower(text) if do_lower_case else text
