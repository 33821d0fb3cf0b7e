"""Tables of Unicode characters and replacements of values as TensorFlow ops.

Normalization uses TensorFlow's string ops and tables made from Python's Unicode data. TensorFlow's own normalization
ops are not used, because their Unicode version depends on the TensorFlow release. So the tokenizers in Python and in a
graph treat every character alike.

Legend: B texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

NUM_CODE_POINTS = 0x110000
_PAGE_SIZE = 128
# The planes whose characters may decompose or have a case, and the tags and variation selectors of plane 14.
CODE_POINTS_WITH_PROPERTIES = (*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE1000))
# The characters of `str.isspace`, as they are written between the brackets of a regular expression.
WHITE_SPACE = "".join(rf"\x{{{c:x}}}" for c in range(0x10000) if chr(c).isspace())


@dataclasses.dataclass(frozen=True)
class CodePointTable:
  """Maps code points to integers, most of them to 0.

  The value of code point c is pages[page_of[c // 128] * 128 + c % 128]. Equal pages are stored once.

  Attributes:
    page_of: int32 [number of code points / 128], index of the page of each block of 128 code points.
    pages: int32 [128 * number of different pages], the values of all pages, concatenated.
  """

  page_of: np.ndarray
  pages: np.ndarray

  @classmethod
  def from_items(cls, items: Iterable[tuple[int, int]]) -> CodePointTable:
    """Makes a table from pairs (code point, value)."""
    table = np.zeros(NUM_CODE_POINTS, np.int32)
    for code_point, value in items:
      table[code_point] = value
    return cls.from_array(table)

  @classmethod
  def from_array(cls, table: np.ndarray) -> CodePointTable:
    """Makes a table from the values of all 0x110000 code points, int32 [0x110000]."""
    pages, page_of = np.unique(table.reshape(-1, _PAGE_SIZE), axis=0, return_inverse=True)
    return cls(page_of.reshape(-1).astype(np.int32), pages.reshape(-1).astype(np.int32))

  def __call__(self, code_points: tf.Tensor) -> tf.Tensor:
    """Looks up code points, int32 of any shape."""
    page = tf.gather(tf.constant(self.page_of), code_points // _PAGE_SIZE)
    return tf.gather(tf.constant(self.pages), page * _PAGE_SIZE + code_points % _PAGE_SIZE)


@dataclasses.dataclass(frozen=True)
class Replacements:
  """Sequences of values that replace single values.

  Sequence r consists of targets[starts[r] : starts[r] + lengths[r]]. Sequence 0 stands for "keep the value".

  Attributes:
    targets: int32 [sum of lengths], the values of all sequences, concatenated.
    starts, lengths: int32 [number of sequences].
  """

  targets: np.ndarray
  starts: np.ndarray
  lengths: np.ndarray

  @classmethod
  def from_rows(cls, rows: Iterable[list[int]]) -> Replacements:
    """Makes replacements from the sequences 1, 2, ...; sequence 0 is added."""
    sequences = [[0], *rows]
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    targets = np.array([value for sequence in sequences for value in sequence], np.int32)
    return cls(targets, np.cumsum(lengths, dtype=np.int32) - lengths, lengths)

  def __call__(self, values: tf.RaggedTensor, sequence_indices: tf.Tensor) -> tf.RaggedTensor:
    """Replaces each value by a sequence.

    Args:
      values: int32 [B, (number of values)].
      sequence_indices: int32 [number of all values], the index of the sequence that replaces each value.

    Returns:
      int32 [B, (number of new values)].
    """
    flat = values.flat_values
    # The pool holds the targets, and then the values themselves. Each value becomes a range of the pool: the targets of
    # its sequence, or the value itself.
    pool = tf.concat([tf.constant(self.targets), flat], axis=0)
    own_position = tf.size(self.targets) + tf.range(tf.size(flat))
    starts = tf.where(sequence_indices == 0, own_position, tf.gather(tf.constant(self.starts), sequence_indices))
    indices = tf.ragged.range(starts, starts + tf.gather(tf.constant(self.lengths), sequence_indices))
    splits = tf.gather(indices.row_splits, values.row_splits)
    return tf.RaggedTensor.from_row_splits(tf.gather(pool, indices.flat_values), splits, validate=False)


def starts_with_space(texts: tf.Tensor) -> tf.Tensor:
  """Returns whether each text starts with whitespace, as `str.isspace` defines it.

  Args:
    texts: string [B], UTF-8.

  Returns:
    bool [B]; False for an empty text.
  """
  return tf.strings.regex_full_match(texts, f"(?s)[{WHITE_SPACE}].*")
