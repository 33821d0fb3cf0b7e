"""The computation of served models: how tokens are arranged, the encoder, a linear head, and windows of long texts.

The encoder computes the same as that of `albert.models` without dropout, but faster, for two reasons, which change the
results only by rounding. Dense layers compute only the real tokens of a batch, not the padding. The last layer is
computed only at the positions that the head reads; most heads read only [CLS].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert.config.model import LAYER_NORM_EPSILON, ModelConfig
from albert.models.blocks import MASKED_SCORE
from albert.models.layers import ACTIVATIONS
from albert.tokenization.vocabulary import SpecialIds
from albert.weights.names import POOLER

# B batch, S sequence, K sequences of an example, T tokens that are computed, M positions of a sequence whose output is
# needed, E embedding size, H hidden size, N attention heads, D = H / N head size, W windows of all texts.

Weights = Mapping[str, np.ndarray]
# Number of windows that are computed at once. It bounds the memory that a text of a megabyte needs.
_WINDOWS_AT_ONCE = 16


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


class TokenLayout:
  """Converts between a batch [B, S] and the tokens [T] that are computed. Here padding is computed, too: T = B * S.

  It uses only ops that TFLite and ONNX have.

  Args:
    tokens: the batch, with normalized padding.
    config: the model's config.
    has_tokens: bool [B / K, K], which sequences are not all padding, if an example has several sequences.
  Attributes:
    attention_bias: float32 [B, 1, 1, S], added to the attention scores to mask padding.
    token_positions: int32 [T], the position of each token in its sequence.
  """

  def __init__(self, tokens: TokenBatch, config: ModelConfig, has_tokens: tf.Tensor | None = None):
    self.has_tokens = has_tokens
    self._batch_size, self._length = tf.unstack(tf.shape(tokens.input_ids))
    self._num_heads = config.num_attention_heads
    self._hidden_size = config.hidden_size
    self._head_size = config.hidden_size // config.num_attention_heads
    padding = 1.0 - tf.cast(tokens.input_mask, tf.float32)
    # reshape instead of indexing with new axes, as in models.blocks.attention_bias: TFLite has no op for that.
    self.attention_bias = tf.reshape(padding * MASKED_SCORE, [self._batch_size, 1, 1, self._length])
    self.token_positions = tf.reshape(tf.zeros_like(tokens.input_ids) + tf.range(self._length), [-1])

  def select_tokens(self, values: tf.Tensor) -> tf.Tensor:
    """Selects the tokens that are computed: [B, S] -> [T]."""
    return tf.reshape(values, [-1])

  def place_tokens(self, x: tf.Tensor) -> tf.Tensor:
    """Puts the tokens back into a batch: [T, H] -> [B, S, H], with arbitrary values at padding."""
    return tf.reshape(x, [self._batch_size, self._length, self._hidden_size])

  def select_positions(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Selects tokens [T, H] by their positions in their sequences, int32 [B, M] -> [B * M, H]."""
    row_starts = tf.expand_dims(tf.range(self._batch_size) * self._length, 1)  # [B, 1], indices into T
    return tf.gather(x, tf.reshape(row_starts + positions, [-1]))

  def split_heads(self, x: tf.Tensor) -> tf.Tensor:
    """Splits all tokens into heads: [T, H] -> [B, N, S, D]. attention_bias masks the arbitrary values at padding."""
    return self.split_selected_heads(x, self._length)

  def split_selected_heads(self, x: tf.Tensor, num_positions: tf.Tensor) -> tf.Tensor:
    """Splits selected tokens into heads: [B * M, H] -> [B, N, M, D]."""
    shape = [self._batch_size, num_positions, self._num_heads, self._head_size]
    return tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])

  def join_selected_heads(self, context: tf.Tensor) -> tf.Tensor:
    """Concatenates the heads of selected tokens: [B, N, M, D] -> [B * M, H]."""
    return tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [-1, self._hidden_size])

  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    """Concatenates the heads of all tokens: [B, N, S, D] -> [T, H]."""
    return self.join_selected_heads(context)


