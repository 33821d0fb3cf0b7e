"""From instances in any order to globally shuffled shards, in bounded memory.

Every instance has a random 64-bit key; the order of the keys is the order of the examples, and equal numbers
of consecutive keys make the shards. Units of work spill their instances, sorted by key, to files with an
index; a shard is put together from one stretch of keys after another, each small enough for memory.

An instance is a few words (uint16, or uint32 for vocabularies over 65,536 pieces): number of tokens, number
of predictions, column of the second segment, label; the tokens; the predictions' positions; their labels.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from albert import files
from albert.data import schema
from albert.data.manifest import ShardInfo
from albert.data.masking import MaskedTokens
from albert.data.records import RecordWriter, encode_batch
from albert.errors import RunError, UserError
from data_prep.segments import Tokens

LAST_KEY = (1 << 64) - 1
_RUN_BYTES = 32 << 20
STRETCH_BYTES = 32 << 20
_BATCH = 1024
_HEADER_WORDS = 4
_BUCKET_SHIFT = 52
_NUM_BUCKETS = 1 << (64 - _BUCKET_SHIFT)
_INDEX = np.dtype([("key", "<u8"), ("end", "<u8")])
_MAGIC = b"spill\x001\n"
_TRAILER = len(_MAGIC) + 16


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


# ---- spills --------------------------------------------------------------------------------------------


class _Run(NamedTuple):
  """One sorted run of a spill: number of instances, bytes of their words, place of its first byte."""

  num_instances: int
  data_bytes: int
  offset: int

  @property
  def index_offset(self) -> int:
    return self.offset + 4 * _NUM_BUCKETS

  @property
  def data_offset(self) -> int:
    return self.index_offset + _INDEX.itemsize * self.num_instances


class SpillWriter:
  """Writes one unit's instances as sorted runs: aside, renamed when `close` has put the summary behind them."""

  def __init__(self, path: str):
    self.path = path
    self._aside = files.aside_path(path)
    self._file: BinaryIO = files.open_file(self._aside, "wb")
    self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    self._pending_bytes = 0
    self._offset = 0
    self._runs: list[_Run] = []

  def add(self, keys: np.ndarray, words: np.ndarray, sizes: np.ndarray) -> None:
    """Adds instances: uint64 keys [I], their words end to end, and how many words each has [I]."""
    self._pending.append((keys, words, sizes))
    self._pending_bytes += words.nbytes + _INDEX.itemsize * keys.size
    if self._pending_bytes >= _RUN_BYTES:
      self._write_run()

  def _write_run(self) -> None:
    if not self._pending:
      return
    keys, words, sizes = (np.concatenate(column) for column in zip(*self._pending, strict=True))
    self._pending, self._pending_bytes = [], 0
    order = np.argsort(keys, kind="stable")
    starts = (np.cumsum(sizes) - sizes)[order]
    index = np.empty(keys.size, _INDEX)
    index["key"] = keys[order]
    index["end"] = np.cumsum(sizes[order])
    buckets = np.bincount((keys >> np.uint64(_BUCKET_SHIFT)).astype(np.int64), minlength=_NUM_BUCKETS)
    self._runs.append(_Run(keys.size, words.nbytes, self._offset))
    for array in (np.cumsum(buckets).astype("<u4"), index, words[ragged(starts, sizes[order])]):
      self._file.write(array.tobytes())
      self._offset += array.nbytes

  def close(self, summary: dict[str, Any]) -> None:
    """Finishes the file; `summary` (JSON values) can be read back with `Spill.summary`."""
    self._write_run()
    footer = json.dumps({"runs": self._runs, "summary": summary}).encode()
    checksum = zlib.crc32(footer)
    self._file.write(footer + len(footer).to_bytes(8, "little") + checksum.to_bytes(8, "little") + _MAGIC)
    files.sync(self._file)
    self._file.close()
    files.replace(self._aside, self.path)


@dataclasses.dataclass(frozen=True)
class Spill:
  """A finished spill: its path, its runs, and what its writer said about it."""

  path: str
  runs: tuple[_Run, ...]
  summary: dict[str, Any]

  @classmethod
  def load(cls, path: str) -> Spill | None:
    """The spill at `path`, or None if there is none that is whole."""
    if not files.exists(path):
      return None
    size = files.size(path)
    with files.open_file(path) as file:
      file.seek(max(0, size - _TRAILER))
      trailer = file.read(_TRAILER)
      length, checksum = (int.from_bytes(trailer[i : i + 8], "little") for i in (0, 8))
      if trailer[16:] != _MAGIC or length + _TRAILER > size:
        return None
      file.seek(size - _TRAILER - length)
      footer = file.read(length)
    if zlib.crc32(footer) != checksum:
      return None
    values = json.loads(footer)
    return cls(path, tuple(_Run(*run) for run in values["runs"]), values["summary"])

  def bucket_counts(self) -> np.ndarray:
    """Number of keys per bucket, [4096]: bucket = the key's top twelve bits."""
    total = np.zeros(_NUM_BUCKETS, np.int64)
    with files.open_file(self.path) as file:
      for run in self.runs:
        total += np.diff(_read(file, run.offset, "<u4", _NUM_BUCKETS).astype(np.int64), prepend=0)
    return total

  def read(self, first: int, last: int, words: str, *, data: bool = True) -> Iterator[_Stretch]:
    """The instances with first <= key <= last, run by run; without `data` only the keys."""
    with files.open_file(self.path) as file:
      for run in self.runs:
        ends = np.concatenate([[0], _read(file, run.offset, "<u4", _NUM_BUCKETS)]).astype(np.int64)
        low, high = int(ends[first >> _BUCKET_SHIFT]), int(ends[(last >> _BUCKET_SHIFT) + 1])
        # One entry more in front: it says where the first instance's words begin.
        lead = min(low, 1)
        index = _read(file, run.index_offset + _INDEX.itemsize * (low - lead), _INDEX, high - low + lead)
        keys = index["key"][lead:]
        bounds = np.concatenate([[0] if not lead else [], index["end"]]).astype(np.int64)
        start = int(np.searchsorted(keys, np.uint64(first)))
        stop = int(np.searchsorted(keys, np.uint64(last), side="right"))
        if start == stop:
          continue
        begin, end = (int(bounds[i]) for i in (start, stop))
        size = np.dtype(words).itemsize
        values = _read(file, run.data_offset + size * begin, words, end - begin) if data else np.zeros(0, words)
        yield _Stretch(keys[start:stop], values, bounds[start:stop] - begin)


