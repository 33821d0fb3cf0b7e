"""WordPiece vocabularies as TensorFlow ops: the ids and offsets of `albert.tokenization.wordpiece`.

Words are cut into pieces by tensorflow-text's FastWordpieceTokenizer. The text is cut into words by tables made from
Python's Unicode data, because tensorflow-text's BertTokenizer and FastBertTokenizer differ from the original BERT: they
normalize with the Unicode version of their release and not with Python's, keep control characters that the original
drops, and limit words by bytes instead of characters.

Legend: B texts, T tokens of a text (ragged), C characters of all texts, W words of all texts.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from albert.tokenization import graph, wordpiece
from albert.tokenization.vocabulary import TokenizerConfig
from albert.tokenization.wordpiece import CONTINUES_WORD, WordPieceVocabulary, WordRules

_DROPPED, _SPACE = 1, 2  # classes of characters, see _clean_classes
_SPACES = (ord(" "), 0x2028, 0x2029)  # the characters that separate words after cleaning
_DOTTED_I = 0x130  # İ, the only character whose lower case has two characters


class _Words(NamedTuple):
  """The words of all texts.

  Attributes:
    strings: string [W], UTF-8; a string that is too long for any word if a word has too many characters.
    splits: int64 [B + 1], text b has the words splits[b] to splits[b + 1] - 1.
    lengths: int32 [W], the characters of each word.
  """

  strings: tf.Tensor
  splits: tf.Tensor
  lengths: tf.Tensor


@functools.cache
def _clean_classes() -> graph.CodePointTable:
  """Returns a table with _DROPPED and _SPACE for the characters that `wordpiece.clean` drops or makes spaces."""
  class_of = {"": _DROPPED, " ": _SPACE}
  cleaned = ((c, wordpiece.clean(chr(c))) for c in graph.CODE_POINTS_WITH_PROPERTIES if c != ord(" "))
  return graph.CodePointTable((c, class_of[text]) for c, text in cleaned if text in class_of)


@functools.cache
def _splits(rules: WordRules) -> tuple[graph.CodePointTable, graph.Replacements]:
  """Returns the tables of what each character becomes, see `wordpiece.split_character`."""

  def split(code_point: int) -> str:
    character = "i\u0307" if rules.do_lower_case and code_point == _DOTTED_I else chr(code_point)
    return "".join(wordpiece.split_character(c, rules) for c in character)

  return graph.replacement_tables({c: split(c) for c in graph.CODE_POINTS_WITH_PROPERTIES})


@functools.cache
def _combining_classes() -> graph.CodePointTable:
  return graph.CodePointTable(wordpiece.SORTED_MARKS.items())


@functools.cache
def _num_written(rules: WordRules) -> graph.CodePointTable:
  """Returns a table of how many characters of words each character becomes, minus one; see `wordpiece.num_written`."""
  table = wordpiece.num_written(rules)
  return graph.CodePointTable((c, ord(table[c]) - 1) for c in graph.CODE_POINTS_WITH_PROPERTIES)


class WordPieceGraphTokenizer(graph.GraphTokenizer):
  """The graph tokenizer of a WordPiece vocabulary."""

  def __init__(self, config: TokenizerConfig):
    super().__init__(config)
    pieces, vocabulary = self.reference.pieces, self.reference.vocabulary
    assert isinstance(vocabulary, WordPieceVocabulary)
    self._rules = vocabulary.rules
    self._max_word_bytes = 4 * self._rules.max_chars
    self._wordpiece = tf_text.FastWordpieceTokenizer(
      vocab=pieces,
      suffix_indicator=CONTINUES_WORD,
      max_bytes_per_word=self._max_word_bytes,
      token_out_type=tf.int32,
      unknown_token=pieces[self.special_ids.unk],
      no_pretokenization=True,
    )
    # The characters that a piece stands for; 0 for [UNK], which stands for a whole word.
    self._lengths = np.array([len(piece.removeprefix(CONTINUES_WORD)) for piece in pieces], np.int32)
    self._lengths[self.special_ids.unk] = 0

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    words = self._split_words(graph.decode_utf8(texts))
    ids = self._wordpiece.tokenize(words.strings)  # [W, (T)]
    splits = tf.gather(ids.row_splits, words.splits)
    return tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)

  def tokenize_with_offsets(self, texts: tf.Tensor) -> graph.RaggedTokensWithOffsets:
    code_points = graph.decode_utf8(texts)
    words = self._split_words(code_points)
    ids = self._wordpiece.tokenize(words.strings)  # [W, (T)]
    lengths = tf.gather(tf.constant(self._lengths), ids.flat_values)
    lengths = tf.where(lengths == 0, tf.gather(words.lengths, tf.cast(ids.value_rowids(), tf.int32)), lengths)
    limits = tf.cumsum(lengths)
    starts, ends = self._character_ranges(code_points)
    splits = tf.gather(ids.row_splits, words.splits)
    batch = tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)
    token_starts, token_ends = tf.gather(starts, limits - lengths), tf.gather(ends, limits - 1)
    return graph.RaggedTokensWithOffsets(
      batch, batch.with_flat_values(token_starts), batch.with_flat_values(token_ends)
    )

  def _split_words(self, code_points: tf.RaggedTensor) -> _Words:
    """Cuts texts, code points [B, (characters)], into words as `wordpiece.split_words` does."""
    if self.config.convert_quotes:
      flat, is_second = code_points.flat_values, graph.second_quotes(code_points)
      is_first = tf.concat([is_second[1:], [False]], axis=0)[: tf.size(flat)]
      code_points = _keep(code_points.with_flat_values(tf.where(is_first, ord('"'), flat)), ~is_second)
    classes = _clean_classes()(code_points.flat_values)
    spaced = tf.where(classes == _SPACE, ord(" "), code_points.flat_values)
    code_points = _keep(code_points.with_flat_values(spaced), classes != _DROPPED)
    if self._rules.do_lower_case:
      code_points = graph.lower(code_points)
    split_indices, replacements = _splits(self._rules)
    code_points = replacements(code_points, split_indices(code_points.flat_values))
    if self._rules.strip_accents:
      code_points = code_points.with_flat_values(_sort_marks(code_points.flat_values))
    return self._find_words(code_points)

  def _find_words(self, code_points: tf.RaggedTensor) -> _Words:
    """Finds the words of texts, int32 [B, (characters)]: the characters between spaces."""
    flat, text_indices = code_points.flat_values, tf.cast(code_points.value_rowids(), tf.int32)
    is_space = tf.reduce_any([flat == space for space in _SPACES], axis=0)
    # Before each character, and at the end: how many words have begun.
    num_begun = graph.count_before(graph.begins_run(~is_space, text_indices[1:] == text_indices[:-1]))
    characters = tf.boolean_mask(flat, ~is_space)
    word_of_character = tf.boolean_mask(num_begun[1:] - 1, ~is_space)
    words = tf.RaggedTensor.from_value_rowids(characters, word_of_character, nrows=num_begun[-1], validate=False)
    lengths = tf.cast(words.row_lengths(), tf.int32)
    # A long word is not encoded: its bytes are not needed.
    too_long = "x" * (self._max_word_bytes + 1)
    strings = tf.where(lengths > self._rules.max_chars, too_long, tf.strings.unicode_encode(words, "UTF-8"))
    return _Words(strings, tf.gather(num_begun, code_points.row_splits), lengths)

  def _character_ranges(self, code_points: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the range of its text that each character of the words of texts stands for."""
    num_written = _num_written(self._rules)(code_points.flat_values) + 1
    if self.config.convert_quotes:
      num_written = tf.where(graph.second_quotes(code_points), 0, num_written)
    starts, ends, _ = graph.written_ranges(code_points, num_written)
    return starts, ends


def _keep(values: tf.RaggedTensor, is_kept: tf.Tensor) -> tf.RaggedTensor:
  """Keeps some values of rows."""
  splits = tf.gather(graph.count_before(is_kept), values.row_splits)
  return tf.RaggedTensor.from_row_splits(tf.boolean_mask(values.flat_values, is_kept), splits, validate=False)


def _sort_marks(code_points: tf.Tensor) -> tf.Tensor:
  """Sorts neighboring marks by their combining class, as the canonical decomposition does, int32 [C]."""
  classes = _combining_classes()(code_points)

  def sort() -> tf.Tensor:
    # A character of class 0 begins a group; the sort keeps the order of the groups, and of equal classes in a group.
    groups = tf.cumsum(tf.cast(classes == 0, tf.int64))
    return tf.gather(code_points, tf.argsort(groups * 256 + tf.cast(classes, tf.int64), stable=True))

  return tf.cond(tf.reduce_any(classes > 0), sort, lambda: tf.identity(code_points))
