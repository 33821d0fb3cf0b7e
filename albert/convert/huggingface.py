"""Writes the directory that transformers' ALBERT or BERT classes load: the weights, their config, and the tokenizer.

The tokenizer gives the ids of this project, with the exceptions in docs/from_transformers.md. Its file tokenizer.json
has the format of the library tokenizers, which need not be installed here. It holds a chain of normalizers, a rule for
cutting text into words, the pieces, and a template for [CLS] and [SEP].
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

import numpy as np

from albert.config.model import ACTIVATION_NAMES, to_bert_config
from albert.convert.model import ConvertedModel, expand_sharing, report_row
from albert.errors import UserError
from albert.io import files
from albert.io.protobuf import fields_by_number
from albert.tasks.published_models import label_keys_of_run, problem_type
from albert.tokenization.byte_bpe import ByteLevelBPEVocabulary
from albert.tokenization.recorded_settings import huggingface_tokenizer_config
from albert.tokenization.sentence_piece import SentencePieceVocabulary
from albert.tokenization.tokenizer import Tokenizer, load_tokenizer
from albert.tokenization.tokenizer_json import normalizer_steps, quote_steps
from albert.tokenization.vocabulary import SENTENCE_PIECE_IDS, SETTINGS_FILE, WORD_START, Vocabulary, vocabulary_copies
from albert.tokenization.wordpiece import CONTINUES_WORD, WordPieceVocabulary
from albert.weights import names as weight_names
from albert.weights.arrays import SAFETENSORS_FILE

# The classes of transformers that config.json may name -> whether they need a pooler.
_CLASSES = {
  "Model": False,
  "ForPreTraining": True,
  "ForMaskedLM": False,
  "ForSequenceClassification": True,
  "ForMultipleChoice": True,
  "ForQuestionAnswering": False,
  "ForTokenClassification": False,
}
_NEEDS_POOLER = {f"{family}{name}": needs for family in ("Albert", "Bert") for name, needs in _CLASSES.items()}
ARCHITECTURES = tuple(_NEEDS_POOLER)
_TOKENIZER_FILE = "tokenizer.json"
# Field numbers of SentencePiece's ModelProto, of its TrainerSpec and of its NormalizerSpec.
_TRAINER_SPEC, _NORMALIZER_SPEC = 2, 3
_MODEL_TYPE, _ADD_DUMMY_PREFIX = 3, 3
_BPE = b"\2"


def write_huggingface(model: ConvertedModel, directory: str, architecture: str = "") -> list[str]:
  """Writes model.safetensors and config.json, and with a vocabulary tokenizer.json and tokenizer_config.json.

  Args:
    model: the model.
    directory: an existing directory.
    architecture: the class that config.json names; empty for the class with the model's head.
  Returns: The rows of the report.
  Raises:
    UserError: the classifier has one output, and neither `architecture` nor the model's files say whether it is for
      multiple choice or a regression; `architecture` needs a pooler that the model lacks; or it is a class of BERT, and
      the embedding size or the blocks of the model are not those of a BERT.
  """
  from safetensors.numpy import save

  is_bert = architecture.startswith("Bert")
  config = model.config
  if is_bert and (config.embedding_size != config.hidden_size or config.inner_group_num != 1):
    raise UserError(
      f"--architecture={architecture}: the model has embeddings of size {config.embedding_size}, hidden states of size "
      f"{config.hidden_size} and {config.inner_group_num} block(s) in each layer; a BERT has embeddings of the size of "
      "the hidden states and one block: give a class of ALBERT"
    )
  model = expand_sharing(model, ungroup=is_bert or not weight_names.huggingface_groups_agree(config))
  architecture = architecture or _choose_architecture(model)
  if _NEEDS_POOLER[architecture] and weight_names.POOLER[0] not in model.weights:
    raise UserError(f"--architecture={architecture}: the weights have {weight_names.NO_POOLER}")
  weights, sources, size = model.weights, model.sources, model.config.hidden_size
  if config.embedding_size == size and not is_bert:  # transformers has a projection even if E = H
    identity = (np.eye(size, dtype=np.float32), np.zeros(size, np.float32))
    weights = weights | dict(zip(weight_names.PROJECTION, identity, strict=True))
    sources = sources | dict.fromkeys(weight_names.PROJECTION, "(identity, since E = H)")
  tensors: dict[str, np.ndarray] = {}
  report = []
  for name, value in weights.items():
    translated = weight_names.to_huggingface(name)
    assert translated is not None, name  # read_model accepts no other names
    target = weight_names.to_bert(translated.name) if is_bert else translated.name
    tensors[target] = np.ascontiguousarray(value.T if translated.is_transposed else value)
    report.append(report_row(sources[name], target, tensors[target]))
  files.write_atomically(files.join(directory, SAFETENSORS_FILE), save(tensors, metadata={"format": "pt"}))
  tokenizer = load_tokenizer(model.tokenizer_config) if model.tokenizer_config else None
  values = _transformers_config(model, architecture, tokenizer)
  files.write_json(files.join(directory, "config.json"), to_bert_config(values) if is_bert else values)
  if tokenizer:
    max_length = model.run.get("data", {}).get("max_seq_length") or model.config.max_position_embeddings
    write_tokenizer(tokenizer, directory, max_length=max_length, fills_masks="masked_lm" in model.heads)
  return report


def _choose_architecture(model: ConvertedModel) -> str:
  """Returns the transformers class that has the model's heads."""
  has_pooler = weight_names.POOLER[0] in model.weights
  task = model.run.get("task")
  (name,) = model.class_keys.get("architectures", [""])
  if model.heads == ("classifier",) and name in ARCHITECTURES:
    return "Albert" + name.removeprefix("Albert").removeprefix("Bert")
  if model.heads == ("classifier",) and (task == "tagging" or not has_pooler):
    return "AlbertForTokenClassification"
  if "masked_lm" in model.heads:
    return "AlbertForPreTraining" if "sentence" in model.heads and has_pooler else "AlbertForMaskedLM"
  if model.heads == ("classifier",) and len(model.weights["output_weights"]) == 1:
    if task == "race":
      return "AlbertForMultipleChoice"
    if problem_type(model.run) == "regression":
      return "AlbertForSequenceClassification"
    raise UserError(
      "the classifier head has one output: say with --architecture whether it is AlbertForMultipleChoice or "
      "AlbertForSequenceClassification (a regression)"
    )
  return weight_names.heads(model.config)[model.heads[0]].huggingface_class if model.heads else "AlbertModel"


