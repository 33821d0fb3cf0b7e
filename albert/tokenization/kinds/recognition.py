"""Opens a vocabulary: the name of its file says of which kind it is."""

from __future__ import annotations

from albert.errors import UserError
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.kinds.base import Vocabulary
from albert.tokenization.kinds.byte_bpe import ByteLevelBPEVocabulary
from albert.tokenization.kinds.sentence_piece import SentencePieceVocabulary
from albert.tokenization.kinds.wordpiece import WordPieceVocabulary
from albert.tokenization.vocabulary_files import is_byte_level_bpe, is_wordpiece, read_vocabulary_files


def open_vocabulary(config: TokenizerConfig) -> Vocabulary:
  """Reads a vocabulary.

  A file whose name ends in .txt, such as vocab.txt, is a WordPiece vocabulary; one whose name ends in .json
  (tokenizer.json, or vocab.json with merges.txt) a byte-level BPE vocabulary; any other file is a SentencePiece model.

  Args:
    config: the file and the normalization.

  Raises:
    UserError: the file is missing, or is not a vocabulary of the kind that its name says.
  """
  path = config.model_file
  if path.endswith("merges.txt"):
    raise UserError(f"{path}: has only the merges of a byte-level BPE vocabulary: give the vocab.json beside it")
  contents = read_vocabulary_files(path)
  if is_byte_level_bpe(path):
    return ByteLevelBPEVocabulary(config, contents)
  (content,) = contents.values()
  return WordPieceVocabulary(config, content) if is_wordpiece(path) else SentencePieceVocabulary(config, content)
