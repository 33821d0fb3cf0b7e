"""Normalization and SentencePiece: in Python, in the TensorFlow graph, and with offsets into the text."""

from albert.tokenization.config import TokenizerConfig as TokenizerConfig
from albert.tokenization.tokenizer import Tokenizer as Tokenizer
from albert.tokenization.tokenizer import load_tokenizer as load_tokenizer
