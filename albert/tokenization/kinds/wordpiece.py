"""WordPiece vocabularies: the `vocab.txt` of BERT and of the Chinese ALBERT, with the rules of the original BERT."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

from albert.errors import UserError
from albert.io.json_text import format_value
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.kinds.base import TokensWithOffsets, Vocabulary
from albert.tokenization.kinds.wordpiece_text import split_words, split_words_with_origins
from albert.tokenization.pieces import SpecialIds, is_written_without_spaces

CONTINUES_WORD = "##"
# The special pieces, in the order of SpecialIds.
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# A longer word becomes [UNK] (WordpieceTokenizer of the original BERT and ALBERT; transformers has 100).
MAX_WORD_CHARS = 200
_find_words = re.compile(r"\S+").finditer
_is_unused = re.compile(r"\[unused\d+\]").fullmatch
# The ids of this many different words are kept.
_MAX_CACHED_WORDS = 1 << 18


class _WordIds(dict[str, list[int]]):
  """Maps words to the ids of their pieces; a word is cut when it is first used."""

  def __init__(self, id_of_piece: dict[str, int], unk_id: int):
    super().__init__()
    self._id_of_piece = id_of_piece
    self._max_piece_chars = max(map(len, id_of_piece))
    self._unk_id = unk_id

  def __missing__(self, word: str) -> list[int]:
    if len(self) >= _MAX_CACHED_WORDS:
      self.clear()
    self[word] = self._cut(word)
    return self[word]

  def _cut(self, word: str) -> list[int]:
    """Returns the ids of a word: from its start on, always the longest piece that fits; [UNK] if there is none."""
    if len(word) > MAX_WORD_CHARS:
      return [self._unk_id]
    ids: list[int] = []
    start, mark = 0, ""
    while start < len(word):
      for end in range(min(len(word), start + self._max_piece_chars), start, -1):
        piece_id = self._id_of_piece.get(mark + word[start:end])
        if piece_id is not None:
          break
      else:
        return [self._unk_id]
      ids.append(piece_id)
      start, mark = end, CONTINUES_WORD
    return ids


class WordPieceVocabulary(Vocabulary):
  """The words of `split_words`, each cut into the longest pieces that fit, from its start on.

  A piece that continues a word is written with "##" before it. Text never yields special pieces: "[MASK]" in a text
  becomes the pieces of "[", "mask" and "]".

  Args:
    config: the file and the normalization.
    content: the contents of the file: a piece on each line, in order of their ids.

  Raises:
    UserError: the file is not UTF-8, has an empty line or a piece twice, or lacks a special piece.
  """

  kind = "wordpiece"

  def __init__(self, config: TokenizerConfig, content: bytes):
    self.config = config
    self.sha256 = hashlib.sha256(content).hexdigest()
    id_of_piece = _read_pieces(config.model_file, content)
    self.pieces = list(id_of_piece)
    self.special_ids = SpecialIds(*(_special_id(config.model_file, id_of_piece, piece) for piece in SPECIAL_PIECES))
    self._ids_of_word = _WordIds(id_of_piece, self.special_ids.unk)

  @functools.cached_property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for the special pieces and for the pieces [unused1], [unused2], ..."""
    special = np.array([_is_unused(piece) is not None for piece in self.pieces])
    special[list(self.special_ids)] = True
    return special

  @functools.cached_property
  def word_starts(self) -> np.ndarray:
    """bool [V]: False for pieces that begin with ##. A Han character is a word of its own, also after ##."""
    return np.array(
      [
        not piece.startswith(CONTINUES_WORD) or piece == CONTINUES_WORD or is_written_without_spaces(piece[2])
        for piece in self.pieces
      ]
    )

  def normalize(self, text: str) -> str:
    """Returns the words of a text with spaces between them."""
    return " ".join(self._split_words(text))

  def _split_words(self, text: str) -> list[str]:
    config = self.config
    return split_words(self._convert_quotes(text), do_lower_case=config.do_lower_case, keep_accents=config.keep_accents)

  def _convert_quotes(self, text: str) -> str:
    return text.replace("``", '"').replace("''", '"') if self.config.convert_quotes else text

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    """See Vocabulary."""
    ids_of_word = self._ids_of_word
    return [[i for word in self._split_words(text) for i in ids_of_word[word]] for text in texts]

  def encode_with_offsets(self, text: str) -> TokensWithOffsets:
    """See Vocabulary.

    A dropped character belongs to the token before it, and at the start of a word (words are separated by whitespace)
    to the token after it.
    """
    converted = self._convert_quotes(text)
    config = self.config
    words, origins = split_words_with_origins(
      converted, do_lower_case=config.do_lower_case, keep_accents=config.keep_accents
    )
    ids, lengths = self._ids_and_lengths(words)
    if not ids:
      empty = np.zeros(0, np.int32)
      return TokensWithOffsets(empty, empty, empty)
    starts, ends = _character_ranges(converted, np.array(origins, np.int64))
    if converted != text:
      original = np.array(_converted_origins(text), np.int64)
      starts, ends = original[starts, 0], original[ends - 1, 1]
    limits = np.cumsum(lengths)
    return TokensWithOffsets(
      np.array(ids, np.int32), starts[limits - lengths].astype(np.int32), ends[limits - 1].astype(np.int32)
    )

  def _ids_and_lengths(self, words: list[str]) -> tuple[list[int], np.ndarray]:
    """Returns the ids of words, and how many characters of its word each of them stands for."""
    ids: list[int] = []
    lengths: list[int] = []
    for word in words:
      word_ids = self._ids_of_word[word]
      ids += word_ids
      if len(word_ids) == 1:  # also [UNK], which stands for a whole word
        lengths.append(len(word))
      else:
        pieces = [self.pieces[i] for i in word_ids]
        lengths += [len(pieces[0]), *(len(piece) - len(CONTINUES_WORD) for piece in pieces[1:])]
    return ids, np.array(lengths, np.int64)

  def decode(self, ids: Sequence[int]) -> str:
    """See Vocabulary. Words are separated by spaces, and Han characters and punctuation, too."""
    is_special = self.is_special
    pieces = [self.pieces[i] for i in ids if not is_special[i] or i == self.special_ids.unk]
    return " ".join(pieces).replace(f" {CONTINUES_WORD}", "")

  def piece_texts(self) -> list[str]:
    """See Vocabulary."""
    return [piece.removeprefix(CONTINUES_WORD) or piece for piece in self.pieces]

  @functools.cached_property
  def ids_inside_word(self) -> np.ndarray:
    """See Vocabulary. A special token ends a word in the original BERT, so nothing changes after [MASK]."""
    return np.arange(len(self.pieces), dtype=np.int32)


