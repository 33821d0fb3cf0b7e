"""Batches of training data for the replicas of a tf.distribute strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import tensorflow as tf

from albert.config.run import TrainConfig
from albert.data.dataset import Dataset, InputContext
from albert.errors import UserError
from albert.training.distribution.strategy import num_hosts

ElementSpec = Mapping[str, tf.TensorSpec]
# A tf.data.Dataset or a tf.distribute.DistributedDataset.
DistributedBatches = Iterable[Mapping[str, tf.Tensor]]


def distribute_training_batches(
  strategy: tf.distribute.Strategy, train_config: TrainConfig, data: Dataset, first_step: int
) -> DistributedBatches:
  """Distributes the training batches over the replicas, beginning with the batch of `first_step`.

  A single device reads the dataset itself. Several devices, and TPUs, read through TensorFlow's iterators for several
  devices, which have a thread for tuning: the end of a run, a stage or an evaluation can wait up to a minute for it.

  Args:
    strategy: the strategy to distribute them with.
    train_config: batch size, seed and input parts.
    data: the training data.
    first_step: number of updates done so far; their batches are skipped.
  Returns: an endless dataset. Each replica gets (train_batch_size / number of replicas) examples of every batch.
  Raises:
    UserError: a TPU cannot use batches of this data.
  """

  def make_host_batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    input_context = InputContext(
      context.input_pipeline_id, context.num_input_pipelines, strategy.num_replicas_in_sync, train_config.input_parts
    )
    batches = _host_batches(train_config, data, first_step, input_context)
    if isinstance(strategy, tf.distribute.TPUStrategy):
      check_static_shapes(batches.element_spec)
      check_host(train_config.tpu, needs_python=data.needs_python)
    return batches

  if _has_one_device(strategy):
    return cast("DistributedBatches", make_host_batches(tf.distribute.InputContext()))
  return cast("DistributedBatches", strategy.distribute_datasets_from_function(make_host_batches))


def distribute_evaluation_batches(
  strategy: tf.distribute.Strategy, data: Dataset, batch_size: int
) -> DistributedBatches:
  """Distributes batches over the replicas for evaluation; see distribute_training_batches.

  Args:
    strategy: the strategy to distribute them with.
    data: the dataset.
    batch_size: number of examples in a batch of all replicas together. On a single device the last batch may be
      smaller, so that the prediction of one text computes one text.
  Returns: a dataset in which each replica gets an equal share of every batch.
  """
  has_one_device = _has_one_device(strategy)
  batches = data.evaluation_batches(batch_size=batch_size, pad_last=not has_one_device)
  if has_one_device:
    return cast("DistributedBatches", batches)
  # With several hosts, every host reads all examples, and drops those that are for other hosts.
  options = tf.data.Options()
  options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
  return cast("DistributedBatches", strategy.experimental_distribute_dataset(batches.with_options(options)))


def _has_one_device(strategy: tf.distribute.Strategy) -> bool:
  return isinstance(strategy, tf.distribute.OneDeviceStrategy)


def element_spec(strategy: tf.distribute.Strategy, train_config: TrainConfig, data: Dataset) -> ElementSpec:
  """Returns the shapes and dtypes of the features that one replica gets of each training batch.

  Args:
    strategy: the strategy whose replicas share a batch.
    train_config: batch size, seed and input parts.
    data: the training data.
  """
  context = InputContext(0, num_hosts(strategy), strategy.num_replicas_in_sync, train_config.input_parts)
  return cast("ElementSpec", _host_batches(train_config, data, 0, context).element_spec)


def _host_batches(train_config: TrainConfig, data: Dataset, first_step: int, context: InputContext) -> tf.data.Dataset:
  """Returns the dataset of the batches that one host reads."""
  return data.training_batches(
    batch_size=train_config.train_batch_size, first_step=first_step, seed=train_config.seed, context=context
  )


def features_of_varying_shape(spec: ElementSpec) -> list[str]:
  """Returns the names of the features whose shapes may differ from batch to batch."""
  return [name for name, feature in spec.items() if not feature.shape.is_fully_defined()]


def check_static_shapes(spec: ElementSpec) -> None:
  """Checks that all batches have the same shapes, which a TPU needs: it runs programs of fixed shapes only.

  Raises:
    UserError: the shape of a feature may differ from batch to batch.
  """
  varying_features = features_of_varying_shape(spec)
  if varying_features:
    name = varying_features[0]
    raise UserError(
      f"{name} has shape {spec[name].shape.as_list()}, which differs from batch to batch: a TPU needs batches of one "
      "shape; give --pad_to_max_length"
    )


def check_host(tpu: str, *, needs_python: bool) -> None:
  """Checks that the host of the TPU can make the batches.

  The host of a remote TPU runs TensorFlow operations, but no Python code.

  Args:
    tpu: value of --tpu; "local" if this machine is the TPU's host.
    needs_python: whether Python code makes the batches.
  Raises:
    UserError: Python code would have to run on a remote host.
  """
  if needs_python and tpu != "local":
    raise UserError(
      f"--tpu={tpu}: dynamic masks and batches for fine-tuning are made by Python code, which the host of a remote TPU "
      "cannot run: start this command on the TPU's own machine with --tpu=local"
    )
