"""WordPiece as the original BERT defines it, one character at a time: a slow reference, and a small vocabulary."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albert.tokenization.wordpiece import SPECIAL_PIECES
from tests.tokenization.script_texts import texts_of_all_scripts

_HAN_RANGES = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
               (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))  # fmt: skip


def is_han(character: str) -> bool:
  return any(first <= ord(character) <= last for first, last in _HAN_RANGES)


def _is_mark_of_punctuation(character: str) -> bool:
  code_point = ord(character)
  if 33 <= code_point <= 47 or 58 <= code_point <= 64 or 91 <= code_point <= 96 or 123 <= code_point <= 126:
    return True
  return unicodedata.category(character).startswith("P")


def basic_words(text: str, do_lower_case: bool, keep_accents: bool = False) -> list[str]:
  """Cuts a text into words: clean, separate Han characters, then for each word lower-case, strip accents and split."""
  cleaned = ""
  for character in text:
    if character in "\t\n\r " or unicodedata.category(character) == "Zs":
      cleaned += " "
    elif character not in "\0\ufffd" and unicodedata.category(character) not in ("Cc", "Cf"):
      cleaned += f" {character} " if is_han(character) else character
  words = []
  for word in cleaned.split():
    decomposed = unicodedata.normalize("NFD", word.lower())
    stripped = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
    current = ""
    lowered = word.lower() if keep_accents else stripped
    for character in lowered if do_lower_case else word:
      if _is_mark_of_punctuation(character):
        words += [current, character]
        current = ""
      else:
        current += character
    words.append(current)
  return " ".join(words).split()


def cut_word(word: str, pieces: set[str]) -> list[str]:
  """Cuts a word: the longest piece that fits, again and again."""
  if len(word) > 200:
    return ["[UNK]"]
  result: list[str] = []
  rest = word
  while rest:
    fitting = [end for end in range(1, len(rest) + 1) if ("##" if result else "") + rest[:end] in pieces]
    if not fitting:
      return ["[UNK]"]
    result.append(("##" if result else "") + rest[: fitting[-1]])
    rest = rest[fitting[-1] :]
  return result


def reference_ids(text: str, pieces: Sequence[str], do_lower_case: bool, keep_accents: bool = False) -> list[int]:
  id_of_piece = {piece: index for index, piece in enumerate(pieces)}
  found = [piece for word in basic_words(text, do_lower_case, keep_accents) for piece in cut_word(word, set(pieces))]
  return [id_of_piece[piece] for piece in found]


def vocabulary_pieces(seed: int = 0) -> list[str]:
  """Returns a vocabulary of about 5,000 pieces of all scripts; the ids of [UNK] to [MASK] are those of BERT."""
  rng = random.Random(seed)
  pieces = ["[PAD]", *(f"[unused{number}]" for number in range(1, 100)), *SPECIAL_PIECES[1:]]
  assert pieces.index("[UNK]") == 100
  found = dict.fromkeys(pieces)
  found.update(dict.fromkeys(map(chr, range(33, 127))))
  found.update(dict.fromkeys(f"##{chr(c)}" for c in range(33, 127)))
  for text in texts_of_all_scripts(900, seed=seed + 17):
    for do_lower_case in (True, False):
      for word in basic_words(text, do_lower_case)[:4]:
        end = rng.randint(1, 4)
        found.update({word[:end]: None, f"##{word[end : end + rng.randint(1, 3)]}": None})
        found.update({word[0]: None, f"##{word[-1]}": None})
  found.pop("##", None)
  return list(found)


def write_vocabulary(path: Path, pieces: Sequence[str]) -> str:
  path.write_bytes("".join(f"{piece}\n" for piece in pieces).encode())
  return str(path)


def tokenizer_values(pieces: Sequence[str], **settings: Any) -> dict[str, Any]:
  """Returns the content of a tokenizer.json, as transformers 5 writes it for a BertTokenizer."""
  normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": True}
  model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
  return {
    "added_tokens": [{"id": pieces.index(piece), "content": piece, "special": True} for piece in SPECIAL_PIECES],
    "normalizer": normalizer | {"strip_accents": None} | settings,
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "TemplateProcessing"},
    "model": model | {"max_input_chars_per_word": 100, "vocab": {piece: i for i, piece in enumerate(pieces)}},
  }
