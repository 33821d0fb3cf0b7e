"""The interface of a dataset, from which the training loop and the evaluator read batches, and their prefetching."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from albert.data.manifest import DataContent

# Seed of the samples that are evaluated. It is the same for all runs, so that runs of several seeds can be compared.
SAMPLE_SEED = 12345
# Number of batches that are parsed at the same time, and that wait for the model. More would only take memory.
_MAX_PARALLEL_BATCHES = 16
_WAITING_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class InputContext:
  """Says which share of each global batch an input pipeline produces. It corresponds to `tf.distribute.InputContext`.

  Every host runs one input pipeline, for the replicas of that host.

  Attributes:
    host_index: index of this host, 0 <= host_index < num_hosts.
    num_hosts: number of hosts.
    num_replicas: number of replicas on all hosts together.
    input_parts: number of parts that the shard files are divided into, a multiple of num_hosts; 0 means num_hosts.
      Global batches depend on the number of parts. If it is given, they do not depend on the number of hosts.
  """

  host_index: int
  num_hosts: int
  num_replicas: int
  input_parts: int = 0


class Dataset(abc.ABC):
  """A set of examples that gives batches for training and for evaluation.

  The batches for training are a pure function of (seed, step), so a resumed run continues with the same batches.

  Attributes:
    num_examples: number of examples.
    content: hashes of the files that the examples come from, with which a resumed run detects changed data. It has no
      files if it is not known where the examples come from.
    needs_python: whether Python code makes the training batches. The host of a remote TPU cannot run such a pipeline.
  """

  num_examples: int
  content: DataContent = DataContent()
  needs_python: bool = False

  @abc.abstractmethod
  def describe(self) -> str:
    """Returns a short description of the dataset for a log line."""

  @abc.abstractmethod
  def training_batches(self, *, batch_size: int, first_step: int, seed: int, context: InputContext) -> tf.data.Dataset:
    """Returns the endless stream of training batches, starting at a step.

    Args:
      batch_size: number of examples in a global batch, over all replicas.
      first_step: number of steps already done.
      seed: the batches are a function of the seed and the step.
      context: which share of each global batch to produce.

    Returns:
      A tf.data.Dataset. Each element is the share of one replica: batch_size / context.num_replicas examples.
    """

  def starting_at(self, example: int) -> Dataset:
    """Returns the same dataset, with training batches that begin at a later example of the stream.

    Args:
      example: number of examples to skip, a multiple of the number of input parts.
    Raises:
      ValueError: the dataset can only begin at its first example.
    """
    if example:
      raise ValueError(f"{type(self).__name__} cannot begin at example {example}")
    return self

  def with_few_lengths(self) -> Dataset:
    """Returns the same dataset, whose training batches have only a few different lengths, for a compiler.

    Datasets whose batches all have the same shape return themselves.
    """
    return self

  @abc.abstractmethod
  def sample(self, max_examples: int) -> Dataset:
    """Returns a random sample for evaluation, always the same one; the dataset itself if it has no more examples.

    Args:
      max_examples: the largest number of examples of the sample. Examples that are evaluated together, such as the
        windows of one text, stay together.
    """

  @abc.abstractmethod
  def evaluation_batches(self, *, batch_size: int, pad_last: bool = True) -> tf.data.Dataset:
    """Returns ceil(num_examples / batch_size) batches that contain each example once.

    Args:
      batch_size: number of examples in a batch.
      pad_last: whether the last batch is filled up to batch_size with padding examples, whose example_weight is 0, so
        that all batches have the same number of examples, as TPUs and several replicas need it.
    """

  def explain_failure(self) -> None:
    """Looks for a damaged record after reading has failed. Raises a UserError that names its file and number."""
    return


def prefetch(batches: tf.data.Dataset, parse: Callable[..., Any] | None = None) -> tf.data.Dataset:
  """Makes batches in threads of their own, in the order of the dataset.

  The numbers of threads and of waiting batches are fixed. tf.data.AUTOTUNE finds them during the run, in a thread that
  sleeps for up to a minute at a time. In TensorFlow 2.15 and 2.20 this thread often misses the signal to end, and then
  the end of a stage, an evaluation or a run waits for it: up to a minute, without using the processor.

  Args:
    batches: the batches, or what `parse` makes them of.
    parse: maps an element of `batches` to a batch; None if there is nothing to do.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  if parse is not None:
    num_parallel = min(os.cpu_count() or 1, _MAX_PARALLEL_BATCHES)
    batches = batches.map(parse, num_parallel_calls=num_parallel, deterministic=True)
  return batches.prefetch(_WAITING_BATCHES).with_options(options)
