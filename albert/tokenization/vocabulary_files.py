"""Finds the vocabulary that belongs to weights, and how text was normalized for it."""

from __future__ import annotations

import os
import re

import msgspec

from albert.errors import UserError
from albert.io import files
from albert.tokenization.config import TokenizerConfig

# The second name is the one in Google's archives of pretrained models.
NAMES = ("spiece.model", "30k-clean.model")
_RUN_CONFIG, _HUGGINGFACE_CONFIG = "config.json", "tokenizer_config.json"
_REMEDY = "restore this file, or give the path of the vocabulary itself"


class _DataSettings(msgspec.Struct):
  """The values that are read of the section `data` of a run's config.json."""

  do_lower_case: bool = True
  convert_quotes: bool = False


class _RunConfig(msgspec.Struct):
  """The values of a run's config.json that are read. The config.json of Hugging Face has no section `data`."""

  data: _DataSettings = msgspec.field(default_factory=_DataSettings)


class _HuggingFaceConfig(msgspec.Struct):
  """The values of tokenizer_config.json that are read."""

  do_lower_case: bool = True


def run_directories(directory: str) -> list[str]:
  """Returns the two directories above a step-N directory of a run, of which the second is output_dir; else []."""
  if not re.search(r"(^|/)step-\d+$", directory):
    return []
  parent = directory.rpartition("/")[0]
  return [parent or ".", parent.rpartition("/")[0] or "."]


def find_vocabulary(directory: str) -> str | None:
  """Finds the SentencePiece model beside weights or in the output_dir of their run.

  Args:
    directory: the directory of the weights.

  Returns:
    Its path, or None if there is none.
  """
  for folder in (directory, *run_directories(directory)):
    for name in NAMES:
      path = files.join(folder, name)
      if files.exists(path):
        return path
  return None


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
  if files.is_dir(path):
    # The output_dir of several runs has a directory for each of them, with the same vocabulary.
    runs = sorted(name for name in files.listdir(path) if re.match(r"^run-\d+$", name))
    directories = [path, *(files.join(path, name) for name in runs)]
  elif files.exists(path) and path.endswith(".model"):
    return _with_settings(path, parent)
  else:  # the prefix of a checkpoint
    directories = [parent]
  for directory in directories:
    vocabulary = find_vocabulary(directory)
    if vocabulary:
      return _with_settings(vocabulary, directory)
  raise UserError(
    f"{path}: no vocabulary there ({' or '.join(NAMES)}): give the path of the vocabulary, or of a directory that has "
    "one"
  )


def _with_settings(vocabulary: str, directory: str) -> TokenizerConfig:
  """Returns the settings of the tokenizer with this vocabulary, from the files beside the weights or of their run."""
  for folder in (directory, *run_directories(directory)):
    run_config, huggingface_config = files.join(folder, _RUN_CONFIG), files.join(folder, _HUGGINGFACE_CONFIG)
    if files.exists(huggingface_config):
      return TokenizerConfig(vocabulary, files.read_json(huggingface_config, _HuggingFaceConfig, _REMEDY).do_lower_case)
    if files.exists(run_config):
      data = files.read_json(run_config, _RunConfig, _REMEDY).data
      return TokenizerConfig(vocabulary, data.do_lower_case, data.convert_quotes)
  return TokenizerConfig(vocabulary)
