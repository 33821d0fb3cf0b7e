"""The SQuAD heads of served models: they score the tokens of each window and select its best span."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.export.forms.squad_windows import WindowPositions
from albert.export.network.encoder import Dense, LayerNorm, make_constant
from albert.export.network.heads import LinearHead
from albert.tasks.squad.data import SquadConfig

# W windows, S sequence, H hidden size, K starts and M ends for each start in the beam search, L maximum length of an
# answer.

Weights = Mapping[str, np.ndarray]
# The score of a span that is not allowed.
NO_SPAN = -1e30
# The log odds of "no answer" in v1.1, where every question has one: their sigmoid is 0. For -1e30, the sigmoid of
# TensorFlow Lite is not a number on processors with AVX-512.
_HAS_ANSWER = -1e3


class BestSpans(NamedTuple):
  """The best span of each window. All tensors have the shape [W].

  Attributes:
    start, end: positions of its first and its last token, int32.
    score: its score, float32; NO_SPAN if the window has no allowed span.
    null_odds: log odds that the question has no answer in this window, float32.
  """

  start: tf.Tensor
  end: tf.Tensor
  score: tf.Tensor
  null_odds: tf.Tensor


class SpanHead(tf.Module, abc.ABC):
  """Base class of the heads that select spans.

  Args:
    weights: weights by their names in the original code.
    config: config of the task.
  """

  def __init__(self, weights: Weights, config: SquadConfig):
    super().__init__(name="squad")
    del weights
    self._config = config

  @abc.abstractmethod
  def __call__(self, x: tf.Tensor, positions: WindowPositions) -> BestSpans:
    """Selects the best span of each window.

    Args:
      x: output of the last layer, float32 [W, S, H].
      positions: where answers may be, [W, S].
    """


class V1Head(SpanHead):
  """Scores start and end independently. See `albert.tasks.squad.predictions.candidates_v1`."""

  def __init__(self, weights: Weights, config: SquadConfig):
    super().__init__(weights, config)
    self.output = LinearHead(weights, "cls/squad/")

  def __call__(self, x: tf.Tensor, positions: WindowPositions) -> BestSpans:
    start_logits, end_logits = tf.unstack(self.output(x), num=2, axis=-1)  # [W, S]
    start_logits = tf.where(positions.may_start, start_logits, NO_SPAN)
    end_logits = tf.where(positions.is_context, end_logits, NO_SPAN)
    length, max_answer_length = tf.shape(end_logits)[1], self._config.max_answer_length
    # The L possible ends for each start, [S, L].
    ends = tf.expand_dims(tf.range(length), 1) + tf.expand_dims(tf.range(max_answer_length), 0)
    is_in_window = tf.expand_dims(ends < length, 0)
    ends = tf.minimum(ends, length - 1)
    is_span = tf.expand_dims(positions.may_start, 2) & tf.gather(positions.is_context, ends, axis=1) & is_in_window
    # A span must have at least one character; a token that is only a space has none.
    is_span &= tf.gather(positions.char_ends, ends, axis=1) > tf.expand_dims(positions.char_starts, 2)
    scores = tf.expand_dims(start_logits, 2) + tf.gather(end_logits, ends, axis=1)
    scores = tf.reshape(tf.where(is_span, scores, NO_SPAN), [-1, length * max_answer_length])
    best_index = tf.argmax(scores, axis=1, output_type=tf.int32)  # start * L + (end - start)
    start = best_index // max_answer_length
    best_score = tf.reduce_max(scores, axis=1)
    null_odds = tf.fill(tf.shape(best_score), _HAS_ANSWER)
    return BestSpans(start, start + best_index % max_answer_length, best_score, null_odds)


class V2Head(SpanHead):
  """Scores the end given the start, and whether there is an answer.

  See `albert.models.squad_heads.SquadV2Head` and `albert.tasks.squad.predictions.candidates_v2`.
  """

  def __init__(self, weights: Weights, config: SquadConfig):
    super().__init__(weights, config)
    self.start = Dense.load(weights, "start_logits/dense")
    self.end_0 = Dense.load(weights, "end_logits/dense_0")
    self.end_norm = LayerNorm(weights, "end_logits/LayerNorm")
    self.end_1 = Dense.load(weights, "end_logits/dense_1")
    self.null_0 = Dense.load(weights, "answer_class/dense_0")
    self.null_1 = make_constant(weights["answer_class/dense_1/kernel"], "null_1")

  def __call__(self, x: tf.Tensor, positions: WindowPositions) -> BestSpans:
    # [CLS] is scored, too: it stands for the answer of unanswerable questions.
    is_cls = tf.expand_dims(tf.range(tf.shape(x)[1]) == 0, 0)
    is_scored = positions.is_context | is_cls
    start_logits = tf.where(is_scored, tf.squeeze(self.start(x), 2), NO_SPAN)
    start_scores, starts = _top_positions(start_logits, self._config.start_n_top)  # [W, K]
    scores_and_ends = [self._best_ends(x, is_scored, starts[:, k]) for k in range(self._config.start_n_top)]
    end_scores = tf.stack([scores for scores, _ in scores_and_ends], axis=1)  # [W, K, M]
    ends = tf.stack([positions_of_ends for _, positions_of_ends in scores_and_ends], axis=1)  # [W, K, M]
    starts = tf.expand_dims(starts, 2) + tf.zeros_like(ends)  # [W, K, M]
    is_span = _gather_at(positions.may_start, starts) & _gather_at(positions.is_context, ends)
    is_span &= (ends >= starts) & (ends - starts < self._config.max_answer_length)
    # A span must have at least one character; a token that is only a space has none.
    is_span &= _gather_at(positions.char_ends, ends) > _gather_at(positions.char_starts, starts)
    scores = tf.where(is_span, tf.expand_dims(start_scores, 2) + end_scores, NO_SPAN)
    scores, starts, ends = _flatten_candidates(scores), _flatten_candidates(starts), _flatten_candidates(ends)
    best = tf.expand_dims(tf.argmax(scores, axis=1, output_type=tf.int32), 1)  # [W, 1]
    start = tf.squeeze(tf.gather(starts, best, batch_dims=1), 1)
    end = tf.squeeze(tf.gather(ends, best, batch_dims=1), 1)
    return BestSpans(start, end, tf.reduce_max(scores, axis=1), self._null_odds(x, start_logits))

  def _best_ends(self, x: tf.Tensor, is_scored: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The best ends given one start per window, int32 [W]: log probabilities and positions, [W, M] each."""
    hidden_size = x.shape[2]
    start_state = tf.gather(x, starts, batch_dims=1)  # [W, H]
    # end_0 takes the outputs at an end and at the start, concatenated. The product with the start's half of the matrix
    # is the same for all ends, so it is computed only once.
    end_kernel, start_kernel = self.end_0.kernel[:hidden_size], self.end_0.kernel[hidden_size:]
    start_term = tf.expand_dims(tf.matmul(start_state, start_kernel) + self.end_0.bias, 1)
    end_term = tf.reshape(tf.matmul(tf.reshape(x, [-1, hidden_size]), end_kernel), tf.shape(x))
    end_logits = tf.squeeze(self.end_1(self.end_norm(tf.tanh(end_term + start_term))), 2)
    return _top_positions(tf.where(is_scored, end_logits, NO_SPAN), self._config.end_n_top)

  def _null_odds(self, x: tf.Tensor, start_logits: tf.Tensor) -> tf.Tensor:
    """Log odds that the question has no answer in the window, from the expected start and [CLS], [W]."""
    expected_start = tf.squeeze(tf.matmul(tf.expand_dims(tf.nn.softmax(start_logits), 1), x), 1)  # [W, H]
    hidden = tf.tanh(self.null_0(tf.concat([expected_start, x[:, 0]], axis=1)))
    return tf.squeeze(tf.matmul(hidden, self.null_1), 1)


def _top_positions(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The positions with the greatest logits, as in `albert.models.squad_heads`.

  If a window has fewer positions than `count`, the last position fills the result, with log probability NO_SPAN.

  Args:
    logits: float32 [W, S].
    count: number of positions.
  Returns: log probabilities and positions, [W, count] each.
  """
  padded_log_probs = tf.pad(tf.nn.log_softmax(logits), [[0, 0], [0, count]], constant_values=NO_SPAN)
  log_probs, positions = tf.math.top_k(padded_log_probs, count)
  return log_probs, tf.minimum(positions, tf.shape(logits)[1] - 1)


def _gather_at(values: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  """Gathers values [W, S] at positions [W, K, M] -> [W, K, M]."""
  gathered = tf.gather(values, _flatten_candidates(positions), batch_dims=1)
  return tf.reshape(gathered, tf.shape(positions))


def _flatten_candidates(values: tf.Tensor) -> tf.Tensor:
  """Reshapes [W, K, M] to [W, K * M]."""
  return tf.reshape(values, [-1, values.shape[1] * values.shape[2]])
