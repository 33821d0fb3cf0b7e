"""The gradients of a batch: computed in micro-batches, summed over the replicas and clipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from albert.models.layers import fold_in
from albert.optimizers.loss_scale import LossScale
from albert.optimizers.sharding import Gradient, Sharding, clip_by_global_norm, densify
from albert.tasks.base import Batch, Task, WeightedSum
from albert.training.run_plan import TrainingPlan

# Name of a weight that the losses depend on -> its gradient, and metric -> its sum.
_GradientsAndSums = tuple[dict[str, Gradient], dict[str, WeightedSum]]


class BatchGradients:
  """Computes the gradients of a model's weights. Call it in the step of each replica.

  A weight that the losses do not depend on, such as the pooler's without a sentence objective, has no gradient. It must
  not be updated, as in the original: with a gradient of zeros, weight decay and LAMB's trust ratio would shrink it.

  Args:
    task: computes the losses and metrics.
    model: a built model with a method `named_weights()`.
    plan: the number of micro-batches and the clipping norm.
    loss_scale: the scale of the loss, for float16; None for other precisions.
    sharding: the division of the gradients among the replicas; None if every replica gets whole gradients.
  """

  def __init__(
    self, task: Task, model: keras.Model, plan: TrainingPlan, loss_scale: LossScale | None, sharding: Sharding | None
  ):
    self._task, self._model, self._plan = task, model, plan
    self._weights: dict[str, tf.Variable] = model.named_weights()
    self._loss_scale = loss_scale
    self._sharding = sharding
    self._accumulate: Callable[..., _GradientsAndSums] = self._accumulate_gradients

  def compile(self) -> None:
    """Lets XLA compile what a replica computes, without the sums over replicas."""
    self._accumulate = tf.function(self._accumulate_gradients, jit_compile=True, autograph=False)

  def __call__(
    self, batch: Batch, loss_weights: dict[str, tf.Tensor], seed: tf.Tensor
  ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor, dict[str, WeightedSum]]:
    """Computes the gradients of the mean loss of the batch of all replicas.

    Args:
      batch: features of this replica, each [B / replicas, ...].
      loss_weights: name of a loss -> its total weight in the batch of all replicas, float32 scalar.
      seed: int64 [2], different for each replica and step.

    Returns:
      Name of a weight that the losses depend on -> its clipped gradient; with a sharding, this replica's part of it.
      The global norm before clipping and the sum of the losses, float32 scalars. The sums of metrics over this
      replica's examples.
    """
    replica, clip_norm = tf.distribute.get_replica_context(), self._plan.optimizer.clip_norm
    gradients, sums = self._accumulate(batch, loss_weights, seed)
    losses = tf.stack([sums[name].total for name in loss_weights])
    if self._sharding is None:
      *flat_gradients, losses = replica.all_reduce("SUM", [*tf.nest.flatten(gradients), losses])
      gradients = tf.nest.pack_sequence_as(gradients, flat_gradients)
      clipped, norm = clip_by_global_norm(list(gradients.values()), clip_norm)
    else:
      if not self._sharding.reduce_scatter:
        gradients = self._sum_parts(gradients)
      clipped, norm = clip_by_global_norm(
        list(gradients.values()), clip_norm, lambda squares: replica.all_reduce("SUM", squares)
      )
      losses = replica.all_reduce("SUM", losses)
    return dict(zip(gradients, clipped, strict=True)), norm, tf.reduce_sum(losses), sums

  def _sum_parts(self, gradients: dict[str, Gradient]) -> dict[str, Gradient]:
    """Sums gradients over the replicas, and returns this replica's part of each."""
    assert self._sharding is not None
    variables = [self._weights[name] for name in gradients]
    return dict(zip(gradients, self._sharding.sum_gradients(list(gradients.values()), variables), strict=True))

  def _accumulate_gradients(
    self, batch: Batch, loss_weights: dict[str, tf.Tensor], seed: tf.Tensor
  ) -> _GradientsAndSums:
    """Computes the gradients and the sums of metrics over this replica's examples.

    The examples are divided into gradient_accumulation_steps micro-batches, whose results are summed.
    """
    num_micro_batches = self._plan.train.gradient_accumulation_steps
    if num_micro_batches == 1:
      return self._compute_gradients(batch, loss_weights, seed)
    # The batch size is static. The other dimensions, such as the length of the sequences, may be dynamic.
    micro_batches = {
      name: tf.reshape(
        value,
        tf.concat([[num_micro_batches, value.shape[0] // num_micro_batches], tf.shape(value)[1:]], axis=0),
      )
      for name, value in batch.items()
    }

    def micro_batch_gradients(index: tf.Tensor) -> _GradientsAndSums:
      micro_batch = {name: value[index] for name, value in micro_batches.items()}
      return self._compute_gradients(micro_batch, loss_weights, fold_in(seed, index))

    def add(index: tf.Tensor, accumulated: Any) -> tuple[tf.Tensor, Any]:
      return index + 1, tf.nest.map_structure(tf.add, accumulated, micro_batch_gradients(index))

    # By default ten iterations may run in parallel, which would take the memory of ten micro-batches.
    start = (tf.constant(1), micro_batch_gradients(tf.constant(0)))
    _, gradients_and_sums = tf.while_loop(lambda index, _: index < num_micro_batches, add, start, parallel_iterations=1)
    return gradients_and_sums

  def _compute_gradients(self, batch: Batch, loss_weights: dict[str, tf.Tensor], seed: tf.Tensor) -> _GradientsAndSums:
    """Computes the sums of metrics of some examples, and the gradients of their share of the batch's loss.

    With XLA's reduce-scatter, the gradients are already summed over the replicas, and are parts (see Sharding).
    """
    with tf.GradientTape() as tape:
      sums = self._task.forward(self._model, batch, training=True, seed=seed).sums
      loss = tf.add_n([tf.math.divide_no_nan(sums[name].total, loss_weights[name]) for name in loss_weights])
      if self._loss_scale is not None:
        loss = self._loss_scale.scale(loss)
    gradients = {name: value for name, value in tape.gradient(loss, self._weights).items() if value is not None}
    values = list(gradients.values())
    if self._loss_scale is not None:
      values = self._loss_scale.unscale(values)
    dense_gradients = dict(zip(gradients, densify(values), strict=True))
    if self._sharding is not None and self._sharding.reduce_scatter:
      dense_gradients = self._sum_parts(dense_gradients)
    return dense_gradients, sums
