"""WordPiece vocabularies: the `vocab.txt` of BERT and of the Chinese ALBERT, with the rules of the original BERT.

Control characters are dropped, every Han character and every punctuation mark is a word of its own, and the text may be
lower-cased without accents (the class BasicTokenizer of the original BERT and of the original ALBERT). Each word is cut
into the longest pieces that fit.

Characters that are newer than Unicode 13.0, the version of Python 3.10, count as letters without case. So every Python
gives the same words. `wordpiece_graph` implements the same tokenizer in TensorFlow ops.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from albert.errors import UserError
from albert.io.text import decode_utf8, format_value
from albert.tokenization import vocabulary
from albert.tokenization.normalization import CharacterTable, character_counts, has_newer_characters, lower
from albert.tokenization.tokenizer_json import read_tokenizer

CONTINUES_WORD = "##"
# The special pieces of new vocabularies, in the order of SpecialIds.
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_is_unused = re.compile(r"\[unused\d+\]").fullmatch
# The Han characters that become words of their own (CJK_UNIFIED_IDEOGRAPHS and the extensions that the original code
# lists).
_is_han = re.compile(
  "[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
  "\U0002b820-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]"
).match
# Punctuation, format characters and nonspacing marks that Unicode 14.0 and 15.0 added or changed.
_search_newer = re.compile(
  "[\u061d\u0890\u0891\u1734\u1b7d\u1b7e\u2e53-\u2e5d\U00010f86-\U00010f89\U000116b9\U00011b00-\U00011b09"
  "\U00012ff1\U00012ff2]"
).search
_find_ascii_words = re.compile("[A-Za-z0-9]+|[!-/:-@[-`{-~]").findall
_search_control = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]").search


class WordRules(NamedTuple):
  """How a text is cut into words.

  Attributes:
    do_lower_case: whether the text is lower-cased.
    strip_accents: whether accents (nonspacing marks) are stripped after the canonical decomposition.
    split_han: whether each Han character is a word (BertTokenizer's `tokenize_chinese_chars`).
    max_chars: a longer word becomes [UNK] (200 in the original BERT and ALBERT).
  """

  do_lower_case: bool
  strip_accents: bool
  split_han: bool = True
  max_chars: int = 200


class WordPieceVocabulary(vocabulary.Vocabulary):
  """The words of `split_words`, each cut into the longest pieces that fit, from its start on.

  A piece that continues a word is written with "##" before it. A special token ends a word in the original BERT, so
  nothing changes after [MASK]. Text never yields special pieces: "[MASK]" in a text becomes the pieces of "[", "mask"
  and "]".

  Args:
    config, contents: see Vocabulary. A vocab.txt has a piece on each line, in order of their ids, and may have a
      tokenizer_config.json beside it; a tokenizer.json has everything.

  Attributes:
    rules: how text is cut into words.

  Raises:
    UserError: the file is not UTF-8, has an empty line or a piece twice, or lacks a special piece; or see
      `read_tokenizer`.
  """

  kind = "wordpiece"

  def __init__(self, config: vocabulary.TokenizerConfig, contents: Mapping[str, bytes]):
    super().__init__(config, contents)
    content = next(iter(contents.values()))
    if vocabulary.json_model_type(config.model_file):
      _, content, rules, _ = read_tokenizer(config.model_file, content)
    else:
      rules = vocabulary.word_rules(config.model_file)
    strips_accents = config.do_lower_case and not config.keep_accents
    self.rules = WordRules(config.do_lower_case, strips_accents)._replace(**rules)
    self._id_of_piece = _read_pieces(config.model_file, content)
    self.pieces = list(self._id_of_piece)
    self.special_ids = vocabulary.find_special_ids(config.model_file, self.kind, self._id_of_piece)
    self._max_piece_chars = max(map(len, self.pieces))
    self._ids_of_word = vocabulary.IdsOfWords(self._cut)

  @functools.cached_property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for the special pieces and for the pieces [unused1], [unused2], ..."""
    special = np.array([_is_unused(piece) is not None for piece in self.pieces])
    special[list(self.special_ids)] = True
    return special

  @functools.cached_property
  def word_starts(self) -> np.ndarray:
    """bool [V]: False for pieces that begin with ##. A Han character is a word of its own, also after ##."""
    mark = CONTINUES_WORD
    return np.array(
      [not p.startswith(mark) or p == mark or vocabulary.is_written_without_spaces(p[2]) for p in self.pieces]
    )

  def normalize(self, text: str) -> str:
    """Returns the words of a text with spaces between them."""
    return " ".join(self._split_words(text))

  def _split_words(self, text: str) -> list[str]:
    if self.config.convert_quotes:
      text = text.replace("``", '"').replace("''", '"')
    return split_words(text, self.rules)

  def _cut(self, word: str) -> list[int]:
    """Returns the ids of a word: from its start on, always the longest piece that fits; [UNK] if there is none."""
    unknown = [self.special_ids.unk]
    if len(word) > self.rules.max_chars:
      return unknown
    ids: list[int] = []
    start, mark = 0, ""
    while start < len(word):
      for end in range(min(len(word), start + self._max_piece_chars), start, -1):
        piece_id = self._id_of_piece.get(mark + word[start:end])
        if piece_id is not None:
          break
      else:
        return unknown
      ids.append(piece_id)
      start, mark = end, CONTINUES_WORD
    return ids

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    ids_of_word = self._ids_of_word
    return [[i for word in self._split_words(text) for i in ids_of_word[word]] for text in texts]

  def encode_with_offsets(self, text: str) -> vocabulary.TokensWithOffsets:
    """See Vocabulary.

    A dropped character belongs to the token before it, and at the start of a word (words are separated by whitespace)
    to the token after it.
    """
    ids: list[int] = []
    lengths: list[int] = []  # how many characters of its word each piece stands for
    for word in self._split_words(text):
      word_ids = self._ids_of_word[word]
      ids += word_ids
      if len(word_ids) == 1:  # also [UNK], which stands for a whole word
        lengths.append(len(word))
      else:
        lengths += [len(self.pieces[i].removeprefix(CONTINUES_WORD)) for i in word_ids]
    if not ids:
      return vocabulary.TokensWithOffsets.of(ids, *np.zeros((2, 0)))
    counts = character_counts(text, num_written(self.rules), convert_quotes=self.config.convert_quotes)
    origins = np.repeat(np.arange(len(text)), counts)  # the character that each written character comes from
    starts, ends = vocabulary.written_ranges(text, origins, np.ones(len(origins), bool))
    limits = np.cumsum(lengths)
    return vocabulary.TokensWithOffsets.of(ids, starts[limits - np.array(lengths)], ends[limits - 1])

  def decode(self, ids: Sequence[int]) -> str:
    """Words are separated by spaces, and Han characters and punctuation, too."""
    is_special = self.is_special
    pieces = [self.pieces[i] for i in ids if not is_special[i] or i == self.special_ids.unk]
    return " ".join(pieces).replace(f" {CONTINUES_WORD}", "")

  def piece_texts(self) -> list[str]:
    return [piece.removeprefix(CONTINUES_WORD) or piece for piece in self.pieces]


def _read_pieces(path: str, content: bytes) -> dict[str, int]:
  """Returns the id of each piece."""
  remedy = "give a WordPiece vocabulary with a piece on each line; the name of a SentencePiece model ends in .model"
  lines = decode_utf8(path, content, remedy).removesuffix("\n").split("\n")
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


def is_newer(character: str) -> bool:
  """Returns whether a character is newer than Unicode 13.0, or had another category there."""
  return has_newer_characters(character) or _search_newer(character) is not None


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


def split_character(character: str, rules: WordRules) -> str:
  """Returns what a clean, lower-cased character becomes, with spaces around each word of one character.

  Args:
    character: the character.
    rules: what is stripped and split.
  """
  decomposed = character
  if rules.strip_accents and not character.isascii() and not is_newer(character):
    decomposed = "".join(c for c in unicodedata.normalize("NFD", character) if unicodedata.category(c) != "Mn")
  marked = "".join(f" {c} " if is_punctuation(c) else c for c in decomposed)
  return f" {marked} " if rules.split_han and _is_han(character) else marked


# `clean` and `split_character` as tables for `str.translate`.
_CLEAN = CharacterTable(lambda code_point: clean(chr(code_point)))


@functools.cache
def _split_table(rules: WordRules) -> CharacterTable:
  return CharacterTable(lambda code_point: split_character(chr(code_point), rules))


# Marks that are not stripped, but have a combining class. NFD sorts neighbors of these by their class.
SORTED_MARKS = {
  c: unicodedata.combining(chr(c))
  for c in (*range(0x300, 0x3100), *range(0xA600, 0xAC00), *range(0x10000, 0x1F000))
  if unicodedata.combining(chr(c)) and unicodedata.category(chr(c)) != "Mn" and not is_newer(chr(c))
}
_sort_marks_in = re.compile(f"[{''.join(map(chr, SORTED_MARKS))}]{{2,}}").sub


def _sort_marks(match: re.Match[str]) -> str:
  return "".join(sorted(match.group(), key=lambda character: SORTED_MARKS[ord(character)]))


def split_words(text: str, rules: WordRules) -> list[str]:
  """Cuts a text, any string, into words, Han characters and punctuation marks."""
  if text.isascii() and not _search_control(text):
    return _find_ascii_words(text.lower() if rules.do_lower_case else text)
  text = text.translate(_CLEAN)
  text = (lower(text) if rules.do_lower_case else text).translate(_split_table(rules))
  return (_sort_marks_in(_sort_marks, text) if rules.strip_accents else text).split()


@functools.cache
def num_written(rules: WordRules) -> CharacterTable:
  """Returns a table with chr(n) for a character that becomes n characters of words in `split_words`."""
  split = _split_table(rules)

  def number(code_point: int) -> str:
    cleaned = clean(chr(code_point))
    return chr(len("".join((lower(cleaned) if rules.do_lower_case else cleaned).translate(split).split())))

  return CharacterTable(number)
