"""Tables of Unicode characters and replacements of values as TensorFlow ops.

Normalization uses TensorFlow's string ops and tables made from Python's Unicode data. TensorFlow's own normalization
ops are not used, because their Unicode version depends on the TensorFlow release. So the tokenizers in Python and in a
graph treat every character alike.

Legend: B texts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from albert.tokenization.normalization import has_newer_characters

NUM_CODE_POINTS = 0x110000
_PAGE_SIZE = 128
# The planes whose characters may decompose or have a case, and the tags and variation selectors of plane 14.
CODE_POINTS_WITH_PROPERTIES = (*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE1000))
_SIGMA, _FINAL_SIGMA = 0x3A3, 0x3C2
_UNCASED, _CASED, _CASE_IGNORABLE = 0, 1, 2  # classes of characters for the final sigma, see _case_class
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


def replacement_tables(texts: Mapping[int, str]) -> tuple[CodePointTable, Replacements]:
  """Makes the tables of characters, given as code points, and the texts that replace them.

  Returns:
    The index of each code point's text in the replacements (0 if it stays the same), and the replacements.
  """
  index_of: dict[str, int] = {}
  items = [(c, index_of.setdefault(text, len(index_of) + 1)) for c, text in texts.items() if text != chr(c)]
  return CodePointTable.from_items(items), Replacements.from_rows([list(map(ord, text)) for text in index_of])


def starts_with_space(texts: tf.Tensor) -> tf.Tensor:
  """Returns whether each text starts with whitespace, as `str.isspace` defines it.

  Args:
    texts: string [B], UTF-8.

  Returns:
    bool [B]; False for an empty text.
  """
  return tf.strings.regex_full_match(texts, f"(?s)[{WHITE_SPACE}].*")


def _case_class(character: str) -> int:
  """Returns the class of a character in Unicode's Final_Sigma rule, which `str.lower` implements.

  Σ becomes ς if, leaving out case-ignorable characters, the character before it is cased and the one after it is not.
  """
  if has_newer_characters(character):
    return _UNCASED
  if f"{character}Σ".lower()[-1] == "ς":
    return _CASED
  return _CASE_IGNORABLE if f"A{character}Σ".lower()[-1] == "ς" else _UNCASED


@functools.cache
def _cases() -> tuple[CodePointTable, CodePointTable]:
  """Returns two tables of all code points: the lower-case code point minus the code point, and the `_case_class`."""
  characters = [chr(c) for c in CODE_POINTS_WITH_PROPERTIES]
  lower_cases = ((c, c.lower()) for c in characters if not has_newer_characters(c))
  # Only İ has a lower case of two characters. It cannot occur here: it has been replaced.
  deltas = ((ord(c), ord(lower) - ord(c)) for c, lower in lower_cases if lower != c and len(lower) == 1)
  classes = ((ord(c), _case_class(c)) for c in characters)
  return CodePointTable.from_items(deltas), CodePointTable.from_items(classes)


def lower(code_points: tf.RaggedTensor) -> tf.RaggedTensor:
  """Lower-cases texts, given as code points [B, (characters)]. Σ at the end of a word becomes ς."""
  delta_of, class_of = _cases()
  flat = code_points.flat_values  # [C]
  classes = class_of(flat)
  # A Σ is at the end of a word if a cased character is before it and none after it. Case-ignorable characters do not
  # count, so they are left out here.
  positions = tf.reshape(tf.where(classes != _CASE_IGNORABLE), [-1])
  text_indices = tf.gather(code_points.value_rowids(), positions)
  is_cased = tf.gather(classes, positions) == _CASED
  same_text = text_indices[1:] == text_indices[:-1]
  # Cut to the number of positions, because concat returns one value even if there are none.
  after_cased = tf.concat([[False], is_cased[:-1] & same_text], axis=0)[: tf.size(positions)]
  before_cased = tf.concat([is_cased[1:] & same_text, [False]], axis=0)[: tf.size(positions)]
  is_final = (tf.gather(flat, positions) == _SIGMA) & after_cased & ~before_cased
  final_positions = tf.boolean_mask(positions, is_final)
  lowered = tf.tensor_scatter_nd_update(
    flat + delta_of(flat), final_positions[:, tf.newaxis], tf.fill(tf.shape(final_positions), _FINAL_SIGMA)
  )
  return code_points.with_flat_values(lowered)