def _transformers_config(model: ConvertedModel, architecture: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
  """Returns the content of config.json."""
  # The other fields of ModelConfig have the same names and meanings in transformers.
  common = {name: value for name, value in model.config.to_dict().items() if name not in ("hidden_act", "sharing")}
  # Without a vocabulary, the ids of ALBERT's SentencePiece models.
  special_ids = tokenizer.special_ids if tokenizer else SENTENCE_PIECE_IDS
  return {
    "architectures": [architecture],
    "model_type": "albert",
    **common,
    "hidden_act": ACTIVATION_NAMES[model.config.hidden_act],
    "layer_norm_eps": model.config.layer_norm_eps,
    "tie_word_embeddings": True,
    "pad_token_id": special_ids.pad,
    "bos_token_id": special_ids.cls,
    "eos_token_id": special_ids.sep,
    "dtype": "float32",
    **_label_keys(model),
  }


def _label_keys(model: ConvertedModel) -> dict[str, Any]:
  """Returns the keys of config.json about a classifier's outputs: those of the source's file, else of its run."""
  if "classifier" not in model.heads:
    return {}
  if "id2label" in model.class_keys:
    return {key: value for key, value in model.class_keys.items() if key != "architectures"}
  return label_keys_of_run(model.run, len(model.weights["output_weights"]))


def write_tokenizer(tokenizer: Tokenizer, directory: str, *, max_length: int, fills_masks: bool) -> None:
  """Writes tokenizer.json and tokenizer_config.json.

  Args:
    tokenizer: the tokenizer of the model.
    directory: where to write.
    max_length: the largest number of tokens in a sequence, [CLS] and [SEP] included.
    fills_masks: whether the model predicts the tokens at [MASK]. Then text that follows "[MASK]" without a space
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
  if _TOKENIZER_FILE not in vocabulary_copies(vocabulary.file):  # else it is copied as it is
    added_tokens = [
      {"id": i, "content": special_pieces[role], "single_word": False, "lstrip": role == "mask", "rstrip": False}
      | {"normalized": False, "special": True}
      for role, i in sorted(tokenizer.special_ids._asdict().items(), key=lambda entry: entry[1])
    ]
    values = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens, **stages}
    files.write_atomically(files.join(directory, _TOKENIZER_FILE), json.dumps(values, ensure_ascii=False))
  config = {
    **huggingface_tokenizer_config(tokenizer.config),
    # AlbertTokenizer and BertTokenizer would take only the pieces of tokenizer.json, and normalize by their own rules.
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": max_length,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    **{f"{role}_token": piece for role, piece in special_pieces.items()},
    "bos_token": special_pieces["cls"],
    "eos_token": special_pieces["sep"],
  }
  files.write_json(files.join(directory, SETTINGS_FILE), config)


def _template(vocabulary: Vocabulary) -> dict[str, Any]:
  """Returns the stage that joins texts: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] with token type 1 for B [SEP]."""
  ids = {vocabulary.pieces[i]: i for i in (vocabulary.special_ids.cls, vocabulary.special_ids.sep)}
  cls_piece, sep_piece = ids
  first, second = (
    [{"Sequence": {"id": name, "type_id": type_id}}, {"SpecialToken": {"id": sep_piece, "type_id": type_id}}]
    for type_id, name in enumerate("AB")
  )
  single = [{"SpecialToken": {"id": cls_piece, "type_id": 0}}, *first]
  special_tokens = {piece: {"id": piece, "ids": [i], "tokens": [piece]} for piece, i in ids.items()}
  return {"type": "TemplateProcessing", "single": single, "pair": single + second, "special_tokens": special_tokens}


def _sequence(members: str, stages: list[dict[str, Any]]) -> dict[str, Any]:
  return {"type": "Sequence", members: stages}


def _sentence_piece_stages(vocabulary: SentencePieceVocabulary, *, fills_masks: bool) -> dict[str, Any]:
  """Returns the stages of a SentencePiece model.

  None of them applies the comma rule (see CommaRule). Instead, the pieces that the rule replaces are written with a
  space at their end, as are unused pieces. No word contains a space, so these pieces are never chosen. The model then
  chooses other pieces: in almost every case those that the rule gives.
  """
  messages = fields_by_number(vocabulary.exact_model)
  trainer, normalizer = (fields_by_number(messages.get(i, b"")) for i in (_TRAINER_SPEC, _NORMALIZER_SPEC))
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
    pre_tokenizers += _cut_out_symbols(vocabulary.user_defined_symbols)
    stage = _bpe(pieces, _merges(vocabulary, unmatched | special), vocabulary.special_ids.unk)
  else:
    scores = map(vocabulary.processor.get_score, range(len(pieces)))
    stage = {"type": "Unigram", "unk_id": vocabulary.special_ids.unk, "vocab": list(zip(pieces, scores, strict=True))}
  return {
    "normalizer": _sequence("normalizers", normalizer_steps(vocabulary.config.switches(), normalizer)),
    "pre_tokenizer": _sequence("pretokenizers", pre_tokenizers),
    "post_processor": _template(vocabulary),
    "decoder": words,
    "model": stage | {"byte_fallback": byte_fallback},
  }


def _cut_out_symbols(symbols: list[str]) -> list[dict[str, Any]]:
  """Returns the stage that makes each user-defined symbol of a BPE model a word of its own, so it is never merged."""
  if not symbols:
    return []
  pattern = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
  return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}]


def _merges(vocabulary: SentencePieceVocabulary, unmatched: Collection[int]) -> list[list[str]]:
  """Returns the merges of a BPE model: all divisions of each piece into two pieces, best score first."""
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
    # A user-defined symbol of several characters is not a result of merges.
    "ignore_merges": True,
    "vocab": {piece: i for i, piece in enumerate(pieces)},
    "merges": merges,
  }


def _wordpiece_stages(vocabulary: WordPieceVocabulary) -> dict[str, Any]:
  """Returns the stages of a WordPiece vocabulary: the rules of the original BERT."""
  rules = vocabulary.rules
  normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": rules.split_han} | {
    "strip_accents": rules.strip_accents,
    "lowercase": rules.do_lower_case,
  }
  return {
    "normalizer": _sequence("normalizers", [*quote_steps(vocabulary.config.convert_quotes), normalizer]),
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": _template(vocabulary),
    "decoder": {"type": "WordPiece", "prefix": CONTINUES_WORD, "cleanup": False},
    "model": {
      "type": "WordPiece",
      "unk_token": vocabulary.pieces[vocabulary.special_ids.unk],
      "continuing_subword_prefix": CONTINUES_WORD,
      "max_input_chars_per_word": rules.max_chars,
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
