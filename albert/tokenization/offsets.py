"""Tokens with their positions in the original text, kept through normalization, SentencePiece and the comma rule.

Three maps are composed: characters of the normalized text -> the text (`normalize_text` goes word by word,
character by character); SentencePiece's own normalization -> ours (it gives these offsets); tokens -> what
SentencePiece normalized, of which they are consecutive parts, except for the ▁ that it writes for spaces.

Some characters are in no token: SentencePiece drops control characters and writes a space for zero-width ones. At the
edge of a word (what whitespace separates) they belong to the word's first or last token, so that an answer of whole
words comes back exactly. Inside of a word a dropped character belongs to the token before it, and one that is
written as a space to none.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import NamedTuple

import numpy as np

from albert.errors import UserError
from albert.tokenization.tokenizer import WORD_START, Tokenizer, decompose, ends_in_digit_comma

_find_words = re.compile(r"\S+").finditer
_QUOTES = ("``", "''")


class TokensWithOffsets(NamedTuple):
  """The T tokens of a text, without [CLS] and [SEP].

  Attributes:
    ids: int32 [T], those of `Tokenizer.encode`.
    starts, ends: int32 [T]; token i stands for text[starts[i]:ends[i]], which neither begins nor ends in
      whitespace. Neither array ever decreases. A character that gives several tokens (½ is 1, ⁄ and 2) is in each.
      A token of space alone (a lone ▁) starts where the next other token starts and ends where the last other one
      ends, so starts[i] >= ends[i] between two words: no text[starts[i]:ends[j]] begins or ends in whitespace.
  """

  ids: np.ndarray
  starts: np.ndarray
  ends: np.ndarray


class OffsetTokenizer(Tokenizer):
  """A Tokenizer that also gives the positions of its tokens in the text."""

  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """Ids of the text, and their positions in it.

    Raises:
      UserError: the vocabulary writes text in a way that cannot be followed (bytes for unknown characters).
    """
    normalized = self.normalize(text)
    char_starts, char_ends = _origins(text, convert_quotes=self.config.convert_quotes)
    if len(char_starts) != len(normalized):
      raise AssertionError(f"{len(normalized)} characters are said to come from {len(char_starts)}")
    ids: list[int] = []
    lengths: list[int] = []
    begins, parts = self._parts_with_places(normalized)
    encoded = self._processor.encode(parts, out_type=int, num_threads=1)
    surfaces = self._processor.encode(parts, out_type=str, num_threads=1)
    for i, surface in zip(itertools.chain(*encoded), itertools.chain(*surfaces), strict=True):
      if i in self.comma_splits if self._ids_decide else ends_in_digit_comma(surface):
        split_ids, split_lengths = self._split(surface)
        ids += split_ids
        lengths += split_lengths
      else:
        ids.append(i)
        lengths.append(len(surface) - surface.count(WORD_START))
    if not ids:
      nothing = np.zeros(0, np.int32)
      return TokensWithOffsets(nothing, nothing, nothing)
    written_starts, written_ends = self._written(begins, parts)
    bounds = np.cumsum([0, *lengths])
    if bounds[-1] != len(written_starts):
      raise UserError(
        f"{self.model_file}: its pieces for {parts[0][:40]!r} have {bounds[-1]} characters instead of "
        f"{len(written_starts)}, so positions in the text are lost: give a vocabulary trained by "
        "data_prep/train_vocab.py"
      )
    starts, ends = _to_word_edges(text, char_starts[written_starts], char_ends[written_ends - 1])
    # Behind the last character a token of space starts where that one ends.
    starts = np.append(starts, ends[-1:] if len(ends) else 0)[bounds[:-1]]
    ends = np.append(0, ends)[bounds[1:]]
    return TokensWithOffsets(np.array(ids, np.int32), starts.astype(np.int32), ends.astype(np.int32))

  def _parts_with_places(self, normalized: str) -> tuple[list[int], list[str]]:
    """Where each of the parts that encode_batch encodes one by one begins, and the parts."""
    if len(normalized) <= self._part_chars or not self.words_are_independent:
      return [0], [normalized]
    parts = self._parts(normalized)
    begins = []
    end = 0
    for part in parts:
      begins.append(normalized.index(part, end))
      end = begins[-1] + len(part)
    return begins, parts

  @functools.lru_cache(maxsize=4096)  # noqa: B019  (a process has one tokenizer, and keeps it)
  def _split(self, surface: str) -> tuple[list[int], list[int]]:
    """The comma rule: ids, and how many characters (without ▁) each stands for."""
    return self._split_comma(surface), [len(s) - s.count(WORD_START) for s in self._comma_surfaces(surface)]

  def _written(self, begins: list[int], parts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end in the normalized text of each character that SentencePiece writes, except for spaces."""
    written, offsets = zip(*self._processor.normalize(parts, with_offsets=True), strict=True)
    # An offset more than characters for each part, its end; so a space stands for it.
    is_character = _code_points(" ".join([*written, ""]).replace(WORD_START, " ")) != ord(" ")
    starts = np.fromiter(itertools.chain(*offsets), np.int64) + np.repeat(begins, list(map(len, offsets)))
    # A character that SentencePiece writes as several ends where the next other one begins.
    ends = np.append(starts, starts[-1])[np.searchsorted(starts, starts, side="right")]
    return starts[is_character], ends[is_character]


