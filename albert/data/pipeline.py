"""TFRecord shards -> batches. The training stream is a pure function of (seed, step), so a resumed run
repeats nothing and skips nothing.

An epoch visits the shards in a new order, reads a group of them in turn, and permutes windows of the result.
Where a step stands in that stream is arithmetic on the number of examples a shard holds, so a resumed run
opens only the shards it still needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from albert.data.dataset import Dataset, InputContext
from albert.data.dynamic_masking import DynamicMasking
from albert.data.schema import FeatureSpec
from albert.data.shards import Shards
from albert.errors import UserError
from albert.io import records

# Shards read in turn, and examples permuted together: a mixture of about WINDOW examples of INTERLEAVED_SHARDS
# shards is random enough for shards that were not shuffled when they were written (the original's are not).
INTERLEAVED_SHARDS = 16
WINDOW = 4096

# Examples that get new masks in one go, several batches of them if these are small: most of the time that masks take,
# 5 ms for as many as that, does not depend on their number.
_MASKED_TOGETHER = 128

# Every batch carries it: 1 for an example, 0 for the padding of a last, partial batch.
EXAMPLE_WEIGHT = "example_weight"


def training_records(
  shards: Shards, *, first_example: int, seed: int, interleaved: int = INTERLEAVED_SHARDS, window: int = WINDOW
) -> tf.data.Dataset:
  """The endless training stream from example number `first_example` on, as serialized records.

  Args:
    shards: what to read.
    first_example: examples already consumed.
    seed: the stream depends on it and on nothing else.
    interleaved: shards read in turn.
    window: examples permuted together.
  """
  epoch, offset = divmod(first_example, shards.num_examples)
  stream = _epoch(shards, tf.constant(epoch, tf.int64), offset, seed, interleaved, window)
  later = tf.data.Dataset.range(epoch + 1, np.iinfo(np.int64).max)
  return stream.concatenate(later.flat_map(lambda e: _epoch(shards, e, 0, seed, interleaved, window)))


def training_batches(
  shards: Shards,
  features: Sequence[FeatureSpec],
  *,
  batch_size: int,
  first_step: int,
  seed: int,
  context: InputContext,
  masking: DynamicMasking | None = None,
) -> tf.data.Dataset:
  """The endless training stream of one reader from `first_step` on, a replica's part of a batch after another.

  The shards are dealt to context.input_parts parts, each a stream of its own. A global batch holds as many examples of
  each part, one part after the other; batches run on over the end of an epoch.

  Args:
    shards: what to read.
    features: the contract of the records.
    batch_size: of the global batch.
    first_step: steps done.
    seed: the stream depends on it, on the parts, and on nothing else.
    context: whose part of the stream; which of the parts it reads.
    masking: makes the masks anew, from the seed and from where an example stands in the stream.
  Returns:
    Batches of batch_size / context.num_replicas: name -> int32 or float32 [batch, length], and example_weight
    float32 [batch].
  """
  num_parts = context.input_parts or context.num_hosts
  per_reader = num_parts // context.num_hosts
  share, replica_batch = batch_size // num_parts, batch_size // context.num_replicas
  first_example = first_step * share
  streams = []
  for part in range(context.host_index * per_reader, (context.host_index + 1) * per_reader):
    part_of_shards = shards.part(part, num_parts)
    stream = training_records(part_of_shards, first_example=first_example, seed=seed)
    streams.append(_numbered(stream, first_example, part, num_parts) if masking else stream)
  stream = streams[0]
  if len(streams) > 1:
    in_turn = tf.data.Dataset.zip(tuple(stream.batch(share, drop_remainder=True) for stream in streams))
    stream = in_turn.map(
      lambda *of_parts: tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *of_parts)
    ).unbatch()
  if masking is None:
    return _finish(stream.batch(replica_batch, drop_remainder=True), features, replica_batch)
  together = max(1, _MASKED_TOGETHER // replica_batch) * replica_batch
  masked = _finish(
    stream.batch(together, drop_remainder=True),
    features,
    together,
    lambda batch, numbers: masking.mask_tensors(batch, numbers, seed),
  )
  return masked.rebatch(replica_batch, drop_remainder=True)


def _numbered(stream: tf.data.Dataset, first_example: int, part: int, num_parts: int) -> tf.data.Dataset:
  """(record, number) for each record: a number that comes once in the streams of all parts and epochs."""

  def number(example: tf.Tensor, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return record, example * num_parts + part

  return stream.enumerate(first_example).map(number)


def evaluation_batches(shards: Shards, features: Sequence[FeatureSpec], *, batch_size: int) -> tf.data.Dataset:
  """Each example once, in order. The last batch is filled up with examples of weight 0."""
  stream = _read(tf.constant(shards.paths), tf.constant(shards.compressed), 1)
  return _finish(stream.batch(batch_size), features, batch_size)


def _shard_order(num_shards: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
  return tf.random.experimental.stateless_shuffle(tf.range(num_shards), seed=tf.stack([np.int64(seed), epoch]))


def _epoch(shards: Shards, epoch: tf.Tensor, offset: int, seed: int, interleaved: int, window: int) -> tf.data.Dataset:
  """The records of one epoch from number `offset` on (only the first epoch of a resumed run has one)."""
  order = _shard_order(len(shards.paths), seed, epoch)
  first_window, within_window = divmod(offset, window)
  first_group, within_group = 0, first_window * window
  if offset:
    counts = np.asarray(shards.counts)[order.numpy()]
    ends = np.cumsum(np.add.reduceat(counts, np.arange(0, len(counts), interleaved)))
    first_group = int(np.searchsorted(ends, within_group, side="right"))
    within_group -= int(ends[first_group - 1]) if first_group else 0
  order = order[first_group * interleaved :]

  def read_group(group: tf.Tensor) -> tf.data.Dataset:
    return _read(tf.gather(shards.paths, group), tf.gather(shards.compressed, group), interleaved)

  stream = tf.data.Dataset.from_tensor_slices(order).batch(interleaved).flat_map(read_group).skip(within_group)

  def permute(index: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    # Folding the epoch and the window into the seed gives each window its own permutation.
    key = tf.random.experimental.stateless_fold_in(tf.stack([np.int64(seed), epoch]), index)
    return tf.gather(rows, tf.random.experimental.stateless_shuffle(tf.range(tf.shape(rows)[0]), seed=key))

  return stream.batch(window).enumerate(first_window).map(permute).prefetch(1).unbatch().skip(within_window)


def _read(paths: tf.Tensor, compressed: tf.Tensor, interleaved: int) -> tf.data.Dataset:
  def open_one(path: tf.Tensor, is_compressed: tf.Tensor) -> tf.data.Dataset:
    return tf.data.TFRecordDataset(path, compression_type=tf.where(is_compressed, "GZIP", ""))

  return tf.data.Dataset.from_tensor_slices((paths, compressed)).interleave(
    open_one, cycle_length=interleaved, block_length=1, num_parallel_calls=1, deterministic=True
  )


def _finish(
  batches: tf.data.Dataset,
  features: Sequence[FeatureSpec],
  batch_size: int,
  change: Callable[[dict[str, tf.Tensor], tf.Tensor], dict[str, tf.Tensor]] | None = None,
) -> tf.data.Dataset:
  """Batches of records, with their numbers where `change` takes these, as batches of features."""
  dtypes = {"int64": tf.int64, "float32": tf.float32}
  parser = {f.name: tf.io.FixedLenFeature([f.length], dtypes[f.dtype]) for f in features}

  def parse(serialized: tf.Tensor, numbers: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
    parsed = _checked(tf.io.parse_example(serialized, parser), features)
    if change is not None:
      parsed = change(parsed, numbers)
    missing = batch_size - tf.shape(serialized)[0]
    batch = {}
    for name, value in parsed.items():
      narrow = tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
      batch[name] = tf.ensure_shape(tf.pad(narrow, [[0, missing], [0, 0]]), [batch_size, value.shape[1]])
    weight = tf.pad(tf.ones([batch_size - missing], tf.float32), [[0, missing]])
    return batch | {EXAMPLE_WEIGHT: tf.ensure_shape(weight, [batch_size])}

  return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


def _checked(batch: dict[str, tf.Tensor], features: Sequence[FeatureSpec]) -> dict[str, tf.Tensor]:
  """The same batch; reading fails if a value is out of its range (see FeatureSpec), and explain_failure says where.

  A device may not: a GPU takes rows of zeros for ids that its table lacks, and a TPU takes the last row.
  """
  in_range = []
  for feature in features:
    values, (low, high) = batch[feature.name], feature.bounds
    in_range.append(tf.reduce_all((values >= low) & (values <= high)))  # false for NaN
  check = tf.debugging.Assert(tf.reduce_all(tf.stack(in_range)), ["a value of a record is out of its range"])
  with tf.control_dependencies([check]):
    return {name: tf.identity(values) for name, values in batch.items()}


def explain_failure(shards: Shards, features: Sequence[FeatureSpec]) -> None:
  """Reads every shard again to say which file and record made a step fail.

  Raises:
    UserError: a record is truncated, damaged, or not of this contract. Returns if all are intact.
  """
  for path in shards.paths:
    for number, record in enumerate(records.read_records(path)):
      check_record(path, number, record, features)


def first_example(path: str) -> dict[str, np.ndarray]:
  """The features of the first record of a shard. UserError if it holds none."""
  record = next(records.read_records(path), None)
  if record is None:
    raise UserError(f"{path}: holds no records; leave it out or write it again")
  return records.decode_example(record, f"{path}, record 0 (counted from 0)")


def check_record(path: str, number: int, record: bytes, features: Sequence[FeatureSpec]) -> None:
  """UserError naming file, record and feature if `record` does not have the lengths and ranges of `features`."""
  where = f"{path}, record {number} (counted from 0)"
  example = records.decode_example(record, where)
  for feature in features:
    found = len(example[feature.name]) if feature.name in example else 0
    if found != feature.length:
      raise UserError(
        f"{where}: {feature.name} has {found} values, expected {feature.length}; "
        "give the lengths that the shards were written with"
      )
    _check_range(where, feature, example[feature.name])


def _check_range(where: str, feature: FeatureSpec, values: np.ndarray) -> None:
  """UserError if a value of a feature is out of its range."""
  found = "texts" if values.dtype == object else values.dtype.name
  if feature.dtype != found:
    raise UserError(f"{where}: {feature.name} holds {found}, expected {feature.dtype}: write the shards again")
  low, high = feature.bounds
  wrong = ~((values >= low) & (values <= high))  # true for NaN
  if wrong.any():
    index = int(wrong.argmax())
    raise UserError(
      f"{where}: {feature.name}[{index}] is {values[index]}, it must be from {low} to {high}: give the shards of this "
      "model and vocabulary (--vocab_size, --type_vocab_size), or write them again"
    )


class ShardDataset(Dataset):
  """TFRecord shards as a data set. Each input pipeline reads shards of its own."""

  def __init__(self, shards: Shards, features: Sequence[FeatureSpec], masking: DynamicMasking | None = None):
    self.shards = shards
    self.features = features
    self.masking = masking  # in training
    self.needs_python = masking is not None
    self.num_examples = shards.num_examples
    self.content = shards.content

  def describe(self) -> str:
    """Numbers of examples and shards."""
    return f"{self.num_examples:,} examples in {len(self.shards.paths)} shards"

  def training_batches(self, *, batch_size: int, first_step: int, seed: int, context: InputContext) -> tf.data.Dataset:
    """See Dataset."""
    return training_batches(
      self.shards,
      self.features,
      batch_size=batch_size,
      first_step=first_step,
      seed=seed,
      context=context,
      masking=self.masking,
    )

  def evaluation_batches(self, *, batch_size: int) -> tf.data.Dataset:
    """See Dataset."""
    return evaluation_batches(self.shards, self.features, batch_size=batch_size)

  def explain_failure(self) -> None:
    """UserError with the file and record that is damaged or not of this contract."""
    explain_failure(self.shards, self.features)
