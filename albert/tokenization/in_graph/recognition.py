"""Makes the graph tokenizer of a vocabulary of any kind."""

from __future__ import annotations

from albert.tokenization.config import TokenizerConfig
from albert.tokenization.in_graph.base import GraphTokenizer
from albert.tokenization.in_graph.byte_bpe import ByteLevelBPEGraphTokenizer
from albert.tokenization.in_graph.graph import SentencePieceGraphTokenizer
from albert.tokenization.in_graph.graph_offsets import SentencePieceOffsetGraphTokenizer
from albert.tokenization.in_graph.wordpiece import WordPieceGraphTokenizer
from albert.tokenization.vocabulary_files import is_byte_level_bpe, is_wordpiece


def make_graph_tokenizer(config: TokenizerConfig, *, with_offsets: bool = False) -> GraphTokenizer:
  """Makes the graph tokenizer of a vocabulary.

  Args:
    config: the vocabulary and the normalization.
    with_offsets: whether `tokenize_with_offsets` is needed.

  Raises:
    UserError: see `Tokenizer`; or a graph cannot tokenize with this vocabulary.
  """
  if is_byte_level_bpe(config.model_file):
    return ByteLevelBPEGraphTokenizer(config)
  if is_wordpiece(config.model_file):
    return WordPieceGraphTokenizer(config)
  return SentencePieceOffsetGraphTokenizer(config) if with_offsets else SentencePieceGraphTokenizer(config)
