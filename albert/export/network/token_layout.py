"""Where the tokens of a batch are while they are computed: end to end without padding, or as they came."""

from __future__ import annotations

import abc
from typing import NamedTuple

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models.attention import MASKED_SCORE

# B batch, S sequence, T tokens that are computed, M tokens of a sequence that are asked for, H hidden, N heads,
# D = H / N head size, P of query, key and value that are split at once.


class TokenBatch(NamedTuple):
  """A batch of sequences: int32 [B, S] each; input_mask is 1 for real tokens."""

  input_ids: tf.Tensor
  input_mask: tf.Tensor
  segment_ids: tf.Tensor


def normalize_padding(tokens: TokenBatch) -> TokenBatch:
  """The same batch, as every form computes it.

  The mask becomes 0 or 1. [CLS], the first column, is always taken as real, so that a row without a real token has an
  answer. Padding has zeros whatever came there. The columns in which every sequence has padding are dropped.
  """
  mask = tf.cast(tokens.input_mask > 0, tf.int32)
  mask = tf.concat([tf.ones_like(mask[:, :1]), mask[:, 1:]], axis=1)
  # Other runtimes have no maximum of nothing: 1 for an empty batch.
  lengths = tf.reshape(mask * tf.range(1, tf.shape(mask)[1] + 1), [-1])
  longest = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
  return TokenBatch(*((values * mask)[:, :longest] for values in (tokens.input_ids, mask, tokens.segment_ids)))


def check_length(tokens: TokenBatch, max_length: int) -> TokenBatch:
  """normalize_padding, in a graph that refuses sequences of more than `max_length` tokens, padding not counted."""
  tokens = normalize_padding(tokens)
  message = f"input_ids: the model takes {max_length} tokens at most"
  check = tf.debugging.assert_less_equal(tf.shape(tokens.input_ids)[1], max_length, message=message)
  with tf.control_dependencies([check]):
    return TokenBatch(*(tf.identity(values) for values in tokens))


def at_least_one_row(values: tf.Tensor) -> tf.Tensor:
  """[B, ...] -> the same; of zeros [1, ...] for an empty batch, which some ops of other runtimes cannot compute."""
  missing = tf.maximum(1 - tf.shape(values)[0], 0)
  return tf.pad(values, [[0, missing], *[[0, 0]] * (values.shape.rank - 1)])


class TokenLayout(abc.ABC):
  """How [B, S] becomes [T] and back.

  Attributes:
    bias: float32 [B, 1, 1, S], added to the scores.
    columns: int32 [T], of each token its place in its sequence.
  """

  def __init__(self, tokens: TokenBatch, config: ModelConfig):
    self._batch, self._length = tf.unstack(tf.shape(tokens.input_ids))
    self._mask = tokens.input_mask
    self._num_heads = config.num_attention_heads
    self._hidden = config.hidden_size
    self._head_size = config.hidden_size // config.num_attention_heads
    padding = 1.0 - tf.cast(tokens.input_mask, tf.float32)
    # Not by slices with new axes, as models.attention.attention_bias does it: TFLite lacks those.
    self.bias = tf.reshape(padding * MASKED_SCORE, [self._batch, 1, 1, self._length])
    self.columns: tf.Tensor

  @abc.abstractmethod
  def collect(self, values: tf.Tensor) -> tf.Tensor:
    """[B, S] -> [T]."""

  @abc.abstractmethod
  def spread(self, x: tf.Tensor) -> tf.Tensor:
    """[T, H] -> [B, S, H], zeros at padding."""

  @abc.abstractmethod
  def at(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """[T, H] at real tokens, by their places in their sequences int32 [B, M] -> [B * M, H]."""

  @abc.abstractmethod
  def split_heads(self, x: tf.Tensor, parts: int) -> list[tf.Tensor]:
    """[T, P * H] -> P times [B, N, S, D]; at padding any numbers, whose scores the bias removes."""

  @abc.abstractmethod
  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    """[B, N, S, D] -> [T, H]."""

  def _is_real(self, dtype: tf.DType) -> tf.Tensor:
    """[B, S, 1]: 1 for real tokens, 0 for padding."""
    return tf.expand_dims(tf.cast(self._mask, dtype), 2)

  def split_asked(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """[B * M, H] -> [B, N, M, D]."""
    shape = [self._batch, tf.shape(positions)[1], self._num_heads, self._head_size]
    return tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])


class PaddedLayout(TokenLayout):
  """As they came: T = B * S. For runtimes that want few and simple ops."""

  def __init__(self, tokens: TokenBatch, config: ModelConfig):
    super().__init__(tokens, config)
    self.columns = tf.reshape(tf.zeros_like(tokens.input_ids) + tf.range(self._length), [-1])

  def collect(self, values: tf.Tensor) -> tf.Tensor:
    return tf.reshape(values, [-1])

  def spread(self, x: tf.Tensor) -> tf.Tensor:
    x = tf.reshape(x, [self._batch, self._length, self._hidden])
    return x * self._is_real(x.dtype)

  def at(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    rows = tf.expand_dims(tf.range(self._batch) * self._length, 1)
    return tf.gather(x, tf.reshape(rows + positions, [-1]))

  def split_heads(self, x: tf.Tensor, parts: int) -> list[tf.Tensor]:
    shape = [self._batch, self._length, self._num_heads, self._head_size]
    return [tf.transpose(tf.reshape(part, shape), [0, 2, 1, 3]) for part in tf.split(x, parts, axis=-1)]

  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, self._hidden])


class UnpaddedLayout(TokenLayout):
  """Without padding: T is the number of real tokens."""

  def __init__(self, tokens: TokenBatch, config: ModelConfig):
    super().__init__(tokens, config)
    is_real = tf.reshape(self._mask, [-1]) > 0
    self._places = tf.cast(tf.reshape(tf.where(is_real), [-1]), tf.int32)  # [T], in B * S
    self.columns = self._places % self._length
    # The token at each place, [B, S]; at padding the one before it.
    self._tokens = tf.reshape(tf.cumsum(tf.cast(is_real, tf.int32)) - 1, [self._batch, self._length])
    heads = tf.range(self._num_heads)
    # Rows of [B * N * S, D] that hold a token's heads, [T, N].
    firsts = self._places + (self._places // self._length) * ((self._num_heads - 1) * self._length)
    self._joined = firsts[:, tf.newaxis] + heads * self._length

  def collect(self, values: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(values, [-1]), self._places)

  def spread(self, x: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, self._tokens) * self._is_real(x.dtype)

  def at(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, tf.reshape(tf.gather(self._tokens, positions, batch_dims=1), [-1]))

  def split_heads(self, x: tf.Tensor, parts: int) -> list[tf.Tensor]:
    rows = tf.reshape(x, [-1, self._head_size])  # T, P, N
    heads = tf.range(self._num_heads)[tf.newaxis, :, tf.newaxis]
    first = (self._tokens * (parts * self._num_heads))[:, tf.newaxis, :] + heads  # [B, N, S]
    return [tf.gather(rows, first + part * self._num_heads) for part in range(parts)]

  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.gather(tf.reshape(context, [-1, self._head_size]), self._joined), [-1, self._hidden])
