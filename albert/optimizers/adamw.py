"""AdamW as in BERT and ALBERT: decoupled weight decay, except for LayerNorm and biases, and no bias correction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.errors import UserError
from albert.optimizers.gradients import ShardedMoment, Sharding, are_finite, sum_over_replicas
from albert.optimizers.schedules import WarmupPolynomialDecay

# Regular expressions. Variables whose name matches one of them get no weight decay and, in LAMB, no trust ratio. They
# are those of the original: LayerNorm is the name of this package's layer, layer_norm begins the name of Keras' layer.
EXCLUDED_PATTERNS = ("LayerNorm", "layer_norm", "bias")
_HYPERPARAMETERS = ("weight_decay_rate", "beta_1", "beta_2", "epsilon", "bias_correction")


@keras.saving.register_keras_serializable("albert")
class AdamW(keras.optimizers.Optimizer):
  """Adam with decoupled weight decay (Kingma and Ba 2015; Loshchilov and Hutter 2019), a Keras optimizer.

  For each variable w with gradient g:

      m = beta_1 m + (1 - beta_1) g
      v = beta_2 v + (1 - beta_2) g^2
      w = w - learning_rate (m / (sqrt(v) + epsilon) + weight_decay_rate w)

  The optimizer does not clip gradients; see albert/optimizers/gradients.py.

  Example:
    >>> import albert
    >>> import tf_keras as keras
    >>> model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
    >>> model.compile(optimizer=albert.optimizers.AdamW(learning_rate=0.1, bias_correction=True), loss="mse")
    >>> history = model.fit([[1.0], [2.0]], [[3.0], [6.0]], epochs=100, verbose=0)
    >>> history.history["loss"][-1] < 0.1
    True

  Args:
    learning_rate: a number, or a schedule that maps the number of updates done to the rate.
    weight_decay_rate: see the formula above; 0 for no weight decay.
    beta_1: decay rate of the first moment m.
    beta_2: decay rate of the second moment v.
    epsilon: added to sqrt(v).
    bias_correction: whether m is divided by 1 - beta_1^t and v by 1 - beta_2^t in update t, counted from 1. The
      original has no bias correction.
    exclude: regular expressions; variables whose name matches one of them get no weight decay.
    name: Keras' name of the optimizer; None for that of its class.
    **kwargs: further arguments of keras.optimizers.Optimizer.

  Attributes:
    skips_not_finite: whether a variable whose gradient is not finite keeps its value and its moments. Training in
      float16 needs it (see albert/optimizers/gradients.py). False by default.
    sharding: the division of the moments among the replicas (see albert/optimizers/gradients.py). None, the default, if
      each replica holds all moments. Set it before `build`. The gradients are then the parts that
      `Sharding.sum_gradients` returns.
  """

  def __init__(
    self,
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-3,
    weight_decay_rate: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    bias_correction: bool = False,
    exclude: Sequence[str] = EXCLUDED_PATTERNS,
    name: str | None = None,
    **kwargs: Any,
  ):
    if kwargs.get("weight_decay"):  # Keras decays all variables by it, also the excluded ones
      raise UserError(f"weight_decay={kwargs['weight_decay']}: give weight_decay_rate, the decay of this optimizer")
    # By default Keras compiles updates with XLA if there is a GPU. The training loop compiles the whole step instead.
    super().__init__(name=name or type(self).__name__, **{"jit_compile": False, **kwargs})
    self._learning_rate = self._build_learning_rate(learning_rate)
    self.weight_decay_rate = weight_decay_rate
    self.beta_1 = beta_1
    self.beta_2 = beta_2
    self.epsilon = epsilon
    self.bias_correction = bias_correction
    self.exclude = tuple(exclude)
    self.skips_not_finite = False
    self.sharding: Sharding | None = None
    self._rate_factors: dict[str, float] = {}

  def build(self, var_list: Sequence[tf.Variable]) -> None:
    """Creates the moments m and v of each variable, with the variable's shape and dtype and the value 0.

    Args:
      var_list: the variables to train. Only the first call creates moments.
    """
    super().build(var_list)
    if getattr(self, "_built", False):
      return
    self._built = True
    self._m = [self._make_moment(variable, "adam_m") for variable in var_list]
    self._v = [self._make_moment(variable, "adam_v") for variable in var_list]

  def _make_moment(self, variable: tf.Variable, name: str) -> tf.Variable | ShardedMoment:
    if self.sharding is None:
      return self.add_variable_from_reference(variable, name)
    return ShardedMoment(self.sharding.partition(variable), f"{name}/{variable.name.removesuffix(':0')}")

  def scale_rates(self, factors: Sequence[tuple[tf.Variable, float]]) -> None:
    """Sets factors of the learning rate, for layer-wise decay.

    Args:
      factors: variables and their factors. A variable that is not listed has the factor 1.
    """
    self._rate_factors = {self._var_key(variable): factor for variable, factor in factors}

  def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
    """Returns the moments of a variable under the suffixes that the original's checkpoints use for them.

    Args:
      variable: a variable that was given to `build`.

    Returns:
      {"adam_m": m, "adam_v": v}, each with the variable's shape; each is a ShardedMoment if there is a sharding.
    """
    index = self._index_dict[self._var_key(variable)]
    return {"adam_m": self._m[index], "adam_v": self._v[index]}

  def is_excluded(self, variable: tf.Variable) -> bool:
    """Whether a variable gets no weight decay and, in LAMB, no trust ratio."""
    return any(re.search(pattern, variable.name) for pattern in self.exclude)

  def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
    """Updates one variable and its moments; Keras calls it for each variable.

    Args:
      gradient: the variable's shape, or tf.IndexedSlices.
      variable: a variable that was given to `build`.
    """
    if isinstance(gradient, tf.IndexedSlices):
      # The moments of rows without a gradient decay too, as in the original.
      gradient = tf.convert_to_tensor(gradient)
    m, v = self.slots(variable).values()
    is_skipped = tf.logical_not(tf.math.is_finite(tf.reduce_sum(gradient))) if self.skips_not_finite else None
    update = self._update_moments(gradient, m, v, is_skipped)
    if not self.is_excluded(variable):
      if self.weight_decay_rate:
        update += self.weight_decay_rate * variable
      update = self.trust_ratio(tf.norm(variable), tf.norm(update)) * update
    variable.assign_sub(_unless(is_skipped, self._rate(variable) * update, tf.zeros_like(update)))

  def _update_moments(
    self, gradient: tf.Tensor, m: tf.Variable, v: tf.Variable, is_skipped: tf.Tensor | None
  ) -> tf.Tensor:
    """Updates the moments of a variable, or of a part of it. Returns m / (sqrt(v) + epsilon)."""
    m.assign(_unless(is_skipped, self.beta_1 * m + (1.0 - self.beta_1) * gradient, m))
    v.assign(_unless(is_skipped, self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient), v))
    first_moment, second_moment = tf.convert_to_tensor(m), tf.convert_to_tensor(v)
    if self.bias_correction:
      t = tf.cast(self.iterations + 1, tf.float32)
      first_moment = first_moment / (1.0 - tf.pow(self.beta_1, t))
      second_moment = second_moment / (1.0 - tf.pow(self.beta_2, t))
    return first_moment / (tf.sqrt(second_moment) + self.epsilon)

  def _rate(self, variable: tf.Variable) -> tf.Tensor:
    """The learning rate of a variable."""
    return tf.cast(self.learning_rate, tf.float32) * self._rate_factors.get(self._var_key(variable), 1.0)

  def _internal_apply_gradients(self, grads_and_vars: Iterable[tuple[tf.Tensor, tf.Variable]]) -> tf.Tensor:
    """Updates all variables; Keras calls it in the replica's step."""
    if self.sharding is None:
      return super()._internal_apply_gradients(grads_and_vars)
    gradient_parts, variables = zip(*grads_and_vars, strict=True)
    changes = self._sharded_changes(gradient_parts, variables)

    def assign(strategy: tf.distribute.Strategy, changes: Sequence[tf.Tensor]) -> tf.Tensor:
      for variable, change in zip(variables, changes, strict=True):
        strategy.extended.update(variable, lambda v, difference: v.assign_sub(difference), args=(change,), group=False)
      return self.iterations.assign_add(1)

    # Keras, too, changes variables in this way.
    return tf.__internal__.distribute.interim.maybe_merge_call(assign, tf.distribute.get_strategy(), changes)

  def _sharded_changes(self, gradient_parts: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Computes this replica's parts of the changes, and returns the changes of all variables.

    Args:
      gradient_parts: this replica's part of the gradient of each variable, see Sharding.sum_gradients.
      variables: the variables.
    """
    replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
    skipped: Sequence[tf.Tensor | None] = [None] * len(variables)
    if self.skips_not_finite:
      skipped = tf.unstack(tf.logical_not(are_finite(gradient_parts)))
    updates = []
    for gradient_part, variable, is_skipped in zip(gradient_parts, variables, skipped, strict=True):
      m, v = self.slots(variable).values()
      update = self._update_moments(gradient_part, m.part, v.part, is_skipped)
      if not self.is_excluded(variable) and self.weight_decay_rate:
        update += self.weight_decay_rate * m.partition.part_of(tf.convert_to_tensor(variable), replica_id)
      updates.append(update)
    squares = sum_over_replicas([tf.stack([tf.reduce_sum(tf.square(update)) for update in updates])])[0]
    changes = []
    for number, (update, variable) in enumerate(zip(updates, variables, strict=True)):
      ratio = 1.0 if self.is_excluded(variable) else self.trust_ratio(tf.norm(variable), tf.sqrt(squares[number]))
      change = self._rate(variable) * (ratio * update)
      change = _unless(skipped[number], change, tf.zeros_like(change))
      changes.append(self.slots(variable)["adam_m"].partition.with_zeros(change, replica_id))
    return sum_over_replicas(changes)

  def trust_ratio(self, weight_norm: tf.Tensor, update_norm: tf.Tensor) -> tf.Tensor | float:
    """Returns the factor of a variable's update, which is 1; in LAMB it depends on the norms, float32 scalars."""
    del weight_norm, update_norm
    return 1.0

  @classmethod
  def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> AdamW:
    """Makes the optimizer, without its moments.

    Args:
      config: what `get_config` returns.
      custom_objects: name -> class, for a schedule that is not registered with Keras.
    """
    rate = config.get("learning_rate")
    if isinstance(rate, dict):
      # .h5 files name the class of a schedule without its package, and under that name it is not registered with Keras.
      known_classes = {WarmupPolynomialDecay.__name__: WarmupPolynomialDecay, **(custom_objects or {})}
      config = {**config, "learning_rate": keras.saving.deserialize_keras_object(rate, custom_objects=known_classes)}
    return cls(**config)

  def get_config(self) -> dict[str, Any]:
    """Returns the constructor's arguments, for Keras' serialization."""
    config = super().get_config()
    config.pop("weight_decay", None)  # Keras' own decay, which this class replaces
    return {
      **config,
      "learning_rate": self._serialize_hyperparameter(self._learning_rate),
      **{name: getattr(self, name) for name in _HYPERPARAMETERS},
      "exclude": list(self.exclude),
    }


def _unless(condition: tf.Tensor | None, value: tf.Tensor, value_if_true: tf.Tensor) -> tf.Tensor:
  """Returns `value`, or `value_if_true` if there is a condition, bool scalar, and it is true."""
  return value if condition is None else tf.where(condition, value_if_true, value)
