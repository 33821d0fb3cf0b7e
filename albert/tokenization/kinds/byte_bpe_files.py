"""Reads the files of byte-level BPE vocabularies: tokenizer.json, or vocab.json with merges.txt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from albert.errors import UserError
from albert.io.json_text import decode_object, format_value
from albert.tokenization.kinds.byte_bpe_text import BYTE_CHARACTERS, is_written_in_bytes
from albert.tokenization.pieces import SpecialIds
from albert.tokenization.vocabulary_files import vocabulary_paths

# The special pieces, in the order of SpecialIds: RoBERTa's names, and BERT's.
SPECIAL_NAMES = (("<pad>", "[PAD]"), ("<unk>", "[UNK]"), ("<s>", "[CLS]"), ("</s>", "[SEP]"), ("<mask>", "[MASK]"))
_REMEDY = "give the tokenizer.json, or the vocab.json with merges.txt, of a byte-level BPE vocabulary such as RoBERTa's"
_find_strings = re.compile(r'"(?:[^"\\]|\\.)*"').finditer
_find_entries = re.compile(r'("(?:[^"\\]|\\.)*")\s*:\s*\d').finditer
# Settings of `model` in tokenizer.json that change the ids; each must be absent, null, false or "".
_MODEL_SETTINGS = ("dropout", "byte_fallback", "ignore_merges", "continuing_subword_prefix", "end_of_word_suffix")


class Merge(NamedTuple):
  """A pair of pieces that becomes one piece, as ids."""

  left: int
  right: int
  merged: int


class BpeFiles(NamedTuple):
  """The contents of the files of a vocabulary.

  Attributes:
    pieces: the V pieces, in order of their ids.
    merges: the merges, in order of their ranks; the first one is applied first.
    special_ids: the ids of the special pieces.
  """

  pieces: list[str]
  merges: list[Merge]
  special_ids: SpecialIds


class _Pair(NamedTuple):
  """The two pieces of a merge, and the number of its line."""

  left: str
  right: str
  line: int


def read_files(path: str, contents: Mapping[str, bytes]) -> BpeFiles:
  """Reads and checks the files of a vocabulary.

  Args:
    path: the path of tokenizer.json or vocab.json, for errors.
    contents: the contents of the vocabulary's files, see `vocabulary_files.read_vocabulary_files`.

  Raises:
    UserError: a file is of another kind or has settings that change the ids, a piece, an id or a merge occurs twice, a
      merge names an unknown piece, or a special piece or the piece of a byte is missing.
  """
  first, *others = contents.values()
  text = first.decode("utf-8", "replace")
  values = _decode(path, first, text)
  if others:
    if isinstance(values.get("model"), dict):
      raise UserError(f"{path}: is a tokenizer.json: name it tokenizer.json")
    id_of_piece, merges_path = values, vocabulary_paths(path)[1]
    pairs = _read_merges(merges_path, others[0])
  else:
    id_of_piece, merges_path = _read_tokenizer(path, values), path
    pairs = _merges_of_tokenizer(path, text, values["model"]["merges"])
  pieces = _pieces_in_order(path, id_of_piece)
  _check_bytes(path, id_of_piece)
  merges = _check_merges(merges_path, id_of_piece, pairs)
  return BpeFiles(pieces, merges, SpecialIds(*(_special_id(path, id_of_piece, names) for names in SPECIAL_NAMES)))


def _decode(path: str, data: bytes, text: str) -> dict[str, Any]:
  """Decodes a JSON object; an error about a piece that occurs twice names its lines."""
  try:
    return decode_object(path, data, _REMEDY)
  except UserError:
    positions: dict[str, int] = {}
    for entry in _find_entries(text, max(text.find('"vocab"'), 0)):
      if entry[1] in positions:
        line, first_line = _line_at(text, entry.start()), _line_at(text, positions[entry[1]])
        raise UserError(
          f"{path}, line {line}: {entry[1]} is a piece already, on line {first_line}: give a file in which every "
          "piece occurs once"
        ) from None
      positions[entry[1]] = entry.start()
    raise


def _line_at(text: str, position: int) -> int:
  return text.count("\n", 0, position) + 1


def _read_tokenizer(path: str, values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the id of each piece of a tokenizer.json, added tokens included, after checking its settings."""
  model = values.get("model")
  kind = model.get("type", "BPE") if isinstance(model, dict) else None
  if not isinstance(model, dict) or kind != "BPE":
    found = f"holds a vocabulary of the type {format_value(kind)}" if kind else "has no vocabulary (model)"
    raise UserError(f"{path}: {found}, not byte-level BPE: {_REMEDY}")
  if not isinstance(model.get("vocab"), dict) or not isinstance(model.get("merges"), list):
    raise UserError(f"{path}: model has no vocab or no merges: {_REMEDY}")
  for name in _MODEL_SETTINGS:
    if model.get(name):
      raise UserError(f"{path}: model.{name} is {format_value(model[name])}, which is not supported: {_REMEDY}")
  if values.get("normalizer") is not None:
    raise UserError(f"{path}: has a normalizer, but byte-level BPE keeps the text as it is: {_REMEDY}")
  splitter = values.get("pre_tokenizer")
  settings = splitter if isinstance(splitter, dict) else {}
  if settings.get("type") != "ByteLevel" or settings.get("add_prefix_space") or not settings.get("use_regex", True):
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
      raise UserError(
        f"{path}: the added token {format_value(content)} is not special; words that the merges do not make are not "
        f"supported: {_REMEDY}"
      )
    ids[content] = token.get("id")
  return ids


