"""Tokens with their positions in the original text, inside a TensorFlow graph: `albert.tokenization.offsets` as ops.

Shapes: B texts, T tokens, C characters of all texts, W words of all texts, N characters of all normalized texts that
SentencePiece writes: no spaces, and none that it drops.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import sentencepiece
import tensorflow as tf

from albert.errors import UserError
from albert.tokenization.graph import (
  CODE_POINTS_WITH_PROPERTIES,
  CodePointTable,
  GraphTokenizer,
  Replacements,
  decomposed,
)
from albert.tokenization.normalization import decompose
from albert.tokenization.tokenizer import UNK_ID, WORD_START

_SPACE, _DROPPED = 1, 2
_QUOTES = (ord("`"), ord("'"))


class RaggedTokensWithOffsets(NamedTuple):
  """The tokens of texts, without [CLS] and [SEP].

  Attributes:
    ids: int32 [B, (T)].
    starts, ends: int32 [B, (T)]; each token's characters in its text (in what unicode_transcode makes of it, where
      bytes that are no UTF-8 are one U+FFFD each). See `albert.tokenization.offsets.Tokens`.
  """

  ids: tf.RaggedTensor
  starts: tf.RaggedTensor
  ends: tf.RaggedTensor


class _Origins(NamedTuple):
  """What characters come from, int32 [N]: their start and their end in their text, and the text."""

  starts: tf.Tensor
  ends: tf.Tensor
  rows: tf.Tensor

  def of_tokens(self, first: tf.Tensor, lengths: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Start and end [T] in their text of tokens of `lengths` characters from `first` on, in the texts `rows`."""
    # With one that is of no text before the first and one behind the last.
    origins = _Origins(
      *(tf.concat([[none], values, [none]], axis=0) for values, none in zip(self, (0, 0, -1), strict=True))
    )
    of_text = tf.cast(rows, tf.int32)
    last = tf.minimum(first + lengths, tf.size(self.rows))
    ends = tf.where(tf.gather(origins.rows, last) == of_text, tf.gather(origins.ends, last), 0)
    first = tf.minimum(first + 1, tf.size(self.rows) + 1)
    starts = tf.where(tf.gather(origins.rows, first) == of_text, tf.gather(origins.starts, first), ends)
    return starts, ends


@functools.cache
def _num_decomposed() -> CodePointTable:
  """For each code point the characters it decomposes to, minus 1."""
  counts = ((c, len(decompose(c)) - 1) for c in CODE_POINTS_WITH_PROPERTIES)
  return CodePointTable.from_items((c, count) for c, count in counts if count)


@functools.cache
def _white_space() -> CodePointTable:
  """1 for white space."""
  return CodePointTable.from_items((c, 1) for c in range(0x10000) if chr(c).isspace())


@functools.lru_cache(maxsize=1)
def _unwritten(model: bytes) -> CodePointTable:
  """_SPACE for what this SentencePiece model writes as a space (besides the space ▁, and for most models U+200B and
  such), _DROPPED for what it drops (control characters)."""
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  between = [f"a{chr(c)}a" for c in CODE_POINTS_WITH_PROPERTIES]
  kinds = {processor.normalize("a a"): _SPACE, processor.normalize("aa"): _DROPPED}
  written = zip(CODE_POINTS_WITH_PROPERTIES, processor.normalize(between), strict=True)
  return CodePointTable.from_items((c, kinds[text]) for c, text in written if text in kinds)


