"""Reads a tokenizer.json with unigram or WordPiece pieces, which transformers saves for ALBERT.

The unigram kind becomes a SentencePiece model. Its normalizer has any of these steps, in this order: Replace, which
makes `` and '' to "; NFKD and StripAccents; Lowercase; Precompiled, the rules of a SentencePiece model.
`normalize_text` has settings for Replace, NFKD and Lowercase; StripAccents becomes rules of the model. The steps that
`albert.convert` writes, which do all that `normalize_text` does, are the other normalizer that is read. Added tokens
that are not special become user-defined symbols, around which `SentencePieceVocabulary` puts spaces.

The WordPiece kind becomes the content of a vocab.txt, and rules (`wordpiece.WordRules`).
"""

from __future__ import annotations

import base64
import collections
import functools
import operator
import struct
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from albert.errors import UserError
from albert.io.json_text import decode_object
from albert.io.protobuf import encode_bytes_field, encode_varint
from albert.io.text import format_value
from albert.tokenization.normalization import decompose, has_newer_characters, normalize_text
from albert.tokenization.vocabulary import WORD_START

_REMEDY = "put the spiece.model or vocab.txt of this vocabulary beside it, which is used instead"
# Field numbers of a NormalizerSpec.
_CHARSMAP, _REMOVE_EXTRA_WHITESPACES = 2, 4
# A regular expression for the whitespace at which str.split cuts.
_SPACES = "[" + "".join(filter(str.isspace, map(chr, range(0x3001)))) + "]+"
# Combining characters of Unicode 13.0 are below this code point.
_END_OF_COMBINING = 0x1F000
# str.lower turns Σ at the end of a word into ς. The marks in the brackets may stand between two letters of one word.
_FINAL_SIGMA = r"(?<=[\p{Lu}\p{Ll}\p{Lt}])Σ(?!['’.:·]*[\p{Lu}\p{Ll}\p{Lt}])"
# What `albert.convert` writes for the pre-tokenizer of a model that fills masks.
_WORDS_BESIDE_MASKS = {"type": "Metaspace", "replacement": WORD_START, "prepend_scheme": "first", "split": True}
_STEPS = ("Replace ``", "Replace ''", "NFKD", "StripAccents", "Lowercase", "Precompiled")
_NORMAL, _UNKNOWN, _UNUSED = 1, 2, 5  # types of pieces in a SentencePiece model
_WHOLE_SCORE = 10.0  # the logarithms of probabilities, the scores of other pieces, are not above 0
_Check = Callable[[object, str, Any], None]  # raises UserError if the first argument is false


class TokenizerFile(NamedTuple):
  """What a tokenizer.json says.

  Attributes:
    settings: the settings of `TokenizerConfig` that do what the normalizer does.
    vocabulary: a serialized SentencePiece model with the rest of the normalizer, or the content of a vocab.txt.
    rules: the rules of a WordPiece vocabulary that are not in `settings`, see `wordpiece.WordRules`.
    whole_tokens: added tokens that are not special, and so always stay whole in a text, with their ids.
  """

  settings: dict[str, bool]
  vocabulary: bytes
  rules: dict[str, Any]
  whole_tokens: dict[str, int]


@functools.lru_cache(maxsize=2)
def read_tokenizer(path: str, content: bytes) -> TokenizerFile:
  """Reads the content of a tokenizer.json.

  Raises:
    UserError: it has a component whose ids this project cannot reproduce, or it is damaged.
  """
  values = decode_object(path, content, _REMEDY)
  try:
    return _convert(path, values)
  except UserError:
    raise
  except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
    raise UserError(f"{path}: is damaged ({type(error).__name__}): {_REMEDY}") from error


def _convert(path: str, values: Mapping[str, Any]) -> TokenizerFile:
  """Converts the values of a tokenizer.json. Any exception but UserError means that they are damaged."""

  def check(is_good: object, name: str, value: Any) -> None:
    if not is_good:
      raise UserError(f"{path}: {name} is {format_value(value)}, whose ids this project cannot reproduce: {_REMEDY}")

  processor = values.get("post_processor") or {}
  check(processor.get("type", "TemplateProcessing") == "TemplateProcessing", "post_processor", processor.get("type"))
  if values["model"]["type"] == "WordPiece":
    return _convert_wordpiece(values, check)
  return _convert_unigram(values, check)


