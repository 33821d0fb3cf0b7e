"""Makes the optimizer that an OptimizerConfig describes, and the factors of layer-wise learning-rate decay."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.adamw import EXCLUDED_PATTERNS, AdamW
from albert.optimizers.lamb import LAMB
from albert.weights.names import GROUP_PATTERN

LearningRate = float | Callable[[tf.Tensor], tf.Tensor]
# Finite float32 numbers are below 2**128.
_MAX_FLOAT32_EXPONENT = 128
# Prefixes of the weights below the layers: the embeddings and their projection.
_EMBEDDING_PREFIXES = ("bert/embeddings/", "bert/encoder/embedding_hidden_mapping_in/")


def make_optimizer(config: OptimizerConfig, learning_rate: LearningRate) -> keras.optimizers.Optimizer:
  """Makes the optimizer of a run.

  Args:
    config: the optimizer's name and settings.
    learning_rate: a number (not for tfa_lamb), or a schedule that maps the number of updates done (a scalar tensor) to
      the rate.

  Returns:
    A Keras optimizer with `slots(variable)`, see AdamW.

  Raises:
    UserError: the optimizer is tfa_lamb, and tensorflow-addons is not installed or does not run on this TensorFlow, or
      the config has layer-wise decay, which tfa_lamb does not support.
  """
  if config.optimizer == "tfa_lamb":
    if config.layerwise_learning_rate_decay != 1.0:
      raise UserError(
        "--optimizer=tfa_lamb has one learning rate for all layers: leave out --layerwise_learning_rate_decay"
      )
    return _make_tfa_lamb(config, learning_rate)
  optimizer_class = LAMB if config.optimizer == "lamb" else AdamW
  return optimizer_class(
    learning_rate,
    weight_decay_rate=config.weight_decay,
    beta_1=config.beta_1,
    beta_2=config.beta_2,
    epsilon=config.epsilon,
    bias_correction=config.bias_correction,
  )


def _make_tfa_lamb(config: OptimizerConfig, learning_rate: Any) -> Any:
  """Makes tensorflow-addons' LAMB with the methods that the training loop calls: build, slots, apply_gradients."""
  try:
    from tensorflow_addons.optimizers import LAMB as AddonsLAMB
  except ImportError as error:
    raise UserError(
      f"--optimizer=tfa_lamb needs tensorflow-addons, which does not run on TensorFlow {tf.__version__}: "
      "install the profile that has it (`make test-tfa` sets it up from constraints/tf215-tfa.txt), or use "
      "--optimizer=lamb --bias_correction, which computes the same"
    ) from error

  class NamedSlotsLAMB(AddonsLAMB):
    def build(self, var_list: Sequence[tf.Variable]) -> None:
      self._create_all_weights(var_list)

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
      return {"adam_m": self.get_slot(variable, "m"), "adam_v": self.get_slot(variable, "v")}

  optimizer = NamedSlotsLAMB(
    0.0,
    beta_1=config.beta_1,
    beta_2=config.beta_2,
    epsilon=config.epsilon,
    weight_decay=config.weight_decay,
    exclude_from_weight_decay=list(EXCLUDED_PATTERNS),
    exclude_from_layer_adaptation=list(EXCLUDED_PATTERNS),
  )
  # The optimizer does not accept schedules of tf_keras. It accepts a function, which it calls at each step.
  optimizer.learning_rate = lambda: learning_rate(optimizer.iterations)
  return optimizer


def layerwise_factors(names: Iterable[str], decay: float) -> dict[str, float]:
  """Computes the factor of each weight's learning rate: lower layers learn slower (Howard and Ruder 2018, section 3.2).

  Layers that share weights have one factor. With G groups of layers, the embeddings get decay ** (G + 1), group g
  (from 0) gets decay ** (G - g), and the pooler and the heads get 1. If the layers share only their attention or only
  their feed-forward network, G is the number of layers, and shared weights get the factor of their uppermost layer.

  Args:
    names: names of the weights in the original's checkpoints.
    decay: ratio of the factor of a group to the factor of the group above it.

  Returns:
    Name -> factor.

  Raises:
    UserError: the factor of the embeddings overflows float32.
  """
  depths = _depths(list(names))
  # The exponent of the embeddings.
  max_exponent = 1 + max((depth for depth in depths.values() if depth is not None), default=0)
  if decay > 1 and max_exponent * math.log2(decay) >= _MAX_FLOAT32_EXPONENT:
    raise UserError(
      f"--layerwise_learning_rate_decay={decay:g}: its power {max_exponent}, the factor of the lowest layers, "
      "overflows float32: give a smaller value (1 for no decay)"
    )
  return {name: 1.0 if depth is None else decay ** (max_exponent - depth) for name, depth in depths.items()}


def _depths(names: Sequence[str]) -> dict[str, int | None]:
  """Name -> 0 for the embeddings, g + 1 for weights up to group g of G, and None for weights above the layers."""
  depths: dict[str, int | None] = {name: 0 if name.startswith(_EMBEDDING_PREFIXES) else None for name in names}
  matches = {name: match for name in names if (match := GROUP_PATTERN.search(name))}
  # The number of sets of each weight: G, or fewer if groups share it.
  num_sets = collections.Counter(GROUP_PATTERN.sub("/", name) for name in matches)
  for name, match in matches.items():
    # Layer i of L uses set floor(i * sets / L) of the weight, so the uppermost layer of a set is found by rounding up.
    next_set = int(match.group(1)) + 1
    depths[name] = math.ceil(next_set * max(num_sets.values()) / num_sets[GROUP_PATTERN.sub("/", name)])
  return depths
