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
  do_lower_case: bool = True
  convert_quotes: bool = False


class _RunConfig(msgspec.Struct):
  """The values of a run's config.json that are read. The config.json of Hugging Face has no section `data`."""

  data: _DataSettings = msgspec.field(default_factory=_DataSettings)


class _HuggingFaceConfig(msgspec.Struct):
  """The values of tokenizer_config.json that are read."""

  do_lower_case: bool = True


def run_directories(directory: str) -> list[str]:
  """For a step-N directory of a run: the directory above it, and the one above that (output_dir). Else empty."""
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
  candidates = [files.join(place, name) for place in (directory, *run_directories(directory)) for name in NAMES]
  return next((path for path in candidates if files.exists(path)), None)


def find_tokenizer_config(path: files.AnyPath) -> TokenizerConfig:
  """Finds the vocabulary of weights and the settings that it was used with.

  Args:
    path: see `Tokenizer.from_pretrained`.

  Returns:
    The settings of the tokenizer.

  Raises:
    UserError: there is no vocabulary, or a file with settings cannot be read.
  """
  given = os.fspath(path)
  path = given.rstrip("/") or given
  if files.is_dir(path):
    directory = path
  elif files.exists(path) and path.endswith(".model"):
    return _with_settings(path, path.rpartition("/")[0] or ".")
  else:
    directory = path.rpartition("/")[0] or "."
  # The output_dir of several runs has a directory for each of them, with the same vocabulary.
  runs = [name for name in files.listdir(directory) if re.match(r"^run-\d+$", name)] if files.is_dir(path) else []
  for place in (directory, *(files.join(directory, name) for name in sorted(runs))):
    vocabulary = find_vocabulary(place)
    if vocabulary:
      return _with_settings(vocabulary, place)
  raise UserError(
    f"{path}: no vocabulary there ({' or '.join(NAMES)}): give the path of the vocabulary, or of a directory that has "
    "one"
  )


def _with_settings(vocabulary: str, directory: str) -> TokenizerConfig:
  for place in (directory, *run_directories(directory)):
    run_config, huggingface_config = files.join(place, _RUN_CONFIG), files.join(place, _HUGGINGFACE_CONFIG)
    if files.exists(huggingface_config):
      return TokenizerConfig(vocabulary, files.read_json(huggingface_config, _HuggingFaceConfig, _REMEDY).do_lower_case)
    if files.exists(run_config):
      data = files.read_json(run_config, _RunConfig, _REMEDY).data
      return TokenizerConfig(vocabulary, data.do_lower_case, data.convert_quotes)
  return TokenizerConfig(vocabulary)
