"""What identifies a vocabulary."""

from __future__ import annotations

from typing import NamedTuple


class VocabularyId(NamedTuple):
  """A vocabulary: SHA-256 of its SentencePiece model, in hex, and what the user gave it with, for errors."""

  sha256: str
  name: str
