"""Writes the files with which transformers makes the ids of this project: tokenizer.json and tokenizer_config.json.

tokenizer.json is the format of the library tokenizers, which need not be installed to write it. It holds a chain of
normalizers, a rule for cutting text into words, the pieces, and a template for [CLS] and [SEP].
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from albert.io import files
from albert.io.protobuf import decode_fields
from albert.tokenization.kinds.base import Vocabulary
from albert.tokenization.kinds.byte_bpe import ByteLevelBPEVocabulary
from albert.tokenization.kinds.sentence_piece import SentencePieceVocabulary
from albert.tokenization.kinds.wordpiece import CONTINUES_WORD, MAX_WORD_CHARS, WordPieceVocabulary
from albert.tokenization.normalization import decompose
from albert.tokenization.pieces import WORD_START
from albert.tokenization.recorded_settings import FILE_NAME, huggingface_tokenizer_config
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary_files import vocabulary_copies

_TOKENIZER_FILE = "tokenizer.json"

# Field numbers of SentencePiece's ModelProto, of its pieces, of its TrainerSpec and of its NormalizerSpec.
_PIECES, _TRAINER_SPEC, _NORMALIZER_SPEC = 1, 2, 3
_PIECE_TEXT, _PIECE_TYPE = 1, 3
_MODEL_TYPE, _CHARSMAP, _ADD_DUMMY_PREFIX, _REMOVE_EXTRA_WHITESPACES = 3, 2, 3, 4
_USER_DEFINED, _BPE = b"\4", b"\2"
# What str.split takes for whitespace.
_SPACES = "[" + "".join(filter(str.isspace, map(chr, range(0x3001)))) + "]+"
# Combining characters of Unicode 13.0 are below this code point.
_END_OF_COMBINING = 0x1F000
# str.lower makes Σ at the end of a word to ς. The marks may stand between two letters of a word.
_FINAL_SIGMA = r"(?<=[\p{Lu}\p{Ll}\p{Lt}])Σ(?!['’.:·]*[\p{Lu}\p{Ll}\p{Lt}])"


def write_tokenizer(tokenizer: Tokenizer, directory: str, *, max_length: int, fills_masks: bool) -> None:
  """Writes tokenizer.json and tokenizer_config.json.

  Args:
    tokenizer: the tokenizer of the model.
    directory: where to write.
    max_length: the largest number of tokens in a sequence, [CLS] and [SEP] included.
    fills_masks: whether the model predicts tokens that [MASK] stands for. Then text after "[MASK]" without a space
      continues a word, and the offsets of a token include the space before it.
  """
  vocabulary = tokenizer.vocabulary
  if isinstance(vocabulary, SentencePieceVocabulary):
    stages = _sentence_piece_stages(vocabulary, fills_masks=fills_masks)
  elif isinstance(vocabulary, WordPieceVocabulary):
    stages = _wordpiece_stages(vocabulary)
  else:
    assert isinstance(vocabulary, ByteLevelBPEVocabulary)
    stages = _byte_level_stages(vocabulary)
  special_pieces = {role: tokenizer.piece(i) for role, i in tokenizer.special_ids._asdict().items()}
  if _TOKENIZER_FILE not in vocabulary_copies(vocabulary.file):  # such a vocabulary is copied as it is
    added_tokens = [
      {"id": i, "content": special_pieces[role], "single_word": False, "lstrip": role == "mask", "rstrip": False}
      | {"normalized": False, "special": True}
      for role, i in sorted(tokenizer.special_ids._asdict().items(), key=lambda entry: entry[1])
    ]
    values = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens, **stages}
    files.write_atomically(files.join(directory, _TOKENIZER_FILE), json.dumps(values, ensure_ascii=False))
  config = {
    **huggingface_tokenizer_config(tokenizer.config),
    # AlbertTokenizer and BertTokenizer would read the pieces of tokenizer.json only, and normalize by their own rules.
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": max_length,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    **{f"{role}_token": piece for role, piece in special_pieces.items()},
    "bos_token": special_pieces["cls"],
    "eos_token": special_pieces["sep"],
  }
  files.write_json(files.join(directory, FILE_NAME), config)


def _template(vocabulary: Vocabulary) -> dict[str, Any]:
  """Returns the stage that joins texts: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with the type 1 for B [SEP]."""
  ids = {vocabulary.pieces[i]: i for i in (vocabulary.special_ids.cls, vocabulary.special_ids.sep)}
  cls_piece, sep_piece = ids
  first, second = (
    [{"Sequence": {"id": name, "type_id": type_id}}, {"SpecialToken": {"id": sep_piece, "type_id": type_id}}]
    for type_id, name in enumerate("AB")
  )
  single = [{"SpecialToken": {"id": cls_piece, "type_id": 0}}, *first]
  special_tokens = {piece: {"id": piece, "ids": [i], "tokens": [piece]} for piece, i in ids.items()}
  return {"type": "TemplateProcessing", "single": single, "pair": single + second, "special_tokens": special_tokens}


def _replace(pattern: str, content: str) -> dict[str, Any]:
  """Returns the normalizer that replaces what a regular expression matches."""
  return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _sequence(members: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
  return {"type": "Sequence", members: stages}


def _quotes(converts_quotes: bool) -> list[dict[str, Any]]:
  return [_replace("``|''", '"')] if converts_quotes else []


def _sentence_piece_stages(vocabulary: SentencePieceVocabulary, *, fills_masks: bool) -> dict[str, Any]:
  """Returns the stages of a SentencePiece model.

  The comma rule has no such stage. Text never has the pieces that the rule replaces, nor unused ones, since they are
  written with a space at their end, which no word has. What the rule gives instead of them is in almost every case what
  the model then gives.
  """
  model = vocabulary.exact_model
  trainer, normalizer = (_fields(model, number) for number in (_TRAINER_SPEC, _NORMALIZER_SPEC))
  special = {*vocabulary.special_ids}
  unmatched = {*vocabulary.comma_rule.splits, *vocabulary.is_special.nonzero()[0].tolist()} - special
  pieces = [piece + " " * (i in unmatched) for i, piece in enumerate(vocabulary.pieces)]
  has_prefix = normalizer.get(_ADD_DUMMY_PREFIX) != b"\0"
  words = {
    "type": "Metaspace",
    "replacement": WORD_START,
    "prepend_scheme": "first" if has_prefix else "never",
    "split": vocabulary.words_are_independent,
  }
  pre_tokenizers = [words]
  if has_prefix and vocabulary.words_are_independent and not fills_masks:
    pre_tokenizers = [{"type": "WhitespaceSplit"}, words | {"prepend_scheme": "always"}]
  byte_fallback = any(map(vocabulary.processor.is_byte, range(len(pieces))))
  if trainer.get(_MODEL_TYPE) == _BPE:
    pre_tokenizers += _cut_out_symbols(model)
    stage = _bpe(pieces, _merges(vocabulary, unmatched | special), vocabulary.special_ids.unk)
  else:
    scores = map(vocabulary.processor.get_score, range(len(pieces)))
    stage = {"type": "Unigram", "unk_id": vocabulary.special_ids.unk, "vocab": list(zip(pieces, scores, strict=True))}
  return {
    "normalizer": _sequence("normalizers", _normalizers(vocabulary, normalizer)),
    "pre_tokenizer": _sequence("pretokenizers", pre_tokenizers),
    "post_processor": _template(vocabulary),
    "decoder": words,
    "model": stage | {"byte_fallback": byte_fallback},
  }


def _fields(model: bytes, number: int) -> Mapping[int, bytes]:
  """Returns the fields of a message of a SentencePiece model by their numbers."""
  messages = (field.value for field in decode_fields(model) if field.number == number)
  return {field.number: field.value for message in messages for field in decode_fields(message)}


def _normalizers(vocabulary: SentencePieceVocabulary, spec: Mapping[int, bytes]) -> list[dict[str, Any]]:
  """Returns the normalizers: those of `normalize_text`, then those of the model's NormalizerSpec."""
  config = vocabulary.config
  # A space at the start stays, since a text after [MASK] is normalized on its own; no ▁ is then put before it.
  strip = {"type": "Strip", "strip_left": False, "strip_right": True}
  stages = [_replace(_SPACES, " "), strip, *_quotes(config.convert_quotes)]
  if not config.keep_accents:
    combining = "".join(chr(c) for c in range(0x80, _END_OF_COMBINING) if not decompose(c))
    stages += [{"type": "NFKD"}, _replace(f"[{combining}]+", "")]
  if config.do_lower_case:
    stages += [_replace(_FINAL_SIGMA, "ς"), {"type": "Lowercase"}]
  if spec.get(_CHARSMAP):
    charsmap = base64.b64encode(spec[_CHARSMAP]).decode("ascii")
    stages.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
  if spec.get(_REMOVE_EXTRA_WHITESPACES) != b"\0":
    stages += [_replace(" {2,}", " "), strip]
  return stages


