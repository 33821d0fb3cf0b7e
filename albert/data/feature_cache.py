"""Makes tokenized examples in parallel, and caches them in a TFRecord file.

The name of the file contains a hash of everything that the examples depend on. The last record of the file holds the
number of examples and a hash of all other records, with which a damaged, truncated or empty file is detected. The
examples are then made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from albert.data.examples import TokenizedExamples, concatenate
from albert.errors import UserError
from albert.io import files, json_values, records
from albert.io.parallel.workers import Workers
from albert.io.progress import Progress

# Increase this number if a change of the code makes other examples for the same key.
_FORMAT_VERSION = 2
# The last record of a file starts with this text.
_FOOTER_PREFIX = b"albert features "
# Number of raw examples that a worker process gets at a time.
_CHUNK_SIZE = 1024
# Worker processes are started only if one process would need more seconds: starting them takes a second or two.
_MAX_SECONDS_OF_ONE_PROCESS = 3.0

_RawT = TypeVar("_RawT")


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
  path = files.join(cache_dir, f"{name}-{digest[:16]}.tfrecord") if cache_dir else ""
  if path and files.exists(path):
    try:
      return _read(path)
    except Exception as error:  # a damaged file may raise any exception; the examples can always be made again
      _warn(f"{path}: the cached features cannot be used ({_in_one_line(error)}): they are made again")
  examples = _make_in_chunks(raw, featurize, num_processes or os.cpu_count() or 1, name)
  if path:
    try:
      files.makedirs(cache_dir)
      files.remove_leftovers(cache_dir)
      _write(path, examples)
    except Exception as error:  # such as a full disk or a read-only directory; the examples in memory can be used
      _warn(
        f"{path}: the features cannot be cached ({_in_one_line(error)}): the next start makes them again; free space "
        "or give another --cache_dir"
      )
  return examples


class _Footer(msgspec.Struct):
  """The content of the last record of a file."""

  num_examples: int
  sha256: str


def _write(path: str, examples: TokenizedExamples) -> None:
  digest = hashlib.sha256()
  with records.RecordWriter(path) as writer:
    for record in examples.to_records():
      writer.write(record)
      digest.update(record)
    footer = {"num_examples": examples.num_examples, "sha256": digest.hexdigest()}
    writer.write(_FOOTER_PREFIX + json.dumps(footer).encode("utf-8"))


def _read(path: str) -> TokenizedExamples:
  """Reads the examples that _write wrote."""
  try:
    all_records = list(records.read_records(path))
  except UserError as error:  # its message has a remedy for shards, which does not apply here
    raise UserError("a record is damaged, or the file cannot be read") from error
  if not all_records or not all_records[-1].startswith(_FOOTER_PREFIX):
    raise UserError("its end is missing")
  *example_records, footer_record = all_records
  footer = json_values.parse("its end", footer_record.removeprefix(_FOOTER_PREFIX), _Footer)
  digest = hashlib.sha256()
  for record in example_records:
    digest.update(record)
  if digest.hexdigest() != footer.sha256:
    raise UserError("records are missing, repeated or changed")
  examples = concatenate([TokenizedExamples.from_record(record) for record in example_records])
  if examples.num_examples != footer.num_examples:
    raise UserError(f"it holds {examples.num_examples} examples, not {footer.num_examples}")
  return examples


def _in_one_line(error: Exception) -> str:
  return " ".join(str(error).split()) or type(error).__name__


def _warn(line: str) -> None:
  print(f"warning: {line}", file=sys.stderr, flush=True)


class _Chunk(NamedTuple):
  """Some successive raw examples. `start` is the index of the first one."""

  start: int
  raw: Sequence[Any]


def _make_in_chunks(
  raw: Sequence[_RawT], featurize: Callable[[Sequence[_RawT]], TokenizedExamples], num_processes: int, name: str
) -> TokenizedExamples:
  """Tokenizes all raw examples, in worker processes if one process would need too long."""
  chunks = [_Chunk(start, raw[start : start + _CHUNK_SIZE]) for start in range(0, len(raw), _CHUNK_SIZE)]
  examples_by_start: dict[int, TokenizedExamples] = {}
  with Progress(len(raw), " examples", f"features of {name}") as progress:
    # The first chunk is timed: a question about an article takes a hundred times longer than a sentence of CoLA.
    start_time = time.monotonic()
    examples_by_start[0] = featurize(chunks[0].raw)
    remaining_chunks = len(chunks) - 1
    remaining_seconds = (time.monotonic() - start_time) * remaining_chunks
    progress.update(len(chunks[0].raw))
    num_processes = 1 if remaining_seconds < _MAX_SECONDS_OF_ONE_PROCESS else min(num_processes, remaining_chunks)
    with Workers(num_processes, _set_featurize, (featurize,)) as workers:
      for chunk, examples in workers.map(_featurize_chunk, chunks[1:]):
        examples_by_start[chunk.start] = examples
        progress.update(len(chunk.raw))
  return concatenate([examples_by_start[chunk.start] for chunk in chunks])


# The state of a worker process: the function that makes examples. It is sent to the process only once.
_state: dict[str, Callable[[Any], TokenizedExamples]] = {}


def _set_featurize(featurize: Callable[[Any], TokenizedExamples]) -> None:
  _state["featurize"] = featurize


def _featurize_chunk(chunk: _Chunk) -> TokenizedExamples:
  return _state["featurize"](chunk.raw)
