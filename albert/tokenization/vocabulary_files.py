"""Finds the vocabulary that belongs to weights, and how text was normalized for it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from albert.errors import UserError
from albert.io import files
from albert.io.json_text import format_value
from albert.tokenization.config import TokenizerConfig

_SENTENCE_PIECE, _WORDPIECE = "spiece.model", "vocab.txt"
# 30k-clean.model and vocab_chinese.txt are the names in Google's archives of pretrained models.
NAMES = (_SENTENCE_PIECE, "30k-clean.model", _WORDPIECE, "vocab_chinese.txt")
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


def standard_name(path: str) -> str:
  """Returns the name that a copy of a vocabulary gets, from which its kind is recognized."""
  return _WORDPIECE if is_wordpiece(path) else _SENTENCE_PIECE


def read_vocabulary_files(path: str) -> dict[str, bytes]:
  """Reads a vocabulary to copy it.

  Returns:
    The name of each file of the copy and its contents. The first name stands for the vocabulary.
  """
  with files.open_file(path) as file:
    return {standard_name(path): file.read()}


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
  return next((path for path in paths if files.exists(path)), None)


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
  elif files.exists(path) and path.endswith((".model", ".txt")):
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
