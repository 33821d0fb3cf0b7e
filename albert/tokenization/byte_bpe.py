"""Byte-level BPE vocabularies: `tokenizer.json`, or `vocab.json` with `merges.txt`, as GPT-2's and RoBERTa's.

A word is a run of letters, of digits or of other characters, with the space before it; an English contraction such as
's; or whitespace (the regular expression of GPT-2's encoder.py). Merges of byte-level BPE do not cross words. Letters
and digits are those of Unicode 16.0 with every Python, as in the library tokenizers 0.22.

The code is this project's own and not the library tokenizers: it needs no further package, and with the ids of frequent
words kept it is faster in a process of its own. The tests compare the ids with those of the library.
`byte_bpe_graph` implements the same tokenizer in TensorFlow ops.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.errors import UserError
from albert.io.json_text import decode_object
from albert.io.text import decode_utf8, encode_utf8, format_value, replace_surrogates
from albert.tokenization import vocabulary
from albert.tokenization.normalization import CharacterTable

_REMEDY = "give the tokenizer.json, or the vocab.json with merges.txt, of a byte-level BPE vocabulary such as RoBERTa's"
# Settings of `model` in tokenizer.json that change the ids; each must be absent, null, false or "".
_MODEL_SETTINGS = ("dropout", "byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")

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


class ByteLevelBPEVocabulary(vocabulary.Vocabulary):
  """The words of `split_words`, each as UTF-8 bytes, which merges join to longer pieces.

  Nothing in the text is changed, so `decode` gives it back: `do_lower_case` has no effect here. A piece that starts
  with a space is written with Ġ before it. The first word of a text has no such space. Text never yields special
  pieces: "<mask>" in a text becomes the pieces of "<", "mask" and ">". Text after "<mask>" is encoded without a space
  before it, so none of its pieces is replaced.

  Args:
    config, contents: see Vocabulary.

  Attributes:
    merges: the merges, in order of their ranks.
    piece_bytes: the bytes that each piece stands for, V strings; none for pieces that are special.

  Raises:
    UserError: see `read_files`; or quotes are to be converted.
  """

  kind = "byte_level_bpe"
  keeps_case = True

  def __init__(self, config: vocabulary.TokenizerConfig, contents: Mapping[str, bytes]):
    if config.convert_quotes:
      raise UserError(
        f"--convert_quotes with {config.model_file}: byte-level BPE keeps the text as it is: leave the flag out"
      )
    super().__init__(config, contents)
    self.pieces, self.merges, self.special_ids = read_files(config.model_file, contents)
    id_of_piece = {piece: i for i, piece in enumerate(self.pieces)}
    self.byte_ids = [id_of_piece[character] for character in BYTE_CHARACTERS]
    # A special piece has letters and brackets, which are never in the same word, so no text yields it.
    represents_text = {*self.byte_ids, *(merge.merged for merge in self.merges)} - {*self.special_ids}
    self.piece_bytes = [
      bytes(map(_BYTE_OF_CHARACTER.__getitem__, piece)) if i in represents_text else b""
      for i, piece in enumerate(self.pieces)
    ]
    # A pair of ids -> its rank, and the id of what it becomes.
    self._merge_of = {(merge.left, merge.right): (rank, merge.merged) for rank, merge in enumerate(self.merges)}
    self._ids_of_word = vocabulary.IdsOfWords(self._cut)

  @functools.cached_property
  def is_special(self) -> np.ndarray:
    """bool [V]: True for pieces that no text yields: the special pieces, and those that no merge makes."""
    return np.array([not data for data in self.piece_bytes])

  @functools.cached_property
  def word_starts(self) -> np.ndarray:
    """bool [V]: True for pieces that start with whitespace, punctuation, a symbol, or of a script without spaces.

    Of a piece that starts with a part of a character, the first and the last character with these bytes count.
    """
    return np.array([_starts_word(data) for data in self.piece_bytes])

  def normalize(self, text: str) -> str:
    """Returns the text, with U+FFFD for lone surrogates, which UTF-8 cannot encode."""
    return replace_surrogates(text)

  def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
    ids_of_word = self._ids_of_word
    return [[i for word in split_words(text) for i in ids_of_word[word]] for text in texts]

  def _cut(self, word: str) -> list[int]:
    """Applies the merges to the ids of a word's bytes, always the one of the lowest rank, of equal ones the leftmost.

    A queue holds the pairs that can be merged, so the time is proportional to n log n for n bytes.
    """
    ids = [self.byte_ids[byte] for byte in encode_utf8(word)]
    merge_of, end = self._merge_of, len(ids)
    following, preceding = list(range(1, end + 1)), list(range(-1, end - 1))
    queue = [(*merge_of[pair], i) for i, pair in enumerate(itertools.pairwise(ids)) if pair in merge_of]
    heapq.heapify(queue)
    while queue:
      rank, merged, i = heapq.heappop(queue)
      right = following[i]
      # A pair in the queue may have become part of another piece. The id of such a piece is -1.
      if right == end or merge_of.get((ids[i], ids[right])) != (rank, merged):
        continue
      ids[i], ids[right] = merged, -1
      after = following[i] = following[right]
      if after < end:
        preceding[after] = i
        if found := merge_of.get((merged, ids[after])):
          heapq.heappush(queue, (*found, i))
      before = preceding[i]
      if before >= 0 and (found := merge_of.get((ids[before], merged))):
        heapq.heappush(queue, (*found, before))
    return [i for i in ids if i >= 0]

  def encode_with_offsets(self, text: str) -> vocabulary.TokensWithOffsets:
    ids = self.encode_batch([text])[0]
    token_ends = np.cumsum(np.array([len(self.piece_bytes[i]) for i in ids], np.int64))
    token_starts = np.concatenate([[0], token_ends])[: len(ids)]
    lengths = np.array([len(encode_utf8(character)) for character in text], np.int64)
    limits = np.concatenate([[0], np.cumsum(lengths)])  # in bytes, of each character
    first = np.searchsorted(limits, token_starts, side="right") - 1
    after_last = np.searchsorted(limits, token_ends, side="left")
    # For each offset the next start, and the end before it, of a character that is not whitespace.
    positions = np.arange(len(text))
    is_space = np.array([character.isspace() for character in text], bool)
    next_starts = np.minimum.accumulate(np.append(np.where(is_space, len(text), positions), len(text))[::-1])[::-1]
    ends_before = np.maximum.accumulate(np.append(0, np.where(is_space, 0, positions + 1)))
    return vocabulary.TokensWithOffsets.of(ids, next_starts[first], ends_before[after_last])

  def decode(self, ids: Sequence[int]) -> str:
    """Bytes that are not UTF-8 become U+FFFD."""
    return b"".join(self.piece_bytes[i] for i in ids).decode("utf-8", errors="replace")

  def piece_texts(self) -> list[str]:
    """A part of a character is U+FFFD."""
    return [
      data.decode("utf-8", errors="replace").strip() if data else piece
      for piece, data in zip(self.pieces, self.piece_bytes, strict=True)
    ]


def _starts_word(data: bytes) -> bool:
  """Returns whether a piece with these bytes starts a word."""
  if not data or 0x80 <= data[0] < 0xC0:  # a special piece, or one that continues a character
    return False
  num_bytes = 1 + sum(data[0] >= first for first in (0xC0, 0xE0, 0xF0))  # of the first character
  if len(data) >= num_bytes:
    character = data[:num_bytes].decode("utf-8", errors="replace")
    return character.isspace() or vocabulary.starts_word(character)
  # The first and the last character that can begin with these bytes.
  candidates = [data.ljust(num_bytes, filler).decode("utf-8", errors="replace") for filler in (b"\x80", b"\xbf")]
  return all(len(character) == 1 and vocabulary.is_written_without_spaces(character) for character in candidates)


def character_class(character: str) -> int:
  """Returns the class of a character: LETTER, NUMBER, SPACE or OTHER."""
  if _is_white_space(character):
    return SPACE
  category = unicodedata.category(character)[0]
  if category == "L" or _is_newer_letter(character):
    return LETTER
  return NUMBER if category == "N" or _is_newer_number(character) else OTHER


# The ASCII character that stands for each character in `split_words`.
_REPRESENTATIVE_OF = CharacterTable(
  lambda code_point: chr(code_point) if code_point < 0x80 else _REPRESENTATIVES[character_class(chr(code_point))]
)


def split_words(text: str) -> list[str]:
  """Cuts a text into words. Joined, they are the text."""
  if text.isascii():
    return _find_words(text)
  ends = itertools.accumulate(map(len, _find_words(text.translate(_REPRESENTATIVE_OF))), initial=0)
  return [text[start:end] for start, end in itertools.pairwise(ends)]


# The character that stands for each byte: the printable ones of Latin-1 stand for themselves.
_others = map(chr, itertools.count(256))
BYTE_CHARACTERS = "".join(c if c.isprintable() and not c.isspace() else next(_others) for c in map(chr, range(256)))
_BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}


def bytes_to_piece(data: bytes) -> str:
  """Writes bytes with the characters that stand for them: "Ġthe" for b" the"."""
  return "".join(BYTE_CHARACTERS[byte] for byte in data)


class Merge(NamedTuple):
  """A pair of pieces that becomes one piece, as ids."""

  left: int
  right: int
  merged: int


def read_files(path: str, contents: Mapping[str, bytes]) -> tuple[list[str], list[Merge], vocabulary.SpecialIds]:
  """Reads and checks the files of a vocabulary.

  Args:
    path: the path of tokenizer.json or vocab.json, for errors.
    contents: the contents of the vocabulary's files, see `vocabulary.read_vocabulary_files`.

  Returns:
    The V pieces, in order of their ids; the merges, in order of their ranks (the first one is applied first); and the
    ids of the special pieces.

  Raises:
    UserError: a file is of another kind or has settings that change the ids, an id is missing, a merge occurs twice or
      names an unknown piece, or a special piece or the piece of a byte is missing.
  """
  first, *others = contents.values()
  values = decode_object(path, first, _REMEDY)
  if others:
    if isinstance(values.get("model"), dict):
      raise UserError(f"{path}: is a tokenizer.json: name it tokenizer.json")
    id_of_piece, pairs = values, _read_merges(vocabulary.vocabulary_paths(path)[1], others[0])
  else:
    id_of_piece = _read_tokenizer(path, values)
    pairs = [
      (f"{path}, merge {number}", merge.split(" ") if isinstance(merge, str) else merge)
      for number, merge in enumerate(values["model"]["merges"], start=1)
    ]
  piece_of_id = {piece_id: piece for piece, piece_id in id_of_piece.items() if type(piece_id) is int}
  ids = range(len(id_of_piece))
  for piece_id in ids:
    if piece_id not in piece_of_id:
      raise UserError(
        f"{path}: no piece has the id {piece_id}, but the ids of {len(ids)} pieces must be 0 to {ids[-1]}: {_REMEDY}"
      )
  for byte, character in enumerate(BYTE_CHARACTERS):
    if character not in id_of_piece:
      raise UserError(f"{path}: no piece is {format_value(character)}, which stands for byte 0x{byte:02x}: {_REMEDY}")
  special_ids = vocabulary.find_special_ids(path, ByteLevelBPEVocabulary.kind, id_of_piece)
  place_of: dict[Merge, str] = {}
  for place, pair in pairs:
    merge = _to_merge(place, pair, id_of_piece)
    if merge in place_of:
      raise UserError(f"{place}: stands in {place_of[merge]} already: give a file in which every merge occurs once")
    place_of[merge] = place
  return [piece_of_id[piece_id] for piece_id in ids], list(place_of), special_ids


def _read_tokenizer(path: str, values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the id of each piece of a tokenizer.json, added tokens included, after checking its settings."""
  model = values.get("model")
  if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
    kind = model.get("type") if isinstance(model, dict) else None
    raise UserError(f"{path}: holds a vocabulary of the type {format_value(kind)}, not byte-level BPE: {_REMEDY}")
  if not isinstance(model.get("vocab"), dict) or not isinstance(model.get("merges"), list):
    raise UserError(f"{path}: model has no vocab or no merges: {_REMEDY}")
  settings = {f"model.{name}": model.get(name) for name in _MODEL_SETTINGS} | {"normalizer": values.get("normalizer")}
  for name, value in settings.items():
    if value:
      raise UserError(f"{path}: {name} is {format_value(value)}, which is not supported: {_REMEDY}")
  splitter = values.get("pre_tokenizer")
  given = splitter if isinstance(splitter, dict) else {}
  if given.get("type") != "ByteLevel" or given.get("add_prefix_space") or not given.get("use_regex", True):
    raise UserError(
      f"{path}: pre_tokenizer is {format_value(splitter)}, only ByteLevel with add_prefix_space false and use_regex "
      f"true is supported: {_REMEDY}"
    )
  return model["vocab"] | _added_tokens(path, values.get("added_tokens"), model["vocab"])


