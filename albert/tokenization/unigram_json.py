"""Reads the tokenizer.json of a unigram vocabulary, as transformers saves an ALBERT, as a SentencePiece model.

Its normalizer has any of these steps, in this order: Replace, which makes `` and '' to "; NFKD and StripAccents;
Lowercase; Precompiled, the rules of a SentencePiece model (its charsmap). `normalize_text` has settings for Replace,
NFKD and Lowercase; StripAccents becomes rules of the model.

A charsmap is a size in bytes, a trie of this size, and texts that end with a zero byte. The trie is a double array
(Aoe 1989), as the library darts-clone writes it, of 32-bit units. From the unit at position p, the byte c leads to the
unit at position p ^ offset ^ c, if c is that unit's label. A unit that ends a key has the flag _HAS_LEAF, and the unit
at position p ^ offset has the key's value: the start of its text.
"""

from __future__ import annotations

import base64
import binascii
import collections
import functools
import itertools
import struct
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from albert.errors import UserError
from albert.io.json_text import decode_object
from albert.io.protobuf import encode_bytes_field, encode_varint
from albert.io.text import format_value
from albert.tokenization.normalization import has_newer_characters
from albert.tokenization.vocabulary import WORD_START

_REMEDY = "put the spiece.model of this vocabulary beside it, which is used instead"
_STEPS = ("Replace ``", "Replace ''", "NFKD", "StripAccents", "Lowercase", "Precompiled")
_NORMAL, _UNKNOWN, _UNUSED = 1, 2, 5  # types of pieces in a SentencePiece model
_HAS_LEAF, _IS_VALUE = 1 << 8, 1 << 31
_BLOCK = 256  # the units that one byte can lead to


class UnigramFile(NamedTuple):
  """What a tokenizer.json says.

  Attributes:
    settings: the settings of `normalize_text` that do what its normalizer does before the rules of the model.
    model: the rest, as a serialized SentencePiece model.
  """

  settings: dict[str, bool]
  model: bytes


@functools.lru_cache(maxsize=2)
def read_unigram(path: str, content: bytes) -> UnigramFile:
  """Reads the content of a tokenizer.json.

  Raises:
    UserError: it has a component whose ids this project cannot reproduce, or it is damaged.
  """
  values = decode_object(path, content, _REMEDY)

  def check(is_good: object, name: str, value: Any) -> None:
    if not is_good:
      raise UserError(f"{path}: {name} is {format_value(value)}, whose ids this project cannot reproduce: {_REMEDY}")

  steps = _members(values.get("normalizer"), "normalizers")
  names, remaining = list(map(_step_name, steps)), iter(_STEPS)
  for name in names:
    check(name in remaining, "a step of normalizer", name)
  check("NFKD" not in names or "StripAccents" in names, "normalizer", "NFKD without StripAccents")
  check(("Replace ``" in names) == ("Replace ''" in names), "normalizer", "Replace of one kind of quotes")
  split, *others = _members(values.get("pre_tokenizer"), "pretokenizers") or [{}]
  check(split.get("type") == "WhitespaceSplit", "the first step of pre_tokenizer", split.get("type"))
  for step in others or [{}]:
    check(_is_metaspace(step), "the second step of pre_tokenizer", step)
  processor = values.get("post_processor") or {}
  check(processor.get("type", "TemplateProcessing") == "TemplateProcessing", "post_processor", processor.get("type"))
  model = values["model"]
  check(not model.get("byte_fallback"), "model.byte_fallback", True)
  vocab, unk_id = model.get("vocab"), model.get("unk_id")
  check(isinstance(vocab, list) and isinstance(unk_id, int) and unk_id < len(vocab), "model.unk_id", unk_id)
  pieces = [piece for piece, _ in vocab]
  for token in values.get("added_tokens") or ():
    check(token["id"] < len(pieces) and pieces[token["id"]] == token["content"], "an added token", token["content"])
    check(token.get("special"), "an added token that is not special", token["content"])
  repeated = [piece for piece, count in collections.Counter(pieces).items() if count > 1 or not piece]
  check(not repeated, "a piece that is empty or occurs twice", repeated[:1])
  try:
    charsmap = base64.b64decode(steps[-1]["precompiled_charsmap"]) if "Precompiled" in names else b""
    if "StripAccents" in names:
      charsmap = _encode_rules(_without_marks(_decode_rules(charsmap)))
  except (binascii.Error, struct.error, ValueError, LookupError) as error:
    raise UserError(f"{path}: the rules of the normalizer Precompiled are damaged: {_REMEDY}") from error
  settings = {
    "do_lower_case": "Lowercase" in names,
    "keep_accents": "NFKD" not in names,
    "convert_quotes": "Replace ``" in names,
  }
  return UnigramFile(settings, _encode_model(vocab, unk_id, charsmap))


def _members(stage: Any, name: str) -> list[dict[str, Any]]:
  """Returns the steps of a stage: the members of a Sequence, the stage itself, or none."""
  return stage[name] if stage and stage.get("type") == "Sequence" else [stage] if stage else []


