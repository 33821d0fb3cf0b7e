"""Cuts text into the words of GPT-2 and RoBERTa, and writes bytes as characters as their vocabularies do.

A word is a run of letters, of digits or of other characters, with the space before it; an English contraction such as
's; or whitespace (the regular expression of GPT-2's encoder.py). Merges of byte-level BPE do not cross words.

Letters and digits are those of Unicode 16.0 with every Python, as in the library tokenizers 0.22.
This module does not import TensorFlow.
"""

from __future__ import annotations

import itertools
import re
import unicodedata

# Characters that Unicode 14.0 to 16.0 added. Python 3.10 implements Unicode 13.0 and does not know them.
_LETTERS_AFTER_UNICODE_13 = (
  "\u0870-\u0887\u0889-\u088e\u08b5\u08c8\u08c9\u0c5d\u0cdd\u170d\u171f\u1b4c\u1c89\u1c8a\u2c2f\u2c5f\u9ffd-\u9fff"
  "\ua7c0\ua7c1\ua7cb-\ua7cd\ua7d0\ua7d1\ua7d3\ua7d5-\ua7dc\ua7f2-\ua7f4\U00010570-\U0001057a\U0001057c-\U0001058a"
  "\U0001058c-\U00010592\U00010594\U00010595\U00010597-\U000105a1\U000105a3-\U000105b1\U000105b3-\U000105b9"
  "\U000105bb\U000105bc\U000105c0-\U000105f3\U00010780-\U00010785\U00010787-\U000107b0\U000107b2-\U000107ba"
  "\U00010d4a-\U00010d65\U00010d6f-\U00010d85\U00010ec2-\U00010ec4\U00010f70-\U00010f81\U00011071\U00011072"
  "\U00011075\U0001123f\U00011240\U00011380-\U00011389\U0001138b\U0001138e\U00011390-\U000113b5\U000113b7"
  "\U000113d1\U000113d3\U00011740-\U00011746\U00011ab0-\U00011abf\U00011bc0-\U00011be0\U00011f02"
  "\U00011f04-\U00011f10\U00011f12-\U00011f33\U00012f90-\U00012ff0\U0001342f\U00013441-\U00013446"
  "\U00013460-\U000143fa\U00016100-\U0001611d\U00016a70-\U00016abe\U00016d40-\U00016d6c\U00018cff"
  "\U0001aff0-\U0001aff3\U0001aff5-\U0001affb\U0001affd\U0001affe\U0001b11f-\U0001b122\U0001b132\U0001b155"
  "\U0001df00-\U0001df1e\U0001df25-\U0001df2a\U0001e030-\U0001e06d\U0001e290-\U0001e2ad\U0001e4d0-\U0001e4eb"
  "\U0001e5d0-\U0001e5ed\U0001e5f0\U0001e7e0-\U0001e7e6\U0001e7e8-\U0001e7eb\U0001e7ed\U0001e7ee"
  "\U0001e7f0-\U0001e7fe\U0002a6de\U0002a6df\U0002b735-\U0002b739\U0002ebf0-\U0002ee5d\U00031350-\U000323af"
)
_NUMBERS_AFTER_UNICODE_13 = (
  "\U00010d40-\U00010d49\U000116d0-\U000116e3\U00011bf0-\U00011bf9\U00011f50-\U00011f59\U00016130-\U00016139"
  "\U00016ac0-\U00016ac9\U00016d70-\U00016d79\U0001ccf0-\U0001ccf9\U0001d2c0-\U0001d2d3\U0001e4f0-\U0001e4f9"
  "\U0001e5f1-\U0001e5fa"
)
_is_newer_letter = re.compile(f"[{_LETTERS_AFTER_UNICODE_13}]").match
_is_newer_number = re.compile(f"[{_NUMBERS_AFTER_UNICODE_13}]").match
# The characters of the class \s in GPT-2's regular expression (Unicode's White_Space).
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_is_white_space = re.compile(f"[{_WHITE_SPACE}]").match
# Classes of characters, and the ASCII character that stands for other characters of the class. The letter is in no
# contraction.
LETTER, NUMBER, SPACE, OTHER = range(4)
_REPRESENTATIVES = "q0\t!"
_find_words = re.compile(
  r"'(?:[stmd]|re|ve|ll)| ?[A-Za-z]+| ?[0-9]+| ?[^\t-\r A-Za-z0-9]+|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
).findall


def character_class(character: str) -> int:
  """Returns the class of a character: LETTER, NUMBER, SPACE or OTHER."""
  if _is_white_space(character):
    return SPACE
  category = unicodedata.category(character)[0]
  if category == "L" or _is_newer_letter(character):
    return LETTER
  return NUMBER if category == "N" or _is_newer_number(character) else OTHER


class _RepresentativeTable(dict[int, str]):
  """Maps code points to the representatives of their classes, for `str.translate`; filled at first use."""

  def __missing__(self, code_point: int) -> str:
    character = chr(code_point)
    self[code_point] = character if character.isascii() else _REPRESENTATIVES[character_class(character)]
    return self[code_point]


_REPRESENTATIVE_OF = _RepresentativeTable()


def split_words(text: str) -> list[str]:
  """Cuts a text into words. Joined, they are the text."""
  if text.isascii():
    return _find_words(text)
  ends = itertools.accumulate(map(len, _find_words(text.translate(_REPRESENTATIVE_OF))), initial=0)
  return [text[start:end] for start, end in itertools.pairwise(ends)]


def _byte_characters() -> str:
  """Returns the character that stands for each byte: the printable ones of Latin-1 stand for themselves."""
  is_printable = [chr(byte).isprintable() and not chr(byte).isspace() for byte in range(256)]
  others = itertools.count(256)
  return "".join(chr(byte if is_printable[byte] else next(others)) for byte in range(256))


BYTE_CHARACTERS = _byte_characters()
_BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def is_written_in_bytes(piece: str) -> bool:
  """Returns whether each character of a piece stands for a byte."""
  return all(character in _BYTE_OF_CHARACTER for character in piece)


def piece_to_bytes(piece: str) -> bytes:
  """Returns the bytes that a piece stands for: "Ġthe" for b" the"."""
  return bytes(_BYTE_OF_CHARACTER[character] for character in piece)


def bytes_to_piece(data: bytes) -> str:
  """Writes bytes with the characters that stand for them."""
  return "".join(BYTE_CHARACTERS[byte] for byte in data)