def _cut_out_symbols(model: bytes) -> list[dict[str, Any]]:
  """Returns the stage that makes each user-defined symbol of a BPE model a word, since it is never merged."""
  messages = [{f.number: f.value for f in decode_fields(m.value)} for m in decode_fields(model) if m.number == _PIECES]
  symbols = [m[_PIECE_TEXT].decode("utf-8") for m in messages if m.get(_PIECE_TYPE) == _USER_DEFINED]
  if not symbols:
    return []
  pattern = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
  return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}]


def _merges(vocabulary: SentencePieceVocabulary, unmatched: Collection[int]) -> list[list[str]]:
  """Returns the merges of a BPE model: each division of a piece into two pieces, the best piece first."""
  ids = {piece: i for i, piece in enumerate(vocabulary.pieces) if i not in unmatched}
  merges = []
  for piece in sorted(ids, key=lambda piece: -vocabulary.processor.get_score(ids[piece])):
    divisions = ((piece[:end], piece[end:]) for end in range(1, len(piece)))
    merges += [[left, right] for left, right in divisions if left in ids and right in ids]
  return merges


def _bpe(pieces: list[str], merges: list[list[str]], unk_id: int) -> dict[str, Any]:
  return {
    "type": "BPE",
    "dropout": None,
    "unk_token": pieces[unk_id],
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": True,
    # A user-defined symbol of several characters is no result of merges.
    "ignore_merges": True,
    "vocab": {piece: i for i, piece in enumerate(pieces)},
    "merges": merges,
  }


