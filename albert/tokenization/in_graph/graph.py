"""The tokenizer as TensorFlow ops, for SavedModels that take text. It gives the same ids as `Tokenizer`.

Only the SentencePiece ops are from tensorflow-text. TensorFlow Serving includes them, but not the other ops of
tensorflow-text. Normalization uses TensorFlow's string ops and tables made from Python's Unicode data. TensorFlow's own
normalization ops are not used, because their Unicode version depends on the TensorFlow release. So both tokenizers
treat every character alike. (The only exceptions are noncharacters such as U+FDE0, which are not valid in text:
TensorFlow 2.20 keeps them, 2.15 replaces them by U+FFFD.)

Legend: B texts, T tokens of a text (ragged), C characters of all texts.
"""

from __future__ import annotations

import functools
import unicodedata

import numpy as np
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from albert.errors import UserError
from albert.tokenization.config import TokenizerConfig
from albert.tokenization.in_graph.base import GraphTokenizer
from albert.tokenization.in_graph.code_points import (
  CODE_POINTS_WITH_PROPERTIES,
  NUM_CODE_POINTS,
  WHITE_SPACE,
  CodePointTable,
  Replacements,
  lower,
  replacement_tables,
)
from albert.tokenization.kinds.sentence_piece import SentencePieceVocabulary
from albert.tokenization.normalization import replacement
from albert.tokenization.pieces import WORD_START

# A run of characters that are in no piece becomes one <unk>. It is shortened to this length before SentencePiece.
_MAX_UNKNOWN_RUN_LENGTH = 64


@functools.cache
def normalization_tables(*, do_lower_case: bool, keep_accents: bool) -> tuple[CodePointTable, Replacements]:
  """Returns the tables of what each character becomes before it is lower-cased, see `normalization.replacement`."""
  switches = {"do_lower_case": do_lower_case, "keep_accents": keep_accents}
  return replacement_tables({c: replacement(c, **switches) for c in CODE_POINTS_WITH_PROPERTIES})


@functools.lru_cache(maxsize=4)
def _unknown_characters(model: bytes) -> CodePointTable:
  """Finds the characters of which a sequence of any length becomes one <unk>, whatever text is around it.

  Such a character is in no piece, the model's normalization does not change it, and Unicode composes it with no other
  character. A model that writes unknown characters as bytes has no such characters.

  Args:
    model: a serialized SentencePiece model.

  Returns:
    A table with 1 for these characters.
  """
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  table = np.ones(NUM_CODE_POINTS, np.int32)
  size = processor.get_piece_size()
  if any(processor.is_byte(i) for i in range(size)):
    return CodePointTable.from_array(np.zeros_like(table))
  # First the characters in pieces:
  excluded = set(map(ord, "".join(processor.id_to_piece(i) for i in range(size)))) | {ord(" "), ord(WORD_START)}
  # Characters that Unicode composes with others; unicodedata does not list the compositions of Hangul letters:
  excluded.update(range(0x1100, 0x1200))
  for code_point in CODE_POINTS_WITH_PROPERTIES:
    parts = unicodedata.decomposition(chr(code_point)).split()
    if len(parts) > 1 and not parts[0].startswith("<"):
      excluded.update(int(part, 16) for part in parts)
  # Characters that the model's normalization changes:
  before, after = processor.normalize("a b a").split("b")
  normalized = processor.normalize([f"a {chr(c)} a" for c in CODE_POINTS_WITH_PROPERTIES])
  for code_point, text in zip(CODE_POINTS_WITH_PROPERTIES, normalized, strict=True):
    if text != f"{before}{chr(code_point)}{after}":
      excluded.add(code_point)
  table[list(excluded)] = 0
  return CodePointTable.from_array(table)


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
    self._sentencepiece = tf_text.SentencepieceTokenizer(vocabulary.exact_model, out_type=tf.int32)
    splits = vocabulary.comma_rule.splits
    self._comma_replacements = Replacements.from_rows(splits.values())
    self._unknown_characters = _unknown_characters(vocabulary.exact_model)
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

  def _shorten_unknown_runs(self, code_points: tf.RaggedTensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
    """Shortens long runs of characters that together become one <unk>. The ids stay the same.

    The time of the SentencePiece op grows with the square of the length of such a run: a megabyte takes minutes.

    Args:
      code_points: int32 [B, (characters)].

    Returns:
      The remaining characters, int32 [B, (characters)], and which characters remain, bool [C].
    """
    flat = code_points.flat_values
    is_unknown = self._unknown_characters(flat) > 0
    text_indices = code_points.value_rowids()
    continues_run = is_unknown[1:] & is_unknown[:-1] & (text_indices[1:] == text_indices[:-1])
    starts_run = tf.concat([[True], ~continues_run], axis=0)[: tf.size(flat)]
    positions = tf.range(tf.size(flat))
    # For each character, the position of the first character of its run. The cumsum counts the runs up to it.
    run_starts = tf.gather(tf.boolean_mask(positions, starts_run), tf.cumsum(tf.cast(starts_run, tf.int32)) - 1)
    is_kept = positions - run_starts < _MAX_UNKNOWN_RUN_LENGTH
    num_kept = tf.concat([[0], tf.cumsum(tf.cast(is_kept, tf.int64))], axis=0)
    splits = tf.gather(num_kept, code_points.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.boolean_mask(flat, is_kept), splits, validate=False), is_kept

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    """See GraphTokenizer."""
    shortened, _ = self._shorten_unknown_runs(self._to_normalized_code_points(texts))
    texts = tf.strings.unicode_encode(shortened, "UTF-8")
    if self.sentence_piece.words_are_independent:
      words = tf.strings.split(texts, sep=" ")  # [B, (words)]
      ids = self._sentencepiece.tokenize(words.flat_values)
      splits = tf.gather(ids.row_splits, words.row_splits)
      ids = tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)
    else:
      ids = self._sentencepiece.tokenize(texts)
    sequence_indices = tf.gather(tf.constant(self._comma_sequence_indices), ids.flat_values)
    return self._comma_replacements(ids, sequence_indices)
