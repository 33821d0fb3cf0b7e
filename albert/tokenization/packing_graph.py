"""Sequences `[CLS] a [SEP] b [SEP]` of ids, cut and padded with TensorFlow ops.

`albert.tokenization.packing` makes the same sequences with NumPy.

Legend: B texts, T tokens of a text (ragged), S max_length.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from albert.tokenization.packing import text_budget
from albert.tokenization.vocabulary import SpecialIds


def first_tokens(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
  """Cuts each row to its first ids.

  Args:
    ids: integers [B, (T)].
    lengths: integers [B] or a scalar, the largest number of ids to keep.
  """
  starts = tf.cast(ids.row_starts(), lengths.dtype)
  return _select_ranges(ids, starts, starts + _num_kept(ids, lengths))


def last_tokens(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
  """Cuts each row to its last ids.

  Args:
    ids: integers [B, (T)].
    lengths: integers [B] or a scalar, the largest number of ids to keep.
  """
  limits = tf.cast(ids.row_limits(), lengths.dtype)
  return _select_ranges(ids, limits - _num_kept(ids, lengths), limits)


def _num_kept(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.Tensor:
  """Returns the number of ids that each row keeps, [B]."""
  return tf.minimum(tf.cast(ids.row_lengths(), lengths.dtype), lengths)


def _select_ranges(ids: tf.RaggedTensor, starts: tf.Tensor, limits: tf.Tensor) -> tf.RaggedTensor:
  """Returns new rows of ids: row b is ids.flat_values[starts[b] : limits[b]]."""
  indices = tf.ragged.range(starts, limits)
  return indices.with_flat_values(tf.gather(ids.flat_values, indices.flat_values))


def _pack(segments: list[tf.RaggedTensor], max_length: int, special_ids: SpecialIds) -> dict[str, tf.Tensor]:
  """Makes sequences `[CLS] segment [SEP] segment [SEP] ...`, padded to [B, S]. The segments must be short enough."""
  column = tf.ones_like(segments[0].row_lengths(), tf.int32)[:, tf.newaxis]  # [B, 1]
  ids: list[Any] = [column * special_ids.cls]
  segment_ids: list[Any] = [column * 0]
  for index, segment in enumerate(segments):
    ids += [tf.cast(segment, tf.int32), column * special_ids.sep]
    segment_ids += [tf.zeros_like(segment, tf.int32) + index, column * index]
  packed = tf.concat(ids, axis=1)

  def pad(values: tf.RaggedTensor, padding: int) -> tf.Tensor:
    return values.to_tensor(padding, shape=[None, max_length])

  return {
    "input_ids": pad(packed, special_ids.pad),
    "input_mask": pad(tf.ones_like(packed), 0),
    "segment_ids": pad(tf.concat(segment_ids, axis=1), 0),
  }


def pack_single(ids: tf.RaggedTensor, max_length: int, special_ids: SpecialIds) -> dict[str, tf.Tensor]:
  """Makes the model inputs `[CLS] text [SEP]`. The end of a text that is too long is cut off.

  Args:
    ids: integers [B, (T)], the ids of the texts.
    max_length: S.
    special_ids: the ids of [CLS], [SEP] and padding.

  Returns:
    input_ids, input_mask (1 for tokens, 0 for padding) and segment_ids (all 0), int32 [B, S].

  Raises:
    UserError: max_length leaves no room for a text.
  """
  budget = tf.constant(text_budget(max_length, 1), tf.int64)
  return _pack([first_tokens(ids, budget)], max_length, special_ids)


def pack_pair(
  ids_a: tf.RaggedTensor, ids_b: tf.RaggedTensor, max_length: int, special_ids: SpecialIds
) -> dict[str, tf.Tensor]:
  """Makes the model inputs `[CLS] a [SEP] b [SEP]`.

  While a sequence is too long, the last token of the longer text is removed; of b if both are equally long.

  Args:
    ids_a, ids_b: integers [B, (T)], the ids of the first and the second texts.
    max_length: S.
    special_ids: the ids of [CLS], [SEP] and padding.

  Returns:
    input_ids, input_mask (1 for tokens, 0 for padding) and segment_ids, int32 [B, S]. Segment ids are 0 up to and
    including the first [SEP], 1 up to and including the second one, and 0 for padding.

  Raises:
    UserError: max_length leaves no room for two texts.
  """
  budget = text_budget(max_length, 2)
  length_a, length_b = ids_a.row_lengths(), ids_b.row_lengths()
  # As in albert.tokenization.packing.pack_pair, which explains this formula.
  kept_a = tf.minimum(length_a, tf.maximum(budget - length_b, (budget + 1) // 2))
  kept_b = tf.minimum(length_b, budget - kept_a)
  return _pack([first_tokens(ids_a, kept_a), first_tokens(ids_b, kept_b)], max_length, special_ids)
