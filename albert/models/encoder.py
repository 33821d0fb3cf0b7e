"""The encoder: embeddings, the projection from E to H, and L layers that share weights (ALBERT, section 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.errors import UserError
from albert.io.files import AnyPath
from albert.models import layers
from albert.models.blocks import Embeddings, FeedForward, SelfAttention, attention_bias
from albert.models.layers import PACKAGE, AnyConfig, BuiltFromConfig, as_config, build_in_scope
from albert.weights.initial_weights import POOLER_NEW, load_pretrained, open_pretrained

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


@keras.saving.register_keras_serializable(PACKAGE)
class Encoder(BuiltFromConfig, keras.layers.Layer):
  """The ALBERT (or BERT) encoder, a Keras layer. Layer i uses the weights of group floor(i * groups / L).

  Example:
    >>> import albert
    >>> import tensorflow as tf
    >>> config = albert.ModelConfig(vocab_size=100, hidden_size=64, num_attention_heads=4, intermediate_size=256)
    >>> encoder = albert.Encoder(config)
    >>> ids = tf.constant([[2, 17, 23, 3]])
    >>> output = encoder({"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)})
    >>> print(output.sequence_output.shape, output.pooled_output.shape, len(output.hidden_states))
    (1, 4, 64) (1, 64) 13

  Args:
    config: sizes, sharing of weights and dropout rates; or the name of a config, such as "albert_base".
    name: Keras' name of the layer.
    **kwargs: further arguments of keras.layers.Layer: trainable, dtype.

  Raises:
    UserError: `config` is a name, and there is no model of this name.

  Attributes:
    recompute_grad: gradient checkpointing. Only each block's input is stored; the rest is recomputed in the backward
      pass. It takes less memory and a third more arithmetic, and the results are the same. Set it before the training
      step is traced by tf.function.
    training_config: the config of training passes, which may differ from `config` in its depth and its dropout; see
      `train_as`.
  """

  def __init__(self, config: AnyConfig, name: str = "bert", **kwargs: Any):
    # Keras' autocast would cast ids that are given as floats to bfloat16, which cannot represent all of them.
    super().__init__(name=name, **{"autocast": False, **kwargs})
    policy = self.dtype_policy
    self.config = self.training_config = config = as_config(config)
    self.recompute_grad = False
    self.embeddings = Embeddings(config, dtype=policy)
    self.projection = None  # there is no projection if E = H, as in the original
    if config.embedding_size != config.hidden_size:
      name_of_projection = "embedding_hidden_mapping_in"
      self.projection = layers.dense(config.hidden_size, config.initializer_range, name_of_projection, policy)
    # Flat lists, ordered by group g and then by inner block i, because Keras does not save layers in lists of lists.
    inner_blocks = range(config.inner_group_num)
    self.attention_layers = [
      SelfAttention(config, f"attention_{g}_{i}", policy)
      for g in range(config.num_attention_groups)
      for i in inner_blocks
    ]
    self.feed_forward_layers = [
      FeedForward(config, f"ffn_{g}_{i}", policy) for g in range(config.num_ffn_groups) for i in inner_blocks
    ]
    self.pooler = layers.dense(config.hidden_size, config.initializer_range, "pooler", policy, "tanh")

  @classmethod
  def from_pretrained(cls, path: AnyPath, *, config: ModelConfig | None = None, **kwargs: Any) -> Encoder:
    """Makes the encoder with pretrained weights.

    Weights of heads are ignored. If the weights have no pooler, it is newly initialized, and a line is logged.

    Args:
      path: a directory from Google or Hugging Face, the output_dir of a run, one of its step-N directories, the prefix
        of a TensorFlow checkpoint, or a .safetensors file.
      config: the config; None for the one beside the weights. Dropout rates may differ from those of the weights:
        dataclasses.replace(config, hidden_dropout_prob=0.1).
      **kwargs: further arguments of the constructor.

    Returns:
      The encoder with its weights.

    Raises:
      UserError: there are no weights, they are damaged, or they do not match the config; the message names them.

    Example:
      >>> import albert
      >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
      >>> encoder = albert.Encoder.from_pretrained("downloads/albert_base")
      >>> output = encoder(tokenizer(["They drank the pub dry."]))
      >>> output.pooled_output.shape == (1, encoder.config.hidden_size)
      True
    """
    pretrained = open_pretrained(path, config)
    encoder = cls(pretrained.config, **kwargs)
    load_pretrained(pretrained, encoder.named_weights(), on_missing_pooler=POOLER_NEW)
    return encoder

  def train_as(self, config: ModelConfig) -> None:
    """Sets the depth and the dropout of training passes, for a stage of training. Passes for evaluation keep `config`.

    If `config` has fewer layers than `self.config`, layer i of a training pass uses group floor(i * groups / depth), or
    its own weights if the layers do not share any. Call this method before the training step is traced.

    Args:
      config: the config of training passes. All weights have the same shapes as with `self.config`.
    """
    self.training_config = config
    parts: list[Any] = [self.embeddings, *self.attention_layers, *self.feed_forward_layers]
    for part in parts:
      part.config = config  # for its dropout rates, which only training passes use

  def _blocks(self, depth: int) -> Iterator[tuple[SelfAttention, FeedForward]]:
    """Yields the blocks of a network of `depth` layers, inner_group_num blocks for each layer."""
    config = self.config

    def group(layer: int, num_groups: int) -> int:
      return layer if num_groups == config.num_hidden_layers else layer * num_groups // depth

    for layer in range(depth):
      first_attention = group(layer, config.num_attention_groups) * config.inner_group_num
      first_ffn = group(layer, config.num_ffn_groups) * config.inner_group_num
      for inner in range(config.inner_group_num):
        yield self.attention_layers[first_attention + inner], self.feed_forward_layers[first_ffn + inner]

  def build(self, input_shape: Any = None) -> None:
    """Makes all weights. Their shapes depend on the config only.

    Args:
      input_shape: not used.
    """
    config = self.config
    hidden_shape = [None, None, config.hidden_size]
    build_in_scope(self.embeddings, [None, None])
    if self.projection is not None:
      build_in_scope(self.projection, [None, None, config.embedding_size])
    for attention, feed_forward in self._blocks(config.num_hidden_layers):
      build_in_scope(attention, hidden_shape)
      build_in_scope(feed_forward, hidden_shape)
    build_in_scope(self.pooler, [None, config.hidden_size])
    super().build(input_shape)

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
    # To build a subclassed model that it loads, Keras calls it with floats, even if the real inputs are integers.
    input_ids, segment_ids = (
      tf.cast(ids, tf.int32) if ids.dtype.is_floating else ids for ids in (inputs["input_ids"], inputs["segment_ids"])
    )
    length = input_ids.shape[1]
    if length is not None and length > config.max_position_embeddings:
      raise UserError(
        f"sequences of {length} tokens are too long for an encoder with {config.max_position_embeddings} positions: "
        f"give the tokenizer max_length={config.max_position_embeddings}"
      )
    if training and seed is None:
      seed = layers.new_seed()  # one for the whole call: recomputed blocks must draw the same masks again
    embedding_output = self.embeddings(input_ids, segment_ids, training=training, seed=seed)
    x = embedding_output if self.projection is None else self.projection(embedding_output)
    if positions is not None:  # the pooler reads [CLS], so its position 0 is added as the first one
      positions = tf.concat([tf.zeros_like(input_ids[:, :1]), tf.cast(positions, input_ids.dtype)], axis=1)
    hidden_states = self._run_layers(x, attention_bias(inputs["input_mask"]), training, seed, positions)
    pooled_output = self.pooler(hidden_states[-1][:, 0])
    if positions is not None:
      hidden_states[-1] = hidden_states[-1][:, 1:]
    return EncoderOutput(embedding_output, hidden_states, pooled_output)

  def _run_layers(
    self, x: tf.Tensor, bias: tf.Tensor, training: bool | None, seed: tf.Tensor | None, positions: tf.Tensor | None
  ) -> list[tf.Tensor]:
    """Returns x and the output of each layer, of which `training_config` in training and `config` else has the number.

    x is [B, S, H]. The last block is computed for the tokens at `positions`, int [B, M].
    """
    config = self.training_config if training else self.config
    hidden_states = [x]
    checkpointing = GradientCheckpointing() if self.recompute_grad else None
    num_blocks = config.num_hidden_layers * config.inner_group_num
    for number, (attention, feed_forward) in enumerate(self._blocks(config.num_hidden_layers), start=1):
      block_seed = None if seed is None else layers.fold_in(seed, number)
      block_positions = positions if number == num_blocks else None
      block = _Block(attention, feed_forward, bias, training, block_seed, block_positions)
      x = checkpointing.run(block, x) if checkpointing else block(x)
      if number % config.inner_group_num == 0:
        hidden_states.append(x)
    return hidden_states

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables. Makes the variables if needed.

    If only the attention or only the feed-forward network is shared (`sharing` is "attention" or "ffn"), the two have
    different numbers of groups, and each is named by its own group.
    """
    build_in_scope(self, [None, None])
    weights = self.embeddings.named_weights()
    if self.projection is not None:
      weights |= layers.dense_weights(self.projection, "bert/encoder/embedding_hidden_mapping_in")
    kinds: list[list[Any]] = [self.attention_layers, self.feed_forward_layers]
    for sublayers in kinds:
      for index, sublayer in enumerate(sublayers):
        group, inner = divmod(index, self.config.inner_group_num)
        weights |= sublayer.named_weights(f"bert/encoder/transformer/group_{group}/inner_group_{inner}")
    return weights | layers.dense_weights(self.pooler, "bert/pooler/dense")


class GradientCheckpointing:
  """Runs the blocks of one forward pass. Only each block's input is stored for the backward pass.

  A block is computed twice: in the forward pass, and again in the backward pass. A compiler must not merge the two
  computations, or it stores the results of the first one. TensorFlow's own tf.recompute_grad cannot prevent this on
  TPUs. Here the second computation depends on the gradient that flows back into the block, so it cannot begin earlier.

  The gradients of weights that several blocks share are summed during the backward pass, one block after the other.
  TensorFlow would store the gradients of all L layers and sum them at the end, which takes L times the memory of the
  weights: 9 GiB for albert_xxlarge.
  """

  def __init__(self) -> None:
    self._first_blocks: dict[Any, object] = {}  # variable's reference -> the first block that uses it
    self._sums: dict[Any, tf.Tensor] = {}  # variable's reference -> sum of the gradients of the later blocks

  def run(self, function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Computes function(x) for one block.

    Args:
      function: the block. It may use variables, and must return the same values when it is called twice.
      x: floating-point tensor of any shape: the output of the previous block.

    Returns:
      function(x).
    """
    block = object()

    @tf.custom_gradient
    def checkpointed(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., object]]:
      with tf.GradientTape() as forward_tape:
        output = function(x)
      for variable in forward_tape.watched_variables():
        self._first_blocks.setdefault(variable.ref(), block)

      # tf.custom_gradient passes the variables that `function` has used, if there are any.
      def gradient(
        upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
      ) -> tuple[tf.Tensor, list[tf.Tensor | None]] | tf.Tensor:
        with tf.GradientTape() as tape:
          delayed_x = x + tf.cast(_zero_from(upstream), x.dtype)
          tape.watch(delayed_x)
          output = function(delayed_x)
        wrt_x, *wrt_variables = tape.gradient(output, [delayed_x, *variables], output_gradients=upstream)
        if not variables:
          return wrt_x
        sums = [
          self._accumulate(variable, wrt_variable, block, wrt_x)
          for variable, wrt_variable in zip(variables, wrt_variables, strict=True)
        ]
        return wrt_x, sums

      return output, gradient

    return checkpointed(x)

  def _accumulate(
    self, variable: tf.Variable, gradient: tf.Tensor, block: object, wrt_x: tf.Tensor
  ) -> tf.Tensor | None:
    """Adds a block's gradient of a variable to the sum over the blocks, after the gradient of the block's input.

    Returns the sum if `block` is the first one that uses the variable: the backward pass reaches it last. Else None.
    """
    key = variable.ref()
    if key in self._sums:
      # Without the dependency, TensorFlow's graph optimizer merges these additions into one sum over all blocks.
      with tf.control_dependencies([wrt_x]):
        gradient = self._sums.pop(key) + gradient
    if self._first_blocks[key] is block:
      return gradient
    self._sums[key] = gradient
    return None


def _zero_from(x: tf.Tensor) -> tf.Tensor:
  """Returns a scalar 0 that can only be computed after x. It is NaN if the first element of x is NaN."""
  first = tf.reduce_max(tf.reshape(x, [-1])[:1])  # -inf if x has no elements
  return tf.minimum(tf.abs(tf.cast(first, tf.float32)), 0.0)
