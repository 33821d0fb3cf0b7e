"""Padded batches of tokenized examples of similar length. The training stream is a pure function of seed and step.

The stream concatenates epochs, each of which is a permutation of all examples. It is cut into windows of up to 64
batches. The examples of a window are sorted by length, cut into batches, and the batches are shuffled. So each example
is seen once in an epoch, and batches contain little padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert.data.content import DataContent
from albert.data.dataset import Dataset, InputContext
from albert.data.examples import EXAMPLE_INDEX, OPTION_MASK, TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT

# Number of batches in a window. Larger windows save only a little more padding.
_WINDOW_BATCHES = 64
# The length of a batch is rounded up to a multiple of this, for vector instructions.
_LENGTH_MULTIPLE = 8
# Part of the seed: generators for the permutation of an epoch and for the order of batches in a window.
_EPOCH, _WINDOW = 0, 1


class BatchPlan:
  """Determines which examples are in the batch of each step.

  The plan is a function of the arguments.

  Args:
    lengths: int [N], number of tokens of each example.
    batch_size: number of examples in a batch.
    seed: seed of the permutations.
    sort: whether batches consist of examples of similar length. If False, they follow the permutation of the epoch.
  """

  def __init__(self, lengths: np.ndarray, batch_size: int, seed: int, *, sort: bool = True):
    self._lengths = lengths
    self._batch_size = batch_size
    self._seed = seed
    # A window with more examples than an epoch would put two copies of an example into one batch.
    self._window_batches = max(1, min(_WINDOW_BATCHES, len(lengths) // batch_size)) if sort else 1
    self._permutations: dict[int, np.ndarray] = {}
    self._batches: tuple[int, np.ndarray] | None = None

  def batch(self, step: int) -> np.ndarray:
    """Returns the indices of the examples in the batch of a step, int64 [batch_size]."""
    window, index = divmod(step, self._window_batches)
    if self._batches is None or self._batches[0] != window:
      self._batches = (window, self._sorted_window(window))
    return self._batches[1][index]

  def _sorted_window(self, window: int) -> np.ndarray:
    """Returns the examples of all batches of a window, int64 [batches, batch_size]."""
    size = self._window_batches * self._batch_size
    indices = self._stream(window * size, size)
    if self._window_batches == 1:
      return indices[None]
    by_length = indices[np.argsort(self._lengths[indices], kind="stable")]
    order = np.random.default_rng([self._seed, _WINDOW, window]).permutation(self._window_batches)
    return by_length.reshape(self._window_batches, self._batch_size)[order]

  def _stream(self, start: int, size: int) -> np.ndarray:
    """Returns `size` examples of the concatenated epochs, from number `start` on."""
    num_examples = len(self._lengths)
    epochs = range(start // num_examples, (start + size - 1) // num_examples + 1)
    self._permutations = {
      epoch: self._permutations[epoch]
      if epoch in self._permutations
      else np.random.default_rng([self._seed, _EPOCH, epoch]).permutation(num_examples)
      for epoch in epochs
    }
    stream = np.concatenate([self._permutations[epoch] for epoch in epochs])
    first = start - epochs[0] * num_examples
    return stream[first : first + size]


class ExampleDataset(Dataset):
  """A dataset of tokenized examples in memory.

  Batches have the features of `TokenizedExamples.padded_batch`, and example_weight, float32 [B]. Ids have shape [B, S],
  or [B, K, S] for examples of K sequences.

  Args:
    examples: the examples, at least one.
    name: name of the dataset, for log lines.
    token_features: names of the token features to include in batches.
    multiple_choice: whether an example consists of several sequences, such as the options of a question.
    length: S of all batches, for devices that need fixed shapes (TPU); None for the longest sequence of each batch.
    content: the hashes of the files that the examples were made from.
  """

  needs_python = True

  def __init__(
    self,
    examples: TokenizedExamples,
    name: str,
    *,
    token_features: Sequence[str] = (),
    multiple_choice: bool = False,
    length: int | None = None,
    content: DataContent | None = None,
  ):
    self.examples = examples
    self.content = content or DataContent()
    self.num_examples = examples.num_examples
    self._name = name
    self._token_features = tuple(token_features)
    self._num_sequences = int(examples.sequence_counts.max()) if multiple_choice else None
    self._length = length
    self._longest = int(examples.longest_sequences.max())

  def describe(self) -> str:
    """Returns the number of examples and their mean and largest length."""
    mean = self.examples.longest_sequences.mean()
    return f"{self.num_examples:,} examples of {self._name}, {mean:.0f} tokens long (at most {self._longest})"

  def training_batches(self, *, batch_size: int, first_step: int, seed: int, context: InputContext) -> tf.data.Dataset:
    """See Dataset. The shares of one global batch are padded to the same length, on all replicas."""
    plan = BatchPlan(self.examples.longest_sequences, batch_size, seed, sort=self._length is None)
    replica_batch = batch_size // context.num_replicas
    host_replicas = context.num_replicas // context.num_hosts
    replicas = range(context.host_index * host_replicas, (context.host_index + 1) * host_replicas)

    def generate() -> Iterator[dict[str, np.ndarray]]:
      step = first_step
      while True:
        indices = plan.batch(step)
        batch = self._batch(indices)
        for replica in replicas:
          rows = slice(replica * replica_batch, (replica + 1) * replica_batch)
          yield {name: values[rows] for name, values in batch.items()}
        step += 1

    return self._dataset(generate, replica_batch)

  def evaluation_batches(self, *, batch_size: int) -> tf.data.Dataset:
    """See Dataset. The longest examples come first, so that a batch too large for the memory fails at once."""
    order = np.argsort(-self.examples.longest_sequences, kind="stable")

    def generate() -> Iterator[dict[str, np.ndarray]]:
      for start in range(0, self.num_examples, batch_size):
        indices = order[start : start + batch_size]
        missing = batch_size - len(indices)
        batch = self._batch(np.concatenate([indices, np.repeat(indices[-1:], missing)]))
        batch[EXAMPLE_WEIGHT][len(indices) :] = 0.0
        yield batch

    return self._dataset(generate, batch_size)

  def _batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
    length = self._length
    if length is None:
      longest = int(self.examples.longest_sequences[indices].max())
      length = min(-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE, self._longest)
    batch = self.examples.padded_batch(
      indices, length=length, num_sequences=self._num_sequences, token_features=self._token_features
    )
    return batch | {EXAMPLE_WEIGHT: np.ones(len(indices), np.float32)}

  def _dataset(self, generate: object, rows: int) -> tf.data.Dataset:
    """Wraps a generator of batches of `rows` examples in a tf.data.Dataset."""
    shape: list[int | None] = [rows, self._length]
    if self._num_sequences is not None:
      shape = [rows, self._num_sequences, self._length]
    sample = self._batch(np.zeros(1, np.int64))
    features_of_rows = {EXAMPLE_WEIGHT, EXAMPLE_INDEX, *self.examples.labels}
    signature = {
      name: tf.TensorSpec(
        [rows] if name in features_of_rows else shape[:2] if name == OPTION_MASK else shape, tf.as_dtype(values.dtype)
      )
      for name, values in sample.items()
    }
    return tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(tf.data.AUTOTUNE)