class UnpaddedLayout(TokenLayout):
  """Computes only real tokens: T is their number in the batch."""

  def __init__(self, tokens: TokenBatch, config: ModelConfig, has_tokens: tf.Tensor | None = None):
    super().__init__(tokens, config, has_tokens)
    is_real = tf.reshape(tokens.input_mask, [-1]) > 0
    self._batch_indices = tf.cast(tf.reshape(tf.where(is_real), [-1]), tf.int32)  # [T], indices into B * S
    self.token_positions = self._batch_indices % self._length
    # The inverse: for each position of the batch, the index of its token in T, [B, S]. Padding has the index of the
    # token before it. This index is valid, and the values that it selects are masked.
    self._token_indices = tf.reshape(tf.cumsum(tf.cast(is_real, tf.int32)) - 1, [self._batch_size, self._length])
    # Rows of [T * N, D] that hold the heads of the tokens, [B, N, S]. Head n of token t is in row t * N + n.
    head_numbers = tf.range(self._num_heads)
    self._token_rows = (self._token_indices * self._num_heads)[:, tf.newaxis] + head_numbers[:, tf.newaxis]
    # Rows of [B * N * S, D] that hold the heads of each token, [T, N]. Head n of the token at (b, s) is in row
    # (b * N + n) * S + s, and _batch_indices is b * S + s.
    batch_rows = self._batch_indices // self._length
    first_head_rows = self._batch_indices + batch_rows * ((self._num_heads - 1) * self._length)
    self._head_rows = first_head_rows[:, tf.newaxis] + head_numbers * self._length

  def select_tokens(self, values: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(values, [-1]), self._batch_indices)

  def place_tokens(self, x: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, self._token_indices)

  def select_positions(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, tf.reshape(tf.gather(self._token_indices, positions, batch_dims=1), [-1]))

  def split_heads(self, x: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(x, [-1, self._head_size]), self._token_rows)

  def join_heads(self, context: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.gather(tf.reshape(context, [-1, self._head_size]), self._head_rows), [-1, self._hidden_size])


def merge_axes(tokens: TokenBatch) -> tuple[TokenBatch, tf.Tensor | None]:
  """Reshapes [B, K, S] to [B * K, S], and finds which sequences are not all padding, bool [B, K]."""
  if tokens.input_ids.shape.rank == 2:
    return tokens, None
  # Once the padding is normalized, each sequence has a real token.
  has_tokens = tf.reduce_max(tokens.input_mask, axis=2) > 0
  length = tf.shape(tokens.input_ids)[2]
  return TokenBatch(*(tf.reshape(values, [-1, length]) for values in tokens)), has_tokens


def make_constant(value: np.ndarray, name: str, dtype: tf.DType = tf.float32) -> tf.Variable:
  """Makes a variable that is not trainable."""
  return tf.Variable(tf.cast(value, dtype), trainable=False, name=name)


class Dense(tf.Module):
  """A dense layer: x [..., in] -> float32 [..., units]. The product is computed in the dtype of the kernel.

  Args:
    weights: weights by their names in the original code.
    name: the name of the layer in the original code, without /kernel and /bias.
    dtype: dtype of the stored kernel, float32 or bfloat16.
    scale: factor of the result.
  """

  def __init__(self, weights: Weights, name: str, dtype: tf.DType = tf.float32, scale: float = 1.0):
    super().__init__(name=name.rpartition("/")[2])
    self.kernel = make_constant(weights[f"{name}/kernel"] * scale, "kernel", dtype)
    self.bias = make_constant(weights[f"{name}/bias"] * scale, "bias")

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    product = tf.matmul(tf.cast(x, self.kernel.dtype), self.kernel)
    return tf.nn.bias_add(tf.cast(product, tf.float32), self.bias)


class LayerNorm(tf.Module):
  """Layer normalization over the last axis, float32.

  Args:
    weights: weights by their names in the original code.
    name: the name of the layer in the original code.
    epsilon: what is added to the variance.
  """

  def __init__(self, weights: Weights, name: str, epsilon: float = LAYER_NORM_EPSILON):
    super().__init__(name="LayerNorm")
    self._epsilon = epsilon
    self.gamma = make_constant(weights[f"{name}/gamma"], "gamma")
    self.beta = make_constant(weights[f"{name}/beta"], "beta")

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
    return centered * (tf.math.rsqrt(variance + self._epsilon) * self.gamma) + self.beta


