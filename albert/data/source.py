"""What the estimator reads: data that gives batches for training and for evaluation."""

from __future__ import annotations

import abc
import dataclasses

import tensorflow as tf

from albert.data.content import DataContent


@dataclasses.dataclass(frozen=True)
class Reader:
  """Who reads a training stream.

  Attributes:
    index, count: it is input pipeline `index` of `count`; there is one on every host.
    num_replicas: over all hosts; it feeds its part of them.
    num_parts: parts that files are dealt to, a multiple of `count`; 0 for `count`. What a global batch holds depends
      on it, and not on the number of hosts.
  """

  index: int
  count: int
  num_replicas: int
  num_parts: int = 0


class Data(abc.ABC):
  """One data set. Its training stream is a pure function of (seed, step), so a resumed run goes on exactly."""

  num_examples: int
  # The files it was read from, by which a resumed run knows its data again; none where nothing is known of them.
  content: DataContent = DataContent()
  # Whether Python code makes the batches of training, so that only the machine of this process can.
  needs_python: bool = False

  @abc.abstractmethod
  def describe(self) -> str:
    """What it is, for a line to the user."""

  @abc.abstractmethod
  def training_batches(self, *, batch_size: int, first_step: int, seed: int, reader: Reader) -> tf.data.Dataset:
    """The endless stream from `first_step` on; every element is one replica's part of a batch of `batch_size`."""

  @abc.abstractmethod
  def evaluation_batches(self, *, batch_size: int) -> tf.data.Dataset:
    """Each example once, ceil(num_examples / batch_size) batches; the last is filled with examples of weight 0."""

  def explain_failure(self) -> None:
    """Called when reading failed: raises a UserError that says where, if it can."""
    return
