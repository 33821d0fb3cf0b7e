"""Finds the vocabulary that belongs to weights, and how text was normalized for it."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import Any

from albert.errors import UserError
from albert.io import files
from albert.io.json_text import format_value
from albert.tokenization.config import TokenizerConfig

_SENTENCE_PIECE, _WORDPIECE = "spiece.model", "vocab.txt"
# Byte-level BPE: one file with everything, or one with the pieces beside one with the merges.
_TOKENIZER, _BPE_PIECES, _BPE_MERGES = "tokenizer.json", "vocab.json", "merges.txt"
# 30k-clean.model and vocab_chinese.txt are the names in Google's archives of pretrained models. Hugging Face's models
# may have a tokenizer.json beside another vocabulary.
NAMES = (_SENTENCE_PIECE, "30k-clean.model", _WORDPIECE, "vocab_chinese.txt", _TOKENIZER, _BPE_PIECES)
_RUN_CONFIG, _HUGGINGFACE_CONFIG = "config.json", "tokenizer_config.json"
# Files of an exported model, see albert.export.
_EXPORTED_SETTINGS, _EXPORTED_ASSETS = "assets.extra/servable.json", "assets"
_REMEDY = "restore this file, or give the path of the vocabulary itself"


def run_directories(directory: str) -> list[str]:
  """Returns the parent of a step-N directory of a run, and the parent's parent (output_dir); [] for others."""
  if not re.search(r"(^|/)step-\d+$", directory):
    return []
  parent = directory.rpartition("/")[0]
  return [parent or ".", parent.rpartition("/")[0] or "."]


def is_wordpiece(path: str) -> bool:
  """Returns whether the name of a vocabulary says that it is a WordPiece vocabulary: it ends in .txt."""
  return path.endswith(".txt")


def is_byte_level_bpe(path: str) -> bool:
  """Returns whether the name of a vocabulary says that it is a byte-level BPE vocabulary: it ends in .json."""
  return path.endswith(".json")


def vocabulary_paths(path: str) -> list[str]:
  """Returns the paths of all files of a vocabulary; the first one is `path` itself.

  A file whose name ends in vocab.json has its merges beside it, in merges.txt: vocab.json and merges.txt, or
  NAME-vocab.json and NAME-merges.txt.
  """
  return [path, path.removesuffix(_BPE_PIECES) + _BPE_MERGES] if path.endswith(_BPE_PIECES) else [path]


def vocabulary_copies(path: str) -> dict[str, str]:
  """Returns which files a copy of a vocabulary has, and what they are copies of.

  Returns:
    Name of each copy -> path of the file. The first name stands for the vocabulary, and says of which kind it is.
  """
  paths = vocabulary_paths(path)
  if len(paths) > 1:
    return dict(zip((_BPE_PIECES, _BPE_MERGES), paths, strict=True))
  if is_byte_level_bpe(path):
    return {_TOKENIZER: path}
  return {_WORDPIECE if is_wordpiece(path) else _SENTENCE_PIECE: path}


def read_vocabulary_files(path: str) -> dict[str, bytes]:
  """Reads all files of a vocabulary.

  Returns:
    The name of each file in a copy (see `vocabulary_copies`) and its contents.

  Raises:
    UserError: a file is missing.
  """
  contents = {}
  for name, source in vocabulary_copies(path).items():
    if source != path and not files.exists(source):
      raise UserError(f"{source}: no such file: put the merges of {path} there")
    with files.open_file(source) as file:
      contents[name] = file.read()
  return contents


def contents_sha256(contents: Mapping[str, bytes]) -> str:
  """Returns the SHA-256 that identifies a vocabulary, in hex: of its file, or of the hashes of its files in order.

  Args:
    contents: see `read_vocabulary_files`.
  """
  digests = [hashlib.sha256(content) for content in contents.values()]
  if len(digests) > 1:
    digests = [hashlib.sha256(b"".join(digest.digest() for digest in digests))]
  return digests[0].hexdigest()


def vocabulary_sha256(path: str) -> str:
  """Returns the SHA-256 that identifies the vocabulary at a path, see `contents_sha256`."""
  return contents_sha256(read_vocabulary_files(path))


