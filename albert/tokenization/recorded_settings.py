"""Finds the settings that a vocabulary was made with: how text is normalized before it becomes pieces.

They are recorded in a file beside the vocabulary, or beside the weights that use it: Hugging Face's
tokenizer_config.json (`albert.convert` and `data_prep.train_vocab` write it, too), config.json of a run, or
servable.json of an exported model. Every command takes the settings from there, and refuses a flag that contradicts
them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from albert.errors import UserError
from albert.io import files
from albert.io.json_text import decode_object
from albert.io.text import format_value
from albert.tokenization.normalization import normalize_text
from albert.tokenization.tokenizer_json import read_tokenizer
from albert.tokenization.vocabulary import (
  NAMES,
  NO_VOCABULARY,
  SETTINGS_FILE,
  SPECIAL_NAMES,
  TokenizerConfig,
  find_vocabulary,
  json_model_type,
  kind_of,
  run_directories,
  transformer_directory,
  vocabulary_in,
  word_rules,
)

SENTENCE_SETTINGS = "sentence_bert_config.json"  # written by sentence-transformers
_RUN_CONFIG = "config.json"
# Files that earlier versions of transformers wrote beside tokenizer_config.json. In the second one, tokens are keys.
_TOKEN_FILES = ("special_tokens_map.json", "added_tokens.json")
# Files of an exported model, see albert.export.
_EXPORTED_SETTINGS, _EXPORTED_ASSETS = "assets.extra/servable.json", "assets"
_REMEDY = "restore this file, or give the path of the vocabulary itself"
# The settings of TokenizerConfig. Any vocabulary works with and without convert_quotes, so a flag may override it.
SETTINGS = ("do_lower_case", "keep_accents", "convert_quotes")
_OVERRIDABLE = ("convert_quotes",)
# model_max_length of a tokenizer without a limit, int(1e30) in transformers. No other file has such a large integer.
_NO_MAX_LENGTH = b"1000000000000000019884624838656"
_SPECIAL_TOKENS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
# The classes that take everything from tokenizer.json. `albert.convert` names the first one for every vocabulary.
_GENERIC_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
_BYTE_LEVEL_CLASSES = ("RobertaTokenizer", "RobertaTokenizerFast", "GPT2Tokenizer", "GPT2TokenizerFast")
# Keys of tokenizer_config.json that change ids -> the values that give the ids of this project, for each kind of
# vocabulary. A key that is missing or null has the first one. Most are arguments of transformers' AlbertTokenizer,
# BertTokenizer and RobertaTokenizer.
_ALLOWED_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
  "sentencepiece": {
    "tokenizer_class": ("AlbertTokenizer", "AlbertTokenizerFast", *_GENERIC_CLASSES),
    "add_prefix_space": (True,),
    "sp_model_kwargs": ({},),
  },
  "wordpiece": {
    "tokenizer_class": ("BertTokenizer", "BertTokenizerFast", *_GENERIC_CLASSES),
    "do_basic_tokenize": (True,),
    "tokenize_chinese_chars": (True, False),  # see _huggingface_settings
    "strip_accents": (True, False),
    "never_split": ([],),
  },
  "byte_level_bpe": {
    "tokenizer_class": (*_BYTE_LEVEL_CLASSES, *_GENERIC_CLASSES),
    "add_prefix_space": (False,),
  },
}
_ADDED_TOKENS = ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens")


def find_tokenizer_config(path: files.AnyPath, **given: bool | None) -> TokenizerConfig:
  """Finds the vocabulary of weights and the settings that it was used with.

  Args:
    path: see `Tokenizer.from_pretrained`.
    **given: see `tokenizer_config`.

  Returns:
    The settings of the tokenizer.

  Raises:
    UserError: there is no vocabulary, or `tokenizer_config` raises it.
  """
  path_text = os.fspath(path)
  path = transformer_directory(path_text.rstrip("/") or path_text)
  if files.exists(files.join(path, _EXPORTED_SETTINGS)):
    assets = files.join(path, _EXPORTED_ASSETS)
    return tokenizer_config(vocabulary_in(assets) or files.join(assets, NAMES[0]), **given)
  if files.is_dir(path):
    # The output_dir of several runs has a directory for each of them, with the same vocabulary.
    run_names = sorted(name for name in files.listdir(path) if re.match(r"^run-\d+$", name))
    directories = [path, *(files.join(path, name) for name in run_names)]
  elif files.exists(path) and path.endswith((".model", ".txt", ".json")):
    return tokenizer_config(path, **given)
  else:  # the prefix of a checkpoint
    directories = [_directory(path)]
  for directory in directories:
    vocabulary = find_vocabulary(directory)
    if vocabulary:
      return tokenizer_config(vocabulary, directory, **given)
  remedy = f"{NO_VOCABULARY}, or give the path of the vocabulary itself"
  if not (files.exists(path) or files.exists(f"{path}.index")):
    remedy = files.hub_remedy(path) or "no such file or directory; nothing is downloaded: give the path of weights"
  raise UserError(f"{path}: {remedy}")


def tokenizer_config(vocabulary: str, *directories: str, **given: bool | None) -> TokenizerConfig:
  """Returns a vocabulary with its settings: the given or recorded ones, else the defaults of the original.

  Args:
    vocabulary: the path of the vocabulary.
    *directories: directories of weights that use it. What is recorded there or beside the vocabulary must agree.
    **given: values of settings that flags or arguments give; None for the recorded value.

  Raises:
    UserError: a given or recorded value contradicts another one, or a file with settings cannot be read or has a
      setting that this project does not follow.
  """
  return TokenizerConfig(vocabulary, **known_settings(vocabulary, *directories, **given))


def known_settings(vocabulary: str, *directories: str, **given: bool | None) -> dict[str, bool]:
  """Returns the settings of a vocabulary that are given or recorded, by name; see `tokenizer_config`."""
  known = {name: value for name, value in given.items() if value is not None}
  sources = dict.fromkeys(known, "")
  folders = dict.fromkeys([_directory(vocabulary), *directories])
  records = [_read_record(folder, vocabulary) for folder in folders]
  if json_model_type(vocabulary):
    records[:0] = [(vocabulary, read_tokenizer(vocabulary, _read(vocabulary)).settings)]
  for path in (files.join(folder, SENTENCE_SETTINGS) for folder in folders):
    if files.exists(path) and files.read_json(path).get("do_lower_case"):  # lowercases text before tokenizing
      records = [(file, {**recorded, "do_lower_case": True}) for file, recorded in records]
  for file, recorded in records:
    for name in SETTINGS:
      value = recorded.get(name)
      if value is None:
        continue
      if not isinstance(value, bool):  # checked here and not by msgspec, which may not be installed
        raise UserError(f"{file}: {name} must be true or false, it is {format_value(value)}: {_REMEDY}")
      if known.setdefault(name, value) == value or name in _OVERRIDABLE or kind_of(vocabulary) == "byte_level_bpe":
        sources.setdefault(name, file)
      elif sources[name]:
        raise UserError(
          f"{sources[name]} says {name}={str(known[name]).lower()}, but {file} says {name}={str(value).lower()}: one "
          "vocabulary cannot have both: correct the wrong file"
        )
      else:
        raise UserError(
          f"{name}={str(known[name]).lower()} is given, but the vocabulary was made with {name}={str(value).lower()} "
          f"({file}): leave the flag or argument out, or correct that file if it is wrong"
        )
  return known


def _directory(path: str) -> str:
  return path.rpartition("/")[0] or "."


def _read_record(directory: str, vocabulary: str) -> tuple[str, Mapping[str, Any]]:
  """Returns the file that records settings in the directory of a vocabulary or of weights, and its values.

  The values have the names of SETTINGS, also where the file uses other names.
  """
  parent, _, name = directory.rpartition("/")
  exported_settings = files.join(parent or ".", _EXPORTED_SETTINGS)
  if name == _EXPORTED_ASSETS and files.exists(exported_settings):
    return exported_settings, files.read_json(exported_settings, remedy=_REMEDY)
  for folder in (directory, *run_directories(directory)):
    for token_file in (files.join(folder, name) for name in _TOKEN_FILES):
      if files.exists(token_file):
        tokens = files.read_json(token_file, remedy=_REMEDY)
        is_map = token_file.endswith(_TOKEN_FILES[0])
        _check_huggingface(token_file, tokens if is_map else {"extra_special_tokens": list(tokens)}, vocabulary)
    huggingface_config, run_config = files.join(folder, SETTINGS_FILE), files.join(folder, _RUN_CONFIG)
    config = files.read_json(run_config, remedy=_REMEDY) if files.exists(run_config) else {}
    if "data" in config:  # Hugging Face's config.json has none
      values = config["data"]
      if not isinstance(values, dict):
        raise UserError(f"{run_config}: $.data must be an object, it is {format_value(values)}: {_REMEDY}")
      if config.get("task") == "pretraining" and "keep_accents" not in values and values.get("do_lower_case") is True:
        return run_config, {}  # earlier versions wrote this default also for shards of cased text
      return run_config, values
    if files.exists(huggingface_config):
      values = read_tokenizer_config(folder)
      _check_huggingface(huggingface_config, values, vocabulary)
      return huggingface_config, _huggingface_settings(huggingface_config, values, vocabulary)
  return "", {}


def read_tokenizer_config(directory: str) -> dict[str, Any]:
  """Returns the values of tokenizer_config.json in a directory; {} if there is none."""
  path = files.join(directory, SETTINGS_FILE)
  data = _read(path).replace(_NO_MAX_LENGTH, b"null")
  return decode_object(path, data, _REMEDY) if files.exists(path) else {}


def _check_huggingface(file: str, values: Mapping[str, Any], vocabulary: str) -> None:
  """Raises UserError if transformers, with the settings in tokenizer_config.json, gives other ids than this project."""
  kind = kind_of(vocabulary)
  names_of_token = dict(zip(_SPECIAL_TOKENS, SPECIAL_NAMES[kind], strict=True))
  for key, possible in ({"truncation_side": ("right",)} | _ALLOWED_VALUES[kind] | names_of_token).items():
    value, allowed = _content(values.get(key)), possible
    if key in names_of_token and value in possible[1:]:  # of several names in the vocabulary, the first one counts
      content = _read(vocabulary)
      allowed = tuple(name for name in possible if name == value or name.encode() in content)[:1]
    if value is not None and value not in allowed and not (value == [] and {} in allowed):
      raise UserError(
        f"{file}: {key} is {format_value(value)}, with which transformers gives other ids than this project, which "
        f"supports only {format_value(allowed[0])}: take another vocabulary, or correct the file if it is wrong"
      )
  special_pieces = [name for names in names_of_token.values() for name in names]
  for key in _ADDED_TOKENS:
    tokens = values.get(key) or []
    tokens = list(tokens.values()) if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else [tokens]
    for token in map(_content, tokens):
      if token not in special_pieces and not _is_user_defined(token, vocabulary):
        remedy = "take a vocabulary in which it is a user-defined symbol"
        raise UserError(f"{file}: adds the token {format_value(token)}, which would be cut into pieces: {remedy}")


def _huggingface_settings(file: str, values: Mapping[str, Any], vocabulary: str) -> Mapping[str, Any]:
  """Returns the settings in tokenizer_config.json by the names of SETTINGS. Only BertTokenizer has strip_accents."""
  if kind_of(vocabulary) == "byte_level_bpe":
    return {}  # its text is never changed
  if kind_of(vocabulary) == "sentencepiece":
    if not json_model_type(vocabulary):
      return values
    _check_normalizer(file, values, vocabulary)
    return {}  # tokenizer.json has the settings
  strips, lowers = values.get("strip_accents"), values.get("do_lower_case") is not False
  for key, value in _bert_settings(vocabulary, lowers).items():
    if values.get(key) not in (None, value):
      raise UserError(
        f"{file}: {key} is {format_value(values[key])}, but {vocabulary} is used with {format_value(value)}: put this "
        "file beside the vocab.txt, or correct the wrong file"
      )
  return {**values, "keep_accents": None if strips is None or not (lowers or strips) else not strips}


def _bert_settings(vocabulary: str, do_lower_case: bool) -> dict[str, bool]:
  """Returns BertTokenizer's settings for the rules of a WordPiece vocabulary, see `wordpiece.WordRules`."""
  is_json = json_model_type(vocabulary)
  rules = read_tokenizer(vocabulary, _read(vocabulary)).rules if is_json else word_rules(vocabulary)
  accents = {} if do_lower_case else {"strip_accents": rules.get("strip_accents", False)}
  return {"tokenize_chinese_chars": rules.get("split_han", True)} | accents