def _wordpiece_stages(vocabulary: WordPieceVocabulary) -> dict[str, Any]:
  """Returns the stages of a WordPiece vocabulary: the rules of the original BERT."""
  config = vocabulary.config
  strips_accents = config.do_lower_case and not config.keep_accents
  normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True} | {
    "strip_accents": strips_accents,
    "lowercase": config.do_lower_case,
  }
  return {
    "normalizer": _sequence("normalizers", [*_quotes(config.convert_quotes), normalizer]),
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": _template(vocabulary),
    "decoder": {"type": "WordPiece", "prefix": CONTINUES_WORD, "cleanup": False},
    "model": {
      "type": "WordPiece",
      "unk_token": vocabulary.pieces[vocabulary.special_ids.unk],
      "continuing_subword_prefix": CONTINUES_WORD,
      "max_input_chars_per_word": MAX_WORD_CHARS,
      "vocab": {piece: i for i, piece in enumerate(vocabulary.pieces)},
    },
  }


def _byte_level_stages(vocabulary: ByteLevelBPEVocabulary) -> dict[str, Any]:
  """Returns the stages of a byte-level BPE vocabulary."""
  pieces = vocabulary.pieces
  merges = [[pieces[merge.left], pieces[merge.right]] for merge in vocabulary.merges]
  byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
  return {
    "normalizer": None,
    "pre_tokenizer": byte_level,
    "post_processor": _sequence("processors", [byte_level, _template(vocabulary)]),
    "decoder": byte_level,
    "model": _bpe(pieces, merges, vocabulary.special_ids.unk) | {"fuse_unk": False, "ignore_merges": False},
  }
