"""The SQuAD heads of served models: they score the tokens of each window and select its best span."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert.export.forms.squad_windows import WindowPositions
from albert.export.network.encoder import Dense, LayerNorm, constant
from albert.export.network.heads import LinearHead
from albert.tasks.squad.data import SquadConfig

# W windows, S sequence, H hidden size, K starts and M ends of the beam search, L maximum length of an answer.

Weights = Mapping[str, np.ndarray]
# The score of a span that is not allowed.
NO_SPAN = -1e30


class BestSpans(NamedTuple):
  """The best span of each window. All tensors have the shape [W].

  Attributes:
    start, end: its first and its last token, int32.
    score: its score, float32; NO_SPAN if the window has no allowed span.
    null: log odds that the window has no answer, float32.
  """

  start: tf.Tensor
  end: tf.Tensor
  score: tf.Tensor
  null: tf.Tensor


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
    starts, ends = tf.unstack(self.output(x), num=2, axis=-1)  # [W, S]
    starts = tf.where(positions.is_start, starts, NO_SPAN)
    ends = tf.where(positions.is_answer, ends, NO_SPAN)
    length, longest = tf.shape(ends)[1], self._config.max_answer_length
    later = tf.expand_dims(tf.range(length), 1) + tf.expand_dims(
      tf.range(longest), 0
    )  # [S, L]: possible ends for each start
    is_inside = tf.expand_dims(later < length, 0)
    later = tf.minimum(later, length - 1)
    is_span = tf.expand_dims(positions.is_start, 2) & tf.gather(positions.is_answer, later, axis=1) & is_inside
    is_span &= tf.gather(positions.ends, later, axis=1) > tf.expand_dims(
      positions.begins, 2
    )  # the span must have at least one character
    totals = tf.where(is_span, tf.expand_dims(starts, 2) + tf.gather(ends, later, axis=1), NO_SPAN)
    totals = tf.reshape(totals, [-1, length * longest])
    best = tf.argmax(totals, axis=1, output_type=tf.int32)
    start = best // longest
    score = tf.reduce_max(totals, axis=1)
    return BestSpans(start, start + best % longest, score, tf.fill(tf.shape(score), NO_SPAN))


class V2Head(SpanHead):
  """Scores the end given the start, and whether there is an answer. See `albert.models.squad_heads.SquadV2Head`, and
  `albert.tasks.squad.predictions.candidates_v2`."""

  def __init__(self, weights: Weights, config: SquadConfig):
    super().__init__(weights, config)
    self.start = Dense.load(weights, "start_logits/dense")
    self.end_0 = Dense.load(weights, "end_logits/dense_0")
    self.end_norm = LayerNorm(weights, "end_logits/LayerNorm")
    self.end_1 = Dense.load(weights, "end_logits/dense_1")
    self.null_0 = Dense.load(weights, "answer_class/dense_0")
    self.null_1 = constant(weights["answer_class/dense_1/kernel"], "null_1")

  def __call__(self, x: tf.Tensor, positions: WindowPositions) -> BestSpans:
    # [CLS] is scored, too: it stands for the answer of unanswerable questions.
    is_first = tf.expand_dims(tf.range(tf.shape(x)[1]) == 0, 0)
    mask = tf.where(positions.is_answer | is_first, 0.0, NO_SPAN)
    start_logits = _masked(tf.squeeze(self.start(x), 2), mask)
    start_scores, starts = _top(start_logits, self._config.start_n_top)  # [W, K]
    ends = [self._ends(x, mask, starts[:, k]) for k in range(self._config.start_n_top)]
    end_scores, ends = (tf.stack(values, axis=1) for values in zip(*ends, strict=True))  # [W, K, M]
    starts = tf.expand_dims(starts, 2) + tf.zeros_like(ends)
    is_span = _at(positions.is_start, starts) & _at(positions.is_answer, ends)
    is_span &= (ends >= starts) & (ends - starts < self._config.max_answer_length)
    is_span &= _at(positions.ends, ends) > _at(positions.begins, starts)  # the span must have at least one character
    scores = tf.where(is_span, tf.expand_dims(start_scores, 2) + end_scores, NO_SPAN)
    scores, starts, ends = (_flat(values) for values in (scores, starts, ends))
    best = tf.expand_dims(tf.argmax(scores, axis=1, output_type=tf.int32), 1)
    start, end = (tf.squeeze(tf.gather(values, best, batch_dims=1), 1) for values in (starts, ends))
    return BestSpans(start, end, tf.reduce_max(scores, axis=1), self._null(x, start_logits))

  def _ends(self, x: tf.Tensor, mask: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The best ends given the starts int32 [W]: log probabilities and positions, [W, M] each."""
    size = x.shape[2]
    state = tf.gather(x, starts, batch_dims=1)  # [W, H]
    kernel = self.end_0.kernel
    start_term = tf.expand_dims(tf.matmul(state, kernel[size:]) + self.end_0.bias, 1)
    hidden = tf.tanh(tf.reshape(tf.matmul(tf.reshape(x, [-1, size]), kernel[:size]), tf.shape(x)) + start_term)
    return _top(_masked(tf.squeeze(self.end_1(self.end_norm(hidden)), 2), mask), self._config.end_n_top)

  def _null(self, x: tf.Tensor, start_logits: tf.Tensor) -> tf.Tensor:
    expected = tf.squeeze(tf.matmul(tf.expand_dims(tf.nn.softmax(start_logits), 1), x), 1)  # [W, H]
    hidden = tf.tanh(self.null_0(tf.concat([expected, x[:, 0]], axis=1)))
    return tf.squeeze(tf.matmul(hidden, self.null_1), 1)


def _masked(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
  """The logits where the mask is 0, NO_SPAN elsewhere."""
  return tf.where(mask < 0, mask, logits)


def _top(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
  """The best positions, as in `albert.models.squad_heads`.

  Args:
    logits: float32 [W, S].
    count: number of positions.
  Returns: log probabilities and positions, [W, count] each.
  """
  padded = tf.pad(tf.nn.log_softmax(logits), [[0, 0], [0, count]], constant_values=NO_SPAN)
  values, positions = tf.math.top_k(padded, count)
  return values, tf.minimum(positions, tf.shape(logits)[1] - 1)


def _at(values: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
  """Gathers values [W, S] at positions [W, K, M] -> [W, K, M]."""
  flat = tf.gather(values, _flat(positions), batch_dims=1)
  return tf.reshape(flat, tf.shape(positions))


def _flat(values: tf.Tensor) -> tf.Tensor:
  """[W, K, M] -> [W, K * M]."""
  return tf.reshape(values, [-1, values.shape[1] * values.shape[2]])
