"""From sorted runs of instances to globally shuffled shards, in bounded memory.

Every instance has a random 64-bit key; the order of the keys is the order of the examples, and equal numbers of
consecutive examples make the shards. A shard is a merge of sorted runs (data_prep.runners.spills), from its first
example on.

An instance is a few words (uint16, or uint32 for vocabularies over 65,536 pieces): number of tokens, number
of predictions, column of the second segment, label; the tokens; the predictions' positions; their labels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from albert.data import schema
from albert.data.manifest import ShardInfo
from albert.data.masking import MaskedTokens
from albert.errors import RunError, UserError
from albert.io.records import RecordWriter, encode_batch
from data_prep.runners import spills
from data_prep.runners.spills import RunPart, Spill
from data_prep.segments import Tokens

_BATCH = 1024
_HEADER_WORDS = 4


def word_dtype(vocab_size: int) -> np.dtype:
  """The type of one word of an instance."""
  return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def ragged(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
  """The indices starts[i] .. starts[i] + lengths[i] - 1 for all i, one after another."""
  before = np.cumsum(lengths) - lengths
  return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)


def pack(tokens: Tokens, masked: MaskedTokens, labels: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
  """Instances as words laid end to end, and the number of words of each."""
  num_tokens = np.diff(tokens.row_splits)
  rows = np.searchsorted(tokens.row_splits, masked.positions, side="right") - 1
  num_masked = np.bincount(rows, minlength=num_tokens.size)
  sizes = _HEADER_WORDS + num_tokens + 2 * num_masked
  starts = np.cumsum(sizes) - sizes
  words = np.empty(int(sizes.sum()), dtype)
  for index, values in enumerate((num_tokens, num_masked, tokens.b_starts, labels)):
    words[starts + index] = values
  words[ragged(starts + _HEADER_WORDS, num_tokens)] = masked.ids
  place = starts + _HEADER_WORDS + num_tokens
  words[ragged(place, num_masked)] = masked.positions - tokens.row_splits[rows]
  words[ragged(place + num_masked, num_masked)] = masked.labels
  return words, sizes


def unpack(
  words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> dict[str, np.ndarray]:
  """The features (albert.data.schema) of the instances at `starts`: name -> [B, length]."""
  num_tokens, num_masked, b_start, label = (words[starts + i].astype(np.int64)[:, None] for i in range(4))
  starts = starts[:, None] + _HEADER_WORDS
  # Rows are read to their full width and what is beyond their end is cleared.
  column = np.arange(max_seq_length)
  is_token = column < num_tokens
  ids = words.take(starts + column, mode="clip") * is_token
  slot = np.arange(max_predictions_per_seq)
  is_masked = slot < num_masked
  place = starts + num_tokens + slot
  return {
    schema.INPUT_IDS: ids,
    schema.INPUT_MASK: is_token,
    schema.SEGMENT_IDS: is_token & (column >= b_start),
    schema.MASKED_LM_POSITIONS: words.take(place, mode="clip") * is_masked,
    schema.MASKED_LM_IDS: words.take(place + num_masked, mode="clip") * is_masked,
    schema.MASKED_LM_WEIGHTS: is_masked.astype(np.float32),
    schema.NEXT_SENTENCE_LABELS: label,
  }


def check_total(total: int, num_shards: int) -> None:
  """UserError where there are fewer examples than shards."""
  if total < num_shards:
    raise UserError(f"--num_shards={num_shards}: the text gives {total} examples only: lower it, or add text")


@dataclasses.dataclass(frozen=True)
class ShardTask:
  """One shard to write.

  Attributes:
    index: of the shard.
    path: of its file.
    parts: of the runs that hold its examples.
    first_key: where the parts begin.
    last_key: no example of the shard has a greater key.
    skip: examples before it that the parts begin with.
    num_examples: of the shard.
    num_stretches: into which all keys are cut.
    max_seq_length: of the examples.
    max_predictions_per_seq: of the examples.
    words: type of a word.
    compress: write a GZIP file.
  """

  index: int
  path: str
  parts: tuple[RunPart, ...]
  first_key: int
  last_key: int
  skip: int
  num_examples: int
  num_stretches: int
  max_seq_length: int
  max_predictions_per_seq: int
  words: str
  compress: bool


class ShardPlan:
  """Where the shards begin in the runs.

  Example number s * total // num_shards is the first one of shard s. The tables of the runs tell how many examples
  come before each bucket of keys; a shard is read from the bucket on that holds its first example.

  Args:
    all_spills: few enough to be opened at the same time.
    num_shards: at most as many as examples.

  Raises:
    UserError: there are fewer examples than shards.
  """

  def __init__(self, all_spills: Sequence[Spill], num_shards: int):
    runs = [(spill, run) for spill in all_spills for run in spill.runs]
    self.num_examples = total = sum(run.num_instances for _, run in runs)
    check_total(total, num_shards)
    num_bytes = sum(run.num_bytes for _, run in runs)
    self._num_stretches = 1 + num_bytes // spills.STRETCH_BYTES
    bits = min(run.bucket_bits for _, run in runs)
    self._shift = 64 - bits
    below = np.zeros(1 << bits, np.int64)
    for spill, run in runs:
      below += spill.table(run).below[:: 1 << (run.bucket_bits - bits)]
    self._bounds = [shard * total // num_shards for shard in range(num_shards + 1)]
    firsts = np.array(self._bounds[:-1])
    self._first_buckets = np.searchsorted(below, firsts, side="right") - 1
    self._last_buckets = np.searchsorted(below, np.array(self._bounds[1:]) - 1, side="right") - 1
    self._skips = firsts - below[self._first_buckets]
    # [run, shard]: where each shard begins in each run. A second pass over the tables, so that one is in memory.
    self._runs = runs
    self._offsets = np.empty((len(runs), num_shards), np.int64)
    self._run_skips = np.empty((len(runs), num_shards), np.int64)
    for row, (spill, run) in enumerate(runs):
      table = spill.table(run)
      place = table.below[self._first_buckets << (run.bucket_bits - bits)]
      block = np.searchsorted(table.firsts, place, side="right") - 1
      self._offsets[row] = np.where(place < run.num_instances, table.offsets[block], run.end)
      self._run_skips[row] = place - table.firsts[block]

  def task(
    self, index: int, path: str, max_seq_length: int, max_predictions_per_seq: int, words: str, *, compress: bool
  ) -> ShardTask:
    """What `write_shard` needs for shard `index`."""
    places = zip(self._runs, self._offsets[:, index].tolist(), self._run_skips[:, index].tolist(), strict=True)
    return ShardTask(
      index=index,
      path=path,
      parts=tuple(
        RunPart(spill.path, offset, skip, run.end) for (spill, run), offset, skip in places if offset < run.end
      ),
      first_key=int(self._first_buckets[index]) << self._shift,
      last_key=(int(self._last_buckets[index]) + 1 << self._shift) - 1,
      skip=int(self._skips[index]),
      num_examples=self._bounds[index + 1] - self._bounds[index],
      num_stretches=self._num_stretches,
      max_seq_length=max_seq_length,
      max_predictions_per_seq=max_predictions_per_seq,
      words=words,
      compress=compress,
    )


def write_examples(
  writer: RecordWriter, words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> None:
  """Writes the instances whose words begin at `starts`, in that order."""
  for batch in range(0, starts.size, _BATCH):
    features = unpack(words, starts[batch : batch + _BATCH], max_seq_length, max_predictions_per_seq)
    for record in encode_batch(features):
      writer.write(record)


def write_shard(task: ShardTask) -> ShardInfo:
  """Writes the shard and returns its entry for the manifest.

  Raises:
    RunError: a run is damaged, or the disk failed.
  """
  skip, left = task.skip, task.num_examples
  with RecordWriter(task.path, compress=task.compress) as writer:
    for stretch in spills.merge(
      task.parts, task.words, first_key=task.first_key, last_key=task.last_key, num_stretches=task.num_stretches
    ):
      starts = stretch.starts[skip : skip + left]
      skip, left = max(0, skip - stretch.starts.size), left - starts.size
      write_examples(writer, stretch.words, starts, task.max_seq_length, task.max_predictions_per_seq)
      if not left:
        break
    if left:
      raise RunError(f"{task.path}: {left} of its {task.num_examples} examples are missing from the sorted runs")
  return ShardInfo(task.path, writer.num_records, writer.num_bytes, writer.sha256)
