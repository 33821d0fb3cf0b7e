"""Normalization and SentencePiece: in Python, in the TensorFlow graph, and with offsets into the text."""

from albert.tokenization.tokenizer import Tokenizer as Tokenizer
