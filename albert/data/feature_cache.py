"""Makes examples once, in parallel, and keeps them as TFRecords under a name that says what they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from albert import files
from albert.data import records
from albert.data.examples import Examples, concatenate
from albert.errors import UserError
from albert.progress import Progress
from albert.workers import Workers

# Raised when the same key gives other examples than before.
_FORMAT_VERSION = 1
_CHUNK = 1024
# Processes are started for what would take one of them longer than this: starting them takes a second or two.
_SECONDS_OF_ONE = 3.0

Raw = TypeVar("Raw")


def make_examples(
  raw: Sequence[Raw],
  featurize: Callable[[Sequence[Raw]], Examples],
  *,
  name: str,
  key: Mapping[str, Any],
  cache_dir: str,
  num_processes: int = 0,
) -> Examples:
  """`featurize` of all of `raw`, from the cache if it is there.

  Args:
    raw: what to make examples of.
    featurize: chunk of raw -> its Examples. Picklable, and importing its module must not import TensorFlow.
    name: starts the name of the file.
    key: all that the result depends on, as JSON values: hashes of the data and the vocabulary, settings.
    cache_dir: where; empty for no cache.
    num_processes: 0 for one a core.
  """
  digest = hashlib.sha256(json.dumps([_FORMAT_VERSION, key], sort_keys=True).encode("utf-8")).hexdigest()
  path = files.join(cache_dir, f"{name}-{digest[:16]}.tfrecord") if cache_dir else ""
  if path and files.exists(path):
    try:
      return concatenate([Examples.from_record(record) for record in records.read_records(path)])
    except (UserError, KeyError, ValueError):
      files.remove(path)  # damaged: made anew
  examples = _make(raw, featurize, num_processes or os.cpu_count() or 1, name)
  if path:
    files.makedirs(cache_dir)
    with records.RecordWriter(path) as writer:
      for record in examples.to_records():
        writer.write(record)
  return examples


def _make(
  raw: Sequence[Raw], featurize: Callable[[Sequence[Raw]], Examples], num_processes: int, name: str
) -> Examples:
  chunks = [(start, raw[start : start + _CHUNK]) for start in range(0, len(raw), _CHUNK)]
  done: dict[int, Examples] = {}
  with Progress(len(raw), " examples", f"features of {name}") as progress:
    # The first chunk tells how long one takes: a row of CoLA and a question on an article differ a hundredfold.
    started = time.monotonic()
    done[0] = featurize(chunks[0][1])
    seconds = (time.monotonic() - started) * (len(chunks) - 1)
    progress.update(len(chunks[0][1]))
    num_processes = 1 if seconds < _SECONDS_OF_ONE else min(num_processes, len(chunks) - 1)
    with Workers(num_processes, _set_featurize, (featurize,)) as workers:
      for (start, chunk), examples in workers.map(_featurize, chunks[1:]):
        done[start] = examples
        progress.update(len(chunk))
  return concatenate([done[start] for start, _ in chunks])


_state: dict[str, Callable[[Any], Examples]] = {}


def _set_featurize(featurize: Callable[[Any], Examples]) -> None:
  _state["featurize"] = featurize


def _featurize(task: tuple[int, Any]) -> Examples:
  return _state["featurize"](task[1])
