"""Cuts texts into words with TensorFlow ops, as `albert.tokenization.words` does in Python.

Legend: B texts, W words of all texts, C characters of all texts.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf

from albert.tokenization import words as word_rules
from albert.tokenization.graph import NUM_CODE_POINTS, CodePointTable, begins_run, decode_utf8, find_runs, shift
from albert.tokenization.words import COMBINING, MARK, SPACE, UNSPACED


class RaggedWords(NamedTuple):
  """The words of B texts.

  Attributes:
    words: string [B, (words)].
    starts, ends: int32 [B, (words)], the range of each word in its text, in characters. Bytes that are not UTF-8 count
      as the U+FFFD that `tf.strings.unicode_transcode` replaces them by.
    code_points: int32 [B, (characters)], the texts.
  """

  words: tf.RaggedTensor
  starts: tf.RaggedTensor
  ends: tf.RaggedTensor
  code_points: tf.RaggedTensor

  def spaced(self) -> tf.Tensor:
    """Returns the words of all texts, string [W], each with a space before it if there is whitespace between it and the
    word before it in its text, as `albert.tasks.tagging.files.TaggedText.spaced_words` does.
    """
    rows = self.words.value_rowids()
    is_apart = self.starts.flat_values > shift(self.ends.flat_values, 1, 0)
    is_apart &= shift(rows, 1, -1) == rows
    return tf.strings.join([tf.where(is_apart, " ", ""), self.words.flat_values])

  def texts_of(self, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns parts of the texts.

    Args:
      rows, starts, ends: int32 [N], the index of the text, and the range in it, in characters.
    Returns: string [N].
    """
    first = tf.gather(tf.cast(self.code_points.row_starts(), tf.int32), rows)
    indices = tf.ragged.range(first + starts, first + ends)
    return tf.strings.unicode_encode(
      indices.with_flat_values(tf.gather(self.code_points.flat_values, indices.flat_values)), "UTF-8"
    )


@functools.cache
def _class_table() -> CodePointTable:
  """Returns the classes of all characters."""
  return CodePointTable((c, word_rules.character_class(chr(c))) for c in range(NUM_CODE_POINTS))


def split_words(texts: tf.Tensor, rule: str) -> RaggedWords:
  """Cuts texts into words.

  Args:
    texts: string [B].
    rule: "punctuation" or "whitespace", see `albert.tokenization.words`.
  """
  code_points = decode_utf8(texts)
  flat = code_points.flat_values  # [C]
  rows = tf.cast(code_points.value_rowids(), tf.int32)
  classes = _class_table()(flat)
  is_in_chunk = classes != SPACE
  same_text = rows[1:] == rows[:-1]
  begins_word = begins_run(is_in_chunk, same_text)
  if rule == word_rules.PUNCTUATION:
    begins_word = _begin_words(classes, is_in_chunk, begins_word)
  # The words cover all characters but whitespace. Each ends where the next one of its chunk begins, or with the chunk.
  _, starts, ends = find_runs(is_in_chunk, same_text & ~begins_word[1:])  # [W]
  word_rows = tf.gather(rows, starts)
  first = tf.gather(tf.cast(code_points.row_starts(), tf.int32), word_rows)
  characters = tf.ragged.range(starts, ends)
  words = tf.strings.unicode_encode(characters.with_flat_values(tf.gather(flat, characters.flat_values)), "UTF-8")

  def by_text(values: tf.Tensor) -> tf.RaggedTensor:
    num_texts = tf.cast(tf.size(texts), tf.int64)
    return tf.RaggedTensor.from_value_rowids(values, tf.cast(word_rows, tf.int64), num_texts, validate=False)

  return RaggedWords(by_text(words), by_text(starts - first), by_text(ends - first), code_points)


def _begin_words(classes: tf.Tensor, is_in_chunk: tf.Tensor, begins_chunk: tf.Tensor) -> tf.Tensor:
  """Returns which characters begin a word by the rule "punctuation", bool [C].

  Args:
    classes: int32 [C].
    is_in_chunk: bool [C], whether the character is no whitespace.
    begins_chunk: bool [C], whether it is the first one of a chunk.
  """
  # A word may not begin with a combining character, unless it is the first one of a chunk.
  is_base = is_in_chunk & ((classes != COMBINING) | begins_chunk)
  base_classes = tf.boolean_mask(classes, is_base)
  is_first = tf.boolean_mask(begins_chunk, is_base)
  # A part of a chunk is a character that is written without spaces, or what lies between two of them.
  is_unspaced = base_classes == UNSPACED
  begins_part = is_first | is_unspaced | shift(is_unspaced, 1, False)
  parts = tf.cumsum(tf.cast(begins_part, tf.int32)) - 1
  is_other = tf.cast(base_classes != MARK, tf.int32)
  num_until = tf.cumsum(is_other)  # of all texts, with this character
  num_before = num_until - is_other
  # The same numbers at the start and at the end of each part.
  at_start = tf.boolean_mask(num_before, begins_part)
  at_end = at_start + tf.math.unsorted_segment_sum(is_other, parts, tf.size(at_start))
  is_leading = num_until == tf.gather(at_start, parts)
  is_trailing = num_before == tf.gather(at_end, parts)
  is_single = is_unspaced | is_leading | is_trailing
  begins = is_first | is_single | shift(is_single, 1, False)
  word_positions = tf.boolean_mask(tf.where(is_base), begins)
  ones = tf.ones_like(word_positions[:, 0], tf.int32)
  return tf.scatter_nd(word_positions, ones, tf.shape(classes, tf.int64)) > 0
