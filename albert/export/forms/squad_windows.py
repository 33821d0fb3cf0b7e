"""Cuts long contexts into overlapping windows in the graph, as `albert.tasks.squad.features` does in Python."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from albert.export.forms.windows import cut_contexts, gather_clipped, has_most_context, row_starts
from albert.export.network.token_layout import TokenBatch
from albert.tokenization.in_graph.base import RaggedTokensWithOffsets
from albert.tokenization.in_graph.graph_packing import first_tokens
from albert.tokenization.pieces import SpecialIds

# B examples, W windows of all examples, S tokens of the longest window.

_NUM_SPECIAL_TOKENS = 3  # a window is [CLS] question [SEP] part of the context [SEP]


class WindowPositions(NamedTuple):
  """Where answers may be, and the character offsets of the tokens. All tensors have the shape [W, S].

  Attributes:
    is_context: bool, whether the token belongs to the context, so that an answer may contain it.
    may_start: bool, whether an answer may start at this token. Windows overlap; an answer may start at a token only in
      the window that shows the most context around it.
    char_starts, char_ends: int32, character offsets of the token in its context.
  """

  is_context: tf.Tensor
  may_start: tf.Tensor
  char_starts: tf.Tensor
  char_ends: tf.Tensor

  def rows(self, begin: tf.Tensor, end: tf.Tensor, length: tf.Tensor) -> WindowPositions:
    """The windows from `begin` to `end`, cut to `length` tokens."""
    return WindowPositions(*(values[begin:end, :length] for values in self))


class ContextWindows(NamedTuple):
  """The windows of all examples, in order.

  Attributes:
    tokens: ids, mask and segments of the tokens, [W, S].
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
  special_ids: SpecialIds,
) -> ContextWindows:
  """Makes the windows of questions and contexts, at least one for each example.

  Args:
    question: ids, int32 [B, (tokens)].
    context: ids with their character offsets.
    max_seq_length, max_query_length, doc_stride: as in `albert.tasks.squad.features.SquadFeaturizer`.
    special_ids: the ids of [CLS] and [SEP].
  """
  question = first_tokens(question, tf.constant(max_query_length, tf.int64))
  question_lengths = tf.cast(question.row_lengths(), tf.int32)  # [B]
  context_lengths = tf.cast(context.ids.row_lengths(), tf.int32)  # [B]
  # Number of context tokens that fit in a window, [B].
  max_part_lengths = max_seq_length - question_lengths - _NUM_SPECIAL_TOKENS
  parts = cut_contexts(context_lengths, max_part_lengths, doc_stride)
  # Where the part begins in its window: after [CLS] question [SEP].
  first_columns = tf.gather(question_lengths, parts.example) + 2
  window_lengths = first_columns + parts.length + 1
  # The columns are positions in a window, [1, S].
  columns = tf.range(tf.reduce_max(tf.concat([window_lengths, [1]], axis=0)))[tf.newaxis, :]
  offset_in_part = columns - first_columns[:, tf.newaxis]  # [W, S], 0 at the part's first token, negative before it
  offset_from_end = columns - window_lengths[:, tf.newaxis]  # [W, S], -1 at the last token of the window
  is_context = (offset_in_part >= 0) & (offset_from_end < -1)
  # The index of a token among the tokens of all contexts, and among the tokens of all questions. The former has a
  # meaning where is_context is True, the latter at the tokens of the question. All other elements are not used, or are
  # replaced.
  part_starts = tf.gather(row_starts(context.ids), parts.example) + parts.start
  indices_in_contexts = part_starts[:, tf.newaxis] + offset_in_part
  indices_in_questions = tf.gather(row_starts(question), parts.example)[:, tf.newaxis] + columns - 1
  ids = tf.where(
    is_context,
    gather_clipped(context.ids.flat_values, indices_in_contexts),
    gather_clipped(question.flat_values, indices_in_questions),
  )
  ids = tf.where((offset_in_part == -1) | (offset_from_end == -1), special_ids.sep, ids)
  ids = tf.where(columns == 0, special_ids.cls, ids)
  mask = tf.cast(offset_from_end < 0, tf.int32)
  segments = tf.cast(offset_in_part >= 0, tf.int32) * mask
  positions = WindowPositions(
    is_context=is_context,
    may_start=is_context
    & has_most_context(indices_in_contexts, offset_in_part, parts.length[:, tf.newaxis], is_context),
    char_starts=tf.where(is_context, gather_clipped(context.starts.flat_values, indices_in_contexts), 0),
    char_ends=tf.where(is_context, gather_clipped(context.ends.flat_values, indices_in_contexts), 0),
  )
  return ContextWindows(TokenBatch(ids * mask, mask, segments), positions, parts.example)
