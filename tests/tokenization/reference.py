"""Texts to tokenize, and a slow tokenizer with which the tests of tokenization and of export compare."""

from __future__ import annotations

import random
import unicodedata
from typing import Any

import sentencepiece
import tensorflow as tf

from albert.tokenization.graph import make_graph_tokenizer
from albert.tokenization.sentence_piece import SentencePieceVocabulary
from albert.tokenization.sentence_piece_graph import SentencePieceGraphTokenizer
from albert.tokenization.tokenizer import Tokenizer
from albert.tokenization.vocabulary import UNK_ID, TokenizerConfig

TEXTS = [
  "",
  " \t\n ",
  "The captain sold the garden in the year 1999, for 2,500 dollars, and then went home.",
  "  many   spaces\tand\ttabs \n newline\x1c\x85\u2003\u3000end ",
  "naïve café résumé Ångström ﬁne ﬀ ½ ² Ⅷ ﷺ",
  "[CLS] literal [SEP] markers [MASK] <pad> <unk> <s>",
  "``Hello,'' she said -- ''goodbye''",
  "9, 19, 99, 1999, 9,9,9,9, x9, ,9 ,, 9,, 7,",
  "９９， ٣, ٣٤, ²,",
  "ΣΊΣΥΦΟΣ ΑΣ. ΑΣ͏Β Σ",
  "İstanbul Straße ǅ ﬃ",
  "한국어 日本語が 中文，标点。 ภาษาไทย हिन्दी עִבְרִית العَرَبِيَّة",
  "👩‍👩‍👧 🇫🇷 zero\u200bwidth\u200djoin\ufeff soft\xadhyphen",
  "a literal \u2581 and \ufffd and \x00 and \x7f",
]


def reference_normalize(text: str, do_lower_case: bool) -> str:
  """Normalizes in four plain steps.

  Each run of white space becomes one space, characters are decomposed (NFKD), combining characters are dropped, and
  the rest is lower-cased.
  """
  text = unicodedata.normalize("NFKD", " ".join(text.strip().split()))
  text = "".join(character for character in text if unicodedata.combining(character) == 0)
  return text.lower() if do_lower_case else text


def reference_encode(processor: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
  """Encodes normalized text, and applies the comma rule to pieces as strings, like the original ALBERT.

  The rule: a piece that ends in a digit and a comma is split. The part before the comma is encoded again. Unlike the
  original, text never yields control symbols.
  """
  pieces: list[str] = []
  for piece in processor.encode(text, out_type=str):
    if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
      number_pieces = processor.encode(piece[:-1].replace("▁", ""), out_type=str)
      if piece[0] != "▁":  # SentencePiece has added one
        first_piece = number_pieces[0].removeprefix("▁")
        number_pieces = [first_piece, *number_pieces[1:]] if first_piece else number_pieces[1:]
      pieces += [*number_pieces, ","]
    else:
      pieces.append(piece)
  ids = [processor.piece_to_id(piece) for piece in pieces]
  return [UNK_ID if processor.is_control(i) else i for i in ids]


def random_texts(count: int, seed: int) -> list[str]:
  """Returns strings of letters, digits, commas and spaces, with code points below U+0800 and from U+E000 to U+2FFFF."""
  rng = random.Random(seed)
  common = "abcdefghijklmnopqrstuvwxyz ABC 0123456789,,,,.'-  \u0301\u0327\u2019Σσéß"
  texts = []
  for _ in range(count):
    rare = [chr(rng.choice([rng.randrange(0x20, 0x800), rng.randrange(0xE000, 0x30000)])) for _ in range(3)]
    texts.append("".join(rng.choices([*common, *rare], k=rng.randrange(1, 60))))
  return texts


def sentence_piece(tokenizer: Tokenizer) -> SentencePieceVocabulary:
  """Returns the vocabulary of a tokenizer, which must be a SentencePiece model."""
  assert isinstance(tokenizer.vocabulary, SentencePieceVocabulary)
  return tokenizer.vocabulary


def find_differences(
  vocabulary: str, texts: list[str], *, with_offsets: bool = True, **switches: bool
) -> list[tuple[str, list[Any], list[Any]]]:
  """Compares the graph tokenizer of a vocabulary with the tokenizer in Python.

  Returns:
    For each text that differs: the text, and the result in Python and in the graph. A result is ids, starts and ends;
    without offsets, it is the normalized text and ids.
  """
  graph = make_graph_tokenizer(TokenizerConfig(vocabulary, **switches), with_offsets=with_offsets)
  python = graph.reference

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
  def tokenize_in_graph(batch: tf.Tensor) -> tuple[Any, ...]:
    if with_offsets:
      return tuple(graph.tokenize_with_offsets(batch))
    assert isinstance(graph, SentencePieceGraphTokenizer)
    return tf.strings.unicode_encode(graph.normalize(batch), "UTF-8"), graph.tokenize(batch)

  differences: list[tuple[str, list[Any], list[Any]]] = []
  for start in range(0, len(texts), 4096):
    batch = texts[start : start + 4096]
    results = tokenize_in_graph(tf.constant([text.encode() for text in batch]))
    columns = [values.to_list() if isinstance(values, tf.RaggedTensor) else values.numpy() for values in results]
    if with_offsets:
      expected = [[array.tolist() for array in python.encode_with_offsets(text)] for text in batch]
    else:
      ids_of_texts = python.encode_batch(batch)
      expected = [[python.normalize(text).encode(), ids] for text, ids in zip(batch, ids_of_texts, strict=True)]
    rows = zip(batch, expected, map(list, zip(*columns, strict=True)), strict=True)
    differences += [row for row in rows if row[1] != row[2]]
  return differences