class OffsetGraphTokenizer(GraphTokenizer):
  """A GraphTokenizer that also gives the positions of its tokens in the text.

  Raises:
    UserError: as GraphTokenizer; also for a vocabulary with pieces of several words.
  """

  def __init__(self, model_file: str, do_lower_case: bool = True, *, convert_quotes: bool = False):
    super().__init__(model_file, do_lower_case, convert_quotes=convert_quotes)
    if not self.reference.words_are_independent:
      raise UserError(
        f"{model_file}: has pieces of several words, whose positions in a text a graph cannot tell: train a vocabulary "
        "without them (data_prep/train_vocab.py)"
      )
    tokenizer = self.reference
    self._unwritten = _unwritten(tokenizer.exact_model)
    lengths = [len(piece) - piece.count(WORD_START) for piece in tokenizer.pieces]
    lengths[UNK_ID] = 1  # at least
    self._has_characters = np.array(lengths) > 0
    splits = [[lengths[i] for i in ids] for ids in tokenizer.comma_splits.values()]
    self._comma_starts = Replacements.from_rows([[0, *itertools.accumulate(row[:-1])] for row in splits])
    self._comma_lengths = Replacements.from_rows(splits)

  def tokenize_with_offsets(self, texts: tf.Tensor) -> RaggedTokensWithOffsets:
    """The tokens of texts [B]: ids as of `tokenize`, positions as of `OffsetTokenizer.encode_with_offsets`."""
    normalized = self._normalized(texts)
    shortened, is_kept = self._shortened(normalized)
    words = tf.strings.split(tf.strings.unicode_encode(shortened, "UTF-8"), sep=" ")  # [B, (words)]
    ids, begins, ends = self._sentencepiece.tokenize_with_offsets(words.flat_values)  # [W, (T)], bytes in the word
    first_bytes = tf.cumsum(tf.strings.length(words.flat_values), exclusive=True)  # [W], without spaces
    word_of = ids.value_rowids()
    code_points = tf.boolean_mask(shortened.flat_values, shortened.flat_values != ord(" "))
    character_bytes = tf.boolean_mask(_first_bytes(code_points), self._unwritten(code_points) == 0)
    is_written = (normalized.flat_values != ord(" ")) & (self._unwritten(normalized.flat_values) == 0)
    kept = tf.reshape(tf.where(tf.boolean_mask(is_kept, is_written)), [-1])
    # The character of all written ones that each of the shortened text is, and their number.
    character_of = tf.concat([tf.cast(kept, tf.int32), [tf.reduce_sum(tf.cast(is_written, tf.int32))]], axis=0)
    origins = self._origins(texts)

    def characters(places: tf.RaggedTensor) -> tf.Tensor:
      """Bytes in words -> characters of all normalized texts, spaces left out."""
      in_all = tf.gather(first_bytes, word_of) + tf.cast(places.flat_values, tf.int32)
      return tf.gather(character_of, tf.searchsorted(character_bytes, in_all))

    starts = characters(begins)
    # A character that SentencePiece writes as several may be cut; each part stands for all of it.
    least = tf.gather(tf.constant(self._has_characters.astype(np.int32)), ids.flat_values)
    lengths = tf.maximum(characters(ends) - starts, least)
    splits = tf.gather(ids.row_splits, words.row_splits)
    ids = tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)
    rows = tf.gather(tf.constant(self._comma_row), ids.flat_values)
    counts = tf.gather(tf.constant(self._comma_replacements.lengths), rows)
    inside = self._comma_starts(ids.with_flat_values(tf.zeros_like(ids.flat_values)), rows)
    starts = tf.repeat(starts, counts) + inside.flat_values
    lengths = self._comma_lengths(ids.with_flat_values(lengths), rows).flat_values
    ids = self._comma_replacements(ids, rows)
    return RaggedTokensWithOffsets(
      ids, *map(ids.with_flat_values, origins.of_tokens(starts, lengths, ids.value_rowids()))
    )

  def _origins(self, texts: tf.Tensor) -> _Origins:
    """What the characters that SentencePiece writes come from."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    ragged = tf.strings.unicode_decode(texts, "UTF-8")
    code_points = ragged.flat_values  # [C]
    rows = tf.cast(ragged.value_rowids(), tf.int32)
    places = tf.range(tf.size(code_points)) - tf.gather(tf.cast(ragged.row_starts(), tf.int32), rows)
    is_letter = tf.logical_not(_white_space()(code_points) > 0)
    same_row = rows[1:] == rows[:-1]
    begins_word = is_letter & tf.logical_not(_after(is_letter, same_row))
    ends_word = is_letter & tf.logical_not(_before(is_letter, same_row))
    word_starts = tf.boolean_mask(places, begins_word)  # [W]
    word_ends = tf.boolean_mask(places, ends_word) + 1
    words = tf.cumsum(tf.cast(begins_word, tf.int32)) - 1  # [C]
    counts = tf.where(is_letter, self._counts(code_points, same_row), 0)
    parts = self._unwritten(decomposed(tf.boolean_mask(code_points, counts > 0)))
    owners = tf.repeat(tf.range(tf.size(counts)), counts)
    counts, spaces = (
      tf.math.unsorted_segment_sum(tf.cast(parts == kind, tf.int32), owners, tf.size(counts)) for kind in (0, _SPACE)
    )
    # A dropped character belongs to the one before it in its word; at the word's edges all belong to their neighbour.
    is_kept = counts + spaces > 0
    rows, words, places, counts = (tf.boolean_mask(values, is_kept) for values in (rows, words, places, counts))
    ends = tf.concat([places[1:], [0]], axis=0)[: tf.size(places)]
    is_written = counts > 0
    rows, words, starts, ends, counts = (
      tf.boolean_mask(values, is_written) for values in (rows, words, places, ends, counts)
    )
    same_word = words[1:] == words[:-1]
    is_first = tf.logical_not(_after(tf.ones_like(words, tf.bool), same_word))
    is_last = tf.logical_not(_before(tf.ones_like(words, tf.bool), same_word))
    starts = tf.where(is_first, tf.gather(word_starts, words), starts)
    ends = tf.where(is_last, tf.gather(word_ends, words), ends)
    return _Origins(*(tf.repeat(values, counts) for values in (starts, ends, rows)))

  def _counts(self, code_points: tf.Tensor, same_row: tf.Tensor) -> tf.Tensor:
    """How many characters of the normalized text each one becomes, int32 [C]; of a pair of quotes the first does."""
    counts = _num_decomposed()(code_points) + 1
    if not self.config.convert_quotes:
      return counts
    places = tf.range(tf.size(code_points))
    same = (code_points[1:] == code_points[:-1]) & same_row
    begins_run = tf.logical_not(_after(tf.ones_like(code_points, tf.bool), same))
    runs = tf.cumsum(tf.cast(begins_run, tf.int32)) - 1
    inside = places - tf.gather(tf.boolean_mask(places, begins_run), runs)
    is_quote = (code_points == _QUOTES[0]) | (code_points == _QUOTES[1])
    return tf.where(is_quote & (inside % 2 == 1), 0, counts)


def _after(flags: tf.Tensor, same: tf.Tensor) -> tf.Tensor:
  """bool [C]: the flag of the one before, if it is of the same row; same bool [C - 1]."""
  return tf.concat([[False], flags[:-1] & same], axis=0)[: tf.size(flags)]


def _before(flags: tf.Tensor, same: tf.Tensor) -> tf.Tensor:
  """bool [C]: the flag of the one behind, if it is of the same row; same bool [C - 1]."""
  return tf.concat([flags[1:] & same, [False]], axis=0)[: tf.size(flags)]


def _first_bytes(code_points: tf.Tensor) -> tf.Tensor:
  """Where each character begins in UTF-8, int32 [N]."""
  sizes = 1 + sum(tf.cast(code_points >= least, tf.int32) for least in (0x80, 0x800, 0x10000))
  return tf.cumsum(sizes, exclusive=True)
