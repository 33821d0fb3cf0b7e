"""The encoder: embeddings, the projection to H, and L layers that share their weights (ALBERT, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.attention import FeedForward, SelfAttention, attention_bias
from albert.models.embeddings import Embeddings
from albert.models.recompute import Recomputation

# B batch, S sequence, M tokens that are asked for, E embedding, H hidden.


class EncoderOutput(NamedTuple):
  """What the encoder computes.

  embedding_output: [B, S, E]. hidden_states: L + 1 tensors [B, S, H], the first is the projected
  embeddings, the last is sequence_output ([B, M, H] where some tokens were asked for). pooled_output: [B, H], tanh of
  a dense layer on [CLS].
  """

  embedding_output: tf.Tensor
  hidden_states: list[tf.Tensor]
  pooled_output: tf.Tensor

  @property
  def sequence_output(self) -> tf.Tensor:
    """The last layer, [B, S, H], or [B, M, H] at the tokens that were asked for."""
    return self.hidden_states[-1]


@dataclasses.dataclass(frozen=True)
class _Block:
  """The two halves of a layer, and all else but x that they are a function of."""

  attention: SelfAttention
  feed_forward: FeedForward
  bias: tf.Tensor
  training: bool | None
  seed: tf.Tensor | None
  positions: tf.Tensor | None

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    """x [B, S, H] -> [B, S, H], or [B, M, H] at positions int [B, M]; dropout too is the same each time."""
    x = self.attention(x, self.bias, training=self.training, seed=self.seed, positions=self.positions)
    return self.feed_forward(x, training=self.training, seed=self.seed)


class Encoder(keras.layers.Layer):
  """ids -> hidden states. Layer i uses the weights of group floor(i * groups / L).

  Attributes:
    recompute_grad: keep only what goes into each block for the backward pass, and compute the block again there:
      less memory, a third more arithmetic, the same numbers. Set it before the training step is traced.
  """

  def __init__(self, config: ModelConfig, name: str = "bert"):
    super().__init__(name=name)
    self.config = config
    self.recompute_grad = False
    self.embeddings = Embeddings(config)
    self.projection = None  # as the original: no variable when E = H
    if config.embedding_size != config.hidden_size:
      self.projection = layers.dense(config.hidden_size, config.initializer_range, "embedding_hidden_mapping_in")
    inner = range(config.inner_group_num)
    self.attention = [
      [SelfAttention(config, name=f"attention_{g}_{i}") for i in inner] for g in range(config.num_attention_groups)
    ]
    self.feed_forward = [
      [FeedForward(config, name=f"ffn_{g}_{i}") for i in inner] for g in range(config.num_ffn_groups)
    ]
    self.pooler = keras.layers.Dense(
      config.hidden_size,
      activation="tanh",
      kernel_initializer=layers.truncated_normal(config.initializer_range),
      name="pooler",
    )

  def call(
    self,
    inputs: Mapping[str, tf.Tensor],
    training: bool | None = False,
    seed: tf.Tensor | None = None,
    positions: tf.Tensor | None = None,
  ) -> EncoderOutput:
    """Encodes a batch.

    Args:
      inputs: input_ids, input_mask, segment_ids int [B, S]; the mask is 1 for real tokens and 0 for padding. Other
        keys are ignored.
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed for each call.
      positions: int [B, M], M may be 0: the last layer is computed for these tokens and for [CLS] alone, which is a
        twelfth less work for 12 layers. None: for all.
    """
    config = self.config
    input_ids, segment_ids = inputs["input_ids"], inputs["segment_ids"]
    if training and seed is None:
      seed = layers.new_seed()  # one for the whole call: recomputed blocks must draw the same masks again
    embedding_output = self.embeddings(input_ids, segment_ids, training=training, seed=seed)
    x = embedding_output if self.projection is None else self.projection(embedding_output)
    bias = attention_bias(inputs["input_mask"])
    hidden_states = [x]
    recomputation = Recomputation() if self.recompute_grad else None
    last = config.num_hidden_layers * config.inner_group_num
    if positions is not None:
      positions = tf.concat([tf.zeros_like(input_ids[:, :1]), tf.cast(positions, input_ids.dtype)], axis=1)
    for layer in range(config.num_hidden_layers):
      attention = self.attention[layer * config.num_attention_groups // config.num_hidden_layers]
      feed_forward = self.feed_forward[layer * config.num_ffn_groups // config.num_hidden_layers]
      for inner in range(config.inner_group_num):
        block = layer * config.inner_group_num + inner + 1
        block_seed = None if seed is None else tf.random.experimental.stateless_fold_in(seed, block)
        asked = positions if block == last else None
        compute = _Block(attention[inner], feed_forward[inner], bias, training, block_seed, asked)
        x = recomputation.run(compute, x) if recomputation else compute(x)
      hidden_states.append(x)
    if positions is not None:
      hidden_states[-1] = x[:, 1:]
    return EncoderOutput(embedding_output, hidden_states, self.pooler(x[:, 0]))

  def named_weights(self, prefix: str = "bert") -> dict[str, tf.Variable]:
    """The variables under the original's names.

    With partial sharing (`attention`, `ffn`), the halves of a block are named by their own group.
    """
    weights = self.embeddings.named_weights(f"{prefix}/embeddings")
    if self.projection is not None:
      weights |= layers.dense_weights(self.projection, f"{prefix}/encoder/embedding_hidden_mapping_in")
    halves: list[list[SelfAttention | FeedForward]] = [*self.attention, *self.feed_forward]
    groups = [*range(len(self.attention)), *range(len(self.feed_forward))]
    for group, inner_blocks in zip(groups, halves, strict=True):
      for inner, half in enumerate(inner_blocks):
        weights |= half.named_weights(f"{prefix}/encoder/transformer/group_{group}/inner_group_{inner}")
    return weights | layers.dense_weights(self.pooler, f"{prefix}/pooler/dense")
