"""AdamW as BERT and ALBERT compute it: decay in the update, not on LayerNorm and biases; moments uncorrected."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

# Matched against variable names: neither decayed nor (LAMB) rescaled.
EXCLUDED = ("LayerNorm", "bias")


class AdamW(keras.optimizers.Optimizer):
  """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= rate * (m / (sqrt(v) + epsilon) + decay * w).

  With `bias_correction` m and v are divided by 1 - b^t first (Kingma and Ba 2015; Loshchilov and Hutter 2019).
  Gradients are taken as they come: clip them before.
  """

  def __init__(
    self,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    weight_decay_rate: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    bias_correction: bool = False,
    exclude: Sequence[str] = EXCLUDED,
    name: str = "AdamW",
    **kwargs: Any,
  ):
    # Keras would compile updates with XLA where it sees a GPU; the training loop decides that for the whole step.
    super().__init__(name=name, **{"jit_compile": False, **kwargs})
    self._learning_rate = self._build_learning_rate(learning_rate)
    self.weight_decay_rate = weight_decay_rate
    self.beta_1 = beta_1
    self.beta_2 = beta_2
    self.epsilon = epsilon
    self.bias_correction = bias_correction
    self.exclude = tuple(exclude)
    self._rate_factors: dict[str, float] = {}

  def build(self, var_list: Sequence[tf.Variable]) -> None:
    """Makes the slots m and v of each variable, float32, 0."""
    super().build(var_list)
    if getattr(self, "_built", False):
      return
    self._built = True
    self._m = [self.add_variable_from_reference(variable, "adam_m") for variable in var_list]
    self._v = [self.add_variable_from_reference(variable, "adam_v") for variable in var_list]

  def scale_rates(self, factors: Sequence[tuple[tf.Variable, float]]) -> None:
    """Multiplies the learning rate of each variable by its factor (layer-wise decay)."""
    self._rate_factors = {self._var_key(variable): factor for variable, factor in factors}

  def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
    """The moments of a variable, by the original's suffixes."""
    index = self._index_dict[self._var_key(variable)]
    return {"adam_m": self._m[index], "adam_v": self._v[index]}

  def is_excluded(self, variable: tf.Variable) -> bool:
    """True for variables without decay (and without LAMB's trust ratio)."""
    return any(re.search(pattern, variable.name) for pattern in self.exclude)

  def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
    """Applies one update; called by Keras for each variable."""
    if isinstance(gradient, tf.IndexedSlices):
      # The moments of every row decay, touched or not, as in the original.
      gradient = tf.convert_to_tensor(gradient)
    m, v = self.slots(variable).values()
    m.assign(self.beta_1 * m + (1.0 - self.beta_1) * gradient)
    v.assign(self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient))
    first, second = tf.convert_to_tensor(m), tf.convert_to_tensor(v)
    if self.bias_correction:
      t = tf.cast(self.iterations + 1, tf.float32)
      first = first / (1.0 - tf.pow(self.beta_1, t))
      second = second / (1.0 - tf.pow(self.beta_2, t))
    update = first / (tf.sqrt(second) + self.epsilon)
    excluded = self.is_excluded(variable)
    if self.weight_decay_rate and not excluded:
      update += self.weight_decay_rate * variable
    rate = tf.cast(self.learning_rate, tf.float32) * self._rate_factors.get(self._var_key(variable), 1.0)
    variable.assign_sub(rate * (update if excluded else self.scale_update(update, variable)))

  def scale_update(self, update: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
    """What LAMB adds: a factor for the whole variable. AdamW has none."""
    del variable
    return update

  def get_config(self) -> dict[str, Any]:
    """For Keras serialization; the exclusions are part of it."""
    config = super().get_config()
    config.pop("weight_decay", None)  # Keras' own decay, which this class replaces
    return {
      **config,
      "learning_rate": self._serialize_hyperparameter(self._learning_rate),
      "weight_decay_rate": self.weight_decay_rate,
      "beta_1": self.beta_1,
      "beta_2": self.beta_2,
      "epsilon": self.epsilon,
      "bias_correction": self.bias_correction,
      "exclude": list(self.exclude),
    }
