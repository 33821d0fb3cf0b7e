"""Cuts long contexts into overlapping windows in the graph, as `albert.tasks.squad.features` does it in Python."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from albert.export.network.token_layout import TokenBatch
from albert.tokenization.graph_offsets import RaggedTokensWithOffsets
from albert.tokenization.graph_packing import first_tokens
from albert.tokenization.tokenizer import CLS_ID, SEP_ID

# B examples, W windows of all examples, S tokens of the longest window, T tokens of all contexts.

# [CLS] question [SEP] part of the context [SEP]
_NUM_SPECIAL = 3


class WindowPositions(NamedTuple):
  """Where answers may be, and the character offsets of the tokens. All tensors have the shape [W, S].

  Attributes:
    is_answer: bool, whether the token belongs to the context, so that an answer may contain it.
    is_start: bool, whether an answer may start at this token: of all windows that contain the token, this one shows
      the most context around it.
    begins, ends: int32, character offsets of the token in its context.
  """

  is_answer: tf.Tensor
  is_start: tf.Tensor
  begins: tf.Tensor
  ends: tf.Tensor

  def rows(self, begin: tf.Tensor, end: tf.Tensor, length: tf.Tensor) -> WindowPositions:
    """The windows from `begin` to `end`, cut to `length` tokens."""
    return WindowPositions(*(values[begin:end, :length] for values in self))


class ContextWindows(NamedTuple):
  """The windows of all examples, in order.

  Attributes:
    tokens: ids, int32 [W, S].
    positions: where answers may be, [W, S].
    example: index of the example that each window belongs to, int32 [W].
  """

  tokens: TokenBatch
  positions: WindowPositions
  example: tf.Tensor


def make_windows(
  question: tf.RaggedTensor,
  context: RaggedTokensWithOffsets,
  *,
  max_seq_length: int,
  max_query_length: int,
  doc_stride: int,
) -> ContextWindows:
  """Makes the windows of questions and contexts, at least one for each example.

  Args:
    question: ids, int32 [B, (tokens)].
    context: ids with their character offsets.
    max_seq_length, max_query_length, doc_stride: as in `albert.tasks.squad.features.SquadFeaturizer`.
  """
  question = first_tokens(question, tf.constant(max_query_length, tf.int64))
  question_lengths, context_lengths = (
    tf.cast(values.row_lengths(), tf.int32) for values in (question, context.ids)
  )  # [B]
  room = max_seq_length - question_lengths - _NUM_SPECIAL  # tokens of the context that fit in a window
  step = tf.minimum(room, doc_stride)
  excess = tf.maximum(context_lengths - room + step - 1, 0)
  count = 1 + excess // step * tf.cast(context_lengths > room, tf.int32)  # number of windows, [B]
  example = tf.repeat(tf.range(tf.size(count)), count)  # [W]
  start = tf.ragged.range(count).flat_values * tf.gather(
    step, example
  )  # first token of each window's part of the context
  size = tf.minimum(tf.gather(context_lengths, example) - start, tf.gather(room, example))
  offset = tf.gather(question_lengths, example) + 2  # where the part of the context begins in its window
  length = offset + size + 1
  columns = tf.range(tf.reduce_max(tf.concat([length, [1]], axis=0)))[tf.newaxis, :]  # [1, S]
  offset, length = offset[:, tf.newaxis], length[:, tf.newaxis]
  is_answer = (columns >= offset) & (columns < length - 1)
  in_question = tf.gather(_row_starts(question), example)[:, tf.newaxis] + columns - 1
  in_context = (tf.gather(_row_starts(context.ids), example) + start)[:, tf.newaxis] + columns - offset
  ids = tf.where(
    is_answer, _gather_clipped(context.ids.flat_values, in_context), _gather_clipped(question.flat_values, in_question)
  )
  ids = tf.where((columns == offset - 1) | (columns == length - 1), SEP_ID, ids)
  ids = tf.where(columns == 0, CLS_ID, ids)
  mask = tf.cast(columns < length, tf.int32)
  segments = tf.cast(columns >= offset, tf.int32) * mask
  is_start = is_answer & _has_most_context(in_context, columns - offset, size[:, tf.newaxis], is_answer)
  begins, ends = (
    tf.where(is_answer, _gather_clipped(v.flat_values, in_context), 0) for v in (context.starts, context.ends)
  )
  return ContextWindows(
    TokenBatch(ids * mask, mask, segments), WindowPositions(is_answer, is_start, begins, ends), example
  )


def _has_most_context(in_context: tf.Tensor, before: tf.Tensor, size: tf.Tensor, is_answer: tf.Tensor) -> tf.Tensor:
  """Whether a window shows the most context around a token, compared with the other windows that contain the token.

  It computes the same float64 scores, bit for bit, as `albert.tasks.squad.features.max_context_windows`.

  Args:
    in_context: index of each token among the tokens of all contexts, int32 [W, S].
    before: number of context tokens before it in its window, int32 [W, S].
    size: number of context tokens in the window, int32 [W, 1].
    is_answer: whether it is a token of the context, bool [W, S].
  Returns: bool [W, S].
  """
  windows = tf.zeros_like(in_context) + tf.range(tf.shape(in_context)[0])[:, tf.newaxis]
  after = size - 1 - before
  scores = tf.cast(tf.minimum(before, after), tf.float64) + 0.01 * tf.cast(size, tf.float64)
  token, window, score = (tf.boolean_mask(values, is_answer) for values in (in_context, windows, scores))
  num_tokens = tf.reduce_max(tf.concat([token, [-1]], axis=0)) + 1
  best = tf.math.unsorted_segment_max(score, token, num_tokens)
  candidates = tf.where(score == tf.gather(best, token), window, tf.shape(in_context)[0])
  first = tf.math.unsorted_segment_min(candidates, token, num_tokens)  # the first of the best windows
  return _gather_clipped(first, in_context) == windows


def _row_starts(values: tf.RaggedTensor) -> tf.Tensor:
  return tf.cast(values.row_starts(), tf.int32)


def _gather_clipped(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
  """values[indices]; the result is arbitrary where an index is out of range."""
  return tf.gather(tf.concat([values, [0]], axis=0), tf.clip_by_value(indices, 0, tf.size(values)))
