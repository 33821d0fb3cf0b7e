"""Small byte-level BPE vocabularies, trained by a slow trainer, and slow implementations of their rules."""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

SPECIAL_PIECES = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
TRAINING_TEXT = (
  "The captain sold a letter from Paris. They're the captains, aren't they? She sold 1999 letters in 2024! "
  "他卖了一封信。船长卖了一封信。 captain's naïve façade, Ελλάδα 👩‍👩‍👧 🙂🙂  the  cat\n\nsat on the mat… straße "
)


@functools.cache
def characters_of_bytes() -> dict[int, str]:
  """Returns the character for each byte: the printable ones of Latin-1 for themselves, then U+0100, U+0101, ..."""
  printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  others = [byte for byte in range(256) if byte not in printable]
  return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def written(text: str) -> str:
  """Writes a text as vocabularies do."""
  return "".join(characters_of_bytes()[byte] for byte in text.encode())


@functools.cache
def train(num_merges: int = 200, text: str = TRAINING_TEXT) -> tuple[list[str], list[tuple[str, str]]]:
  """Returns the pieces and the merges of a small vocabulary: always the most frequent pair of neighbors."""
  words = [[*written(word)] for word in re.findall(r" ?\w+| ?[^\s\w]+|\s+", text)]
  merges: list[tuple[str, str]] = []
  while len(merges) < num_merges:
    pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
    if not pairs:
      break
    best = min(pairs, key=lambda pair: (-pairs[pair], pair))
    merges.append(best)
    words = [merge_all(word, best) for word in words]
  pieces = dict.fromkeys([*SPECIAL_PIECES, *characters_of_bytes().values(), *(a + b for a, b in merges)])
  return list(pieces), merges


def merge_all(word: list[str], pair: tuple[str, str]) -> list[str]:
  """Joins a pair wherever it occurs in a word, from the left."""
  joined: list[str] = []
  for piece in word:
    if joined and (joined[-1], piece) == pair:
      joined[-1] += piece
    else:
      joined.append(piece)
  return joined


def write_vocabulary(
  directory: Path, pieces: Iterable[str] | None = None, merges: Iterable[tuple[str, str]] | None = None
) -> str:
  """Writes vocab.json and merges.txt; returns the path of vocab.json. Without pieces and merges, those of `train`."""
  pieces, merges = train()[0] if pieces is None else pieces, train()[1] if merges is None else merges
  directory.mkdir(parents=True, exist_ok=True)
  ids = {piece: i for i, piece in enumerate(pieces)}
  (directory / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
  lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
  (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
  return str(directory / "vocab.json")


def tokenizer_values(merges_as_lists: bool = False) -> dict[str, object]:
  """Returns the contents of a tokenizer.json with the vocabulary of `train`."""
  pieces, merges = train()
  ids = {piece: i for i, piece in enumerate(pieces)}
  return {
    "version": "1.0",
    "added_tokens": [{"id": i, "content": piece, "special": True} for i, piece in enumerate(SPECIAL_PIECES)],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
    "model": {
      "type": "BPE",
      "dropout": None,
      "vocab": ids,
      "merges": [[a, b] if merges_as_lists else f"{a} {b}" for a, b in merges],
    },
  }


def reference_pieces(text: str) -> list[str]:
  """Cuts a text into the pieces of `train`, by GPT-2's rules, one character after the other."""
  rank_of = {pair: rank for rank, pair in enumerate(train()[1])}
  pieces = []
  for word in reference_words(text):
    symbols = [*written(word)]
    while candidates := rank_of.keys() & set(itertools.pairwise(symbols)):
      symbols = merge_all(symbols, min(candidates, key=rank_of.__getitem__))
    pieces += symbols
  return pieces


def reference_words(text: str) -> list[str]:
  """Cuts a text into words as the regular expression of GPT-2's encoder.py does, by trying its parts in order."""
  words = []
  while text:
    word = next(word for word in _candidates(text) if word)
    words.append(word)
    text = text[len(word) :]
  return words


def _kind(character: str) -> str:
  if character in "\t\n\v\f\r\x85" or unicodedata.category(character)[0] == "Z":
    return "space"
  return {"L": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def _candidates(text: str) -> Iterable[str]:
  """Yields what each part of the regular expression matches at the start of a text; "" if nothing."""
  yield from (ending for ending in ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d") if text.startswith(ending))
  for kind in ("letter", "number", "other"):
    start = 1 if text[0] == " " else 0
    end = start
    while end < len(text) and _kind(text[end]) == kind:
      end += 1
    yield text[:end] if end > start else ""
  end = 0
  while end < len(text) and _kind(text[end]) == "space":
    end += 1
  yield text[:end] if end == len(text) else text[: end - 1]
  yield text[:end]
