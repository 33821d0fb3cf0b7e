"""The tokenizer as TensorFlow ops, for SavedModels that take text. It gives the same ids as `Tokenizer`.

Only the SentencePiece ops are from tensorflow-text. TensorFlow Serving includes them, but not the other ops of
tensorflow-text. Normalization uses TensorFlow's string ops and tables made from Python's Unicode data. TensorFlow's own
normalization ops are not used, because their Unicode version depends on the TensorFlow release. So both tokenizers
treat every character alike. (The only exceptions are noncharacters such as U+FDE0, which are not valid in text:
TensorFlow 2.20 keeps them, 2.15 replaces them by U+FFFD.)

Legend: B texts, W words of all texts, T tokens (ragged), C characters of all texts.
"""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from albert.errors import UserError
from albert.io.protobuf import encode_bytes_field
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.in_graph.base import GraphTokenizer
from albert.tokenization.in_graph.code_points import (
  CODE_POINTS_WITH_PROPERTIES,
  WHITE_SPACE,
  CodePointTable,
  Replacements,
  lower,
  replacement_tables,
)
from albert.tokenization.kinds.sentence_piece import SentencePieceVocabulary
from albert.tokenization.normalization import replacement
from albert.tokenization.pieces import UNK_ID, WORD_START

# Added to a serialized model: the pieces of the 256 bytes (field 1: text and type BYTE), and byte_fallback in a second
# trainer_spec (field 2), which protocol buffers merge into the first one.
_BYTE_PIECES = b"".join(
  encode_bytes_field(1, encode_bytes_field(1, b"<0x%02X>" % byte) + b"\x18\x06") for byte in range(256)
) + encode_bytes_field(2, b"\x98\x02\x01")


@functools.cache
def normalization_tables(*, do_lower_case: bool, keep_accents: bool) -> tuple[CodePointTable, Replacements]:
  """Returns the tables of what each character becomes before it is lower-cased, see `normalization.replacement`."""
  switches = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
  return replacement_tables({c: replacement(c, **switches) for c in CODE_POINTS_WITH_PROPERTIES})


class SentencePieceGraphTokenizer(GraphTokenizer):
  """The graph tokenizer of a SentencePiece model.

  Args: see GraphTokenizer.

  Raises:
    UserError: see GraphTokenizer; also if "," is not a piece, because the comma rule then needs the text of each <unk>.
  """

  def __init__(self, config: TokenizerConfig):
    super().__init__(config)
    vocabulary = self.reference.vocabulary
    assert isinstance(vocabulary, SentencePieceVocabulary)
    self.sentence_piece = vocabulary
    if "," not in vocabulary.pieces:
      raise UserError(
        f'{vocabulary.file}: "," is not a piece of this vocabulary, so a graph cannot apply the comma rule: '
        "train it on text with commas, or with a comma in --user_defined_symbols"
      )
    # Without pieces for bytes, SentencePiece joins successive unknown characters to one <unk>, in a time that grows
    # with the square of their number: a megabyte takes minutes. So it gets such pieces, and `_join_unknown` replaces
    # them by <unk>.
    has_bytes = vocabulary.character_bytes.max() >= 0
    model = vocabulary.exact_model if has_bytes else vocabulary.exact_model + _BYTE_PIECES
    self._sentencepiece = tf_text.SentencepieceTokenizer(model, out_type=tf.int32)
    splits = vocabulary.comma_rule.splits
    self._comma_replacements = Replacements.from_rows(splits.values())
    # For each id, the index of the sequence in _comma_replacements; 0 where the comma rule does not apply.
    self._comma_sequence_indices = np.zeros(len(vocabulary.pieces), np.int32)
    self._comma_sequence_indices[list(splits)] = np.arange(1, len(splits) + 1)

  def normalize(self, texts: tf.Tensor) -> tf.Tensor:
    """Normalizes texts, string [B], like `Tokenizer.normalize`.

    Bytes that are not UTF-8 are replaced by U+FFFD, as in `bytes.decode("utf-8", errors="replace")`.
    """
    return tf.strings.unicode_encode(self._to_normalized_code_points(texts), "UTF-8")

  def _to_normalized_code_points(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """Normalizes texts, string [B]; returns code points, int32 [B, (characters)]."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, f"[{WHITE_SPACE}]+", " ")
    texts = tf.strings.regex_replace(texts, "^ | $", "")
    if self.config.convert_quotes:
      texts = tf.strings.regex_replace(texts, "``|''", '"')
    code_points = tf.strings.unicode_decode(texts, "UTF-8")
    index_of, replacements = normalization_tables(
      do_lower_case=self.config.do_lower_case, keep_accents=self.config.keep_accents
    )
    code_points = replacements(code_points, index_of(code_points.flat_values))
    if self.config.do_lower_case:
      code_points = lower(code_points)
    return code_points

  def _split_words(self, code_points: tf.RaggedTensor) -> tf.RaggedTensor:
    """Splits normalized texts, int32 [B, (characters)], into words that are encoded alone, string [B, (words)]:
    each text is one word if words are not independent.
    """
    texts = tf.strings.unicode_encode(code_points, "UTF-8")
    if not self.sentence_piece.words_are_independent:
      return tf.RaggedTensor.from_row_splits(texts, tf.range(tf.size(texts, tf.int64) + 1), validate=False)
    # SentencePiece drops a ▁ at the end of a text, so there is no cut after one.
    lines = tf.strings.regex_replace(tf.strings.regex_replace(texts, " ", "\n"), f"{WORD_START}\n+", f"{WORD_START} ")
    return tf.strings.split(lines, sep="\n")

  def _join_unknown(self, ids: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Replaces each sequence of bytes that were added to the model by one <unk>.

    Args:
      ids: int32 [W, (tokens)].

    Returns:
      The new ids, int32 [W, (T)], and the index of the first old token of each and the number of old tokens, [T + 1].
    """
    flat = ids.flat_values
    is_byte = flat >= len(self.sentence_piece.pieces)
    word_indices = ids.value_rowids()
    continues = is_byte[1:] & is_byte[:-1] & (word_indices[1:] == word_indices[:-1])
    is_first = tf.concat([[True], ~continues], axis=0)[: tf.size(flat)]
    num_before = tf.concat([[0], tf.cumsum(tf.cast(is_first, tf.int64))], axis=0)
    joined = tf.boolean_mask(tf.where(is_byte, UNK_ID, flat), is_first)
    first = tf.concat([tf.boolean_mask(tf.range(tf.size(flat)), is_first), [tf.size(flat)]], axis=0)
    return tf.RaggedTensor.from_row_splits(joined, tf.gather(num_before, ids.row_splits), validate=False), first

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """See GraphTokenizer."""
    words = self._split_words(self._to_normalized_code_points(texts))
    ids, _ = self._join_unknown(self._sentencepiece.tokenize(words.flat_values))
    return self._comma_replacements(*self._by_text(ids, words))

  def _by_text(self, ids: tf.RaggedTensor, words: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Returns the ids of words, int32 [W, (T)], as the ids of texts, int32 [B, (T)], and for each token the index of
    its sequence in the comma rule's replacements.
    """
    splits = tf.gather(ids.row_splits, words.row_splits)
    sequence_indices = tf.gather(tf.constant(self._comma_sequence_indices), ids.flat_values)
    return tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False), sequence_indices
