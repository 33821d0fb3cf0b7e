"""Tokenized examples for fine-tuning: made in parallel, kept in memory without padding, and cached in an .npz file.

The name of the file contains a hash of everything that the examples depend on. The file ends in a hash of its content,
with which a damaged or truncated file is detected. The examples are then made again. This module does not import
TensorFlow, because the worker processes that make examples import it.

Legend: N examples, Q sequences of all examples, T tokens of all sequences. In a batch: B examples, K sequences of each
example, S tokens of each sequence.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from albert.data.schema import INPUT_IDS, INPUT_MASK, SEGMENT_IDS
from albert.io import files
from albert.io.progress import Progress, log
from albert.io.text import counted
from albert.io.workers import Workers
from albert.tokenization.packing import is_second_segment
from albert.tokenization.vocabulary import PAD_ID

# The arrays that have their own names in a file, and the prefixes of the names of labels and of token features.
_ARRAYS = ("input_ids", "sequence_lengths", "sequence_counts", "cut_tokens")
_LABEL_PREFIX, _TOKEN_PREFIX = "label/", "token/"
# Increase this number if a change of the code makes other examples for the same key.
_FORMAT_VERSION = 3
# A file ends in the SHA-256 of the bytes before. The checksums of an .npz file do not cover all of its bytes.
_HASH_BYTES = 32
# Number of raw examples that a worker process gets at a time.
_CHUNK_SIZE = 1024
# Worker processes are started only if one process would need more seconds: starting them takes a second or two.
_MAX_SECONDS_OF_ONE_PROCESS = 3.0

# Features of a batch besides those of albert.data.schema, see TokenizedExamples.padded_batch.
OPTION_MASK = "option_mask"
EXAMPLE_INDEX = "example_index"

_RawT = TypeVar("_RawT")


@dataclasses.dataclass(frozen=True)
class TokenizedExamples:
  """N examples, each of which has one or several sequences, such as one for each option of a question.

  Attributes:
    input_ids: int32 [T], the ids of all sequences, concatenated, with [CLS] and [SEP]. The last token of a sequence is
      [SEP].
    sequence_lengths: int32 [Q], number of tokens of each sequence.
    sequence_counts: int32 [N], number of sequences of each example.
    labels: name -> int32 or float32 [N], or [N, C] for examples with several labels.
    token_features: name -> int32 [T], further values for each token, such as its offset in the text.
    cut_tokens: int32 [N], number of tokens cut off from each example; empty if the task counts none.

  Raises:
    ValueError: the lengths of the arrays do not agree, or an example or a sequence is empty.
  """

  input_ids: np.ndarray
  sequence_lengths: np.ndarray
  sequence_counts: np.ndarray
  labels: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  token_features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
  cut_tokens: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))

  def __post_init__(self) -> None:
    if len(self.input_ids) != self.sequence_lengths.sum() or len(self.sequence_lengths) != self.sequence_counts.sum():
      raise ValueError(
        f"{len(self.input_ids)} tokens; {len(self.sequence_lengths)} sequences of {self.sequence_lengths.sum()}; "
        f"{len(self.sequence_counts)} examples of {self.sequence_counts.sum()} sequences: these do not agree"
      )
    if np.any(self.sequence_counts < 1) or np.any(self.sequence_lengths < 1):
      raise ValueError("an example without a sequence, or a sequence without a token")
    for columns, length in ((self.labels, len(self.sequence_counts)), (self.token_features, len(self.input_ids))):
      for name, values in columns.items():
        if len(values) != length:
          raise ValueError(f"{name} has {len(values)} values instead of {length}")

  @property
  def num_examples(self) -> int:
    """Number of examples, N."""
    return len(self.sequence_counts)

  @functools.cached_property
  def token_offsets(self) -> np.ndarray:
    """int64 [Q + 1]: sequence q consists of the tokens token_offsets[q] to token_offsets[q + 1] - 1."""
    return np.append(0, np.cumsum(self.sequence_lengths, dtype=np.int64))

  @functools.cached_property
  def sequence_offsets(self) -> np.ndarray:
    """int64 [N + 1]: example n consists of the sequences sequence_offsets[n] to sequence_offsets[n + 1] - 1."""
    return np.append(0, np.cumsum(self.sequence_counts, dtype=np.int64))

  @functools.cached_property
  def longest_sequences(self) -> np.ndarray:
    """int32 [N]: number of tokens in the longest sequence of each example."""
    if not self.num_examples:
      return np.zeros(0, np.int32)
    return np.maximum.reduceat(self.sequence_lengths, self.sequence_offsets[:-1])

  @property
  def has_second_segments(self) -> bool:
    """Whether any sequence has tokens after its first [SEP]. These tokens have segment id 1."""
    ends = self.token_offsets[1:] - 1
    separators = np.flatnonzero(self.input_ids == np.repeat(self.input_ids[ends], self.sequence_lengths))
    return bool(np.isin(separators, ends, invert=True).any())

  def padded_batch(
    self, indices: np.ndarray, *, length: int, num_sequences: int | None = None, token_features: Sequence[str] = ()
  ) -> dict[str, np.ndarray]:
    """Makes a batch of some examples, padded with zeros.

    Args:
      indices: int [B], the examples of the batch.
      length: S, at least the length of their longest sequence.
      num_sequences: K, at least their largest number of sequences; None if each has one sequence and the batch should
        have no K axis.
      token_features: names of the token features to include.

    Returns:
      input_ids, input_mask, segment_ids and the token features: int32 [B, K, S] or [B, S]. Segment ids are 0 up to and
      including the first [SEP], 1 for the tokens after it, and 0 for padding.
      option_mask: float32 [B, K], 1 for sequences and 0 for padding; only with a K axis.
      The labels: [B] or [B, C].
      example_index: int32 [B], the indices.
    """
    sequence_numbers = np.arange(num_sequences or 1)
    is_sequence = sequence_numbers < self.sequence_counts[indices][:, None]
    sequences = np.where(is_sequence, self.sequence_offsets[indices][:, None] + sequence_numbers, 0)  # [B, K]
    lengths = np.where(is_sequence, self.sequence_lengths[sequences], 0)  # [B, K]
    mask = np.arange(length) < lengths[..., None]  # [B, K, S]
    tokens = np.where(mask, self.token_offsets[sequences][..., None] + np.arange(length), 0)  # indices in input_ids
    input_ids = np.where(mask, self.input_ids[tokens], PAD_ID)
    batch = {INPUT_IDS: input_ids, INPUT_MASK: mask, SEGMENT_IDS: is_second_segment(input_ids, mask)}
    batch |= {name: np.where(mask, self.token_features[name][tokens], 0) for name in token_features}
    batch = {name: values.astype(np.int32) for name, values in batch.items()}
    if num_sequences is None:
      batch = {name: values[:, 0] for name, values in batch.items()}  # without the K axis
    else:
      batch[OPTION_MASK] = is_sequence.astype(np.float32)
    batch |= {name: values[indices] for name, values in self.labels.items()}
    return batch | {EXAMPLE_INDEX: indices.astype(np.int32)}

  def to_arrays(self) -> dict[str, Any]:
    """Returns all arrays by the names that they have in a file."""
    return {
      **{name: getattr(self, name) for name in _ARRAYS},
      **{_LABEL_PREFIX + name: values for name, values in self.labels.items()},
      **{_TOKEN_PREFIX + name: values for name, values in self.token_features.items()},
    }

  @classmethod
  def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TokenizedExamples:
    """Makes the examples of the arrays that `to_arrays` returned."""

    def with_prefix(prefix: str) -> dict[str, np.ndarray]:
      return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

    input_ids, lengths, counts, cut_tokens = (arrays[name] for name in _ARRAYS)
    return cls(input_ids, lengths, counts, with_prefix(_LABEL_PREFIX), with_prefix(_TOKEN_PREFIX), cut_tokens)


def concatenate(parts: Sequence[TokenizedExamples]) -> TokenizedExamples:
  """Concatenates the examples of one or more parts, which must have the same labels and token features."""
  all_arrays = [part.to_arrays() for part in parts]
  joined = {name: np.concatenate([arrays[name] for arrays in all_arrays]) for name in all_arrays[0]}
  return TokenizedExamples.from_arrays(joined)


def cut_warning(source: str, cut_tokens: np.ndarray, limit: str, remedy: str) -> str:
  """Returns a warning that texts are longer than a limit. `cut_tokens`: the tokens that each text loses, int [N]."""
  share = f"{np.count_nonzero(cut_tokens):,} of {len(cut_tokens):,}"
  num_tokens = counted(cut_tokens.sum(dtype=np.int64), "token", ",")
  return f"warning: {source}: texts longer than {limit}: {share}, {num_tokens} cut off: {remedy}"


def make_examples(
  raw: Sequence[_RawT],
  featurize: Callable[[Sequence[_RawT]], TokenizedExamples],
  *,
  name: str,
  key: Mapping[str, Any],
  cache_dir: str,
  num_processes: int = 0,
) -> TokenizedExamples:
  """Makes tokenized examples, or reads them from the cache.

  Args:
    raw: the raw examples, which a task reads from its files, such as questions.
    featurize: makes the TokenizedExamples of a chunk of `raw`. It must be picklable, and importing its module must not
      import TensorFlow.
    name: prefix of the name of the cache file, and name of the data in the progress line.
    key: everything that the result depends on, as JSON values: hashes of the data and the vocabulary, and settings.
    cache_dir: directory of the cache; empty for no cache.
    num_processes: number of worker processes; 0 for one on each core.

  Returns:
    The examples of all raw examples, in order.
  """
  digest = hashlib.sha256(json.dumps([_FORMAT_VERSION, key], sort_keys=True).encode("utf-8")).hexdigest()
  path = files.join(cache_dir, f"{name}-{digest[:16]}.npz") if cache_dir else ""
  if path and files.exists(path):
    try:
      data = files.read(path)
      if hashlib.sha256(memoryview(data)[:-_HASH_BYTES]).digest() != data[-_HASH_BYTES:]:
        raise ValueError("its end is missing, or its content was changed")
      with np.load(io.BytesIO(data)) as arrays:
        return TokenizedExamples.from_arrays(dict(arrays))
    except Exception as error:  # a damaged file may raise any exception; the examples can always be made again
      log(f"warning: {path}: the cached features cannot be used ({_in_one_line(error)}): they are made again")
  examples = _make_in_chunks(raw, featurize, num_processes or os.cpu_count() or 1, name)
  if path:
    try:
      files.makedirs(cache_dir)
      content = io.BytesIO()
      np.savez(content, **examples.to_arrays())
      content.write(hashlib.sha256(content.getvalue()).digest())
      files.write_atomically(path, content.getvalue())
    except Exception as error:  # such as a full disk or a read-only directory; the examples in memory can be used
      log(f"warning: {path}: cannot cache features ({_in_one_line(error)}): free space, or give another --cache_dir")
  return examples


def _in_one_line(error: Exception) -> str:
  return " ".join(str(error).split()) or type(error).__name__


def _make_in_chunks(
  raw: Sequence[_RawT], featurize: Callable[[Sequence[_RawT]], TokenizedExamples], num_processes: int, name: str
) -> TokenizedExamples:
  """Tokenizes all raw examples, in worker processes if one process would need too long."""
  chunks = [(start, raw[start : start + _CHUNK_SIZE]) for start in range(0, len(raw), _CHUNK_SIZE)]
  with Progress(len(raw), " examples", f"tokenizing {name}") as progress:
    # The first chunk is timed: a question about an article takes a hundred times longer than a sentence of CoLA.
    start_time = time.monotonic()
    examples_by_start = {0: featurize(chunks[0][1])}
    remaining_chunks = len(chunks) - 1
    remaining_seconds = (time.monotonic() - start_time) * remaining_chunks
    progress.update(len(chunks[0][1]))
    num_processes = 1 if remaining_seconds < _MAX_SECONDS_OF_ONE_PROCESS else min(num_processes, remaining_chunks)
    with Workers(num_processes) as workers:
      for (start, chunk), examples in workers.map(functools.partial(_featurize_chunk, featurize), chunks[1:]):
        examples_by_start[start] = examples
        progress.update(len(chunk))
  return concatenate([examples_by_start[start] for start, _ in chunks])


def _featurize_chunk(
  featurize: Callable[[Sequence[_RawT]], TokenizedExamples], chunk: tuple[int, Sequence[_RawT]]
) -> TokenizedExamples:
  return featurize(chunk[1])