def _step_name(step: Mapping[str, Any]) -> str:
  """Returns the name of a step of the normalizer: one of _STEPS, or the type of a step that is not among them."""
  is_quotes = step.get("type") == "Replace" and step.get("content") == '"'
  return f"Replace {step['pattern'].get('String')}" if is_quotes else str(step.get("type"))


def _is_metaspace(step: Mapping[str, Any]) -> bool:
  """Returns whether a step of the pre-tokenizer puts ▁ before each word. Old files have add_prefix_space."""
  scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space") else "never")
  is_known = step.get("type") == "Metaspace" and step.get("replacement") == WORD_START
  return is_known and scheme == "always" and step.get("split", True)


def _encode_model(vocab: Sequence[tuple[str, float]], unk_id: int, charsmap: bytes) -> bytes:
  """Encodes a SentencePiece ModelProto. No word has ▁ inside, so pieces that have it are unused."""

  def number(field: int, value: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(value)

  fields = []
  for i, (piece, score) in enumerate(vocab):
    piece_type = _UNKNOWN if i == unk_id else _UNUSED if WORD_START in piece[1:] else _NORMAL
    text = encode_bytes_field(1, piece.encode("utf-8"))
    fields.append(encode_bytes_field(1, text + struct.pack("<Bf", 0x15, score) + number(3, piece_type)))
  fields.append(encode_bytes_field(2, number(3, 1) + number(4, len(vocab)) + number(40, unk_id)))  # 3: a unigram model
  return b"".join([*fields, encode_bytes_field(3, encode_bytes_field(2, charsmap) if charsmap else b"")])


def _without_marks(rules: Mapping[str, str]) -> dict[str, str]:
  """Adds rules that drop all marks to those for single characters, for StripAccents.

  Without marks, the library tokenizers applies no other rules: it does not join the letters of a Korean syllable.
  """
  marks = (c for c in map(chr, (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))) if unicodedata.category(c)[0] == "M")
  return {**rules, **dict.fromkeys((mark for mark in marks if not has_newer_characters(mark)), "")}


def _decode_rules(charsmap: bytes) -> dict[str, str]:
  """Returns the rules of a charsmap that replace single characters."""
  if not charsmap:
    return {}
  end_of_trie = 4 + struct.unpack_from("<I", charsmap)[0]
  units = np.frombuffer(charsmap[4:end_of_trie], "<u4").astype(np.int64)
  positions = np.arange(len(units))
  bases = (positions ^ (units >> 10 << ((units >> 9 & 1) * 8))).tolist()
  children: dict[int, list[int]] = collections.defaultdict(list)
  for position in positions[(units & _IS_VALUE == 0) & (units & 0xFF > 0)].tolist():
    children[position ^ int(units[position]) & 0xFF].append(position)
  rules: dict[str, str] = {}
  open_units = [(0, b"")]
  while open_units:
    position, key = open_units.pop()
    if units[position] & _HAS_LEAF:
      start = end_of_trie + int(units[bases[position]] & ~_IS_VALUE)
      rules[key.decode()] = charsmap[start : charsmap.index(0, start)].decode()
    if len(key) < 1 + sum(key >= first for first in (b"\xc0", b"\xe0", b"\xf0")):  # not yet a whole character
      open_units += [(child, key + bytes([units[child] & 0xFF])) for child in children.get(bases[position], ())]
  return rules


def _encode_rules(rules: Mapping[str, str]) -> bytes:
  """Returns the charsmap of rules."""
  starts: dict[bytes, int] = {}
  texts = b""
  for text in {value.encode() for value in rules.values()}:
    starts[text] = len(texts)
    texts += text + b"\0"
  trie = _encode_trie({key.encode(): starts[value.encode()] for key, value in rules.items()})
  return struct.pack("<I", len(trie)) + trie + texts


def _encode_trie(values: Mapping[bytes, int]) -> bytes:
  """Returns the double array of keys and their values."""
  keys = sorted(values)
  units = {0: 0}
  bases = {0}
  first_free = 1
  nodes = [(0, len(keys), 0, 0)]  # the range of keys below a unit, the length of their common prefix, the position
  while nodes:
    start, end, length, position = nodes.pop()
    groups: dict[bytes, list[bytes]] = collections.defaultdict(list)
    for key in keys[start:end]:
      groups[key[length : length + 1]].append(key)
    labels = [label[0] if label else 0 for label in groups]
    while first_free in units:
      first_free += 1
    # The children get the first free positions. Two units must not have the same base.
    candidates = (p ^ labels[0] for p in itertools.count(max(first_free, len(units) - _BLOCK)) if p not in units)
    base = next(b for b in candidates if b not in bases and all(b ^ label not in units for label in labels))
    bases.add(base)
    units[position] |= (base ^ position) << 10
    for label, group in groups.items():
      if label:
        units[base ^ label[0]] = label[0]
        nodes.append((start, start + len(group), length + 1, base ^ label[0]))
      else:
        units[position] |= _HAS_LEAF
        units[base] = values[group[0]] | _IS_VALUE
      start += len(group)
  size = (max(units) // _BLOCK + 1) * _BLOCK
  array = np.full(size, _IS_VALUE, "<u4")  # a unit that is not used has no byte as its label
  array[list(units)] = list(units.values())
  return array.tobytes()