def _to_word_edges(text: str, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Spans [C] of characters in the text; those of the first and the last of each word reach to the word's edges."""
  if not len(starts):
    return starts, ends
  word_starts, word_ends = np.array([word.span() for word in _find_words(text)], np.int64).T
  # All characters that one decomposes to reach as far as the last of them, which a dropped character may follow.
  ends = ends[np.searchsorted(starts, starts, side="right") - 1]
  words = np.searchsorted(word_starts, starts, side="right") - 1
  first = np.searchsorted(words, words, side="left")
  last = np.searchsorted(words, words, side="right") - 1
  starts = np.where(starts == starts[first], word_starts[words], starts)
  ends = np.where(ends == ends[last], word_ends[words], ends)
  return starts, ends


def _code_points(text: str) -> np.ndarray:
  return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _origins(text: str, *, convert_quotes: bool) -> tuple[np.ndarray, np.ndarray]:
  """For each character of the normalized text, the start and the end [C] of what it comes from."""
  starts: list[int] = []
  ends: list[int] = []
  previous_end = None
  for word in _find_words(text):
    begin, end = word.span()
    if previous_end is not None:  # the whitespace between two words is one space
      starts.append(previous_end)
      ends.append(begin)
    previous_end = end
    letters = word.group()
    if letters.isascii() and not (convert_quotes and any(quotes in letters for quotes in _QUOTES)):
      starts.extend(range(begin, end))
      ends.extend(range(begin + 1, end + 1))
    else:
      word_starts, word_ends = _word_origins(letters, convert_quotes=convert_quotes)
      starts.extend(begin + start for start in word_starts)
      ends.extend(begin + end for end in word_ends)
  return np.array(starts, np.int64), np.array(ends, np.int64)


def _word_origins(word: str, *, convert_quotes: bool) -> tuple[list[int], list[int]]:
  """_origins of a word, counted from its start. A dropped character belongs to the one before it, else after it."""
  starts: list[int] = []
  ends: list[int] = []
  i = begin = last = 0
  while i < len(word):
    size = 2 if convert_quotes and word[i : i + 2] in _QUOTES else 1
    count = 1 if size == 2 else _num_decomposed(ord(word[i]))
    i += size
    if count:
      starts += [begin] * count
      ends += [i] * count
      begin, last = i, count
    elif starts:
      ends[-last:] = [i] * last
      begin = i
  return starts, ends


@functools.lru_cache(maxsize=1 << 16)
def _num_decomposed(code_point: int) -> int:
  return len(decompose(code_point))