class _Attention(tf.Module):
  """x -> LayerNorm(x + attention(x)); see `albert.models.blocks.SelfAttention`.

  Args:
    block: the prefix of the names of the block's weights.
  """

  def __init__(self, config: ModelConfig, weights: Weights, block: str, dtype: tf.DType):
    super().__init__(name="attention")
    self._dtype = dtype
    # Attention scores are divided by sqrt(D). The weights of the query contain this factor, which saves an operation.
    scale = (config.hidden_size // config.num_attention_heads) ** -0.5
    self.query = Dense(weights, f"{block}/attention_1/self/query", dtype, scale)
    self.key = Dense(weights, f"{block}/attention_1/self/key", dtype)
    self.value = Dense(weights, f"{block}/attention_1/self/value", dtype)
    self.output_dense = Dense(weights, f"{block}/attention_1/output/dense", dtype)
    self.layer_norm = LayerNorm(weights, f"{block}/LayerNorm", config.layer_norm_eps)

  def __call__(self, x: tf.Tensor, layout: TokenLayout) -> tf.Tensor:
    """x [T, H] -> [T, H]."""
    context = layout.join_heads(self._attend(layout.split_heads(self.query(x)), x, layout))
    return self.layer_norm(x + self.output_dense(context))

  def outputs_at(self, x: tf.Tensor, positions: tf.Tensor, layout: TokenLayout) -> tf.Tensor:
    """Computes only the outputs at some positions: x [T, H], positions int32 [B, M] -> [B * M, H]."""
    selected = layout.select_positions(x, positions)  # [B * M, H]
    query = layout.split_selected_heads(self.query(selected), tf.shape(positions)[1])
    context = layout.join_selected_heads(self._attend(query, x, layout))
    return self.layer_norm(selected + self.output_dense(context))

  def _attend(self, query: tf.Tensor, x: tf.Tensor, layout: TokenLayout) -> tf.Tensor:
    """Attention of query [B, N, M, D] over all tokens x [T, H] -> [B, N, M, D]."""
    key, value = layout.split_heads(self.key(x)), layout.split_heads(self.value(x))
    query, key, value = (tf.cast(tensor, self._dtype) for tensor in (query, key, value))
    scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
    probabilities = tf.cast(tf.nn.softmax(scores + layout.attention_bias), self._dtype)
    return tf.cast(tf.matmul(probabilities, value), tf.float32)


class _FeedForward(tf.Module):
  """x -> LayerNorm(x + W2 activation(W1 x))."""

  def __init__(self, config: ModelConfig, weights: Weights, block: str, dtype: tf.DType):
    super().__init__(name="ffn")
    self._activation = ACTIVATIONS[config.hidden_act].inference
    self.intermediate = Dense(weights, f"{block}/ffn_1/intermediate/dense", dtype)
    self.output_dense = Dense(weights, f"{block}/ffn_1/intermediate/output/dense", dtype)
    self.layer_norm = LayerNorm(weights, f"{block}/LayerNorm_1", config.layer_norm_eps)

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return self.layer_norm(x + self.output_dense(self._activation(self.intermediate(x))))


class ServedEncoder(tf.Module):
  """The encoder of a served model.

  Args:
    config: the model's config.
    weights: the weights of the encoder, and of the pooler if there is one, by their names in the original code.
    dtype: dtype in which matrices are stored and multiplied, float32 or bfloat16. Everything else is float32.
  """

  def __init__(self, config: ModelConfig, weights: Weights, dtype: tf.DType = tf.float32):
    super().__init__(name="bert")
    self.config = config
    for name in ("word_embeddings", "token_type_embeddings", "position_embeddings"):
      setattr(self, name, make_constant(weights[f"bert/embeddings/{name}"], name))
    self.layer_norm = LayerNorm(weights, "bert/embeddings/LayerNorm", config.layer_norm_eps)
    self.projection = None
    if config.embedding_size != config.hidden_size:
      self.projection = Dense(weights, "bert/encoder/embedding_hidden_mapping_in", dtype)

    def blocks_of_group(block_class: Any, group: int) -> list[Any]:
      names = [f"bert/encoder/transformer/group_{group}/inner_group_{block}" for block in range(config.inner_group_num)]
      return [block_class(config, weights, name, dtype) for name in names]

    self.attention = [blocks_of_group(_Attention, group) for group in range(config.num_attention_groups)]
    self.feed_forward = [blocks_of_group(_FeedForward, group) for group in range(config.num_ffn_groups)]
    self.pooler = Dense(weights, "bert/pooler/dense", dtype) if POOLER[0] in weights else None

  def sequence_output(self, tokens: TokenBatch, layout: TokenLayout) -> tf.Tensor:
    """The output of the last layer, float32 [B, S, H], with zeros at padding. The padding is to be normalized."""
    x = self._embed(tokens, layout)
    for attention, feed_forward in self._blocks():
      x = feed_forward(attention(x, layout))
    return layout.place_tokens(x) * tf.expand_dims(tf.cast(tokens.input_mask, x.dtype), 2)

  def outputs_at(self, tokens: TokenBatch, positions: tf.Tensor, layout: TokenLayout) -> tf.Tensor:
    """The output of the last layer at positions in each sequence, int32 [B, M] -> float32 [B, M, H]."""
    x = self._embed(tokens, layout)
    *first_blocks, (attention, feed_forward) = self._blocks()
    for block_attention, block_feed_forward in first_blocks:
      x = block_feed_forward(block_attention(x, layout))
    x = feed_forward(attention.outputs_at(x, positions, layout))
    batch_size, num_positions = tf.unstack(tf.shape(positions))
    return tf.reshape(x, [batch_size, num_positions, self.config.hidden_size])

  def pooled_output(self, tokens: TokenBatch, layout: TokenLayout) -> tf.Tensor:
    """The output of the pooler at [CLS], float32 [B, H]."""
    cls_positions = tf.zeros_like(tokens.input_ids[:, :1])  # [B, 1]
    return self.pool(self.outputs_at(tokens, cls_positions, layout)[:, 0])

  def pool(self, cls_output: tf.Tensor) -> tf.Tensor:
    """Applies the pooler to the output of the last layer at [CLS]: [B, H] -> [B, H]."""
    assert self.pooler is not None, "select_form has checked that there is a pooler"
    return tf.tanh(self.pooler(cls_output))

  def _blocks(self) -> list[tuple[_Attention, _FeedForward]]:
    """The attention and the feed-forward layer of each block, in the order in which they are applied."""
    config = self.config
    blocks: list[tuple[_Attention, _FeedForward]] = []
    for layer in range(config.num_hidden_layers):
      attention = self.attention[layer * config.num_attention_groups // config.num_hidden_layers]
      feed_forward = self.feed_forward[layer * config.num_ffn_groups // config.num_hidden_layers]
      blocks += zip(attention, feed_forward, strict=True)
    return blocks

  def _embed(self, tokens: TokenBatch, layout: TokenLayout) -> tf.Tensor:
    """The embeddings of the tokens, [T, H]."""
    words = tf.gather(self.word_embeddings, layout.select_tokens(tokens.input_ids))
    segments = tf.gather(self.token_type_embeddings, layout.select_tokens(tokens.segment_ids))
    positions = tf.gather(self.position_embeddings, layout.token_positions)
    x = self.layer_norm(words + segments + positions)
    return x if self.projection is None else self.projection(x)


class LinearHead(tf.Module):
  """A dense layer: float32 [..., H] -> logits [..., classes].

  Args:
    weights: weights by their names in the original code.
    prefix: prefix of the head's weights; "" for a classifier.
  """

  def __init__(self, weights: Weights, prefix: str = ""):
    super().__init__(name="head")
    self.output_weights = make_constant(weights[f"{prefix}output_weights"], "output_weights")
    self.output_bias = make_constant(weights[f"{prefix}output_bias"], "output_bias")

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return tf.nn.bias_add(tf.matmul(x, self.output_weights, transpose_b=True), self.output_bias)


class TextWindows(NamedTuple):
  """The windows of long texts, in order. Each holds [CLS] part of a text [SEP], or [CLS] question [SEP] part [SEP].

  Attributes:
    tokens: ids, mask and segments of the tokens, [W, S].
    example: index of the text that each window belongs to, int32 [W].
    is_text: whether the token belongs to the part of the text, bool [W, S].
    indices: index of the token among the tokens of all texts, int32 [W, S]; arbitrary where is_text is False.
    has_most_context: whether no other window shows more context around this token of the text, bool [W, S].
  """

  tokens: TokenBatch
  example: tf.Tensor
  is_text: tf.Tensor
  indices: tf.Tensor
  has_most_context: tf.Tensor


def cut_into_windows(
  texts: tf.RaggedTensor,
  *,
  max_seq_length: int,
  doc_stride: int,
  special_ids: SpecialIds,
  questions: tf.RaggedTensor | None = None,
  max_windows: int | None = None,
) -> TextWindows:
  """Cuts texts into overlapping windows, at least one for each text, as `albert.tokenization.packing` does in Python.

  Neighboring parts of a text begin doc_stride tokens apart, or fewer if fewer fit in a window.

  Args:
    texts: ids, int32 [B, (tokens)].
    max_seq_length: maximum number of tokens in a window.
    doc_stride: maximum distance between the first tokens of neighboring parts.
    special_ids: the ids of [CLS] and [SEP].
    questions: ids that stand before each part, int32 [B, (tokens)].
    max_windows: maximum number of windows of a text; the rest of the text is cut off. None for no limit.
  """
  text_lengths = tf.cast(texts.row_lengths(), tf.int32)  # [B]
  # Number of tokens before the part: [CLS], or [CLS] question [SEP].
  num_before = tf.ones_like(text_lengths) if questions is None else tf.cast(questions.row_lengths(), tf.int32) + 2
  max_part_lengths = max_seq_length - 1 - num_before
  stride = tf.minimum(max_part_lengths, doc_stride)
  num_left = tf.maximum(text_lengths - max_part_lengths, 0)  # tokens that the first part does not hold
  num_parts = 1 + (num_left + stride - 1) // stride
  if max_windows is not None:
    num_parts = tf.minimum(num_parts, max_windows)
  example = tf.repeat(tf.range(tf.size(num_parts)), num_parts)  # [W]
  part_starts = tf.ragged.range(num_parts).flat_values * tf.gather(stride, example)  # in the text
  part_lengths = tf.minimum(tf.gather(text_lengths, example) - part_starts, tf.gather(max_part_lengths, example))
  first_columns = tf.gather(num_before, example)
  window_lengths = first_columns + part_lengths + 1
  # The columns are positions in a window, [1, S].
  columns = tf.range(tf.reduce_max(tf.concat([window_lengths, [1]], axis=0)))[tf.newaxis, :]
  offset_in_part = columns - first_columns[:, tf.newaxis]  # [W, S], 0 at the part's first token, negative before it
  offset_from_end = columns - window_lengths[:, tf.newaxis]  # [W, S], -1 at the last token of the window
  is_text = (offset_in_part >= 0) & (offset_from_end < -1)
  indices = (tf.gather(_row_starts(texts), example) + part_starts)[:, tf.newaxis] + offset_in_part
  mask = tf.cast(offset_from_end < 0, tf.int32)
  ids = tf.where(is_text, gather_clipped(texts.flat_values, indices), special_ids.sep)
  segments = tf.zeros_like(mask)
  if questions is not None:
    indices_in_questions = tf.gather(_row_starts(questions), example)[:, tf.newaxis] + columns - 1
    ids = tf.where(offset_in_part < -1, gather_clipped(questions.flat_values, indices_in_questions), ids)
    segments = tf.cast(offset_in_part >= 0, tf.int32) * mask
  ids = tf.where(columns == 0, special_ids.cls, ids) * mask
  has_most = _has_most_context(indices, offset_in_part, part_lengths[:, tf.newaxis], is_text)
  return TextWindows(TokenBatch(ids, mask, segments), example, is_text, indices, is_text & has_most)


def windows_by_text(windows: TextWindows, num_texts: tf.Tensor) -> TokenBatch:
  """Puts the windows of each text side by side: [W, S] -> [B, K, S], with windows that are all padding at the end."""
  texts = tf.cast(windows.example, tf.int64)
  ragged = (tf.RaggedTensor.from_value_rowids(values, texts, num_texts, validate=False) for values in windows.tokens)
  return TokenBatch(*(values.to_tensor() for values in ragged))


def map_windows(
  compute: Callable[..., Sequence[tf.Tensor]],
  windows: TokenBatch,
  *values: tf.Tensor,
  max_seq_length: int,
  no_results: Sequence[tf.Tensor],
) -> Sequence[tf.Tensor]:
  """Computes results of windows, and concatenates them. Only _WINDOWS_AT_ONCE windows are computed at a time.

  Args:
    compute: tokens with normalized padding, and values of the same shape -> results.
    windows: the tokens of all windows, [W, S].
    *values: values of the tokens, [W, S] each.
    max_seq_length: maximum number of tokens in a window.
    no_results: the results of no windows: tensors whose first dimension is 0.
  """
  num_windows = tf.shape(windows.input_ids)[0]

  def compute_next(begin: tf.Tensor, results: Sequence[tf.Tensor]) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
    end = tf.minimum(begin + _WINDOWS_AT_ONCE, num_windows)
    tokens = check_length(TokenBatch(*(tensor[begin:end] for tensor in windows)), max_seq_length)
    length = tf.shape(tokens.input_ids)[1]
    new_results = compute(tokens, *(tensor[begin:end, :length] for tensor in values))
    return end, tf.nest.map_structure(lambda *tensors: tf.concat(tensors, axis=0), results, new_results)

  any_length = tf.nest.map_structure(lambda tensor: tf.TensorShape([None, *tensor.shape[1:]]), no_results)
  _, results = tf.while_loop(
    lambda begin, _: begin < num_windows,
    compute_next,
    (tf.constant(0), no_results),
    shape_invariants=(tf.TensorShape([]), any_length),
    parallel_iterations=1,
  )
  return results


def _has_most_context(
  indices: tf.Tensor, num_before: tf.Tensor, part_lengths: tf.Tensor, is_text: tf.Tensor
) -> tf.Tensor:
  """Whether a window shows the most context around a token, compared with the other windows that contain the token.

  Of several windows with equally much context, the first one counts. The scores are the same float64 numbers, bit for
  bit, as those of `albert.tokenization.packing.max_context_windows`.

  Args:
    indices: index of each token among the tokens of all texts, int32 [W, S].
    num_before: number of tokens of the text before the token in its window, int32 [W, S].
    part_lengths: number of tokens of the text in the window, int32 [W, 1].
    is_text: whether the token belongs to the text, bool [W, S].
  Returns: bool [W, S]; arbitrary where is_text is False.
  """
  num_windows = tf.shape(indices)[0]
  window_indices = tf.zeros_like(indices) + tf.range(num_windows)[:, tf.newaxis]
  num_after = part_lengths - 1 - num_before
  scores = tf.cast(tf.minimum(num_before, num_after), tf.float64) + 0.01 * tf.cast(part_lengths, tf.float64)
  # The tokens of the texts in all windows: index among the tokens of all texts, window, score, each [N].
  flat_token_indices = tf.boolean_mask(indices, is_text)
  flat_window_indices = tf.boolean_mask(window_indices, is_text)
  flat_scores = tf.boolean_mask(scores, is_text)
  num_tokens = tf.reduce_max(tf.concat([flat_token_indices, [-1]], axis=0)) + 1
  best_scores = tf.math.unsorted_segment_max(flat_scores, flat_token_indices, num_tokens)  # [T]
  # Windows whose score is not the best get a number that is greater than that of any window.
  is_best = flat_scores == tf.gather(best_scores, flat_token_indices)
  best_windows = tf.where(is_best, flat_window_indices, num_windows)  # [N]
  first_best_windows = tf.math.unsorted_segment_min(best_windows, flat_token_indices, num_tokens)  # [T]
  return gather_clipped(first_best_windows, indices) == window_indices


def _row_starts(values: tf.RaggedTensor) -> tf.Tensor:
  """Index of each row's first value among all values, int32."""
  return tf.cast(values.row_starts(), tf.int32)


def gather_clipped(values: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
  """values[indices]; the result is arbitrary where an index is out of range."""
  return tf.gather(tf.concat([values, [0]], axis=0), tf.clip_by_value(indices, 0, tf.size(values)))
