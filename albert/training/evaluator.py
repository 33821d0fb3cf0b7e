"""Runs a model over whole datasets. Computes the metrics, and the outputs for predictions."""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from albert.data.dataset import Dataset
from albert.data.examples import EXAMPLE_INDEX
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.optimizers.gradients import make_replica_variable
from albert.tasks.base import Batch, DatasetOutputs, Task, WeightedSum
from albert.training.distribution import distribute_evaluation_batches, explain_reading_errors
from albert.training.model_weights import computing_in

# Hides TensorFlow's warning about repeated tracing: a process may train several models, as with --num_runs=5.
_RETRACING = re.compile(r"<function (Evaluator|Trainer)\..* triggered tf.function retracing")
logging.getLogger("tensorflow").addFilter(lambda record: not _RETRACING.search(str(record.msg)))


class Accumulator:
  """Adds up metrics over steps and replicas. It must be made in the strategy's scope.

  Args:
    names: names of the metrics.
  """

  def __init__(self, names: Iterable[str]):
    # In this dict, the total and the weight of a WeightedSum are variables, to which each replica adds its own values.
    make_sum = functools.partial(make_replica_variable, 0.0, tf.float32, aggregation=tf.VariableAggregation.SUM)
    self._sums = {name: WeightedSum(make_sum(f"{name}_total"), make_sum(f"{name}_weight")) for name in names}

  def add(self, sums: dict[str, WeightedSum]) -> None:
    """Adds the sums of this replica. Call it in the replica's step.

    Args:
      sums: metric -> its sum and weight, for each name given to the constructor.
    Raises:
      ValueError: a name is missing or unknown.
    """
    if set(sums) != set(self._sums):
      raise ValueError(f"expected {sorted(self._sums)}, got {sorted(sums)}")
    for name, (total, weight) in sums.items():
      self._sums[name].total.assign_add(tf.cast(total, tf.float32))
      self._sums[name].weight.assign_add(tf.cast(weight, tf.float32))

  def reset(self) -> None:
    """Sets all sums to 0. Call it on the host."""
    for total, weight in self._sums.values():
      total.assign(0.0)
      weight.assign(0.0)

  def result_and_reset(self) -> dict[str, float]:
    """Returns the mean of each metric since the last reset; 0 if nothing was added. Call it on the host."""
    means = {}
    for name, (total, weight) in self._sums.items():
      total_value, weight_value = float(total.read_value()), float(weight.read_value())
      means[name] = total_value / weight_value if weight_value else 0.0
    self.reset()
    return means


class Evaluator:
  """Runs one model over datasets, without dropout. It must be made in the strategy's scope.

  Args:
    task: computes the metrics and the outputs of a batch.
    model: the model. Its weights may change between two calls.
    strategy: the strategy whose replicas share each batch.
    batch_size: number of examples in a batch, over all replicas; a multiple of the number of replicas.
    precision: compute dtype of the layers, "float32", "bfloat16" or "float16". Training may use another.
  """

  def __init__(self, task: Task, model: keras.Model, strategy: tf.distribute.Strategy, batch_size: int, precision: str):
    self.task = task
    self.model = model
    self.strategy = strategy
    self.batch_size = batch_size
    self.precision = precision
    self.accumulator = Accumulator(task.metric_names())
    self._splits: dict[str, Dataset] | None = None
    # The latest evaluation during training: step, metrics and outputs. Estimator.evaluate uses it once.
    self.latest: tuple[int, dict[str, float], dict[str, DatasetOutputs]] | None = None

  @tf.function(reduce_retracing=True, autograph=False)
  def _evaluate_batch(self, batches: Iterator[Batch]) -> dict[str, tf.Tensor]:
    def replica_step(batch: Batch) -> dict[str, tf.Tensor]:
      sums, outputs = self.task.forward(self.model, batch, training=False)
      self.accumulator.add(sums)
      if not outputs:
        return {}
      return outputs | {name: batch[name] for name in (EXAMPLE_INDEX, EXAMPLE_WEIGHT)}

    return self.strategy.run(replica_step, args=(next(batches),))

  def run(self, data: Dataset, max_steps: int = 0) -> tuple[dict[str, float], DatasetOutputs]:
    """Computes the metrics and the outputs of a dataset.

    Args:
      data: the dataset.
      max_steps: maximum number of batches, which are a random sample, always the same; 0 for all batches.
    Returns: name -> value of the loss and of each metric, and name -> array [N, ...] of each output, in the order of
      the examples. If the shape of an output differs between batches, it is padded with zeros. If there are outputs,
      one of them is `example_index`.
    Raises:
      UserError: an example cannot be read.
    """
    if max_steps:
      data = data.sample(max_steps * self.batch_size)
    batches = iter(distribute_evaluation_batches(self.strategy, data, self.batch_size))
    num_steps = math.ceil(data.num_examples / self.batch_size)
    batch_outputs: list[dict[str, np.ndarray]] = []
    self.accumulator.reset()  # the last call may have been interrupted
    with explain_reading_errors(data), computing_in(self.precision, self.model):
      for _ in range(num_steps):
        outputs = self._evaluate_batch(batches)
        batch_outputs.append({name: self.strategy.gather(value, axis=0).numpy() for name, value in outputs.items()})
    return self.task.with_loss(self.accumulator.result_and_reset()), concatenate_outputs(batch_outputs)

  def evaluate(self, max_steps: int = 0) -> tuple[dict[str, float], dict[str, DatasetOutputs]]:
    """Evaluates all splits of the task.

    Args:
      max_steps: see `run`, for each split.
    Returns: metric -> value, and split -> its outputs. If there are several splits, metrics are called SPLIT_METRIC,
      for example matched_accuracy.
    Raises:
      UserError: an example cannot be read.
    """
    metrics: dict[str, float] = {}
    all_outputs: dict[str, DatasetOutputs] = {}
    if self._splits is None:
      self._splits = self.task.evaluation_data()
    for split, data in self._splits.items():
      means, outputs = self.run(data, max_steps)
      means |= self.task.metrics_from_means(means) | self.task.evaluation_metrics(split, outputs)
      prefix = f"{split}_" if len(self._splits) > 1 else ""
      metrics |= {prefix + name: value for name, value in means.items()}
      all_outputs[split] = outputs
    return metrics, all_outputs


def concatenate_outputs(batch_outputs: Sequence[Mapping[str, np.ndarray]]) -> DatasetOutputs:
  """Concatenates the outputs of all batches in the order of the examples, without the padding of the last batch.

  Args:
    batch_outputs: for each batch, arrays [B, ...] by name, among them example_index and example_weight; {} if there are
      no outputs.
  Returns: arrays [N, ...] by name, without example_weight. Arrays of different shapes are padded with zeros.
  """
  if not batch_outputs or not batch_outputs[0]:
    return {}
  without_padding = []
  for batch in batch_outputs:
    is_example = batch[EXAMPLE_WEIGHT] > 0
    without_padding.append({name: values[is_example] for name, values in batch.items()})
  order = np.argsort(np.concatenate([batch[EXAMPLE_INDEX] for batch in without_padding]))
  outputs = {}
  for name in sorted(batch_outputs[0].keys() - {EXAMPLE_WEIGHT}):
    arrays = [batch[name] for batch in without_padding]
    largest_shape = np.max([array.shape[1:] for array in arrays], axis=0)
    padded = [
      np.pad(array, [(0, 0), *((0, int(missing)) for missing in largest_shape - array.shape[1:])]) for array in arrays
    ]
    outputs[name] = np.concatenate(padded)[order]
  return outputs
