"""Tokenization of text.

- config: TokenizerConfig, the settings of a tokenizer.
- tokenizer: Tokenizer (normalization, SentencePiece, comma rule) and load_tokenizer, which caches tokenizers.
- comma_rule: a comma after a digit is a token of its own.
- packing: ids of texts joined to the sequences that the encoder reads.
- masked_texts: texts in which [MASK] stands for a token.
- windows: long contexts as overlapping windows with a question.
- pieces: [CLS], [SEP] and the other control symbols, and which pieces start a word.
- offsets: OffsetTokenizer, which also gives the character offsets of tokens.
- graph, graph_offsets: the same two tokenizers as TensorFlow ops, and the packing of ids into model inputs.
- normalization: lower case, NFKD, accents.
- exact_scores: rounding of a SentencePiece model's scores.
- vocabulary: VocabularyId, which identifies a vocabulary.
- vocabulary_files: where the vocabulary of given weights is.
"""

from albert.tokenization.config import TokenizerConfig as TokenizerConfig
from albert.tokenization.tokenizer import Tokenizer as Tokenizer
from albert.tokenization.tokenizer import load_tokenizer as load_tokenizer
