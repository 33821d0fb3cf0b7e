"""ALBERT in NumPy float64 with gradients derived by hand from the paper's formulas. Slow.

Weights are a dict whose keys are the names in the original's checkpoints. Each function returns its result and a
backward function. The backward function takes the gradient of the loss with respect to the result, adds the gradients
with respect to the weights to `grads`, and returns the gradient with respect to the input.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from albert.config.model import ModelConfig

# B batch, S sequence, P predictions, E embedding, H hidden, N heads, D = H / N head size, V vocabulary.
# d_x is the gradient of the loss with respect to x; d alone is the gradient with respect to a function's result.

Array = np.ndarray
Weights = Mapping[str, Array]
Backward = Callable[[Array], Array]

EPSILON = 1e-12
SEGMENT_TABLE = "bert/embeddings/token_type_embeddings"


class Outputs(NamedTuple):
  """Outputs of the encoder.

  Attributes:
    embedding_output: [B, S, E].
    hidden_states: the projected embeddings and the output of each layer, [B, S, H].
    pooled_output: [B, H].
  """

  embedding_output: Array
  hidden_states: list[Array]
  pooled_output: Array


class Pretraining(NamedTuple):
  """The result of a forward and backward pass of pretraining.

  Attributes:
    masked_lm_log_probs: log-probabilities [B, P, V].
    sentence_log_probs: log-probabilities [B, 2].
    masked_lm_loss, sentence_loss: the two losses.
    encoder: the outputs of the encoder.
    gradients: the gradient of the sum of the losses, by the name of the weight.
    row_squares: for each table that is only used for lookups, the sum of the squares of its gradient's rows, one row
      for each token. Rows of the same token are not added up.
  """

  masked_lm_log_probs: Array
  sentence_log_probs: Array
  masked_lm_loss: float
  sentence_loss: float
  encoder: Outputs
  gradients: dict[str, Array]
  row_squares: dict[str, float]


def gelu(x: Array) -> tuple[Array, Array]:
  c = math.sqrt(2 / math.pi)
  t = np.tanh(c * (x + 0.044715 * x**3))
  return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * c * (1 + 3 * 0.044715 * x**2)


def gelu_erf(x: Array) -> tuple[Array, Array]:
  """Returns the exact GELU, x times the normal distribution's cumulative function, and its derivative."""
  cumulative = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
  return x * cumulative, cumulative + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def relu(x: Array) -> tuple[Array, Array]:
  """Returns max(x, 0) and its derivative."""
  return np.maximum(x, 0), (x > 0).astype(x.dtype)


def silu(x: Array) -> tuple[Array, Array]:
  """Returns x sigmoid(x) and its derivative."""
  gate = 1 / (1 + np.exp(-x))
  return x * gate, gate * (1 + x * (1 - gate))


ACTIVATIONS = {"gelu": gelu, "gelu_erf": gelu_erf, "relu": relu, "silu": silu}


