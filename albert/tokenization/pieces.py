"""Special pieces of vocabularies, ALBERT's control symbols in SentencePiece models, and which pieces start a word."""

from __future__ import annotations

import unicodedata
from typing import NamedTuple


class SpecialIds(NamedTuple):
  """The ids of a vocabulary's special pieces.

  Attributes:
    pad: padding, which no text contains.
    unk: text that the other pieces cannot represent.
    cls: the start of every sequence.
    sep: the end of every segment.
    mask: a token that a masked language model predicts.
  """

  pad: int
  unk: int
  cls: int
  sep: int
  mask: int


PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = 0, 1, 2, 3, 4
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # in order of their ids
SENTENCE_PIECE_IDS = SpecialIds(PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID)
WORD_START = "▁"  # U+2581: how SentencePiece writes a space

# First and last code points of scripts that put no spaces between words. A piece of these scripts counts as a word.
_SCRIPTS_WITHOUT_SPACES = (
  (0x0E00, 0x0FFF),  # Thai, Lao, Tibetan
  (0x1000, 0x109F),  # Myanmar
  (0x1780, 0x17FF),  # Khmer
  (0x1950, 0x19FF),  # Tai Le, New Tai Lue, Khmer symbols
  (0x1A20, 0x1AAF),  # Tai Tham
  (0x2E80, 0x312F),  # CJK radicals and punctuation, Hiragana, Katakana, Bopomofo
  (0x31A0, 0x4DBF),  # Bopomofo and Katakana extensions, CJK extension A
  (0x4E00, 0xA4CF),  # CJK ideographs, Yi
  (0xA980, 0xA9DF),  # Javanese
  (0xF900, 0xFAFF),  # CJK compatibility ideographs
  (0x16FE0, 0x18DFF),  # Tangut, Khitan
  (0x1B000, 0x1B2FF),  # Kana extensions, Nushu
  (0x20000, 0x3FFFF),  # CJK extensions B and later
)


def is_written_without_spaces(character: str) -> bool:
  """Returns whether a character belongs to a script without spaces between words, such as Han or Thai."""
  return any(low <= ord(character) <= high for low, high in _SCRIPTS_WITHOUT_SPACES)


def starts_word(piece: str, is_byte: bool = False) -> bool:
  """Returns whether a piece starts a word, see `Tokenizer.word_starts`. A byte piece is written as "<0xC5>"."""
  if is_byte:
    byte = int(piece[3:5], 16)
    if byte >= 0x80:
      # 0xE3 to 0xE9 are the first bytes of U+3000 to U+9FFF, which are mostly scripts without spaces. Any other byte
      # from 0x80 on continues a word.
      return 0xE3 <= byte <= 0xE9
    piece = chr(byte)
  if not piece:
    return False
  character = piece[0]
  if character == WORD_START or is_written_without_spaces(character):
    return True
  # Punctuation (P*) and symbols (S*). An emoji that is newer than this Python's Unicode data has category Cn.
  category = unicodedata.category(character)
  return category[0] in "PS" or category == "Cn"
