"""The identity and the size of a vocabulary."""

from __future__ import annotations

from typing import NamedTuple


class VocabularyId(NamedTuple):
  """Identifies a vocabulary by the contents of its file.

  Attributes:
    sha256: SHA-256 of the vocabulary, in hex, see `vocabulary_files.contents_sha256`.
    name: where the vocabulary comes from, for error messages, such as "--spm_model_file=PATH".
  """

  sha256: str
  name: str


class VocabularySize(NamedTuple):
  """The number of pieces of a vocabulary.

  Attributes:
    size: the number of pieces.
    file: the path of the file that says so: the vocabulary, or the manifest of shards.
  """

  size: int
  file: str
