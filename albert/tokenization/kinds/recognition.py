"""Opens a vocabulary: the name of its file says of which kind it is."""

from __future__ import annotations

from albert.io import files
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.kinds.base import Vocabulary
from albert.tokenization.kinds.sentence_piece import SentencePieceVocabulary
from albert.tokenization.kinds.wordpiece import WordPieceVocabulary
from albert.tokenization.vocabulary_files import is_wordpiece


def open_vocabulary(config: TokenizerConfig) -> Vocabulary:
  """Reads a vocabulary.

  A file whose name ends in .txt, such as vocab.txt, is a WordPiece vocabulary; any other file is a SentencePiece model.

  Args:
    config: the file and the normalization.

  Raises:
    UserError: the file is missing, or is not a vocabulary of the kind that its name says.
  """
  with files.open_file(config.model_file) as file:
    content = file.read()
  if is_wordpiece(config.model_file):
    return WordPieceVocabulary(config, content)
  return SentencePieceVocabulary(config, content)