def _convert_wordpiece(values: Mapping[str, Any], check: _Check) -> TokenizerFile:
  steps = _members(values.get("normalizer"), "normalizers")
  names = [step.get("type") for step in steps]
  check(names == ["BertNormalizer"], "normalizer", names)
  normalizer, model = steps[0], values["model"]
  check(normalizer.get("clean_text") is True, "normalizer.clean_text", normalizer.get("clean_text"))
  lowers, split_han, strips = (normalizer.get(key) for key in ("lowercase", "handle_chinese_chars", "strip_accents"))
  strips = lowers if strips is None else strips
  check({*map(type, (lowers, split_han, strips))} == {bool}, "normalizer", normalizer)
  splitter = (values.get("pre_tokenizer") or {}).get("type")
  check(splitter == "BertPreTokenizer", "pre_tokenizer", splitter)
  for key, expected in {"continuing_subword_prefix": "##", "unk_token": "[UNK]"}.items():
    check(model.get(key) == expected, f"model.{key}", model.get(key))
  pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
  for i, piece in enumerate(pieces):
    check(model["vocab"][piece] == i and piece.split() == [piece], f"the piece of the id {i}", piece)
  for token in values.get("added_tokens") or ():
    is_known = token.get("special") and model["vocab"].get(token["content"]) == token["id"]
    check(is_known, "an added token", token["content"])
  max_chars = model.get("max_input_chars_per_word")
  check(isinstance(max_chars, int) and max_chars > 0, "model.max_input_chars_per_word", max_chars)
  settings: dict[str, Any] = {"do_lower_case": lowers} | ({"keep_accents": not strips} if lowers or strips else {})
  rules = {"split_han": split_han, "max_chars": max_chars, "strip_accents": strips}
  return TokenizerFile(settings, "\n".join(pieces).encode(), rules, {})


def _convert_unigram(values: Mapping[str, Any], check: _Check) -> TokenizerFile:
  steps = _members(values.get("normalizer"), "normalizers")
  names, remaining = list(map(_step_name, steps)), iter(_STEPS)
  settings = {
    "do_lower_case": "Lowercase" in names,
    "keep_accents": "NFKD" not in names,
    "convert_quotes": any(step.get("content") == '"' for step in steps),
  }
  charsmap = b"".join(base64.b64decode(step.get("precompiled_charsmap", "")) for step in steps)
  is_own = steps == normalizer_steps(settings, {_CHARSMAP: charsmap})
  if not is_own:
    for name in names:
      check(name in remaining, "a step of normalizer", name)
    check("NFKD" not in names or "StripAccents" in names, "normalizer", "NFKD without StripAccents")
    check(("Replace ``" in names) == ("Replace ''" in names), "normalizer", "Replace of one kind of quotes")
  split, *others = _members(values.get("pre_tokenizer"), "pretokenizers") or [{}]
  if not (is_own and [split, *others] == [_WORDS_BESIDE_MASKS]):  # which differ only in text after [MASK]
    check(split.get("type") == "WhitespaceSplit", "the first step of pre_tokenizer", split.get("type"))
    for step in others or [{}]:
      check(_is_metaspace(step), "the second step of pre_tokenizer", step)
  model = values["model"]
  check(not model.get("byte_fallback"), "model.byte_fallback", True)
  vocab, unk_id = model.get("vocab"), model.get("unk_id")
  check(isinstance(vocab, list) and isinstance(unk_id, int) and unk_id < len(vocab), "model.unk_id", unk_id)
  pieces, whole_tokens = [piece for piece, _ in vocab], {}
  for token in sorted(values.get("added_tokens") or (), key=operator.itemgetter("id")):
    content, i, is_special = token["content"], token["id"], token.get("special")
    if not is_special and i == len(pieces):
      pieces.append(content)
    check(i < len(pieces) and pieces[i] == content, "an added token", content)
    if not is_special:
      is_plain = token.get("normalized") and not any(token.get(key) for key in ("single_word", "lstrip", "rstrip"))
      check(is_plain and content.split() == [content], "an added token that is not special", token)
      whole_tokens[content] = i
  repeated = [piece for piece, count in collections.Counter(pieces).items() if count > 1 or not piece]
  check(not repeated, "a piece that is empty or occurs twice", repeated[:1])
  rules = encode_bytes_field(2, charsmap) if charsmap else b""
  if "StripAccents" in names:
    rules = _without_marks(rules)
  normalized = {content: normalize_text(content, **settings) for content in whole_tokens}
  check(len(set(normalized.values())) == len(normalized), "added tokens that become the same", [*normalized])
  whole_tokens = {normalized[content]: i for content, i in whole_tokens.items()}
  return TokenizerFile(settings, _encode_model(pieces, dict(vocab), unk_id, rules, whole_tokens), {}, whole_tokens)


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


