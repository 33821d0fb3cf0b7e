"""Tokenization of text.

- tokenizer: Tokenizer, and load_tokenizer, which caches tokenizers; texts in which [MASK] stands for a token.
- vocabulary: TokenizerConfig, the settings of a tokenizer; the files and the special pieces of vocabularies, and the
  interface Vocabulary of every kind.
- sentence_piece, wordpiece, byte_bpe: the kinds of vocabularies. The same as TensorFlow ops: sentence_piece_graph,
  wordpiece_graph, byte_bpe_graph, behind the interface graph.GraphTokenizer.
- normalization: lower case, NFKD, accents.
- packing: ids of texts joined to the sequences that the encoder reads, and long texts as overlapping windows;
  packing_graph does so in a graph.
- words: the words that a tagger tags; words_graph finds them in a graph.
- recorded_settings: which settings a vocabulary was made with.

Modules whose names end in `graph` need TensorFlow, the others do not.
"""

from albert.tokenization.tokenizer import Tokenizer as Tokenizer
from albert.tokenization.tokenizer import load_tokenizer as load_tokenizer
from albert.tokenization.vocabulary import TokenizerConfig as TokenizerConfig
