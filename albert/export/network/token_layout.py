"""How the tokens of a batch are arranged in the computation: only real tokens (unpadded), or padding too (padded)."""

from __future__ import annotations

import abc
from typing import NamedTuple

import tensorflow as tf

from albert.config.model import ModelConfig
from albert.models.attention import MASKED_SCORE

# B batch, S sequence, T tokens that are computed, M positions of a sequence whose output is needed, H hidden size,
# N attention heads, D = H / N head size, P number of projections (query, key, value) that are computed together.


class TokenBatch(NamedTuple):
  """A batch of sequences, int32 [B, S] each.

  Attributes:
    input_ids: ids of the tokens.
    input_mask: 1 for real tokens, 0 for padding.
    segment_ids: 0 up to and including the first [SEP], 1 after it.
  """

  input_ids: tf.Tensor
  input_mask: tf.Tensor
  segment_ids: tf.Tensor


def normalize_padding(tokens: TokenBatch) -> TokenBatch:
  """Normalizes the padding of a batch.

  The mask becomes 0 or 1. The first position, [CLS], always counts as a real token, so that a row of padding has an
  answer, too. All values at padding become 0. The batch is cut to the length of its longest sequence.
  """
  mask = tf.cast(tokens.input_mask > 0, tf.int32)
  mask = tf.concat([tf.ones_like(mask[:, :1]), mask[:, 1:]], axis=1)
  # The 1 in the maximum is for an empty batch: TFLite and ONNX cannot compute the maximum of an empty tensor.
  ends = tf.reshape(mask * tf.range(1, tf.shape(mask)[1] + 1), [-1])  # position + 1 of each real token, else 0
  length = tf.reduce_max(tf.concat([ends, [1]], axis=0))
  return TokenBatch(*((values * mask)[:, :length] for values in (tokens.input_ids, mask, tokens.segment_ids)))


def merge_axes(tokens: TokenBatch) -> TokenBatch:
  """Reshapes [B, K, S] to [B * K, S]."""
  length = tf.shape(tokens.input_ids)[2]
  return TokenBatch(*(tf.reshape(values, [-1, length]) for values in tokens))


def check_length(tokens: TokenBatch, max_length: int) -> TokenBatch:
  """Normalizes the padding of a batch, and adds an op to the graph that checks the length of the sequences.

  Args:
    tokens: a batch.
    max_length: maximum number of real tokens in a sequence. If a sequence is longer, running the graph fails with
      InvalidArgumentError.
  Returns: the batch with normalized padding.
  """
  tokens = normalize_padding(tokens)
  message = f"input_ids: the model takes {max_length} tokens at most"
  check = tf.debugging.assert_less_equal(tf.shape(tokens.input_ids)[1], max_length, message=message)
  with tf.control_dependencies([check]):
    return TokenBatch(*(tf.identity(values) for values in tokens))


def pad_empty_batch(values: tf.Tensor) -> tf.Tensor:
  """Pads an empty batch [0, ...] to one row of zeros, since TFLite and ONNX cannot compute empty batches."""
  num_missing = tf.maximum(1 - tf.shape(values)[0], 0)
  return tf.pad(values, [[0, num_missing], *[[0, 0]] * (values.shape.rank - 1)])


class TokenLayout(abc.ABC):
  """Converts between a batch [B, S] and the tokens [T] that are computed.

  Args:
    tokens: the batch, with normalized padding.
    config: the model's config.
  Attributes:
    attention_bias: float32 [B, 1, 1, S], added to the attention scores to mask padding.
    token_positions: int32 [T], the position of each token in its sequence.
    computes_query_apart: whether the query is not computed together with key and value.
  """

  computes_query_apart: bool = False

  def __init__(self, tokens: TokenBatch, config: ModelConfig):
    self._batch_size, self._length = tf.unstack(tf.shape(tokens.input_ids))
    self._mask = tokens.input_mask
    self._num_heads = config.num_attention_heads
    self._hidden_size = config.hidden_size
    self._head_size = config.hidden_size // config.num_attention_heads
    padding = 1.0 - tf.cast(tokens.input_mask, tf.float32)
    # reshape instead of indexing with new axes, as in models.attention.attention_bias: TFLite has no op for that.
    self.attention_bias = tf.reshape(padding * MASKED_SCORE, [self._batch_size, 1, 1, self._length])
    self.token_positions: tf.Tensor

  @abc.abstractmethod
  def select_tokens(self, values: tf.Tensor) -> tf.Tensor:
    """Selects the tokens that are computed: [B, S] -> [T]."""

  @abc.abstractmethod
  def to_batch(self, x: tf.Tensor) -> tf.Tensor:
    """Puts the tokens back into a batch: [T, H] -> [B, S, H], with zeros at padding."""

  @abc.abstractmethod
  def select_positions(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Selects tokens by their positions in their sequences.

    Args:
      x: values of the tokens, [T, H].
      positions: M positions in each sequence, int32 [B, M].
    Returns: [B * M, H].
    """

  @abc.abstractmethod
  def split_heads(self, x: tf.Tensor, num_projections: int) -> list[tf.Tensor]:
    """Splits projections of the tokens into heads.

    Args:
      x: P projections, concatenated, [T, P * H].
      num_projections: P.
    Returns: P tensors [B, N, S, D]. Values at padding are arbitrary, because attention_bias masks them.
    """

  @abc.abstractmethod
  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    """Concatenates heads: [B, N, S, D] -> [T, H]."""

  def _mask_as(self, dtype: tf.DType) -> tf.Tensor:
    """The mask in another dtype, [B, S, 1]: 1 for real tokens, 0 for padding."""
    return tf.expand_dims(tf.cast(self._mask, dtype), 2)

  def split_selected_heads(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Splits selected tokens into heads: [B * M, H] -> [B, N, M, D]."""
    shape = [self._batch_size, tf.shape(positions)[1], self._num_heads, self._head_size]
    return tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])


