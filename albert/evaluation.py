"""Runs a model over a data set: metrics."""

from __future__ import annotations

import tensorflow as tf
import tf_keras as keras

from albert.data import pipeline
from albert.tasks.base import Batch, Task
from albert.training.accumulators import Accumulator


class Evaluator:
  """Evaluates one model as often as asked. Make it in the strategy's scope."""

  def __init__(self, task: Task, model: keras.Model, strategy: tf.distribute.Strategy, batch_size: int):
    self.task = task
    self.model = model
    self.strategy = strategy
    self.batch_size = batch_size
    self.accumulator = Accumulator(task.metric_names())
    self.shards = task.evaluation_shards()
    self._extras: dict[str, float] | None = None

  @tf.function
  def _step(self, batch: Batch) -> None:
    def replica_step(replica_batch: Batch) -> None:
      self.accumulator.add(self.task.forward(self.model, replica_batch, None))

    self.strategy.run(replica_step, args=(batch,))

  def evaluate(self, max_steps: int = 0) -> dict[str, float]:
    """Metrics over the evaluation shards, or over their first `max_steps` batches."""
    dataset = pipeline.evaluation_batches(self.shards, self.task.features(), batch_size=self.batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = dataset.with_options(options)
    if max_steps:
      dataset = dataset.take(max_steps)
    try:
      for batch in self.strategy.experimental_distribute_dataset(dataset):
        self._step(batch)
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError):
      pipeline.explain_failure(self.shards, self.task.features())
      raise
    if self._extras is None:
      self._extras = self.task.evaluation_extras(self.shards)
    return self.accumulator.result_and_reset() | self._extras
