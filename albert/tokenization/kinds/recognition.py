"""Opens a vocabulary: the name of its file says of which kind it is."""

from __future__ import annotations

from albert.io import files
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.kinds.base import Vocabulary
from albert.tokenization.kinds.sentence_piece import SentencePieceVocabulary


def open_vocabulary(config: TokenizerConfig) -> Vocabulary:
  """Reads a vocabulary.

  Args:
    config: the file and the normalization.

  Raises:
    UserError: the file is missing, or is not a vocabulary of the kind that its name says.
  """
  with files.open_file(config.model_file) as file:
    content = file.read()
  return SentencePieceVocabulary(config, content)
