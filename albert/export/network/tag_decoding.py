"""Finds the most probable tags that a scheme allows, and their spans, in the graph.

The results are those of `albert.tasks.tagging.decoding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.tasks.tagging.schemes import OUTSIDE, Scheme

# B texts, L words of the longest text, T words of all texts, N spans of all texts, C tags.


class WordSpans(NamedTuple):
  """The spans of all texts, in order.

  Attributes:
    first_words, last_words: int32 [N], indices among the words of all texts.
    types: string [N].
    log_probabilities: float64 [N], the sum of those of the words' tags.
  """

  first_words: tf.Tensor
  last_words: tf.Tensor
  types: tf.Tensor
  log_probabilities: tf.Tensor


class TagDecoder:
  """Decodes tags.

  Args:
    scheme: how tags mark spans.
    tags: all tags, in the order of the logits. The first one is O.
  """

  def __init__(self, scheme: Scheme, tags: Sequence[str]):
    self._costs = np.where(scheme.transitions(tags), 0.0, -np.inf)  # [C, C]
    self._types = [tag.partition("-")[2] for tag in tags]
    self._is_outside = np.array([tag == OUTSIDE for tag in tags])
    # Whether the tag begins a span: it may follow an O.
    self._begins = self._costs[0] == 0.0
    self._begins &= ~self._is_outside

  def best_tags(self, log_probabilities: tf.RaggedTensor) -> tf.Tensor:
    """Finds the tags of all words, int32 [T], from their log probabilities, float32 [B, (words), C]."""
    num_texts = tf.cast(log_probabilities.nrows(), tf.int32)
    num_tags = len(self._types)
    lengths = tf.cast(log_probabilities.row_lengths(), tf.int32)
    # At least one word, because tf.scan needs one.
    max_length = tf.maximum(tf.reduce_max(tf.concat([lengths, [1]], axis=0)), 1)
    scores = tf.cast(log_probabilities.to_tensor(shape=[None, None, num_tags]), tf.float64)
    scores = tf.pad(scores, [[0, 0], [0, max_length - tf.shape(scores)[1]], [0, 0]])
    is_word = tf.sequence_mask(lengths, max_length)  # [B, L]
    costs = tf.constant(self._costs, tf.float64)
    same = tf.tile(tf.range(num_tags)[tf.newaxis], [num_texts, 1])

    def step(state: tuple[tf.Tensor, tf.Tensor], word: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
      (previous, _), (emission, is_real) = state, word
      paths = previous[:, :, tf.newaxis] + costs  # [B, C, C]
      is_real = is_real[:, tf.newaxis]
      new_scores = tf.where(is_real, tf.reduce_max(paths, axis=1) + emission, previous)
      return new_scores, tf.where(is_real, tf.argmax(paths, axis=1, output_type=tf.int32), same)

    # Before the first word, there is an O.
    first = tf.tile(tf.constant(np.where(self._is_outside, 0.0, -np.inf)[np.newaxis], tf.float64), [num_texts, 1])
    all_scores, previous_tags = tf.scan(
      step, (tf.transpose(scores, [1, 0, 2]), tf.transpose(is_word)), initializer=(first, same)
    )
    last = tf.argmax(all_scores[-1] + costs[:, 0], axis=1, output_type=tf.int32)  # [B]
    # The tag before each word, from the last word to the first one.
    before = tf.scan(
      lambda tag, tags_before: tf.gather(tags_before, tag, batch_dims=1), previous_tags, initializer=last, reverse=True
    )  # [L, B]
    tags = tf.concat([before[1:], last[tf.newaxis]], axis=0)
    return tf.boolean_mask(tf.transpose(tags), is_word)

  def spans(self, log_probabilities: tf.RaggedTensor) -> WordSpans:
    """Finds the spans of all texts from the log probabilities of the words' tags, float32 [B, (words), C]."""
    tags = self.best_tags(log_probabilities)
    of_tags = tf.cast(tf.gather(log_probabilities.flat_values, tags, batch_dims=1), tf.float64)
    begins = tf.gather(tf.constant(self._begins), tags)
    is_in_span = ~tf.gather(tf.constant(self._is_outside), tags)
    words = tf.range(tf.size(tags))
    span_indices = tf.boolean_mask(tf.cumsum(tf.cast(begins, tf.int32)) - 1, is_in_span)
    first_words = tf.boolean_mask(words, begins)
    num_spans = tf.size(first_words)
    return WordSpans(
      first_words,
      tf.math.unsorted_segment_max(tf.boolean_mask(words, is_in_span), span_indices, num_spans),
      tf.gather(tf.constant(self._types), tf.gather(tags, first_words)),
      tf.math.unsorted_segment_sum(tf.boolean_mask(of_tags, is_in_span), span_indices, num_spans),
    )