class PaddedLayout(TokenLayout):
  """Computes padding like real tokens: T = B * S. It uses only ops that TFLite and ONNX have."""

  # The converters store each slice of a matrix as a matrix of its own. The last layer needs two slices, the query's and
  # that of key and value. If another layer used the whole matrix, the file would hold it, too. So all layers use the
  # slices.
  computes_query_apart = True

  def __init__(self, tokens: TokenBatch, config: ModelConfig):
    super().__init__(tokens, config)
    self.token_positions = tf.reshape(tf.zeros_like(tokens.input_ids) + tf.range(self._length), [-1])

  def select_tokens(self, values: tf.Tensor) -> tf.Tensor:
    return tf.reshape(values, [-1])

  def to_batch(self, x: tf.Tensor) -> tf.Tensor:
    x = tf.reshape(x, [self._batch_size, self._length, self._hidden_size])
    return x * self._mask_as(x.dtype)

  def select_positions(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    row_starts = tf.expand_dims(tf.range(self._batch_size) * self._length, 1)  # [B, 1], indices into T
    return tf.gather(x, tf.reshape(row_starts + positions, [-1]))

  def split_heads(self, x: tf.Tensor, num_projections: int) -> list[tf.Tensor]:
    shape = [self._batch_size, self._length, self._num_heads, self._head_size]
    return [
      tf.transpose(tf.reshape(projection, shape), [0, 2, 1, 3]) for projection in tf.split(x, num_projections, axis=-1)
    ]

  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, self._hidden_size])


class UnpaddedLayout(TokenLayout):
  """Computes only real tokens: T is their number in the batch."""

  def __init__(self, tokens: TokenBatch, config: ModelConfig):
    super().__init__(tokens, config)
    is_real = tf.reshape(self._mask, [-1]) > 0
    self._batch_indices = tf.cast(tf.reshape(tf.where(is_real), [-1]), tf.int32)  # [T], indices into B * S
    self.token_positions = self._batch_indices % self._length
    # The inverse: for each position of the batch, the index of its token in T, [B, S]. Padding has the index of the
    # token before it. This index is valid, and the values that it selects are masked.
    self._token_indices = tf.reshape(tf.cumsum(tf.cast(is_real, tf.int32)) - 1, [self._batch_size, self._length])
    # Rows of [B * N * S, D] that hold the heads of each token, [T, N]. Head n of the token at (b, s) is in row
    # (b * N + n) * S + s, and _batch_indices is b * S + s.
    batch_rows = self._batch_indices // self._length
    first_head_rows = self._batch_indices + batch_rows * ((self._num_heads - 1) * self._length)
    self._head_rows = first_head_rows[:, tf.newaxis] + tf.range(self._num_heads) * self._length

  def select_tokens(self, values: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(values, [-1]), self._batch_indices)

  def to_batch(self, x: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, self._token_indices) * self._mask_as(x.dtype)

  def select_positions(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, tf.reshape(tf.gather(self._token_indices, positions, batch_dims=1), [-1]))

  def split_heads(self, x: tf.Tensor, num_projections: int) -> list[tf.Tensor]:
    head_rows = tf.reshape(x, [-1, self._head_size])  # [T * P * N, D]
    # Head n of projection p of token t is in row (t * P + p) * N + n. The first rows are those of projection 0.
    head_indices = tf.range(self._num_heads)[tf.newaxis, :, tf.newaxis]
    token_rows = (self._token_indices * (num_projections * self._num_heads))[:, tf.newaxis, :]  # [B, 1, S]
    first_rows = token_rows + head_indices  # [B, N, S]
    return [tf.gather(head_rows, first_rows + projection * self._num_heads) for projection in range(num_projections)]

  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.gather(tf.reshape(context, [-1, self._head_size]), self._head_rows), [-1, self._hidden_size])