def _read_pieces(path: str, content: bytes) -> dict[str, int]:
  """Returns the id of each piece."""
  try:
    lines = content.decode("utf-8").removesuffix("\n").split("\n")
  except UnicodeDecodeError as error:
    line = content.count(b"\n", 0, error.start) + 1
    raise UserError(
      f"{path}, line {line}: not UTF-8, so it is no WordPiece vocabulary: give a file with a piece on each line; the "
      "name of a SentencePiece model ends in .model"
    ) from error
  id_of_piece: dict[str, int] = {}
  for index, text in enumerate(lines):
    piece = text.removesuffix("\r")
    if not piece.strip():
      raise UserError(f"{path}, line {index + 1}: no piece: give a file with a piece on each line")
    if piece in id_of_piece:
      raise UserError(
        f"{path}, line {index + 1}: {format_value(piece)} is a piece already, on line {id_of_piece[piece] + 1}: give a "
        "file in which every line has another piece"
      )
    id_of_piece[piece] = index
  return id_of_piece


def _special_id(path: str, id_of_piece: dict[str, int], piece: str) -> int:
  if piece not in id_of_piece:
    raise UserError(
      f"{path}: none of its {len(id_of_piece)} lines is {piece}: give a WordPiece vocabulary of BERT or ALBERT, with "
      f"{', '.join(SPECIAL_PIECES)}"
    )
  return id_of_piece[piece]


def _character_ranges(text: str, origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the range of the text that each written character stands for.

  Args:
    text: the text.
    origins: int64 [C], the index in the text of the character that each written character comes from, ascending.

  Returns:
    starts, ends: int64 [C]. A range ends where the range of the next character of the same word begins, so that it
    includes the dropped characters between them.
  """
  word_starts, word_ends = np.array([word.span() for word in _find_words(text)], np.int64).T
  word_indices = np.searchsorted(word_starts, origins, side="right") - 1
  is_first = np.append(True, word_indices[1:] != word_indices[:-1])
  first_origin = np.maximum.accumulate(np.where(is_first, origins, -1))  # of the word's first written characters
  starts = np.where(origins == first_origin, word_starts[word_indices], origins)
  # Of several characters with the same origin, the end is the next greater origin.
  following = np.append(origins, len(text))[np.searchsorted(origins, origins, side="right")]
  return starts, np.minimum(following, word_ends[word_indices])


def _converted_origins(text: str) -> list[tuple[int, int]]:
  """Returns the range in the text of each character of the text with converted quotes."""
  ranges = []
  position = 0
  while position < len(text):
    length = 2 if text[position : position + 2] in ("``", "''") else 1
    ranges.append((position, position + length))
    position += length
  return ranges
