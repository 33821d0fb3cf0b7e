"""Divides long texts into overlapping parts in the graph, and finds the part with the most context around each token.

The results are those of `albert.tokenization.windows`.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

# B examples, W windows of all examples, S tokens of the longest window, T tokens of all contexts, N context tokens of
# all windows (a token counts once for each window that contains it).


class ContextParts(NamedTuple):
  """The part of a context that each window holds. All tensors are int32 [W].

  Attributes:
    example: index of the example that the window belongs to.
    start: index of the part's first token in its context.
    length: number of tokens of the part.
  """

  example: tf.Tensor
  start: tf.Tensor
  length: tf.Tensor


def cut_contexts(context_lengths: tf.Tensor, max_part_lengths: tf.Tensor, doc_stride: int) -> ContextParts:
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
  return ContextParts(example, start, length)


def has_most_context(
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
  return gather_clipped(first_best_windows, indices_in_contexts) == window_indices


def row_starts(values: tf.RaggedTensor) -> tf.Tensor:
  """Index of each row's first value among all values, int32."""
  return tf.cast(values.row_starts(), tf.int32)


def gather_clipped(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
  """values[indices]; the result is arbitrary where an index is out of range."""
  return tf.gather(tf.concat([values, [0]], axis=0), tf.clip_by_value(indices, 0, tf.size(values)))