def quote_steps(converts_quotes: bool) -> list[dict[str, Any]]:
  """Returns the step that `albert.convert` writes for convert_quotes."""
  return [_replace("``|''", '"')] if converts_quotes else []


def normalizer_steps(settings: Mapping[str, bool], spec: Mapping[int, bytes]) -> list[dict[str, Any]]:
  """Returns the steps that `albert.convert` writes: those of `normalize_text`, then those of a SentencePiece model.

  Args:
    settings: the arguments of `normalize_text`.
    spec: the fields of the model's NormalizerSpec, by number.
  """
  # Text after [MASK] is normalized on its own. A space at its start is kept: it becomes ▁, and no other ▁ is added.
  strip = {"type": "Strip", "strip_left": False, "strip_right": True}
  steps = [_replace(_SPACES, " "), strip, *quote_steps(settings["convert_quotes"])]
  if not settings["keep_accents"]:
    combining = "".join(chr(c) for c in range(0x80, _END_OF_COMBINING) if not decompose(c))
    steps += [{"type": "NFKD"}, _replace(f"[{combining}]+", "")]
  if settings["do_lower_case"]:
    steps += [_replace(_FINAL_SIGMA, "ς"), {"type": "Lowercase"}]
  if spec.get(_CHARSMAP):
    # The model's rules join the letters of Korean syllables, and vowel signs of Tamil. Precompiled does not.
    steps += [] if settings["keep_accents"] else [{"type": "NFC"}]
    charsmap = base64.b64encode(spec[_CHARSMAP]).decode("ascii")
    steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
  if spec.get(_REMOVE_EXTRA_WHITESPACES) != b"\0":
    steps += [_replace(" {2,}", " "), strip]
  return steps


def _replace(pattern: str, content: str) -> dict[str, Any]:
  """Returns the step that replaces what a regular expression matches."""
  return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _encode_model(
  pieces: Sequence[str], scores: Mapping[str, float], unk_id: int, rules: bytes, whole_tokens: Mapping[str, int]
) -> bytes:
  """Encodes a SentencePiece ModelProto. No word has ▁ or a space inside, so pieces that have it are unused.

  A token that always stays whole is a word. It is the best piece of this word, and another such piece is unused.
  """

  def number(field: int, value: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(value)

  words = {i: WORD_START + token for token, i in whole_tokens.items()}
  whole_words = {*words.values()}
  fields = []
  for i, original in enumerate(pieces):
    piece, score = words.get(i, original), _WHOLE_SCORE if i in words else scores[original]
    if i not in words and piece in whole_words:
      piece += WORD_START
    piece_type = _UNKNOWN if i == unk_id else _UNUSED if {WORD_START, " "} & {*piece[1:]} else _NORMAL
    fields.append(encode_piece(piece.encode("utf-8"), score, piece_type))
  fields.append(encode_bytes_field(2, number(3, 1) + number(4, len(pieces)) + number(40, unk_id)))  # 3: a unigram model
  return b"".join([*fields, encode_bytes_field(3, rules)])


def encode_piece(text: bytes, score: float, piece_type: int = _NORMAL) -> bytes:
  """Encodes the field of a SentencePiece ModelProto that holds a piece."""
  # 0x15 and 0x18 are the keys of the score (a float) and of the type (a varint).
  return encode_bytes_field(1, encode_bytes_field(1, text) + struct.pack("<BfBB", 0x15, score, 0x18, piece_type))


def _without_marks(rules: bytes) -> bytes:
  """Adds rules that drop all marks to those for single characters, for StripAccents.

  Without marks, the library tokenizers applies no other rules: it does not join the letters of a Korean syllable.

  Args:
    rules: the rules of a SentencePiece model, a NormalizerSpec; empty if there are none.
  Returns: the other rules, in the same form.
  """
  import sentencepiece  # takes time, and few commands have such a vocabulary

  marks = (c for c in map(chr, (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))) if unicodedata.category(c)[0] == "M")
  old_rules = sentencepiece.SentencePieceNormalizer(normalizer_spec=rules).Decompile() if rules else ()
  new_rules = {character: text for character, text in old_rules if len(character) == 1}
  new_rules |= {mark: "" for mark in marks if not has_newer_characters(mark)}
  new_spec: bytes = sentencepiece.SentencePieceNormalizer(norm_map=[*new_rules.items()]).serialized_normalizer_spec()
  return new_spec