def _added_tokens(path: str, tokens: Any, vocab: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the ids of a tokenizer.json's added tokens."""
  ids: dict[str, Any] = {}
  for token in tokens if isinstance(tokens, list) else []:
    content = token.get("content") if isinstance(token, dict) else None
    if not isinstance(content, str) or vocab.get(content, token.get("id")) != token.get("id"):
      raise UserError(f"{path}: added_tokens has {format_value(token)}, which contradicts model.vocab: {_REMEDY}")
    if not token.get("special"):
      raise UserError(f"{path}: the added token {format_value(content)} is not special, so not supported: {_REMEDY}")
    ids[content] = token.get("id")
  return ids


def _read_merges(path: str, content: bytes) -> list[tuple[str, Any]]:
  """Returns where each merge of a merges.txt stands, and its pieces, which have a space between them."""
  lines = decode_utf8(path, content, _REMEDY).replace("\r\n", "\n").split("\n")
  numbered = list(enumerate(lines, start=1))[int(lines[0].startswith("#version")) :]
  return [(f"{path}, line {number}", line.split(" ")) for number, line in numbered if line]


def _to_merge(place: str, pair: Any, id_of_piece: Mapping[str, int]) -> Merge:
  """Returns a merge as ids. `place` is where it stands, for messages."""
  if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(piece, str) and piece for piece in pair):
    found = " ".join(map(str, pair)) if isinstance(pair, list) else pair
    raise UserError(f"{place}: {format_value(found)} must be two pieces with a space between them: {_REMEDY}")
  left, right = pair
  for piece in (left, right, left + right):
    if piece not in id_of_piece:
      raise UserError(
        f"{place}: the merge of {format_value(left)} and {format_value(right)} names the unknown piece "
        f"{format_value(piece)}: give the merges and the pieces of the same vocabulary"
      )
  if not _BYTE_OF_CHARACTER.keys() >= {*left, *right}:
    raise UserError(f"{place}: {format_value(left + right)} has a character that stands for no byte: {_REMEDY}")
  return Merge(id_of_piece[left], id_of_piece[right], id_of_piece[left + right])