def _merges_of_tokenizer(path: str, text: str, merges: Iterable[Any]) -> list[_Pair]:
  """Returns the merges of a tokenizer.json: strings "a b", or lists of two pieces."""
  strings = _find_strings(text, text.find('"merges"') + len('"merges"'))
  pairs = []
  line, last_position = 1, 0
  for index, merge in enumerate(merges):
    pair = merge.split(" ") if isinstance(merge, str) else merge
    position = next(strings, None)
    if position is not None:
      line, last_position = line + text.count("\n", last_position, position.start()), position.start()
    if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(piece, str) and piece for piece in pair):
      raise UserError(
        f"{path}, line {line}: merge {index + 1} is {format_value(merge)}, it must be two pieces: {_REMEDY}"
      )
    if not isinstance(merge, str):
      next(strings, None)  # the second piece
    pairs.append(_Pair(pair[0], pair[1], line))
  return pairs


def _read_merges(path: str, content: bytes) -> list[_Pair]:
  """Returns the merges of a merges.txt: two pieces with a space between them on each line."""
  try:
    lines = content.decode("utf-8").split("\n")
  except UnicodeDecodeError as error:
    line = content.count(b"\n", 0, error.start) + 1
    raise UserError(f"{path}, line {line}: not UTF-8: {_REMEDY}") from error
  pairs = []
  for number, text in enumerate(lines, start=1):
    line_text = text.removesuffix("\r")
    if not line_text or (number == 1 and line_text.startswith("#version")):
      continue
    pieces = line_text.split(" ")
    if len(pieces) != 2 or not all(pieces):
      raise UserError(
        f"{path}, line {number}: {format_value(line_text)} must be two pieces with a space between them: {_REMEDY}"
      )
    pairs.append(_Pair(pieces[0], pieces[1], number))
  return pairs


def _pieces_in_order(path: str, id_of_piece: Mapping[str, Any]) -> list[str]:
  """Returns the pieces in order of their ids, which must be 0, 1, 2, ..."""
  size = len(id_of_piece)
  pieces: list[str | None] = [None] * size
  for piece, piece_id in id_of_piece.items():
    if not isinstance(piece_id, int) or isinstance(piece_id, bool) or not 0 <= piece_id < size:
      raise UserError(
        f"{path}: the id of {format_value(piece)} is {format_value(piece_id)}, but the ids of {size} pieces must be 0 "
        f"to {size - 1}: {_REMEDY}"
      )
    if pieces[piece_id] is not None:
      raise UserError(
        f"{path}: {format_value(pieces[piece_id])} and {format_value(piece)} have the same id, {piece_id}: {_REMEDY}"
      )
    pieces[piece_id] = piece
  return [piece for piece in pieces if piece is not None]


def _check_bytes(path: str, id_of_piece: Mapping[str, Any]) -> None:
  for byte, character in enumerate(BYTE_CHARACTERS):
    if character not in id_of_piece:
      raise UserError(
        f"{path}: none of its {len(id_of_piece)} pieces is {format_value(character)}, which stands for the byte "
        f"0x{byte:02x}: {_REMEDY}"
      )


def _check_merges(path: str, id_of_piece: Mapping[str, int], pairs: Iterable[_Pair]) -> list[Merge]:
  """Returns the merges as ids, after checking that their pieces are known and that none occurs twice."""
  merges: list[Merge] = []
  lines: dict[tuple[str, str], int] = {}
  for left, right, line in pairs:
    for piece in (left, right, left + right):
      if piece not in id_of_piece:
        raise UserError(
          f"{path}, line {line}: the merge of {format_value(left)} and {format_value(right)} names the unknown piece "
          f"{format_value(piece)}: give the merges and the pieces of the same vocabulary"
        )
    if not is_written_in_bytes(left + right):
      raise UserError(
        f"{path}, line {line}: {format_value(left + right)} has a character that stands for no byte: {_REMEDY}"
      )
    if (left, right) in lines:
      raise UserError(
        f"{path}, line {line}: {format_value(left)} and {format_value(right)} are a merge already, on line "
        f"{lines[left, right]}: give a file in which every merge occurs once"
      )
    lines[left, right] = line
    merges.append(Merge(id_of_piece[left], id_of_piece[right], id_of_piece[left + right]))
  return merges


def _special_id(path: str, id_of_piece: Mapping[str, int], names: tuple[str, str]) -> int:
  found = next((name for name in names if name in id_of_piece), None)
  if found is None:
    wanted = ", ".join(name for name, _ in SPECIAL_NAMES)
    raise UserError(
      f"{path}: none of its {len(id_of_piece)} pieces is {' or '.join(names)}: give a vocabulary with {wanted}, "
      "such as RoBERTa's"
    )
  return id_of_piece[found]
