"""Padded batches of tokenized examples of similar length. The training stream is a pure function of seed and step.

The stream concatenates epochs, each of which is a permutation of all examples. It is cut into windows of up to 64
batches. The examples of a window are sorted by length, cut into batches, and the batches are shuffled. So each example
is seen once in an epoch, and batches contain little padding.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert.data.dataset import SAMPLE_SEED, Dataset, InputContext, prefetch
from albert.data.examples import EXAMPLE_INDEX, OPTION_MASK, TokenizedExamples
from albert.data.manifest import DataContent
from albert.data.pipeline import EXAMPLE_WEIGHT
from albert.io.text import counted

# Number of batches in a window. Larger windows save only a little more padding.
_BATCHES_PER_WINDOW = 64
# The length of a batch is rounded up to a multiple of this, for vector instructions.
_LENGTH_MULTIPLE = 8
# Number of lengths that `with_few_lengths` pads training batches to.
_NUM_FEW_LENGTHS = 4
# Random numbers have two purposes: to permute the examples of an epoch, and to shuffle the batches of a window. These
# constants become part of the seed, so that each purpose gets other numbers.
_EPOCH_STREAM, _WINDOW_STREAM = 0, 1


class BatchPlan:
  """Determines which examples are in the batch of each step. Equal arguments give the same plan.

  Args:
    lengths: int [N], number of tokens of each example.
    batch_size: number of examples in a batch.
    seed: seed of the permutations.
    sort_by_length: whether batches consist of examples of similar length. If False, they follow the permutation of the
      epoch.
  """

  def __init__(self, lengths: np.ndarray, batch_size: int, seed: int, *, sort_by_length: bool = True):
    self._lengths = lengths
    self._batch_size = batch_size
    self._seed = seed
    # A window has at most as many examples as an epoch. Otherwise, many examples would be in a window twice, and both
    # copies, which are of the same length, could get into one batch.
    self._batches_per_window = max(1, min(_BATCHES_PER_WINDOW, len(lengths) // batch_size)) if sort_by_length else 1
    # The last window and the permutations that it was cut from are kept.
    self._window = functools.lru_cache(maxsize=1)(self._make_window)
    self._permutation = functools.lru_cache(maxsize=2)(self._permute_epoch)

  def batch(self, step: int) -> np.ndarray:
    """Returns the indices of the examples in the batch of a step, int64 [batch_size]."""
    window_index, index_in_window = divmod(step, self._batches_per_window)
    return self._window(window_index)[index_in_window]

  def _make_window(self, window_index: int) -> np.ndarray:
    """Returns the examples of all batches of a window, int64 [batches, batch_size]."""
    size = self._batches_per_window * self._batch_size
    first_epoch, offset = divmod(window_index * size, len(self._lengths))
    last_epoch = ((window_index + 1) * size - 1) // len(self._lengths)
    epochs = [self._permutation(epoch) for epoch in range(first_epoch, last_epoch + 1)]
    indices = np.concatenate(epochs)[offset : offset + size]
    if self._batches_per_window == 1:
      return indices[None]
    sorted_indices = indices[np.argsort(self._lengths[indices], kind="stable")]
    order = np.random.default_rng([self._seed, _WINDOW_STREAM, window_index]).permutation(self._batches_per_window)
    return sorted_indices.reshape(self._batches_per_window, self._batch_size)[order]

  def _permute_epoch(self, epoch: int) -> np.ndarray:
    return np.random.default_rng([self._seed, _EPOCH_STREAM, epoch]).permutation(len(self._lengths))


class ExampleDataset(Dataset):
  """A dataset of tokenized examples in memory.

  Batches have the features of `TokenizedExamples.padded_batch`, and example_weight, float32 [B]. Ids have shape [B, S],
  or [B, K, S] for examples of K sequences.

  Args:
    examples: the examples, at least one.
    name: name of the dataset, for log lines.
    token_features: names of the token features to include in batches.
    multiple_choice: whether an example consists of several sequences, such as the options of a question.
    numbers_vary: whether the K of a batch is the largest number of sequences of its own examples, instead of the
      largest one of the dataset. Then batches have examples of similar numbers of tokens in all sequences. Not used
      with `length`.
    length: S of all batches, for devices that need fixed shapes (TPU); None to pad each batch to its longest sequence.
    content: the hashes of the files that the examples were made from.
    group_label: name of the label with the same value for all examples that are evaluated together, such as the windows
      of one text; "" if each example is evaluated alone.
  """

  needs_python = True

  def __init__(
    self,
    examples: TokenizedExamples,
    name: str,
    *,
    token_features: Sequence[str] = (),
    multiple_choice: bool = False,
    numbers_vary: bool = False,
    length: int | None = None,
    content: DataContent | None = None,
    group_label: str = "",
  ):
    self.examples = examples
    self.content = content or DataContent()
    self.num_examples = examples.num_examples
    self._name = name
    self._token_features = tuple(token_features)
    self._num_sequences = int(examples.sequence_counts.max()) if multiple_choice else None
    self._length = length
    self._numbers_vary = multiple_choice and numbers_vary and length is None
    # Examples of similar size are batched together: the number of tokens in all sequences, or in the longest one.
    numbers_of_tokens = np.diff(examples.token_offsets[examples.sequence_offsets])
    self._sizes = numbers_of_tokens if self._numbers_vary else examples.longest_sequences
    self._max_length = int(examples.longest_sequences.max())
    self._length_multiple = _LENGTH_MULTIPLE
    self._group_label = group_label
    self._evaluated: np.ndarray = np.arange(self.num_examples)  # the indices of the examples to evaluate

  def describe(self) -> str:
    """Returns the number of examples and their mean and largest length."""
    mean_length = self.examples.longest_sequences.mean()
    examples = counted(self.num_examples, "example", ",")
    return f"{examples} of {self._name}, {mean_length:.0f} tokens long on average, at most {self._max_length}"

  def with_few_lengths(self) -> ExampleDataset:
    """See Dataset. The lengths are the quarters of the longest sequence, rounded up to multiples of 8.

    All examples are padded to the largest number of sequences.
    """
    dataset = copy.copy(self)
    dataset._numbers_vary = False
    multiple = _NUM_FEW_LENGTHS * _LENGTH_MULTIPLE
    dataset._length_multiple = -(-self._max_length // multiple) * _LENGTH_MULTIPLE
    return dataset

  def training_batches(self, *, batch_size: int, first_step: int, seed: int, context: InputContext) -> tf.data.Dataset:
    """See Dataset. All replicas pad their shares of a global batch to the same length."""
    plan = BatchPlan(self._sizes, batch_size, seed, sort_by_length=self._length is None)
    replica_batch_size = batch_size // context.num_replicas
    replicas_per_host = context.num_replicas // context.num_hosts
    replicas = range(context.host_index * replicas_per_host, (context.host_index + 1) * replicas_per_host)

    def generate() -> Iterator[dict[str, np.ndarray]]:
      step = first_step
      while True:
        batch = self._make_batch(plan.batch(step))
        for replica in replicas:
          rows = slice(replica * replica_batch_size, (replica + 1) * replica_batch_size)
          yield {name: values[rows] for name, values in batch.items()}
        step += 1

    return self._wrap_generator(generate, replica_batch_size)

  def sample(self, max_examples: int) -> ExampleDataset:
    """See Dataset."""
    if max_examples >= self.num_examples:
      return self
    groups = self.examples.labels[self._group_label] if self._group_label else np.arange(self.num_examples)
    _, groups, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(SAMPLE_SEED).permutation(len(sizes))
    num_groups = np.searchsorted(np.cumsum(sizes[order]), max_examples, side="right")
    sample = copy.copy(self)
    sample._evaluated = np.flatnonzero(np.isin(groups, order[: max(1, num_groups)]))
    sample.num_examples = len(sample._evaluated)
    return sample

  def evaluation_batches(self, *, batch_size: int, pad_last: bool = True) -> tf.data.Dataset:
    """See Dataset. The longest examples come first, so that a batch too large for the memory fails at once."""
    order = self._evaluated[np.argsort(-self._sizes[self._evaluated], kind="stable")]

    def generate() -> Iterator[dict[str, np.ndarray]]:
      for start in range(0, self.num_examples, batch_size):
        indices = order[start : start + batch_size]
        num_padding = batch_size - len(indices) if pad_last else 0
        padding = np.repeat(indices[-1:], num_padding)  # copies of the last example, with weight 0
        batch = self._make_batch(np.concatenate([indices, padding]))
        batch[EXAMPLE_WEIGHT][len(indices) :] = 0.0
        yield batch

    return self._wrap_generator(generate, batch_size if pad_last else None)

  def _make_batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
    length = self._length
    if length is None:
      longest = int(self.examples.longest_sequences[indices].max())
      length = min(-(-longest // self._length_multiple) * self._length_multiple, self._max_length)
    num_sequences = int(self.examples.sequence_counts[indices].max()) if self._numbers_vary else self._num_sequences
    batch = self.examples.padded_batch(
      indices, length=length, num_sequences=num_sequences, token_features=self._token_features
    )
    return batch | {EXAMPLE_WEIGHT: np.ones(len(indices), np.float32)}

  def _wrap_generator(
    self, generate: Callable[[], Iterator[dict[str, np.ndarray]]], batch_size: int | None
  ) -> tf.data.Dataset:
    """Makes a tf.data.Dataset of a generator of batches of `batch_size` examples; None if their number differs."""
    num_sequences = None if self._numbers_vary else self._num_sequences
    sequence_axes: list[int | None] = [] if self._num_sequences is None else [num_sequences]
    shapes: dict[str, list[int | None]] = {
      EXAMPLE_WEIGHT: [batch_size],
      EXAMPLE_INDEX: [batch_size],
      OPTION_MASK: [batch_size, *sequence_axes],
      **{name: [batch_size, *labels.shape[1:]] for name, labels in self.examples.labels.items()},
    }
    token_shape = [batch_size, *sequence_axes, self._length]  # of all other features
    sample = self._make_batch(np.zeros(1, np.int64))  # for the names and types of the features
    signature = {
      name: tf.TensorSpec(shapes.get(name, token_shape), tf.as_dtype(values.dtype)) for name, values in sample.items()
    }
    return prefetch(tf.data.Dataset.from_generator(generate, output_signature=signature))
