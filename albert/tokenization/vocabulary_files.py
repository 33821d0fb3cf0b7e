"""Finds the vocabulary that belongs to weights, and reads and identifies its files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from albert.errors import UserError
from albert.io import files

_SENTENCE_PIECE, _WORDPIECE = "spiece.model", "vocab.txt"
# Byte-level BPE: one file with everything, or one with the pieces beside one with the merges.
_TOKENIZER, _BPE_PIECES, _BPE_MERGES = "tokenizer.json", "vocab.json", "merges.txt"
# 30k-clean.model and vocab_chinese.txt are the names in Google's archives of pretrained models. Hugging Face's models
# may have a tokenizer.json beside another vocabulary.
NAMES = (_SENTENCE_PIECE, "30k-clean.model", _WORDPIECE, "vocab_chinese.txt", _BPE_PIECES, _TOKENIZER)


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