def _check_normalizer(file: str, values: Mapping[str, Any], vocabulary: str) -> None:
  """Raises UserError if the settings of AlbertTokenizer, which normalizes by them, contradict tokenizer.json."""
  settings = read_tokenizer(vocabulary, _read(vocabulary)).settings
  for key, step in {"do_lower_case": "Lowercase", "keep_accents": "NFKD"}.items():
    given = values.get(key, key == "do_lower_case")
    if str(values.get("tokenizer_class")).startswith("AlbertTokenizer") and given != settings[key]:
      raise UserError(
        f"{file}: {key} is {format_value(given)}, which contradicts the step {step} in the normalizer of "
        f"{vocabulary}: correct the wrong file"
      )


def _is_user_defined(token: Any, vocabulary: str) -> bool:
  """Returns whether a token is a user-defined symbol, which is never cut, of a SentencePiece or unigram vocabulary."""
  if kind_of(vocabulary) != "sentencepiece" or not isinstance(token, str):
    return False
  if json_model_type(vocabulary):
    file = read_tokenizer(vocabulary, _read(vocabulary))
    return normalize_text(token, **file.settings) in file.whole_tokens
  text = token.encode("utf-8", errors="replace")
  # A piece is written as its text (field 1), its score (field 2, four bytes) and its type (field 3; 4: user-defined).
  piece = rb"\n" + re.escape(bytes([len(text) % 128])) + re.escape(text) + rb"\x15....\x18\x04"
  return re.search(piece, _read(vocabulary), re.DOTALL) is not None


def _read(vocabulary: str) -> bytes:
  """Returns the content of a vocabulary; nothing if there is no such file, which is reported when it is opened."""
  return files.read(vocabulary) if files.exists(vocabulary) else b""


def _content(value: Any) -> Any:
  """Returns the text of a token that transformers wrote as an object, and other values as they are."""
  return value["content"] if isinstance(value, dict) and "content" in value else value


def huggingface_tokenizer_config(config: TokenizerConfig) -> dict[str, Any]:
  """Returns the content of a tokenizer_config.json with the settings of a vocabulary."""
  kind = kind_of(config.model_file)
  if kind == "byte_level_bpe":
    return {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": False}
  quotes = {"convert_quotes": True} if config.convert_quotes else {}  # not a setting of transformers
  if kind == "wordpiece":
    switches = {"do_lower_case": config.do_lower_case, "strip_accents": not config.keep_accents}
    switches |= _bert_settings(config.model_file, config.do_lower_case)
    return {"tokenizer_class": "BertTokenizer", **switches, **quotes}
  switches = {"do_lower_case": config.do_lower_case, "keep_accents": config.keep_accents}
  return {"tokenizer_class": "AlbertTokenizer", **switches, "remove_space": True, **quotes}
