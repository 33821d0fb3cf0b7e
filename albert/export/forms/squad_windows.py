"""Cuts long contexts into overlapping windows in the graph, as `albert.tasks.squad.features` does in Python."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from albert.export.network.token_layout import TokenBatch
from albert.tokenization.graph_offsets import RaggedTokensWithOffsets
from albert.tokenization.graph_packing import first_tokens
from albert.tokenization.tokenizer import CLS_ID, SEP_ID

# B examples, W windows of all examples, S tokens of the longest window, T tokens of all contexts.

_NUM_SPECIAL_TOKENS = 3  # a window is [CLS] question [SEP] part of the context [SEP]


class WindowPositions(NamedTuple):
  """Where answers may be, and the character offsets of the tokens. All tensors have the shape [W, S].

  Attributes:
    is_answer: bool, whether the token belongs to the context, so that an answer may contain it.
    is_start: bool, whether an answer may start at this token. Windows overlap; an answer may start at a token only in
      the window that shows the most context around it.
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
  question_lengths = tf.cast(question.row_lengths(), tf.int32)  # [B]
  context_lengths = tf.cast(context.ids.row_lengths(), tf.int32)  # [B]
  # Number of context tokens that fit in a window, [B].
  max_part_lengths = max_seq_length - question_lengths - _NUM_SPECIAL_TOKENS
  context_parts = _cut_contexts(context_lengths, max_part_lengths, doc_stride)
  # Positions in the windows. The legend's S is the length of the longest window.
  part_begins = tf.gather(question_lengths, context_parts.example) + 2  # after [CLS] question [SEP], [W]
  lengths = part_begins + context_parts.length + 1
  columns = tf.range(tf.reduce_max(tf.concat([lengths, [1]], axis=0)))[tf.newaxis, :]  # [1, S]
  part_begins, lengths = part_begins[:, tf.newaxis], lengths[:, tf.newaxis]
  is_answer = (columns >= part_begins) & (columns < lengths - 1)
  # For each position, the index of its token among the tokens of all questions, and among those of all contexts. At
  # most one of the two indices is used: tokens of a question have no index in the contexts and the other way round, and
  # [CLS], [SEP] and padding have neither.
  in_question = tf.gather(_row_starts(question), context_parts.example)[:, tf.newaxis] + columns - 1
  part_starts = tf.gather(_row_starts(context.ids), context_parts.example) + context_parts.start
  in_context = part_starts[:, tf.newaxis] + columns - part_begins
  ids = tf.where(
    is_answer, _gather_clipped(context.ids.flat_values, in_context), _gather_clipped(question.flat_values, in_question)
  )
  ids = tf.where((columns == part_begins - 1) | (columns == lengths - 1), SEP_ID, ids)
  ids = tf.where(columns == 0, CLS_ID, ids)
  mask = tf.cast(columns < lengths, tf.int32)
  segments = tf.cast(columns >= part_begins, tf.int32) * mask
  is_start = is_answer & _has_most_context(
    in_context, columns - part_begins, context_parts.length[:, tf.newaxis], is_answer
  )
  begins = tf.where(is_answer, _gather_clipped(context.starts.flat_values, in_context), 0)
  ends = tf.where(is_answer, _gather_clipped(context.ends.flat_values, in_context), 0)
  tokens = TokenBatch(ids * mask, mask, segments)
  return ContextWindows(tokens, WindowPositions(is_answer, is_start, begins, ends), context_parts.example)


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
  """Divides contexts into overlapping parts that begin doc_stride tokens apart, or less if a part is shorter.

  Args:
    context_lengths: number of tokens of each context, int32 [B].
    max_part_lengths: number of context tokens that fit in a window, int32 [B].
    doc_stride: greatest distance between the first tokens of neighboring parts.
  """
  stride = tf.minimum(max_part_lengths, doc_stride)
  num_left = tf.maximum(context_lengths - max_part_lengths, 0)  # tokens that the first part does not hold
  num_parts = 1 + (num_left + stride - 1) // stride
  example = tf.repeat(tf.range(tf.size(num_parts)), num_parts)  # [W]
  start = tf.ragged.range(num_parts).flat_values * tf.gather(stride, example)
  length = tf.minimum(tf.gather(context_lengths, example) - start, tf.gather(max_part_lengths, example))
  return _ContextParts(example, start, length)


def _has_most_context(in_context: tf.Tensor, before: tf.Tensor, size: tf.Tensor, is_answer: tf.Tensor) -> tf.Tensor:
  """Whether a window shows the most context around a token, compared with the other windows that contain the token.

  It computes the same float64 scores, bit for bit, as `albert.tasks.squad.features.max_context_windows`.

  Args:
    in_context: index of each token among the tokens of all contexts, int32 [W, S].
    before: number of context tokens before the token in its window, int32 [W, S].
    size: number of context tokens in the window, int32 [W, 1].
    is_answer: whether the token belongs to the context, bool [W, S].
  Returns: bool [W, S].
  """
  windows = tf.zeros_like(in_context) + tf.range(tf.shape(in_context)[0])[:, tf.newaxis]
  after = size - 1 - before
  scores = tf.cast(tf.minimum(before, after), tf.float64) + 0.01 * tf.cast(size, tf.float64)
  # These vectors have one element for each token in each window that contains it.
  token = tf.boolean_mask(in_context, is_answer)
  window = tf.boolean_mask(windows, is_answer)
  score = tf.boolean_mask(scores, is_answer)
  num_tokens = tf.reduce_max(tf.concat([token, [-1]], axis=0)) + 1
  best_scores = tf.math.unsorted_segment_max(score, token, num_tokens)  # [T]
  candidates = tf.where(score == tf.gather(best_scores, token), window, tf.shape(in_context)[0])
  first_best = tf.math.unsorted_segment_min(candidates, token, num_tokens)  # the first of a token's best windows, [T]
  return _gather_clipped(first_best, in_context) == windows


def _row_starts(values: tf.RaggedTensor) -> tf.Tensor:
  """Index of each row's first value among all values, int32."""
  return tf.cast(values.row_starts(), tf.int32)


def _gather_clipped(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
  """values[indices]; the result is arbitrary where an index is out of range."""
  return tf.gather(tf.concat([values, [0]], axis=0), tf.clip_by_value(indices, 0, tf.size(values)))
