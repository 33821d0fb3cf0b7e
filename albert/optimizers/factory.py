"""Makes the optimizer that an OptimizerConfig describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.config.run import OptimizerConfig
from albert.errors import UserError
from albert.optimizers.adamw import EXCLUDED_PATTERNS, AdamW
from albert.optimizers.lamb import LAMB

LearningRate = float | Callable[[tf.Tensor], tf.Tensor]


def make_optimizer(config: OptimizerConfig, learning_rate: LearningRate) -> keras.optimizers.Optimizer:
  """Makes the optimizer of a run.

  Args:
    config: the optimizer's name and settings.
    learning_rate: a number, or a schedule that maps the number of updates done (a scalar tensor) to the rate.

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


def _make_tfa_lamb(config: OptimizerConfig, learning_rate: LearningRate) -> Any:
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
  if callable(learning_rate):
    # The optimizer does not accept schedules of tf_keras. It accepts a function, which it calls at each step.
    optimizer.learning_rate = lambda: learning_rate(optimizer.iterations)
  else:
    optimizer.learning_rate = learning_rate
  return optimizer
