"""Offsets of SentencePiece tokens: the range of characters of the original text that each token stands for.

A text is changed three times, and its offsets are followed through each step:
1. `normalize_text` makes the normalized text. It treats each word and each character on its own, so this module can
   compute where each character comes from.
2. SentencePiece applies its own normalization, and reports where each character comes from. The result is called the
   written characters.
3. SentencePiece cuts the written characters into tokens. A token is a range of them; the ▁ that SentencePiece writes
   for a space is not counted.

SentencePiece drops control characters and replaces zero-width characters by a space, so no token contains them. The
ranges of tokens nevertheless include some of them. At the edge of a word (words are separated by whitespace), they
belong to the range of the word's first or last token, so that an answer of whole words is reproduced exactly. Inside a
word, a dropped character belongs to the range of the token before it, and a character that was replaced by a space to
none. If a vocabulary has no piece for a character, but pieces for its bytes (byte fallback), each of these tokens has
the range of the character.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import TYPE_CHECKING

import numpy as np

from albert.errors import UserError
from albert.tokenization.comma_rule import ends_in_digit_comma
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.kinds.base import TokensWithOffsets
from albert.tokenization.normalization import replacement
from albert.tokenization.pieces import WORD_START

if TYPE_CHECKING:
  from albert.tokenization.kinds.sentence_piece import SentencePieceVocabulary

_find_words = re.compile(r"\S+").finditer
_QUOTES = ("``", "''")


class OffsetEncoder:
  """Converts texts to ids with their character offsets.

  Args:
    vocabulary: the vocabulary.
  """

  def __init__(self, vocabulary: SentencePieceVocabulary):
    self._vocabulary = vocabulary
    self._processor = vocabulary.processor
    self._comma_rule = vocabulary.comma_rule
    self._split_cached = functools.lru_cache(maxsize=4096)(self._split_with_lengths)

  def encode(self, text: str) -> TokensWithOffsets:
    """Converts a text to ids with their offsets.

    Args:
      text: any string.

    Returns:
      The ids and, for each, its range in `text`.

    Raises:
      UserError: the pieces do not add up to the text, so offsets are unknown.
    """
    normalized = self._vocabulary.normalize(text)
    char_starts, char_ends = _origins(text, self._vocabulary.config)
    if len(char_starts) != len(normalized):
      raise AssertionError(f"{len(normalized)} normalized characters, but {len(char_starts)} offsets")
    part_starts, parts = self._parts_with_starts(normalized)
    ids, lengths = self._encode_with_lengths(parts)
    if not ids:
      empty = np.zeros(0, np.int32)
      return TokensWithOffsets(empty, empty, empty)
    written_starts, written_ends = self._written_characters(part_starts, parts)
    bounds = np.cumsum([0, *lengths])  # token i stands for the written characters bounds[i] to bounds[i + 1] - 1
    if bounds[-1] != len(written_starts):
      raise UserError(
        f"{self._vocabulary.file}: its pieces for {parts[0][:40]!r} have {bounds[-1]} characters instead of "
        f"{len(written_starts)}, so the offsets of tokens in the text are unknown: give a vocabulary trained by "
        "data_prep/train_vocab.py"
      )
    # The range in `text` of each written character, and then of each token: from its first character to its last one.
    starts, ends = _to_word_edges(text, char_starts[written_starts], char_ends[written_ends - 1])
    last_end = ends[-1] if len(ends) else 0
    # A lone ▁ after the last character starts at last_end.
    token_starts = np.append(starts, last_end)[bounds[:-1]]
    # A lone ▁ before the first character ends at 0.
    token_ends = np.append(0, ends)[bounds[1:]]
    id_array = np.array(ids, np.int32)
    last = self._last_tokens_of_characters(id_array)
    return TokensWithOffsets(id_array, token_starts[last].astype(np.int32), token_ends[last].astype(np.int32))

  def _last_tokens_of_characters(self, ids: np.ndarray) -> np.ndarray:
    """Returns for each token its own index, or, for a byte of a character, the index of the character's last byte."""
    last = np.arange(len(ids))
    num_bytes = self._vocabulary.character_bytes[ids]
    for first in np.flatnonzero(num_bytes > 1):
      last[first : first + num_bytes[first]] = first + num_bytes[first] - 1
    return last

  def _encode_with_lengths(self, parts: list[str]) -> tuple[list[int], list[int]]:
    """Converts the parts of a normalized text to ids, and applies the comma rule.

    Returns:
      The ids of all parts, and the number of characters (without ▁) that each stands for. Of the bytes of a character,
      the last one stands for it, and the others for nothing.
    """
    ids: list[int] = []
    lengths: list[int] = []
    ids_of_parts = self._processor.encode(parts, out_type=int, num_threads=1)
    surfaces_of_parts = self._processor.encode(parts, out_type=str, num_threads=1)
    for token_id, surface in zip(itertools.chain(*ids_of_parts), itertools.chain(*surfaces_of_parts), strict=True):
      is_split = token_id in self._comma_rule.splits if self._comma_rule.ids_decide else ends_in_digit_comma(surface)
      if is_split:
        split_ids, split_lengths = self._split_cached(surface)
        ids += split_ids
        lengths += split_lengths
      else:
        ids.append(token_id)
        lengths.append(len(surface) - surface.count(WORD_START))
    return ids, lengths_with_bytes(self._vocabulary.character_bytes[ids], lengths)

  def _parts_with_starts(self, normalized: str) -> tuple[list[int], list[str]]:
    """Returns the start of each part in the normalized text, and the parts, cut as in `encode_batch`."""
    parts = self._vocabulary.split_into_parts(normalized)
    if len(parts) == 1:
      return [0], [normalized]
    starts = []
    end = 0
    for part in parts:
      starts.append(normalized.index(part, end))
      end = starts[-1] + len(part)
    return starts, parts

  def _split_with_lengths(self, surface: str) -> tuple[list[int], list[int]]:
    """Applies the comma rule. Returns the ids, and the number of characters (without ▁) that each stands for."""
    surfaces = self._comma_rule.split_surfaces(surface)
    ids = self._comma_rule.split_ids(surface)
    lengths = [len(s) - s.count(WORD_START) for s in surfaces]
    return ids, lengths_with_bytes(self._vocabulary.character_bytes[ids], lengths)

  def _written_characters(self, part_starts: list[int], parts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Finds the origin of each character, except spaces, that SentencePiece's own normalization writes.

    Returns:
      The start and the end of the origin in the normalized text, int64, one value for each written character.
    """
    written, offsets = zip(*self._processor.normalize(parts, with_offsets=True), strict=True)
    # SentencePiece gives an offset for each character of a part, and one more for the part's end. A space after each
    # part stands for the latter, so that characters and offsets have the same indices.
    with_part_ends = "".join(f"{part} " for part in written)
    is_character = _code_points(with_part_ends.replace(WORD_START, " ")) != ord(" ")
    starts = np.fromiter(itertools.chain(*offsets), np.int64) + np.repeat(part_starts, list(map(len, offsets)))
    # If SentencePiece writes several characters for one, they have the same start. Their end is the next larger start,
    # which searchsorted finds.
    ends = np.append(starts, starts[-1])[np.searchsorted(starts, starts, side="right")]
    return starts[is_character], ends[is_character]


def lengths_with_bytes(character_bytes: np.ndarray, lengths: list[int]) -> list[int]:
  """Returns how many characters each token stands for. The last byte of a character counts 1, its other bytes 0.

  Args:
    character_bytes: int32 [T], the value of `SentencePieceVocabulary.character_bytes` for each token.
    lengths: the number of characters of each token that is no byte.
  """
  bytes_left = 0
  result = []
  for num_bytes, length in zip(character_bytes.tolist(), lengths, strict=True):
    bytes_left = (num_bytes or bytes_left) - 1
    result.append(length if num_bytes < 0 else int(bytes_left == 0))
  return result


def _to_word_edges(text: str, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Widens the ranges of the first and the last character of each word to the edges of the word.

  Args:
    text: the original text.
    starts, ends: [C], the ranges of characters in the text.

  Returns:
    The new starts and ends [C].
  """
  if not len(starts):
    return starts, ends
  word_starts, word_ends = np.array([word.span() for word in _find_words(text)], np.int64).T
  # If one character was decomposed to several, they all get the end of the last of them. Its range may include dropped
  # characters.
  ends = ends[np.searchsorted(starts, starts, side="right") - 1]
  # For each character: the index of its word, and the indices of the first and the last character of this word.
  word_indices = np.searchsorted(word_starts, starts, side="right") - 1
  first_of_word = np.searchsorted(word_indices, word_indices, side="left")
  last_of_word = np.searchsorted(word_indices, word_indices, side="right") - 1
  starts = np.where(starts == starts[first_of_word], word_starts[word_indices], starts)
  ends = np.where(ends == ends[last_of_word], word_ends[word_indices], ends)
  return starts, ends


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _origins(text: str, config: TokenizerConfig) -> tuple[np.ndarray, np.ndarray]:
  """Returns, for each character of the normalized text, the start and the end [C] of its range in the text."""
  starts: list[int] = []
  ends: list[int] = []
  previous_end = None
  for word in _find_words(text):
    start, end = word.span()
    if previous_end is not None:  # the whitespace between two words becomes one space
      starts.append(previous_end)
      ends.append(start)
    previous_end = end
    characters = word.group()
    if characters.isascii() and not (config.convert_quotes and any(quotes in characters for quotes in _QUOTES)):
      starts.extend(range(start, end))
      ends.extend(range(start + 1, end + 1))
    else:
      word_starts, word_ends = _word_origins(characters, config)
      starts.extend(start + start_in_word for start_in_word in word_starts)
      ends.extend(start + end_in_word for end_in_word in word_ends)
  return np.array(starts, np.int64), np.array(ends, np.int64)


def _word_origins(word: str, config: TokenizerConfig) -> tuple[list[int], list[int]]:
  """Returns the `_origins` of one word, counted from its start.

  A combining character is dropped. It counts as part of the character before it, or at the start of a word as part of
  the character after it.
  """
  starts: list[int] = []
  ends: list[int] = []
  position = 0  # of the next character to read
  start = 0  # where the range of the next normalized character starts
  num_previous = 0  # number of normalized characters that the last character became
  while position < len(word):
    if config.convert_quotes and word[position : position + 2] in _QUOTES:
      position, num_normalized = position + 2, 1
    else:
      num_normalized = _num_normalized(word[position], config.do_lower_case, config.keep_accents)
      position += 1
    if num_normalized:
      starts += [start] * num_normalized
      ends += [position] * num_normalized
      start, num_previous = position, num_normalized
    elif starts:  # a combining character after another character
      ends[-num_previous:] = [position] * num_previous
      start = position
  return starts, ends


@functools.lru_cache(maxsize=1 << 16)
def _num_normalized(character: str, do_lower_case: bool, keep_accents: bool) -> int:
  """Returns the number of characters that a character becomes in the normalized text."""
  return len(replacement(ord(character), do_lower_case=do_lower_case, keep_accents=keep_accents))