def log_softmax(x: Array) -> Array:
  """Returns the logarithm of the softmax over the last axis."""
  shifted = x - x.max(axis=-1, keepdims=True)
  return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Reference:
  """A model with weights in float64.

  Attributes:
    grads: the gradients of the last backward pass by name.
    embedding_row_squares: the sum of the squares of the last gradient with respect to the sum of the three embeddings.
      As long as the rows of equal tokens are not added up, it is the same for the gradient of each embedding table.
  """

  def __init__(self, config: ModelConfig, weights: Weights):
    self.config = config
    self.weights = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    self.grads: dict[str, Array] = defaultdict(float)  # type: ignore[arg-type]
    self.embedding_row_squares = 0.0

  def dense(self, x: Array, name: str) -> tuple[Array, Backward]:
    """x [..., in] @ kernel [in, out] + bias."""
    kernel = self.weights[f"{name}/kernel"]

    def backward(d: Array) -> Array:
      rows, d_rows = x.reshape(-1, x.shape[-1]), d.reshape(-1, d.shape[-1])
      self.grads[f"{name}/kernel"] += rows.T @ d_rows
      self.grads[f"{name}/bias"] += d_rows.sum(axis=0)
      return d @ kernel.T

    return x @ kernel + self.weights[f"{name}/bias"], backward

  def layer_norm(self, x: Array, name: str) -> tuple[Array, Backward]:
    """(x - mean) / sqrt(variance + 1e-12) * gamma + beta over the last axis."""
    gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + EPSILON)
    normal = (x - x.mean(axis=-1, keepdims=True)) / deviation

    def backward(d: Array) -> Array:
      axes = tuple(range(d.ndim - 1))
      self.grads[f"{name}/gamma"] += (d * normal).sum(axis=axes)
      self.grads[f"{name}/beta"] += d.sum(axis=axes)
      d_normal = d * gamma
      # The derivatives of the mean and of the deviation.
      through_mean = d_normal.mean(axis=-1, keepdims=True)
      through_deviation = normal * (d_normal * normal).mean(axis=-1, keepdims=True)
      return (d_normal - through_mean - through_deviation) / deviation

    return normal * gamma + beta, backward

  def attention(self, x: Array, mask: Array, prefix: str) -> tuple[Array, Backward]:
    """LayerNorm(x + dense(softmax(q k^T / sqrt(D) - 10000 (1 - mask)) v)); x [B, S, H], mask [B, S]."""
    heads = self.config.num_attention_heads
    batch, length, hidden = x.shape
    size = hidden // heads

    def split_heads(y: Array) -> Array:  # [B, S, H] -> [B, N, S, D]
      return y.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)

    def join_heads(y: Array) -> Array:  # [B, N, S, D] -> [B, S, H]
      return y.transpose(0, 2, 1, 3).reshape(batch, length, hidden)

    q, q_back = self.dense(x, f"{prefix}/attention_1/self/query")
    k, k_back = self.dense(x, f"{prefix}/attention_1/self/key")
    v, v_back = self.dense(x, f"{prefix}/attention_1/self/value")
    q, k, v = split_heads(q), split_heads(k), split_heads(v)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(size) - 10000.0 * (1 - mask)[:, None, None, :]
    probs = np.exp(log_softmax(scores))
    y, out_back = self.dense(join_heads(probs @ v), f"{prefix}/attention_1/output/dense")
    normed, norm_back = self.layer_norm(x + y, f"{prefix}/LayerNorm")

    def backward(d: Array) -> Array:
      d_sum = norm_back(d)
      d_context = split_heads(out_back(d_sum))
      d_probs = d_context @ v.transpose(0, 1, 3, 2)
      d_scores = probs * (d_probs - (d_probs * probs).sum(axis=-1, keepdims=True)) / math.sqrt(size)
      d_q, d_k = d_scores @ k, d_scores.transpose(0, 1, 3, 2) @ q
      d_v = probs.transpose(0, 1, 3, 2) @ d_context
      return d_sum + q_back(join_heads(d_q)) + k_back(join_heads(d_k)) + v_back(join_heads(d_v))

    return normed, backward

  def feed_forward(self, x: Array, prefix: str) -> tuple[Array, Backward]:
    """LayerNorm(x + W2 activation(W1 x))."""
    inner, in_back = self.dense(x, f"{prefix}/ffn_1/intermediate/dense")
    active, slope = ACTIVATIONS[self.config.hidden_act](inner)
    y, out_back = self.dense(active, f"{prefix}/ffn_1/intermediate/output/dense")
    normed, norm_back = self.layer_norm(x + y, f"{prefix}/LayerNorm_1")

    def backward(d: Array) -> Array:
      d_sum = norm_back(d)
      return d_sum + in_back(out_back(d_sum) * slope)

    return normed, backward

  def embeddings(self, ids: Array, segments: Array) -> tuple[Array, Backward]:
    """ids, segments [B, S] -> LayerNorm(word + segment + position) [B, S, E]."""
    prefix = "bert/embeddings"
    words = self.weights[f"{prefix}/word_embeddings"]
    types = self.weights[f"{prefix}/token_type_embeddings"]
    positions = self.weights[f"{prefix}/position_embeddings"]
    normed, norm_back = self.layer_norm(words[ids] + types[segments] + positions[: ids.shape[1]], f"{prefix}/LayerNorm")

    def backward(d: Array) -> Array:
      d_sum = norm_back(d)
      self.embedding_row_squares = float((d_sum**2).sum())
      self._add_rows(f"{prefix}/word_embeddings", ids, d_sum)
      self._add_rows(f"{prefix}/token_type_embeddings", segments, d_sum)
      self._add_rows(f"{prefix}/position_embeddings", np.broadcast_to(np.arange(ids.shape[1]), ids.shape), d_sum)
      return d_sum

    return normed, backward

  def _add_rows(self, name: str, indices: Array, d: Array) -> None:
    """Adds the gradient of a lookup, table[indices], to the gradient of the table."""
    gradient = np.zeros_like(self.weights[name])
    np.add.at(gradient, indices, d)
    self.grads[name] += gradient

  def _block_prefixes(self, layer: int) -> list[tuple[str, str]]:
    """Prefixes of the attention and feed-forward weights of each block of a layer."""
    config = self.config
    # 1e-9 makes up for the rounding of the division.
    group_of_layer = math.floor(layer * config.num_hidden_groups / config.num_hidden_layers + 1e-9)
    attention_group = group_of_layer if config.sharing in ("all", "attention") else layer
    ffn_group = group_of_layer if config.sharing in ("all", "ffn") else layer
    prefix = "bert/encoder/transformer"
    return [
      (f"{prefix}/group_{attention_group}/inner_group_{i}", f"{prefix}/group_{ffn_group}/inner_group_{i}")
      for i in range(config.inner_group_num)
    ]

  def encode(self, ids: Array, mask: Array, segments: Array) -> tuple[Outputs, Callable[[Array, Array], None]]:
    """ids, mask, segments [B, S] -> outputs; the backward function takes d sequence [B, S, H] and d pooled [B, H]."""
    embedded, embed_back = self.embeddings(ids, segments)
    backward_functions: list[Backward] = [embed_back]
    x = embedded
    if self.config.embedding_size != self.config.hidden_size:
      x, back = self.dense(x, "bert/encoder/embedding_hidden_mapping_in")
      backward_functions.append(back)
    states = [x]
    for layer in range(self.config.num_hidden_layers):
      for attention_prefix, ffn_prefix in self._block_prefixes(layer):
        x, back = self.attention(x, np.asarray(mask, np.float64), attention_prefix)
        backward_functions.append(back)
        x, back = self.feed_forward(x, ffn_prefix)
        backward_functions.append(back)
      states.append(x)
    pooler_input, pool_back = self.dense(x[:, 0], "bert/pooler/dense")
    pooled = np.tanh(pooler_input)

    def backward(d_sequence: Array, d_pooled: Array) -> None:
      d = d_sequence.copy()
      d[:, 0] += pool_back(d_pooled * (1 - pooled**2))
      for backward_function in reversed(backward_functions):
        d = backward_function(d)

    return Outputs(embedded, states, pooled), backward

  def masked_lm_logits(self, hidden: Array) -> tuple[Array, Backward]:
    """hidden [..., H] -> logits [..., V]."""
    prefix = "cls/predictions"
    inner, dense_back = self.dense(hidden, f"{prefix}/transform/dense")
    active, slope = ACTIVATIONS[self.config.hidden_act](inner)
    normed, norm_back = self.layer_norm(active, f"{prefix}/transform/LayerNorm")
    table = self.weights["bert/embeddings/word_embeddings"]

    def backward(d: Array) -> Array:
      rows, d_rows = normed.reshape(-1, normed.shape[-1]), d.reshape(-1, d.shape[-1])
      self.grads["bert/embeddings/word_embeddings"] += d_rows.T @ rows
      self.grads[f"{prefix}/output_bias"] += d_rows.sum(axis=0)
      return dense_back(norm_back(d @ table) * slope)

    return normed @ table.T + self.weights[f"{prefix}/output_bias"], backward

  def linear_head(self, x: Array, prefix: str) -> tuple[Array, Backward]:
    """x [..., H] -> x @ output_weights [C, H] transposed + output_bias."""
    table = self.weights[f"{prefix}output_weights"]

    def backward(d: Array) -> Array:
      rows, d_rows = x.reshape(-1, x.shape[-1]), d.reshape(-1, d.shape[-1])
      self.grads[f"{prefix}output_weights"] += d_rows.T @ rows
      self.grads[f"{prefix}output_bias"] += d_rows.sum(axis=0)
      return d @ table

    return x @ table.T + self.weights[f"{prefix}output_bias"], backward

  def pretrain(self, batch: Mapping[str, Any]) -> Pretraining:
    """Computes both losses and the gradients of their sum.

    The masked-LM loss is the mean over masked tokens, the sentence-order loss the mean over examples.
    """
    self.grads.clear()
    outputs, encoder_back = self.encode(batch["input_ids"], batch["input_mask"], batch["segment_ids"])
    sequence = outputs.hidden_states[-1]
    rows = np.arange(len(sequence))[:, None]
    positions, labels = batch["masked_lm_positions"], batch["masked_lm_ids"]
    lm_logits, lm_back = self.masked_lm_logits(sequence[rows, positions])
    lm_loss, lm_log_probs, d_lm_logits = cross_entropy(lm_logits, labels, batch["masked_lm_weights"])
    d_sequence = np.zeros_like(sequence)
    np.add.at(d_sequence, (rows, positions), lm_back(d_lm_logits))
    sentence_logits, sentence_back = self.linear_head(outputs.pooled_output, "cls/seq_relationship/")
    order_labels = np.asarray(batch["next_sentence_labels"]).reshape(-1)
    weights = np.ones(len(order_labels))
    sentence_loss, sentence_log_probs, d_sentence_logits = cross_entropy(sentence_logits, order_labels, weights)
    encoder_back(d_sequence, sentence_back(d_sentence_logits))
    gradients = {name: self.grads[name] for name in self.weights}
    # The masked-LM head uses the word table, too, so the table's gradient is dense and not in rows.
    row_squares = {SEGMENT_TABLE: self.embedding_row_squares}
    return Pretraining(lm_log_probs, sentence_log_probs, lm_loss, sentence_loss, outputs, gradients, row_squares)


def cross_entropy(logits: Array, labels: Array, weights: Array) -> tuple[float, Array, Array]:
  """Returns the weighted mean of -log p(label), the log-probabilities, and the gradient with respect to the logits."""
  log_probs = log_softmax(logits)
  one_hot = np.eye(logits.shape[-1])[labels]
  weights = np.asarray(weights, np.float64)
  loss = -((log_probs * one_hot).sum(axis=-1) * weights).sum() / weights.sum()
  return loss, log_probs, (np.exp(log_probs) - one_hot) * weights[..., None] / weights.sum()
