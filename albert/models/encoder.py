"""The encoder: embeddings, the projection from E to H, and L layers that share weights (ALBERT, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.attention import FeedForward, SelfAttention, attention_bias
from albert.models.embeddings import Embeddings
from albert.models.gradient_checkpointing import GradientCheckpointing

# B batch, S sequence, M selected positions, E embedding, H hidden, L layers.


class EncoderOutput(NamedTuple):
  """The results of the encoder, in the compute dtype.

  Attributes:
    embedding_output: [B, S, E], after LayerNorm and dropout.
    hidden_states: L + 1 tensors [B, S, H]: the projected embeddings, then the output of each layer. The last one is
      [B, M, H] if `positions` were given.
    pooled_output: [B, H], tanh of a dense layer on [CLS].
  """

  embedding_output: tf.Tensor
  hidden_states: list[tf.Tensor]
  pooled_output: tf.Tensor

  @property
  def sequence_output(self) -> tf.Tensor:
    """The output of the last layer, [B, S, H], or [B, M, H] if `positions` were given."""
    return self.hidden_states[-1]


@dataclasses.dataclass(frozen=True)
class _Block:
  """A transformer block with all its arguments except x, so that gradient checkpointing can compute it twice."""

  attention: SelfAttention
  feed_forward: FeedForward
  bias: tf.Tensor
  training: bool | None
  seed: tf.Tensor | None
  positions: tf.Tensor | None

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    """x [B, S, H] -> [B, S, H], or [B, M, H] with positions. Each call draws the same dropout masks."""
    x = self.attention(x, self.bias, training=self.training, seed=self.seed, positions=self.positions)
    return self.feed_forward(x, training=self.training, seed=self.seed)


class Encoder(keras.layers.Layer):
  """The ALBERT (or BERT) encoder, a Keras layer. Layer i uses the weights of group floor(i * groups / L).

  Example:
    >>> import tensorflow as tf
    >>> from albert.config.model import ModelConfig
    >>> from albert.models.encoder import Encoder
    >>> encoder = Encoder(ModelConfig(vocab_size=100, hidden_size=64, num_attention_heads=4, intermediate_size=256))
    >>> ids = tf.constant([[2, 17, 23, 3]])
    >>> output = encoder({"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)})
    >>> print(output.sequence_output.shape, output.pooled_output.shape, len(output.hidden_states))
    (1, 4, 64) (1, 64) 13

  Args:
    config: sizes, sharing of weights and dropout rates.
    name: Keras' name of the layer.

  Attributes:
    recompute_grad: gradient checkpointing. Only each block's input is stored; the rest is recomputed in the backward
      pass. It takes less memory and a third more arithmetic, and the numbers are the same. Set it before the training
      step is traced.
  """

  def __init__(self, config: ModelConfig, name: str = "bert"):
    super().__init__(name=name)
    self.config = config
    self.recompute_grad = False
    self.embeddings = Embeddings(config)
    self.projection = None  # there is no projection if E = H, as in the original
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
      positions: int [B, M], M may be 0. The last layer is then computed only for [CLS] and for these tokens, which
        saves most of the last layer's work. None computes it for all tokens.

    Returns:
      An EncoderOutput.
    """
    config = self.config
    input_ids, segment_ids = inputs["input_ids"], inputs["segment_ids"]
    if training and seed is None:
      seed = layers.new_seed()  # one for the whole call: recomputed blocks must draw the same masks again
    embedding_output = self.embeddings(input_ids, segment_ids, training=training, seed=seed)
    x = embedding_output if self.projection is None else self.projection(embedding_output)
    bias = attention_bias(inputs["input_mask"])
    hidden_states = [x]
    checkpointing = GradientCheckpointing() if self.recompute_grad else None
    last = config.num_hidden_layers * config.inner_group_num
    if positions is not None:
      positions = tf.concat([tf.zeros_like(input_ids[:, :1]), tf.cast(positions, input_ids.dtype)], axis=1)
    for layer in range(config.num_hidden_layers):
      attention = self.attention[layer * config.num_attention_groups // config.num_hidden_layers]
      feed_forward = self.feed_forward[layer * config.num_ffn_groups // config.num_hidden_layers]
      for inner in range(config.inner_group_num):
        block = layer * config.inner_group_num + inner + 1
        block_seed = None if seed is None else tf.random.experimental.stateless_fold_in(seed, block)
        block_positions = positions if block == last else None
        run_block = _Block(attention[inner], feed_forward[inner], bias, training, block_seed, block_positions)
        x = checkpointing.run(run_block, x) if checkpointing else run_block(x)
      hidden_states.append(x)
    if positions is not None:
      hidden_states[-1] = x[:, 1:]
    return EncoderOutput(embedding_output, hidden_states, self.pooler(x[:, 0]))

  def named_weights(self, prefix: str = "bert") -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables.

    With partial sharing (`sharing` is "attention" or "ffn"), the attention and the feed-forward network of a block
    are each named by their own group.

    Args:
      prefix: the encoder's name there.
    """
    weights = self.embeddings.named_weights(f"{prefix}/embeddings")
    if self.projection is not None:
      weights |= layers.dense_weights(self.projection, f"{prefix}/encoder/embedding_hidden_mapping_in")
    groups: list[tuple[int, Sequence[SelfAttention | FeedForward]]] = [
      *enumerate(self.attention),
      *enumerate(self.feed_forward),
    ]
    for group, sublayers in groups:
      for inner, sublayer in enumerate(sublayers):
        weights |= sublayer.named_weights(f"{prefix}/encoder/transformer/group_{group}/inner_group_{inner}")
    return weights | layers.dense_weights(self.pooler, f"{prefix}/pooler/dense")
