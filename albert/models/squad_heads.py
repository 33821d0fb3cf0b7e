"""The models for SQuAD. They score where the answer starts and ends; for v2.0 also whether there is an answer.

The head for v2.0 is XLNet's (Yang et al. 2019), which ALBERT uses: the scores of the ends depend on the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tf_keras as keras

from albert.config.model import ModelConfig
from albert.models import layers
from albert.models.classifier import head_dropout
from albert.models.heads import EncoderModel, LinearHead
from albert.weights.initial_weights import POOLER_UNUSED

# B batch, S sequence, H hidden; the beam search keeps K starts and M ends of each start.

P_MASK = "p_mask"
_INPUT_ADVICE = 'such as {**batch, "p_mask": 1 - batch["segment_ids"]} for a batch of albert.Tokenizer'
# The logit of a token at which no answer may start or end.
_MASKED_LOGIT = -1e30


class SpanLogits(NamedTuple):
  """Scores of the tokens, -1e30 where no answer may start or end.

  Attributes:
    start: float32 [B, S].
    end: float32 [B, S].
  """

  start: tf.Tensor
  end: tf.Tensor


class Beams(NamedTuple):
  """The K most probable starts, each with its M most probable ends.

  Attributes:
    start_log_probs: float32 [B, K].
    start_positions: int32 [B, K].
    end_log_probs: float32 [B, K, M], given the start.
    end_positions: int32 [B, K, M].
  """

  start_log_probs: tf.Tensor
  start_positions: tf.Tensor
  end_log_probs: tf.Tensor
  end_positions: tf.Tensor


class SquadV2Output(NamedTuple):
  """The results of the SQuAD v2.0 head.

  Attributes:
    start_logits: float32 [B, S].
    end_logits: float32 [B, S], given `start_positions`; None without them.
    null_logits: float32 [B], the log odds that the question has no answer.
    beams: the most probable spans; None without num_starts.
  """

  start_logits: tf.Tensor
  end_logits: tf.Tensor | None
  null_logits: tf.Tensor
  beams: Beams | None


def answer_mask(inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
  """Finds the tokens at which no answer may start or end: the question, [SEP] and padding.

  Args:
    inputs: p_mask int [B, S], 1 for such tokens except padding; input_mask int [B, S], 0 for padding.

  Returns:
    float32 [B, S], 1 for such tokens.
  """
  return tf.cast(tf.maximum(inputs[P_MASK], 1 - inputs["input_mask"]), tf.float32)


def _masked(logits: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
  return logits * (1.0 - mask) + _MASKED_LOGIT * mask


@keras.saving.register_keras_serializable(layers.PACKAGE)
class SquadV1Model(EncoderModel):
  """The encoder and a linear layer with 2 logits, start and end, on every token; a Keras model.

  Args:
    config: the encoder's config, or its name, such as "albert_base".
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Raises:
    UserError: there is no model of this name.

  Example:
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> model = albert.SquadV1Model.from_pretrained("downloads/albert_base")
    >>> batch = tokenizer(["Who drank?"], ["They drank the pub dry."])
    >>> batch["p_mask"] = 1 - batch["segment_ids"]  # no answer in the question
    >>> output = model(batch)
    >>> output.start.shape == output.end.shape == batch["input_ids"].shape
    True
  """

  input_keys = (*layers.TOKEN_INPUTS, P_MASK)
  input_advice = _INPUT_ADVICE
  head_names = ("squad",)
  on_missing_pooler = POOLER_UNUSED

  def __init__(self, config: layers.AnyConfig, name: str = "albert_squad_v1", **kwargs: Any):
    super().__init__(config, name, **kwargs)
    self.head = LinearHead(2, self.config.initializer_range, "squad", "cls/squad/")

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None
  ) -> SpanLogits:
    """Scores the tokens as starts and ends.

    Args:
      inputs: input_ids, input_mask, segment_ids, p_mask int [B, S], see `answer_mask`.
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      SpanLogits.
    """
    encoded = self.encoder(inputs, training=training, seed=seed)
    logits = self.head(encoded.sequence_output)  # [B, S, 2]
    mask = answer_mask(inputs)
    return SpanLogits(_masked(logits[..., 0], mask), _masked(logits[..., 1], mask))


class PairDense(keras.layers.Layer):
  """tanh(dense(concat([a, b]))) without the concatenation, so that a and b may be broadcast to each other.

  Args:
    units: size of the output's last axis.
    stddev: standard deviation of the initial kernel (truncated normal).
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, units: int, stddev: float, name: str, dtype: layers.DType = None):
    super().__init__(name=name, dtype=dtype)
    self.units = units
    self.stddev = stddev

  def build(self, input_shape: tf.TensorShape) -> None:
    size = input_shape[-1]
    self.kernel = self.add_weight(
      name="kernel", shape=[2 * size, self.units], initializer=layers.truncated_normal(self.stddev)
    )
    self.bias = self.add_weight(name="bias", shape=[self.units], initializer="zeros")
    super().build(input_shape)

  def call(self, a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """a, b [..., H], broadcast to each other -> [..., units]."""
    size = self.kernel.shape[0] // 2
    return tf.tanh(tf.tensordot(a, self.kernel[:size], 1) + tf.tensordot(b, self.kernel[size:], 1) + self.bias)


def _logit_layer(stddev: float, name: str, *, use_bias: bool = True) -> keras.layers.Dense:
  """A dense layer with one unit, computed in float32 for every dtype policy."""
  return keras.layers.Dense(
    1, use_bias=use_bias, kernel_initializer=layers.truncated_normal(stddev), dtype="float32", name=name
  )


class SquadV2Head(keras.layers.Layer):
  """Scores starts, ends given a start, and whether the question has an answer.

  Args:
    config: the encoder's config; its classifier_dropout_prob is the dropout of the answerability score.
    name: Keras' name of the layer.
    dtype: Keras' dtype policy of the layer; None for the global policy.
  """

  def __init__(self, config: ModelConfig, name: str = "squad_v2", dtype: layers.DType = None):
    super().__init__(name=name, dtype=dtype)
    policy = self.dtype_policy
    self.config = config
    size, stddev = config.hidden_size, config.initializer_range
    # The start logit reads a token. The end logit reads a token and the start token. The null logit reads the expected
    # start state and [CLS]. The names are those of XLNet's layers.
    self.start = _logit_layer(stddev, "start_logits")
    self.end_0 = PairDense(size, stddev, "end_dense_0", policy)
    self.end_norm = layers.LayerNorm(name="end_LayerNorm", dtype=policy)
    self.end_1 = _logit_layer(stddev, "end_dense_1")
    self.null_0 = PairDense(size, stddev, "answer_dense_0", policy)
    self.null_1 = _logit_layer(stddev, "answer_dense_1", use_bias=False)

  def build(self, input_shape: tf.TensorShape) -> None:
    for layer in (self.start, self.end_0, self.end_norm, self.end_1, self.null_0, self.null_1):
      layers.build_in_scope(layer, [None, self.config.hidden_size])
    super().build(input_shape)

  def call(
    self,
    x: tf.Tensor,
    mask: tf.Tensor,
    *,
    start_positions: tf.Tensor | None = None,
    num_starts: int = 0,
    num_ends: int = 0,
    training: bool | None = False,
    seed: tf.Tensor | None = None,
  ) -> SquadV2Output:
    """Scores the tokens.

    Args:
      x: hidden states [B, S, H].
      mask: float32 [B, S], 1 where no answer may start or end, see `answer_mask`.
      start_positions: int [B], the starts that end_logits depend on (in training the correct starts); None if
        end_logits are not needed.
      num_starts: K of the beams; 0 for no beams.
      num_ends: M of the beams.
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.

    Returns:
      A SquadV2Output.
    """
    start_logits = _masked(self.start(x)[..., 0], mask)
    end_logits = None
    if start_positions is not None:
      end_logits = self._end_logits(x, mask, start_positions)
    beams = self._beams(x, mask, start_logits, num_starts, num_ends) if num_starts else None
    null_logits = self._null_logits(x, start_logits, training, seed)
    return SquadV2Output(start_logits, end_logits, null_logits, beams)

  def _end_logits(self, x: tf.Tensor, mask: tf.Tensor, start_positions: tf.Tensor) -> tf.Tensor:
    """start_positions int [B] -> float32 [B, S]."""
    start_states = tf.gather(x, start_positions, batch_dims=1)  # [B, H]
    hidden = self.end_norm(self.end_0(x, start_states[:, None]))
    return _masked(self.end_1(hidden)[..., 0], mask)

  def _beams(self, x: tf.Tensor, mask: tf.Tensor, start_logits: tf.Tensor, num_starts: int, num_ends: int) -> Beams:
    """Finds the most probable starts, and for each of them the most probable ends."""
    start_log_probs, start_positions = most_probable_positions(start_logits, num_starts)
    end_log_probs, end_positions = [], []  # for each start, [B, M]
    for k in range(num_starts):
      log_probs, positions = most_probable_positions(self._end_logits(x, mask, start_positions[:, k]), num_ends)
      end_log_probs.append(log_probs)
      end_positions.append(positions)
    return Beams(start_log_probs, start_positions, tf.stack(end_log_probs, axis=1), tf.stack(end_positions, axis=1))

  def _null_logits(
    self, x: tf.Tensor, start_logits: tf.Tensor, training: bool | None, seed: tf.Tensor | None
  ) -> tf.Tensor:
    """Computes the log odds that the question has no answer, float32 [B], from [CLS] and the expected start state."""
    probabilities = tf.cast(tf.nn.softmax(start_logits), x.dtype)
    expected_start = tf.matmul(probabilities[:, None], x)[:, 0]  # [B, H]
    hidden = head_dropout(self.null_0(expected_start, x[:, 0]), self.config, training=training, seed=seed)
    return self.null_1(hidden)[:, 0]

  def named_weights(self) -> dict[str, tf.Variable]:
    """Maps the variables' names in the original's checkpoints to the variables."""
    return {
      **layers.dense_weights(self.start, "start_logits/dense"),
      **layers.dense_weights(self.end_0, "end_logits/dense_0"),
      **layers.layer_norm_weights(self.end_norm, "end_logits/LayerNorm"),
      **layers.dense_weights(self.end_1, "end_logits/dense_1"),
      **layers.dense_weights(self.null_0, "answer_class/dense_0"),
      "answer_class/dense_1/kernel": self.null_1.kernel,
    }


def most_probable_positions(logits: tf.Tensor, count: int) -> tuple[tf.Tensor, tf.Tensor]:
  """Finds the most probable positions.

  Args:
    logits: [B, S].
    count: number of positions to find.

  Returns:
    The `count` largest log probabilities, [B, count], and their positions, int32 [B, count]. If S < count, the
    remaining positions are S - 1, where no answer can be, with the log probability -1e30.
  """
  padded_log_probs = tf.pad(tf.nn.log_softmax(logits), [[0, 0], [0, count]], constant_values=_MASKED_LOGIT)
  log_probs, positions = tf.math.top_k(padded_log_probs, count)
  return log_probs, tf.minimum(positions, tf.shape(logits)[1] - 1)


@keras.saving.register_keras_serializable(layers.PACKAGE)
class SquadV2Model(EncoderModel):
  """The encoder and SquadV2Head, a Keras model.

  Args:
    config: the encoder's config, or its name, such as "albert_base".
    name: Keras' name of the model.
    **kwargs: further arguments of keras.Model: trainable, dtype.

  Raises:
    UserError: there is no model of this name.

  Example:
    >>> import albert
    >>> tokenizer = albert.Tokenizer.from_pretrained("downloads/albert_base")
    >>> model = albert.SquadV2Model.from_pretrained("downloads/albert_base")
    >>> batch = tokenizer(["Who drank?"], ["They drank the pub dry."])
    >>> batch["p_mask"] = 1 - batch["segment_ids"]  # no answer in the question
    >>> output = model(batch, num_starts=3, num_ends=2)
    >>> output.null_logits.shape.as_list(), output.beams.end_positions.shape.as_list()
    ([1], [1, 3, 2])
  """

  input_keys = (*layers.TOKEN_INPUTS, P_MASK)
  input_advice = _INPUT_ADVICE
  head_names = ("squad_v2",)
  on_missing_pooler = POOLER_UNUSED

  def __init__(self, config: layers.AnyConfig, name: str = "albert_squad_v2", **kwargs: Any):
    super().__init__(config, name, **kwargs)
    self.head = SquadV2Head(self.config, dtype=self.dtype_policy)

  def call(
    self, inputs: Mapping[str, tf.Tensor], training: bool | None = False, seed: tf.Tensor | None = None, **scores: Any
  ) -> SquadV2Output:
    """Scores the tokens of a batch.

    Args:
      inputs: input_ids, input_mask, segment_ids, p_mask int [B, S], see `answer_mask`.
      training: whether dropout is applied; None counts as False.
      seed: int32 or int64 [2]; dropout is a function of it. None draws a new seed.
      **scores: start_positions, num_starts and num_ends, which SquadV2Head.call explains. Without them there are no
        end_logits and no beams.

    Returns:
      A SquadV2Output.
    """
    encoded = self.encoder(inputs, training=training, seed=seed)
    return self.head(encoded.sequence_output, answer_mask(inputs), training=training, seed=seed, **scores)
