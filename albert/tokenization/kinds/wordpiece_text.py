"""Cuts text into words and punctuation marks by the rules of the original BERT, which WordPiece vocabularies need.

Control characters are dropped, every Han character and every punctuation mark is a word of its own, and the text may be
lower-cased without accents (the class BasicTokenizer of the original BERT and of the original ALBERT).

Characters that are newer than Unicode 13.0, the version of Python 3.10, count as letters without case. So every Python
gives the same words. This module does not import TensorFlow.
"""

from __future__ import annotations

import re
import unicodedata

from albert.tokenization.normalization import has_newer_characters, lower

# Code points of the Han characters that become words of their own, first and last (CJK_UNIFIED_IDEOGRAPHS and the
# extensions that the original code lists).
_HAN = (
  (0x4E00, 0x9FFF),
  (0x3400, 0x4DBF),
  (0x20000, 0x2A6DF),
  (0x2A700, 0x2B73F),
  (0x2B740, 0x2B81F),
  (0x2B820, 0x2CEAF),
  (0xF900, 0xFAFF),
  (0x2F800, 0x2FA1F),
)
# Punctuation, format characters and nonspacing marks that Unicode 14.0 and 15.0 added or changed.
_search_newer = re.compile(
  "[\u061d\u0890\u0891\u1734\u1b7d\u1b7e\u2e53-\u2e5d\U00010f86-\U00010f89\U000116b9\U00011b00-\U00011b09"
  "\U00012ff1\U00012ff2]"
).search
_find_ascii_words = re.compile("[A-Za-z0-9]+|[!-/:-@[-`{-~]").findall
_search_control = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]").search


def is_newer(character: str) -> bool:
  """Returns whether a character is newer than Unicode 13.0, or had another category there."""
  return has_newer_characters(character) or _search_newer(character) is not None


def is_han(code_point: int) -> bool:
  """Returns whether a character is a Han character, which becomes a word of its own."""
  return any(low <= code_point <= high for low, high in _HAN)


def is_punctuation(character: str) -> bool:
  """Returns whether a character is punctuation: a symbol of ASCII, or of the Unicode categories P."""
  if character.isascii():
    return character.isprintable() and not character.isalnum() and character != " "
  return unicodedata.category(character)[0] == "P" and not is_newer(character)


def clean(character: str) -> str:
  """Returns what replaces a character before the text is lower-cased: "" for a control character, " " for a space."""
  if character in "\t\n\r":
    return " "
  category = unicodedata.category(character)
  if category == "Zs":
    return " "
  # U+FFFD also stands for bytes that are not UTF-8. Lone surrogates (Cs) are not valid in text.
  if character in "\0\ufffd" or (category in ("Cc", "Cf", "Cs") and not is_newer(character)):
    return ""
  return character


def split_character(character: str, *, strip_accents: bool) -> str:
  """Returns what a clean, lower-cased character becomes, with spaces around each word of one character.

  Args:
    character: the character.
    strip_accents: whether accents (nonspacing marks) are stripped after the canonical decomposition.
  """
  code_point = ord(character)
  decomposed = character
  if strip_accents and not character.isascii() and not is_newer(character):
    decomposed = "".join(c for c in unicodedata.normalize("NFD", character) if unicodedata.category(c) != "Mn")
  marked = "".join(f" {c} " if is_punctuation(c) else c for c in decomposed)
  return f" {marked} " if is_han(code_point) else marked


class _CleanTable(dict[int, str]):
  """`clean` as a table for `str.translate`, filled when a character is first used."""

  def __missing__(self, code_point: int) -> str:
    self[code_point] = clean(chr(code_point))
    return self[code_point]


class _SplitTable(dict[int, str]):
  """`split_character` as a table for `str.translate`, filled when a character is first used."""

  def __init__(self, *, strip_accents: bool):
    super().__init__()
    self._strip_accents = strip_accents

  def __missing__(self, code_point: int) -> str:
    self[code_point] = split_character(chr(code_point), strip_accents=self._strip_accents)
    return self[code_point]


_CLEAN = _CleanTable()
_SPLIT = {strip_accents: _SplitTable(strip_accents=strip_accents) for strip_accents in (True, False)}
# Marks that are not stripped, but have a combining class. NFD sorts neighbors of these by their class.
SORTED_MARKS = {
  c: unicodedata.combining(chr(c))
  for c in (*range(0x300, 0x3100), *range(0xA600, 0xAC00), *range(0x10000, 0x1F000))
  if unicodedata.combining(chr(c)) and unicodedata.category(chr(c)) != "Mn" and not is_newer(chr(c))
}
_sort_marks_in = re.compile(f"[{''.join(map(chr, SORTED_MARKS))}]{{2,}}").sub


def _sort_marks(match: re.Match[str]) -> str:
  return "".join(sorted(match.group(), key=lambda character: SORTED_MARKS[ord(character)]))


def split_words(text: str, *, do_lower_case: bool, keep_accents: bool = False) -> list[str]:
  """Cuts a text into words, Han characters and punctuation marks.

  Args:
    text: any string.
    do_lower_case: whether to lower-case and to strip accents.
    keep_accents: whether lower-cased text keeps its accents.
  """
  if text.isascii() and not _search_control(text):
    return _find_ascii_words(text.lower() if do_lower_case else text)
  text = text.translate(_CLEAN)
  strip_accents = do_lower_case and not keep_accents
  text = (lower(text) if do_lower_case else text).translate(_SPLIT[strip_accents])
  return (_sort_marks_in(_sort_marks, text) if strip_accents else text).split()


def split_words_with_origins(
  text: str, *, do_lower_case: bool, keep_accents: bool = False
) -> tuple[list[str], list[int]]:
  """Cuts a text as `split_words` does, and says where each character of a word comes from.

  Returns:
    The words, and for each of their characters, one word after the other, the index of a character in `text`.
  """
  kept = [(index, clean(character)) for index, character in enumerate(text)]
  kept = [(index, character) for index, character in kept if character]
  cleaned = "".join(character for _, character in kept)
  lowered = lower(cleaned) if do_lower_case else cleaned
  strip_accents = do_lower_case and not keep_accents
  written: list[str] = []
  origins: list[int] = []
  position = 0  # in `lowered`
  for index, character in kept:
    length = len(lower(character)) if do_lower_case else 1
    for lowered_character in lowered[position : position + length]:
      replacement = _SPLIT[strip_accents][ord(lowered_character)]
      written.append(replacement)
      origins += [index] * sum(not c.isspace() for c in replacement)
    position += length
  joined = "".join(written)
  if strip_accents:
    joined = _sort_marks_in(_sort_marks, joined)
  return joined.split(), origins