def load_spills(paths: Sequence[str]) -> list[Spill]:
  """The spills at these paths. Raises RunError when one is not there or not whole."""
  spills = []
  for path in paths:
    spill = Spill.load(path)
    if spill is None:
      raise RunError(f"{path} has gone or is damaged since it was written: run the same command again")
    spills.append(spill)
  return spills


class _Stretch(NamedTuple):
  """Consecutive instances of a run: keys, words, and where each one's words start."""

  keys: np.ndarray
  words: np.ndarray
  starts: np.ndarray


def _read(file: BinaryIO, offset: int, dtype: Any, count: int) -> np.ndarray:
  file.seek(offset)
  return np.frombuffer(file.read(np.dtype(dtype).itemsize * count), dtype)


# ---- shards --------------------------------------------------------------------------------------------


def check_total(total: int, num_shards: int) -> None:
  """UserError where there are fewer examples than shards."""
  if total < num_shards:
    raise UserError(f"--num_shards={num_shards}: the text gives {total} examples only: lower it, or add text")


def shard_bounds(spills: Sequence[Spill], num_shards: int, words: str) -> list[tuple[int, int]]:
  """The first and the last key of each shard, such that their sizes differ by at most one example.

  Raises:
    UserError: when there are fewer examples than shards.
  """
  counts = np.zeros(_NUM_BUCKETS, np.int64)
  for spill in spills:
    counts += spill.bucket_counts()
  ends = np.cumsum(counts)
  total = int(ends[-1])
  check_total(total, num_shards)
  firsts = [0]
  for shard in range(1, num_shards):
    rank = shard * total // num_shards
    bucket = int(np.searchsorted(ends, rank, side="right"))
    first, last = bucket << _BUCKET_SHIFT, ((bucket + 1) << _BUCKET_SHIFT) - 1
    keys = [part.keys for spill in spills for part in spill.read(first, last, words, data=False)]
    firsts.append(int(np.sort(np.concatenate(keys))[rank - int(ends[bucket] - counts[bucket])]))
  return [(first, after - 1) for first, after in zip(firsts, [*firsts[1:], LAST_KEY + 1], strict=True)]


@dataclasses.dataclass(frozen=True)
class ShardTask:
  """One shard to write: the spills, its first and last key, its path, and the shape of its examples."""

  spill_paths: tuple[str, ...]
  first: int
  last: int
  path: str
  max_seq_length: int
  max_predictions_per_seq: int
  words: str
  compress: bool


def write_examples(
  writer: RecordWriter, words: np.ndarray, starts: np.ndarray, max_seq_length: int, max_predictions_per_seq: int
) -> None:
  """Writes the instances whose words begin at `starts`, in that order."""
  for batch in range(0, starts.size, _BATCH):
    features = unpack(words, starts[batch : batch + _BATCH], max_seq_length, max_predictions_per_seq)
    for record in encode_batch(features):
      writer.write(record)


def write_shard(task: ShardTask) -> ShardInfo:
  """Writes the shard and returns its entry for the manifest."""
  spills = load_spills(task.spill_paths)
  total_bytes = sum(run.data_bytes + _INDEX.itemsize * run.num_instances for spill in spills for run in spill.runs)
  # Keys are uniform, so a stretch of keys this long holds about STRETCH_BYTES.
  length = (LAST_KEY + 1) // (1 + total_bytes // STRETCH_BYTES)
  with RecordWriter(task.path, compress=task.compress) as writer:
    for first in range(task.first, task.last + 1, length):
      last = min(first + length - 1, task.last)
      parts = [part for spill in spills for part in spill.read(first, last, task.words)]
      if not parts:
        continue
      order = np.argsort(np.concatenate([part.keys for part in parts]), kind="stable")
      shifts = np.cumsum([0] + [part.words.size for part in parts[:-1]])
      starts = np.concatenate([part.starts + shift for part, shift in zip(parts, shifts, strict=True)])[order]
      words = np.concatenate([part.words for part in parts])
      del parts
      write_examples(writer, words, starts, task.max_seq_length, task.max_predictions_per_seq)
  return ShardInfo(task.path, writer.num_records, writer.num_bytes, writer.sha256)