def find_vocabulary(directory: str) -> str | None:
  """Finds the vocabulary beside weights or in the output_dir of their run.

  Args:
    directory: the directory of the weights.

  Returns:
    Its path, or None if there is none.
  """
  for folder in (directory, *run_directories(directory)):
    path = vocabulary_in(folder)
    if path:
      return path
  return None


def vocabulary_in(directory: str) -> str | None:
  """Returns the path of the vocabulary in a directory; None if it has none. See find_vocabulary."""
  paths = (files.join(directory, name) for name in NAMES)
  return next((path for path in paths if files.exists(path) and _can_be_vocabulary(path)), None)


def _can_be_vocabulary(path: str) -> bool:
  """Returns False for a tokenizer.json without merges, which Hugging Face writes for models of other kinds."""
  if not path.endswith(_TOKENIZER):
    return True
  with files.open_file(path) as file:
    return b'"merges"' in file.read()


def find_tokenizer_config(path: files.AnyPath) -> TokenizerConfig:
  """Finds the vocabulary of weights and the settings that it was used with.

  Args:
    path: see `Tokenizer.from_pretrained`.

  Returns:
    The settings of the tokenizer.

  Raises:
    UserError: there is no vocabulary, or a file with settings cannot be read.
  """
  path_text = os.fspath(path)
  path = path_text.rstrip("/") or path_text
  parent = path.rpartition("/")[0] or "."
  exported_settings = files.join(path, _EXPORTED_SETTINGS)
  if files.exists(exported_settings):
    values = files.read_json(exported_settings, remedy=_REMEDY)
    assets = files.join(path, _EXPORTED_ASSETS)
    return _config_from_values(vocabulary_in(assets) or files.join(assets, NAMES[0]), exported_settings, values)
  if files.is_dir(path):
    # The output_dir of several runs has a directory for each of them, with the same vocabulary.
    run_names = sorted(name for name in files.listdir(path) if re.match(r"^run-\d+$", name))
    directories = [path, *(files.join(path, name) for name in run_names)]
  elif files.exists(path) and path.endswith((".model", ".txt", ".json")):
    return _with_settings(path, parent)
  else:  # the prefix of a checkpoint
    directories = [parent]
  for directory in directories:
    vocabulary = find_vocabulary(directory)
    if vocabulary:
      return _with_settings(vocabulary, directory)
  raise UserError(
    f"{path}: no vocabulary there ({', '.join(NAMES)}): give the path of the vocabulary, or of a directory that has one"
  )


def _with_settings(vocabulary: str, directory: str) -> TokenizerConfig:
  """Returns the settings of the tokenizer with this vocabulary, read from the directory of the weights or their run."""
  for folder in (directory, *run_directories(directory)):
    run_config, huggingface_config = files.join(folder, _RUN_CONFIG), files.join(folder, _HUGGINGFACE_CONFIG)
    if files.exists(huggingface_config):
      values = files.read_json(huggingface_config, remedy=_REMEDY)
      return TokenizerConfig(vocabulary, _read_switch(huggingface_config, values, "do_lower_case", True))
    if files.exists(run_config):
      values = files.read_json(run_config, remedy=_REMEDY).get("data", {})  # Hugging Face's config.json has no "data"
      if not isinstance(values, dict):
        raise UserError(f"{run_config}: $.data must be an object, it is {format_value(values)}: {_REMEDY}")
      return _config_from_values(vocabulary, run_config, values, "data.")
  return TokenizerConfig(vocabulary)


def _config_from_values(vocabulary: str, file: str, values: Mapping[str, Any], section: str = "") -> TokenizerConfig:
  """Returns the settings that a file holds. `section` is their path in the file, such as "data.", for messages."""
  return TokenizerConfig(
    vocabulary,
    _read_switch(file, values, "do_lower_case", True, section),
    _read_switch(file, values, "convert_quotes", False, section),
  )


def _read_switch(file: str, values: Mapping[str, Any], name: str, default: bool, section: str = "") -> bool:
  """Returns a setting that is true or false. It is checked here and not by msgspec, which may not be installed.

  Raises:
    UserError: it is neither true nor false.
  """
  value = values.get(name, default)
  if not isinstance(value, bool):
    raise UserError(f"{file}: $.{section}{name} must be true or false, it is {format_value(value)}: {_REMEDY}")
  return value
