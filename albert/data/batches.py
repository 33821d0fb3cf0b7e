"""Examples -> padded batches of similar lengths. The training stream is a pure function of (seed, step).

An epoch is one permutation of all examples. Windows of that stream are sorted by length and cut into batches,
which come in random order: each example is seen once an epoch, and a batch has little padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from albert.data.content import DataContent
from albert.data.dataset import Dataset, InputContext
from albert.data.examples import EXAMPLE_INDEX, OPTION_MASK, TokenizedExamples
from albert.data.pipeline import EXAMPLE_WEIGHT

# Batches sorted together. More would save little padding more.
_WINDOW_BATCHES = 64
# Lengths are rounded up to a multiple of it, which vectors fill.
_LENGTH_MULTIPLE = 8
# What the generators of a run are for.
_EPOCH, _WINDOW = 0, 1


class BatchPlan:
  """Which examples make up the batch of a step.

  Args:
    lengths: [N], of each example.
    batch_size: examples of a batch.
    seed: the plan depends on it, on the lengths and on nothing else.
    sort: False for batches of any lengths, in the order of the permutation.
  """

  def __init__(self, lengths: np.ndarray, batch_size: int, seed: int, *, sort: bool = True):
    self._lengths = lengths
    self._batch_size = batch_size
    self._seed = seed
    # A window longer than an epoch would put copies of an example side by side.
    self._window = max(1, min(_WINDOW_BATCHES, len(lengths) // batch_size)) if sort else 1
    self._permutations: dict[int, np.ndarray] = {}
    self._batches: tuple[int, np.ndarray] | None = None

  def batch(self, step: int) -> np.ndarray:
    """The indices [batch_size] of the batch of `step`."""
    window, place = divmod(step, self._window)
    if self._batches is None or self._batches[0] != window:
      self._batches = (window, self._window_batches(window))
    return self._batches[1][place]

  def _window_batches(self, window: int) -> np.ndarray:
    """[batches of a window, batch_size]."""
    size = self._window * self._batch_size
    indices = self._stream(window * size, size)
    if self._window == 1:
      return indices[None]
    by_length = indices[np.argsort(self._lengths[indices], kind="stable")]
    order = np.random.default_rng([self._seed, _WINDOW, window]).permutation(self._window)
    return by_length.reshape(self._window, self._batch_size)[order]

  def _stream(self, start: int, size: int) -> np.ndarray:
    """The stream of all epochs from `start` on."""
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
  """Examples in memory as a data set.

  Args:
    examples: at least one.
    name: for the user.
    token_features: those of the examples that batches carry.
    multiple_choice: True for examples of several sequences: batches are [B, K, S].
    length: S of every batch, as a TPU wants it; None for the longest sequence of each batch.
    content: the hashes of the files that the examples were made of.
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
    """Number of examples, and their lengths."""
    mean = self.examples.longest_sequences.mean()
    return f"{self.num_examples:,} examples of {self._name}, {mean:.0f} tokens long (at most {self._longest})"

  def training_batches(self, *, batch_size: int, first_step: int, seed: int, context: InputContext) -> tf.data.Dataset:
    """See Dataset. All parts of a batch have the same length."""
    plan = BatchPlan(self.examples.longest_sequences, batch_size, seed, sort=self._length is None)
    share = batch_size // context.num_replicas
    replicas = context.num_replicas // context.num_hosts
    parts = range(context.host_index * replicas, (context.host_index + 1) * replicas)

    def generate() -> Iterator[dict[str, np.ndarray]]:
      step = first_step
      while True:
        indices = plan.batch(step)
        batch = self._batch(indices)
        for part in parts:
          yield {name: values[part * share : (part + 1) * share] for name, values in batch.items()}
        step += 1

    return self._dataset(generate, share)

  def evaluation_batches(self, *, batch_size: int) -> tf.data.Dataset:
    """See Dataset. In order of length, the longest first, so that what does not fit in memory fails at once."""
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
    shape: list[int | None] = [rows, self._length]
    if self._num_sequences is not None:
      shape = [rows, self._num_sequences, self._length]
    sample = self._batch(np.zeros(1, np.int64))
    one_a_row = {EXAMPLE_WEIGHT, EXAMPLE_INDEX, *self.examples.labels}
    signature = {
      name: tf.TensorSpec(
        [rows] if name in one_a_row else shape[:2] if name == OPTION_MASK else shape, tf.as_dtype(values.dtype)
      )
      for name, values in sample.items()
    }
    return tf.data.Dataset.from_generator(generate, output_signature=signature).prefetch(tf.data.AUTOTUNE)
