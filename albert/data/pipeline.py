"""Batches from TFRecord shards. The training stream is a pure function of the seed and the step.

In each epoch the shards are put into a random order and divided into groups. The records of the shards of a group are
interleaved, and the resulting records are shuffled in windows. The position of a step in this stream is computed from
the number of examples in each shard. A resumed run therefore continues exactly where it stopped, and opens only the
shards that the rest of the epoch needs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from albert.data.dataset import SAMPLE_SEED, Dataset, InputContext, prefetch
from albert.data.schema import FeatureSpec, explain_failure
from albert.data.shards import Shards
from albert.io.text import counted

if TYPE_CHECKING:
  from albert.data.dynamic_masking import DynamicMasking

# Number of shards that are interleaved, and number of examples that are shuffled together. This is enough even for
# shards of the original scripts, whose examples were not shuffled when they were written.
INTERLEAVED_SHARDS = 16
WINDOW_SIZE = 4096

# Bytes that are buffered of each open shard. It is TensorFlow's default, but without it tensorflow-tpu buffers 127 MiB
# of a file on gs://. albert/__init__.py bounds what the file system of gs:// buffers.
_READ_BUFFER_BYTES = 256 << 10

# Number of examples that are masked in one call. If batches are smaller, several are masked together, because most of
# the time of a call (about 5 ms for 128 examples) does not depend on the number of examples.
_EXAMPLES_PER_MASKING_CALL = 128

# Feature of every batch: 1 for an example, 0 for the padding that fills up the last batch of an evaluation.
EXAMPLE_WEIGHT = "example_weight"


def training_records(shards: Shards, *, num_skipped: int, seed: int) -> tf.data.Dataset:
  """Returns the endless training stream of serialized records, starting at an example.

  The stream is a function of the shards and the seed.

  Args:
    shards: the files to read.
    num_skipped: number of examples at the start of the stream that are skipped because they were already used.
    seed: seed of the order of shards and examples.
  """
  epoch, offset = divmod(num_skipped, shards.num_examples)

  def read_epoch(number: tf.Tensor, first_record: int = 0) -> tf.data.Dataset:
    return _read_epoch(shards, number, first_record, seed)

  current_epoch = read_epoch(tf.constant(epoch, tf.int64), offset)
  later_epochs = tf.data.Dataset.range(epoch + 1, np.iinfo(np.int64).max).flat_map(read_epoch)
  return current_epoch.concatenate(later_epochs)


def _alternate(streams: Sequence[tf.data.Dataset], num_examples: int) -> tf.data.Dataset:
  """Joins streams to one that consists of `num_examples` elements of each of them in turn."""
  if len(streams) == 1:
    return streams[0]

  def concatenate(*batches: Any) -> Any:
    # A batch is a tensor of records, or a pair of records and their numbers.
    return tf.nest.map_structure(lambda *tensors: tf.concat(tensors, axis=0), *batches)

  batches_of_streams = tuple(stream.batch(num_examples, drop_remainder=True) for stream in streams)
  return tf.data.Dataset.zip(batches_of_streams).map(concatenate).unbatch()


def _read_epoch(shards: Shards, epoch: tf.Tensor, offset: int, seed: int) -> tf.data.Dataset:
  """Returns the records of one epoch, starting at record `offset`. Groups of shards before it are not read."""
  epoch_seed = tf.stack([np.int64(seed), epoch])
  order = tf.random.experimental.stateless_shuffle(tf.range(len(shards.paths)), seed=epoch_seed)
  # A window is shuffled as a whole, so it is read from its start, and the group from the one with its first record.
  first_window, skipped_in_window = divmod(offset, WINDOW_SIZE)
  first_group, skipped_in_group = 0, 0
  if offset:  # then `epoch` is not a symbolic tensor, so the order can be read
    counts = np.asarray(shards.counts)[order.numpy()]
    group_ends = np.cumsum(np.add.reduceat(counts, np.arange(0, len(counts), INTERLEAVED_SHARDS)))
    first_group = int(np.searchsorted(group_ends, first_window * WINDOW_SIZE, side="right"))
    skipped_in_group = first_window * WINDOW_SIZE - int(np.append(0, group_ends)[first_group])

  def read_group(group: tf.Tensor) -> tf.data.Dataset:
    return _read_shards(tf.gather(shards.paths, group), tf.gather(shards.compressed, group), INTERLEAVED_SHARDS)

  groups = tf.data.Dataset.from_tensor_slices(order[first_group * INTERLEAVED_SHARDS :]).batch(INTERLEAVED_SHARDS)
  records_of_groups = groups.flat_map(read_group).skip(skipped_in_group)

  def permute(window_index: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    # Each window of each epoch has its own permutation: its seed is made of the seed, the epoch and the window's index.
    window_seed = tf.random.experimental.stateless_fold_in(epoch_seed, window_index)
    return tf.gather(window, tf.random.experimental.stateless_shuffle(tf.range(tf.shape(window)[0]), seed=window_seed))

  windows = records_of_groups.batch(WINDOW_SIZE).enumerate(first_window).map(permute)
  return windows.prefetch(1).unbatch().skip(skipped_in_window)


def _read_shards(paths: tf.Tensor, compressed: tf.Tensor, num_interleaved: int) -> tf.data.Dataset:
  """Returns the records of shards. `num_interleaved` shards are open at a time, and give one record each in turn."""

  def open_shard(path: tf.Tensor, is_compressed: tf.Tensor) -> tf.data.Dataset:
    compression_type = tf.where(is_compressed, "GZIP", "")
    return tf.data.TFRecordDataset(path, compression_type=compression_type, buffer_size=_READ_BUFFER_BYTES)

  return tf.data.Dataset.from_tensor_slices((paths, compressed)).interleave(
    open_shard, cycle_length=num_interleaved, block_length=1, num_parallel_calls=1, deterministic=True
  )


def _parse_batches(
  batches: tf.data.Dataset,
  features: Sequence[FeatureSpec],
  batch_size: int | None,
  transform: Callable[[dict[str, tf.Tensor], tf.Tensor], dict[str, tf.Tensor]] | None = None,
) -> tf.data.Dataset:
  """Parses batches of serialized records to batches of features, and checks their values."""
  dtypes = {"int64": tf.int64, "float32": tf.float32}
  schema = {feature.name: tf.io.FixedLenFeature([feature.length], dtypes[feature.dtype]) for feature in features}

  def parse(serialized: tf.Tensor, numbers: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
    parsed = _check_ranges(tf.io.parse_example(serialized, schema), features)
    if transform is not None:
      parsed = transform(parsed, numbers)
    num_examples = tf.shape(serialized)[0]
    num_padding = 0 if batch_size is None else batch_size - num_examples
    batch = {}
    for name, value in parsed.items():
      value_32_bits = tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
      padded_value = tf.pad(value_32_bits, [[0, num_padding], [0, 0]])
      batch[name] = tf.ensure_shape(padded_value, [batch_size, value.shape[1]])
    weight = tf.pad(tf.ones([num_examples], tf.float32), [[0, num_padding]])
    return batch | {EXAMPLE_WEIGHT: tf.ensure_shape(weight, [batch_size])}

  return prefetch(batches, parse)


def _check_ranges(batch: dict[str, tf.Tensor], features: Sequence[FeatureSpec]) -> dict[str, tf.Tensor]:
  """Returns the same batch. Reading it fails if a value is out of its range (see FeatureSpec)."""
  # A lookup with an id out of range does not fail on every device: a GPU returns zeros, a TPU the table's last row.
  is_in_range = tf.constant(True)
  for feature in features:
    values, (low, high) = batch[feature.name], feature.bounds
    is_in_range &= tf.reduce_all((values >= low) & (values <= high))  # false for NaN
  assertion = tf.debugging.Assert(is_in_range, ["a value of a record is out of its range"])
  with tf.control_dependencies([assertion]):
    return {name: tf.identity(values) for name, values in batch.items()}


class ShardDataset(Dataset):
  """A dataset of TFRecord shards. In training, every host reads other shards.

  Args:
    shards: the files.
    features: the features of their records.
    masking: makes new masks for each training example; None to use the masks in the shards. Evaluation always uses the
      masks in the shards.
    num_used: number of examples of the training stream that earlier stages of the run used. Step 0 begins after them.
  """

  def __init__(
    self, shards: Shards, features: Sequence[FeatureSpec], masking: DynamicMasking | None = None, num_used: int = 0
  ):
    self.shards = shards
    self.features = features
    self.masking = masking
    self.num_used = num_used
    self.needs_python = masking is not None
    self.num_examples = shards.num_examples
    self.content = shards.content

  def describe(self) -> str:
    """Returns the numbers of examples and shards."""
    return f"{self.num_examples:,} examples in {counted(len(self.shards.paths), 'shard')}"

  # AutoGraph would convert each function of the pipeline, which takes a second and changes nothing: none of them
  # branches on the value of a tensor.
  @tf.autograph.experimental.do_not_convert
  def training_batches(self, *, batch_size: int, first_step: int, seed: int, context: InputContext) -> tf.data.Dataset:
    """See Dataset.

    The shards are divided into context.input_parts parts, each with a stream of its own. A global batch consists of the
    same number of examples from each part, in order of the parts. A batch may contain the end of one epoch and the
    start of the next. The stream of all hosts together is a function of the shards, the number of parts, batch_size,
    seed and masking.

    Returns:
      A dataset. Each element is the share of a global batch that one replica gets: name of a feature -> int32 or
      float32 [examples, length], and example_weight, float32 [examples]. The shares of all replicas of this host follow
      each other, then those of the next global batch.
    """
    masking = self.masking
    num_parts = context.input_parts or context.num_hosts
    parts_per_host = num_parts // context.num_hosts
    examples_per_part, replica_batch_size = batch_size // num_parts, batch_size // context.num_replicas
    num_skipped = self.num_used // num_parts + first_step * examples_per_part  # in each part

    def read_part(part: int) -> tf.data.Dataset:
      stream = training_records(self.shards.part(part, num_parts), num_skipped=num_skipped, seed=seed)
      if masking is None:
        return stream
      # Pairs of a record and a number that no other record has.
      return stream.enumerate(num_skipped).map(lambda index, record: (record, index * num_parts + part))

    parts = range(context.host_index * parts_per_host, (context.host_index + 1) * parts_per_host)
    stream = _alternate(list(map(read_part, parts)), examples_per_part)
    if masking is None:
      return _parse_batches(stream.batch(replica_batch_size, drop_remainder=True), self.features, replica_batch_size)
    large_batch_size = max(1, _EXAMPLES_PER_MASKING_CALL // replica_batch_size) * replica_batch_size
    masked_batches = _parse_batches(
      stream.batch(large_batch_size, drop_remainder=True),
      self.features,
      large_batch_size,
      lambda batch, numbers: masking.mask_tensors(batch, numbers, seed),
    )
    return masked_batches.rebatch(replica_batch_size, drop_remainder=True)

  def starting_at(self, example: int) -> ShardDataset:
    """See Dataset."""
    return ShardDataset(self.shards, self.features, self.masking, num_used=example)

  def sample(self, max_examples: int) -> ShardDataset:
    """See Dataset."""
    sample = copy.copy(self)
    sample.num_examples = min(max_examples, self.num_examples)
    return sample

  @tf.autograph.experimental.do_not_convert
  def evaluation_batches(self, *, batch_size: int, pad_last: bool = True) -> tf.data.Dataset:
    """See Dataset. The examples are in the order of the shards, those of a sample in the order of training."""
    shards = self.shards
    if self.num_examples < shards.num_examples:
      stream = training_records(shards, num_skipped=0, seed=SAMPLE_SEED).take(self.num_examples)
    else:
      stream = _read_shards(tf.constant(shards.paths), tf.constant(shards.compressed), 1)
    return _parse_batches(stream.batch(batch_size), self.features, batch_size if pad_last else None)

  def explain_failure(self) -> None:
    """See Dataset and schema.explain_failure."""
    explain_failure(self.shards.paths, self.features)
