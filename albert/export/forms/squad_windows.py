"""Overlapping windows of long contexts, cut in the graph as `albert.tasks.squad.features` cuts them in Python."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from albert.export.network.token_layout import TokenBatch
from albert.tokenization.graph import first_tokens
from albert.tokenization.graph_offsets import RaggedTokensWithOffsets
from albert.tokenization.tokenizer import CLS_ID, SEP_ID

# B examples, W windows of all examples, S tokens of the longest, T tokens of all contexts.

# [CLS] question [SEP] part of the context [SEP]
_NUM_SPECIAL = 3


class WindowPositions(NamedTuple):
  """What the tokens of windows are, [W, S] each.

  Attributes:
    is_answer: bool, true for tokens of the context, where answers may be.
    is_start: bool, true for those of them that no other window shows more around of: an answer counts where it starts
      on one.
    begins, ends: int32, the token's characters in its context.
  """

  is_answer: tf.Tensor
  is_start: tf.Tensor
  begins: tf.Tensor
  ends: tf.Tensor

  def rows(self, begin: tf.Tensor, end: tf.Tensor, length: tf.Tensor) -> WindowPositions:
    """Some windows, cut to `length` tokens."""
    return WindowPositions(*(values[begin:end, :length] for values in self))


class ContextWindows(NamedTuple):
  """The windows of all examples, in order: tokens [W, S], places [W, S], and the example int32 [W] of each."""

  tokens: TokenBatch
  places: WindowPositions
  example: tf.Tensor


def make_windows(
  question: tf.RaggedTensor,
  context: RaggedTokensWithOffsets,
  *,
  max_seq_length: int,
  max_query_length: int,
  doc_stride: int,
) -> ContextWindows:
  """Windows of questions [B, (tokens)] and contexts; at least one for each example.

  Args:
    question: ids, int32.
    context: ids with their places.
    max_seq_length, max_query_length, doc_stride: as of SquadFeaturizer.
  """
  question = first_tokens(question, tf.constant(max_query_length, tf.int64))
  asked, told = (tf.cast(values.row_lengths(), tf.int32) for values in (question, context.ids))  # [B]
  room = max_seq_length - asked - _NUM_SPECIAL
  step = tf.minimum(room, doc_stride)
  count = 1 + tf.maximum(told - room + step - 1, 0) // step * tf.cast(told > room, tf.int32)
  example = tf.repeat(tf.range(tf.size(count)), count)  # [W]
  start = tf.ragged.range(count).flat_values * tf.gather(step, example)  # of each window in its context
  size = tf.minimum(tf.gather(told, example) - start, tf.gather(room, example))
  offset = tf.gather(asked, example) + 2  # of the context's part in its window
  length = offset + size + 1
  columns = tf.range(tf.reduce_max(tf.concat([length, [1]], axis=0)))[tf.newaxis, :]  # [1, S]
  offset, length = offset[:, tf.newaxis], length[:, tf.newaxis]
  is_answer = (columns >= offset) & (columns < length - 1)
  in_question = tf.gather(_row_starts(question), example)[:, tf.newaxis] + columns - 1
  in_context = (tf.gather(_row_starts(context.ids), example) + start)[:, tf.newaxis] + columns - offset
  ids = tf.where(is_answer, _at(context.ids.flat_values, in_context), _at(question.flat_values, in_question))
  ids = tf.where((columns == offset - 1) | (columns == length - 1), SEP_ID, ids)
  ids = tf.where(columns == 0, CLS_ID, ids)
  mask = tf.cast(columns < length, tf.int32)
  segments = tf.cast(columns >= offset, tf.int32) * mask
  is_start = is_answer & _has_most_context(in_context, columns - offset, size[:, tf.newaxis], is_answer)
  begins, ends = (tf.where(is_answer, _at(v.flat_values, in_context), 0) for v in (context.starts, context.ends))
  return ContextWindows(
    TokenBatch(ids * mask, mask, segments), WindowPositions(is_answer, is_start, begins, ends), example
  )


def _has_most_context(in_context: tf.Tensor, before: tf.Tensor, size: tf.Tensor, is_answer: tf.Tensor) -> tf.Tensor:
  """bool [W, S]: see squad_features.max_context_windows, of whose float64 numbers these are the bits.

  in_context: the token's place among the tokens of all contexts; before: tokens of its window's part before it.
  """
  windows = tf.zeros_like(in_context) + tf.range(tf.shape(in_context)[0])[:, tf.newaxis]
  after = size - 1 - before
  scores = tf.cast(tf.minimum(before, after), tf.float64) + 0.01 * tf.cast(size, tf.float64)
  places = tf.boolean_mask(in_context, is_answer)
  of_windows, of_scores = (tf.boolean_mask(values, is_answer) for values in (windows, scores))
  num_places = tf.reduce_max(tf.concat([places, [-1]], axis=0)) + 1
  best = tf.math.unsorted_segment_max(of_scores, places, num_places)
  candidates = tf.where(of_scores == tf.gather(best, places), of_windows, tf.shape(in_context)[0])
  first = tf.math.unsorted_segment_min(candidates, places, num_places)
  return _at(first, in_context) == windows


def _row_starts(values: tf.RaggedTensor) -> tf.Tensor:
  return tf.cast(values.row_starts(), tf.int32)


def _at(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
  """values[places]; at places that are none any number."""
  return tf.gather(tf.concat([values, [0]], axis=0), tf.clip_by_value(places, 0, tf.size(values)))
