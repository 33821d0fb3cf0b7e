"""Cuts long contexts into overlapping windows in the graph, as `albert.tasks.squad.features` does in Python."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from albert.export.network.token_layout import TokenBatch
from albert.tokenization.in_graph.base import RaggedTokensWithOffsets
from albert.tokenization.in_graph.graph_packing import first_tokens
from albert.tokenization.pieces import SpecialIds

# B examples, W windows of all examples, S tokens of the longest window, T tokens of all contexts, N context tokens of
# all windows (a token counts once for each window that contains it).

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
  parts = _cut_contexts(context_lengths, max_part_lengths, doc_stride)
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
  part_starts = tf.gather(_row_starts(context.ids), parts.example) + parts.start
  indices_in_contexts = part_starts[:, tf.newaxis] + offset_in_part
  indices_in_questions = tf.gather(_row_starts(question), parts.example)[:, tf.newaxis] + columns - 1
  ids = tf.where(
    is_context,
    _gather_clipped(context.ids.flat_values, indices_in_contexts),
    _gather_clipped(question.flat_values, indices_in_questions),
  )
  ids = tf.where((offset_in_part == -1) | (offset_from_end == -1), special_ids.sep, ids)
  ids = tf.where(columns == 0, special_ids.cls, ids)
  mask = tf.cast(offset_from_end < 0, tf.int32)
  segments = tf.cast(offset_in_part >= 0, tf.int32) * mask
  positions = WindowPositions(
    is_context=is_context,
    may_start=is_context
    & _has_most_context(indices_in_contexts, offset_in_part, parts.length[:, tf.newaxis], is_context),
    char_starts=tf.where(is_context, _gather_clipped(context.starts.flat_values, indices_in_contexts), 0),
    char_ends=tf.where(is_context, _gather_clipped(context.ends.flat_values, indices_in_contexts), 0),
  )
  return ContextWindows(TokenBatch(ids * mask, mask, segments), positions, parts.example)


class _ContextParts(NamedTuple):
  """The part of a context that each window holds. All tensors are int32 [W].

  Attributes:
    example: index of the example that the window belongs to.
    start: index of the part's first token in its context.
    length: number of tokens of the part.
  """

  example: tf.Tensor
  start: tf.Tensor
  length: tf.Tensor


def _cut_contexts(context_lengths: tf.Tensor, max_part_lengths: tf.Tensor, doc_stride: int) -> _ContextParts:
  """Divides contexts into overlapping parts, each of which begins doc_stride tokens after the one before it.

  If a window holds fewer context tokens than doc_stride, the parts begin as many tokens apart as a window holds. So
  they do not overlap.

  Args:
    context_lengths: number of tokens of each context, int32 [B].
    max_part_lengths: number of context tokens that fit in a window, int32 [B].
    doc_stride: maximum distance between the first tokens of neighboring parts.
  """
  stride = tf.minimum(max_part_lengths, doc_stride)
  num_left = tf.maximum(context_lengths - max_part_lengths, 0)  # tokens that the first part does not hold
  num_parts = 1 + (num_left + stride - 1) // stride
  example = tf.repeat(tf.range(tf.size(num_parts)), num_parts)  # [W]
  start = tf.ragged.range(num_parts).flat_values * tf.gather(stride, example)
  length = tf.minimum(tf.gather(context_lengths, example) - start, tf.gather(max_part_lengths, example))
  return _ContextParts(example, start, length)


def _has_most_context(
  indices_in_contexts: tf.Tensor, num_before: tf.Tensor, part_lengths: tf.Tensor, is_context: tf.Tensor
) -> tf.Tensor:
  """Whether a window shows the most context around a token, compared with the other windows that contain the token.

  Of several windows with equally much context, the first one counts. The scores are the same float64 numbers, bit for
  bit, as those of `albert.tokenization.windows.max_context_windows`.

  Args:
    indices_in_contexts: index of each token among the tokens of all contexts, int32 [W, S].
    num_before: number of context tokens before the token in its window, int32 [W, S].
    part_lengths: number of context tokens in the window, int32 [W, 1].
    is_context: whether the token belongs to the context, bool [W, S].
  Returns: bool [W, S]; arbitrary where is_context is False.
  """
  num_windows = tf.shape(indices_in_contexts)[0]
  window_indices = tf.zeros_like(indices_in_contexts) + tf.range(num_windows)[:, tf.newaxis]
  num_after = part_lengths - 1 - num_before
  scores = tf.cast(tf.minimum(num_before, num_after), tf.float64) + 0.01 * tf.cast(part_lengths, tf.float64)
  # The tokens of the contexts in all windows: index among the tokens of all contexts, window, score, each [N].
  flat_token_indices = tf.boolean_mask(indices_in_contexts, is_context)
  flat_window_indices = tf.boolean_mask(window_indices, is_context)
  flat_scores = tf.boolean_mask(scores, is_context)
  num_tokens = tf.reduce_max(tf.concat([flat_token_indices, [-1]], axis=0)) + 1
  best_scores = tf.math.unsorted_segment_max(flat_scores, flat_token_indices, num_tokens)  # [T]
  # Windows whose score is not the best get a number that is greater than that of any window.
  is_best = flat_scores == tf.gather(best_scores, flat_token_indices)
  best_windows = tf.where(is_best, flat_window_indices, num_windows)  # [N]
  first_best_windows = tf.math.unsorted_segment_min(best_windows, flat_token_indices, num_tokens)  # [T]
  return _gather_clipped(first_best_windows, indices_in_contexts) == window_indices


def _row_starts(values: tf.RaggedTensor) -> tf.Tensor:
  """Index of each row's first value among all values, int32."""
  return tf.cast(values.row_starts(), tf.int32)


def _gather_clipped(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
  """values[indices]; the result is arbitrary where an index is out of range."""
  return tf.gather(tf.concat([values, [0]], axis=0), tf.clip_by_value(indices, 0, tf.size(values)))
