"""Byte-level BPE vocabularies as TensorFlow ops: the ids and offsets of `albert.tokenization.byte_bpe`.

Neither TensorFlow nor tensorflow-text has an operation for byte-level BPE, so the rules are written in ops of
TensorFlow alone. Words are found by tables of the classes of characters, because the regular expressions of TensorFlow
have no lookahead. A loop then applies the merges to all different words at once.

Legend: B texts, T tokens of a text (ragged), C characters of all texts, W words of all texts, U different words,
N pieces of all different words in a step of the loop, M merges, V pieces of the vocabulary.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.tokenization import graph
from albert.tokenization.byte_bpe import SPACE, ByteLevelBPEVocabulary, character_class
from albert.tokenization.vocabulary import TokenizerConfig

_NO_RANK = np.iinfo(np.int32).max
# The table of characters holds the class, and this bit for characters that the ranges of tokens leave out.
_LEFT_OUT = 4


@functools.cache
def _class_table() -> graph.CodePointTable:
  """Returns the classes of all characters."""
  characters = map(chr, range(graph.NUM_CODE_POINTS))
  classes = ((character, character_class(character)) for character in characters)
  return graph.CodePointTable((ord(c), value | _LEFT_OUT * c.isspace()) for c, value in classes)


class _Merges(NamedTuple):
  """The merges in the order of their keys, left * V + right. The last one is a placeholder that no pair has.

  Attributes:
    keys: int64 [M + 1].
    ranks: int32 [M + 1]; the merge of the lowest rank is applied first.
    merged: int32 [M + 1], the piece that the pair becomes.
    all_at_once: bool [M + 1], whether all pairs of a word may be merged at once, because no merge of a lower rank has
      the new piece. (If one does, it may have to be applied between two of them.)
  """

  keys: np.ndarray
  ranks: np.ndarray
  merged: np.ndarray
  all_at_once: np.ndarray

  @classmethod
  def of(cls, vocabulary: ByteLevelBPEVocabulary) -> _Merges:
    """Makes the arrays for a vocabulary."""
    size = len(vocabulary.pieces)
    left, right, merged = np.array([*vocabulary.merges, (size, 0, 0)], np.int64).T
    ranks = np.arange(len(left))
    first_use = np.full(size + 1, _NO_RANK, np.int64)  # the lowest rank of a merge that has a piece
    np.minimum.at(first_use, left, ranks)
    np.minimum.at(first_use, right[:-1], ranks[:-1])
    order = np.argsort(left * size + right)
    all_at_once = first_use[merged] > ranks
    return cls(
      (left * size + right)[order], ranks[order].astype(np.int32), merged[order].astype(np.int32), all_at_once[order]
    )


class ByteLevelBPEGraphTokenizer(graph.GraphTokenizer):
  """The graph tokenizer of a byte-level BPE vocabulary."""

  def __init__(self, config: TokenizerConfig):
    super().__init__(config)
    vocabulary = self.reference.vocabulary
    assert isinstance(vocabulary, ByteLevelBPEVocabulary)
    self._vocab_size = len(vocabulary.pieces)
    self._merges = _Merges.of(vocabulary)
    self._byte_ids = np.array(vocabulary.byte_ids, np.int32)
    self._lengths = np.array([len(data) for data in vocabulary.piece_bytes], np.int32)
    # Which bytes may be neighbors in a piece. No merge crosses other neighbors, so long words are cut there.
    self._may_be_joined = np.zeros(256 * 256, bool)
    pairs = {pair for data in vocabulary.piece_bytes for pair in itertools.pairwise(data)}
    self._may_be_joined[[first * 256 + second for first, second in pairs]] = True

  def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
    return self._tokenize(graph.decode_utf8(texts))

  def tokenize_with_offsets(self, texts: tf.Tensor) -> graph.RaggedTokensWithOffsets:
    code_points = graph.decode_utf8(texts)
    ids = self._tokenize(code_points)
    flat = code_points.flat_values
    lengths = tf.gather(tf.constant(self._lengths), ids.flat_values)  # in bytes
    token_ends = tf.cumsum(lengths)
    # Positions of all texts, one after the other: in bytes, then in characters.
    limits = tf.concat([[0], tf.cumsum(graph.utf8_sizes(flat))], axis=0)
    first = tf.searchsorted(limits, token_ends - lengths, side="right") - 1
    after_last = tf.searchsorted(limits, token_ends, side="left")
    # Whitespace at the ends is left out.
    kept = tf.cast(tf.reshape(tf.where(_class_table()(flat) < _LEFT_OUT), [-1]), tf.int32)
    text_indices = tf.cast(ids.value_rowids(), tf.int32)
    splits = tf.cast(code_points.row_splits, tf.int32)
    text_starts, text_ends = tf.gather(splits, text_indices), tf.gather(splits, text_indices + 1)
    next_kept = tf.gather(tf.concat([kept, [tf.size(flat)]], axis=0), tf.searchsorted(kept, first))
    kept_before = tf.gather(tf.concat([[-1], kept], axis=0), tf.searchsorted(kept, after_last))
    starts = tf.minimum(next_kept, text_ends) - text_starts
    ends = tf.maximum(kept_before + 1, text_starts) - text_starts
    return graph.RaggedTokensWithOffsets(ids, ids.with_flat_values(starts), ids.with_flat_values(ends))

  def _tokenize(self, code_points: tf.RaggedTensor) -> tf.RaggedTensor:
    """Converts texts, given as code points [B, (characters)], to ids, int32 [B, (T)]."""
    num_begun = graph.count_before(_find_words(code_points))
    words = tf.RaggedTensor.from_value_rowids(
      code_points.flat_values, num_begun[1:] - 1, nrows=num_begun[-1], validate=False
    )
    strings, word_indices = tf.unique(tf.strings.unicode_encode(words, "UTF-8"))
    ids = tf.gather(self._cut_words(strings), word_indices)  # [W, (T)]
    splits = tf.gather(ids.row_splits, tf.gather(num_begun, code_points.row_splits))
    return tf.RaggedTensor.from_row_splits(ids.flat_values, splits, validate=False)

  def _cut_words(self, words: tf.Tensor) -> tf.RaggedTensor:
    """Converts words, string [U], to the ids of their pieces, int32 [U, (T)]."""
    word_bytes = tf.cast(tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8), tf.int32)
    word_indices = tf.repeat(tf.range(tf.size(words)), tf.strings.length(words))
    may_be_joined = tf.gather(tf.constant(self._may_be_joined), word_bytes[:-1] * 256 + word_bytes[1:])
    same_word = word_indices[1:] == word_indices[:-1]
    starts_part = graph.begins_run(tf.ones_like(word_bytes, tf.bool), may_be_joined & same_word)
    parts = tf.cumsum(tf.cast(starts_part, tf.int32)) - 1
    num_parts = tf.reduce_sum(tf.cast(starts_part, tf.int32))
    merges = _Merges(*map(tf.constant, self._merges))  # outside of the loop, so that the graph holds them once

    def look_up(ids: tf.Tensor, parts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
      """Returns the rank of each piece with the next one, int32 [N - 1], and its index in the merges."""
      keys = tf.cast(ids[:-1], tf.int64) * self._vocab_size + tf.cast(ids[1:], tf.int64)
      indices = tf.searchsorted(merges.keys, keys)
      is_merge = (tf.gather(merges.keys, indices) == keys) & (parts[:-1] == parts[1:])
      return tf.where(is_merge, tf.gather(merges.ranks, indices), _NO_RANK), indices

    def merge(
      ids: tf.Tensor, parts: tf.Tensor, word_indices: tf.Tensor, ranks: tf.Tensor, indices: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
      """Merges the pairs of the lowest rank in each part."""
      lowest = tf.gather(tf.math.unsorted_segment_min(ranks, parts[:-1], num_parts), parts[:-1])
      is_lowest = (ranks == lowest) & (ranks != _NO_RANK)
      # The first such pair of each part; or the first, third, ... of each run of them, where all may be merged at once.
      positions = tf.range(tf.size(ranks))
      first = tf.math.unsorted_segment_min(tf.where(is_lowest, positions, _NO_RANK), parts[:-1], num_parts)
      is_first = positions == tf.gather(first, parts[:-1])
      is_even = graph.index_in_run(is_lowest & ~graph.shift(is_lowest, 1, False)) % 2 == 0
      is_merged = is_lowest & (is_first | (tf.gather(merges.all_at_once, indices) & is_even))
      ids = tf.concat([tf.where(is_merged, tf.gather(merges.merged, indices), ids[:-1]), ids[-1:]], axis=0)
      is_kept = tf.concat([[True], ~is_merged], axis=0)
      ids, parts, word_indices = (tf.boolean_mask(values, is_kept) for values in (ids, parts, word_indices))
      return ids, parts, word_indices, *look_up(ids, parts)

    ids = tf.gather(tf.constant(self._byte_ids), word_bytes)
    ids, _, word_indices, _, _ = tf.while_loop(
      lambda ids, parts, word_indices, ranks, indices: tf.reduce_any(ranks != _NO_RANK),
      merge,
      (ids, parts, word_indices, *look_up(ids, parts)),
      shape_invariants=(tf.TensorShape([None]),) * 5,
    )
    return tf.RaggedTensor.from_value_rowids(
      ids, tf.cast(word_indices, tf.int64), nrows=tf.size(words, tf.int64), validate=False
    )


def _find_words(code_points: tf.RaggedTensor) -> tf.Tensor:
  """Returns which characters start a word, bool [C], of code points, int32 [B, (characters)], see `split_words`."""
  flat, texts = code_points.flat_values, tf.cast(code_points.value_rowids(), tf.int32)
  classes = _class_table()(flat) % _LEFT_OUT
  is_space = classes == SPACE
  is_inside = graph.shift(texts, 1, -1) == texts  # not the first character of a text
  follows_space, follows_blank = graph.shift(is_space, 1, False), graph.shift(flat, 1, 0) == ord(" ")
  # The last one of several spaces belongs to the next word if it is a blank, and is a word of its own if not.
  is_last_space = (graph.shift(texts, -1, -1) == texts) & ~graph.shift(is_space, -1, True)
  starts_after_space = tf.where(is_space, is_last_space, ~follows_blank)
  starts = ~is_inside | tf.where(follows_space, starts_after_space, graph.shift(classes, 1, -1) != classes)
  # Contractions: ' at the start of a word, and one or two letters.
  following = [tf.where(graph.shift(texts, -n, -1) == texts, graph.shift(flat, -n, 0), 0) for n in (1, 2)]
  begins = starts & (flat == ord("'"))
  is_short = begins & tf.reduce_any([following[0] == ord(letter) for letter in "stmd"], axis=0)
  pairs = [(following[0] == ord(a)) & (following[1] == ord(b)) for a, b in ("re", "ve", "ll")]
  is_long = begins & tf.reduce_any(pairs, axis=0)
  is_inside_contraction = graph.shift(is_short | is_long, 1, False) | graph.shift(is_long, 2, False)
  follows_contraction = graph.shift(is_short, 2, False) | graph.shift(is_long, 3, False)
  return (starts & ~is_inside_contraction) | follows_contraction
