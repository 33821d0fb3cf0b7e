"""Tokenization of text.

- config: TokenizerConfig, the settings of a tokenizer.
- tokenizer: Tokenizer and load_tokenizer, which caches tokenizers.
- kinds: the kinds of vocabularies behind the interface kinds.base.Vocabulary, and how a file is recognized.
- comma_rule: a comma after a digit is a token of its own (SentencePiece).
- packing: ids of texts joined to the sequences that the encoder reads.
- masked_texts: texts in which [MASK] stands for a token.
- windows: long contexts as overlapping windows with a question.
- pieces: the special pieces of vocabularies, and which pieces start a word.
- in_graph: the same tokenizers as TensorFlow ops, and the packing of ids into model inputs.
- normalization: lower case, NFKD, accents.
- exact_scores: rounding of a SentencePiece model's scores.
- vocabulary: VocabularyId, which identifies a vocabulary.
- vocabulary_files: where the vocabulary of given weights is.
- recorded_settings: which settings a vocabulary was made with.
"""

from albert.tokenization.config import TokenizerConfig as TokenizerConfig
from albert.tokenization.tokenizer import Tokenizer as Tokenizer
from albert.tokenization.tokenizer import load_tokenizer as load_tokenizer
