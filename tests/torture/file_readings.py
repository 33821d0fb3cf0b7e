"""Reads the files of checkpoints, shards, features, runs, weights and exported models as commands do.

Used by the part "damage". Each function `read_...` takes a directory. If the files cannot be used, it raises an error,
or returns the result None.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock


class ReadOutcome(NamedTuple):
  """The messages about damaged files, and a result to compare with that of undamaged files."""

  messages: list[str]
  result: Any


# Reads a directory.
ReadFunction = Callable[[Path], ReadOutcome]
_warnings_lock = threading.Lock()


@contextlib.contextmanager
def _checkpoint_warnings() -> Iterator[list[str]]:
  """A context with the list of the warnings about checkpoints, which are not printed. One thread at a time is in it."""
  lines: list[str] = []
  with _warnings_lock, mock.patch("albert.weights.checkpoints.log", lines.append):
    yield lines


def read_checkpoint(run: Path) -> ReadOutcome:
  """Reads the checkpoint that a resumed run starts from. The result is its step and a hash of its tensors."""
  import tensorflow as tf

  from albert.weights.checkpoints import CheckpointManager
  from tests.synthetic import TINY_MODEL

  manager = CheckpointManager(str(run / "checkpoints"), keep=5, model_config=TINY_MODEL)
  with _checkpoint_warnings() as warnings:
    newest = manager.latest_to_resume(start_over=False)
  assert newest is not None
  reader = tf.train.load_checkpoint(newest.prefix)
  tensors = {name: reader.get_tensor(name).tobytes() for name in sorted(reader.get_variable_to_shape_map())}
  return ReadOutcome(warnings, (newest.step, hashlib.sha256(repr(tensors).encode()).hexdigest()))


def older_checkpoints(run: Path) -> list[Any]:
  """Returns the results that `read_checkpoint` may have if the newest checkpoint is damaged: that of the one before."""
  import tensorflow as tf

  second_newest = sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))[-2]
  reader = tf.train.load_checkpoint(str(run / "checkpoints" / f"step-{second_newest}" / "weights"))
  tensors = {name: reader.get_tensor(name).tobytes() for name in sorted(reader.get_variable_to_shape_map())}
  return [(second_newest, hashlib.sha256(repr(tensors).encode()).hexdigest())]


def read_best(run: Path) -> ReadOutcome:
  """Finds the checkpoint that --select_checkpoint=best evaluates. A message names each better one that is damaged."""
  from albert.weights.checkpoints import CheckpointManager
  from tests.synthetic import TINY_MODEL

  manager = CheckpointManager(str(run / "checkpoints"), keep=5, model_config=TINY_MODEL)
  with _checkpoint_warnings() as warnings:
    best = manager.select("best")
  assert best is not None
  return ReadOutcome(warnings, best.path.replace(str(run), ""))


def read_shards(directory: Path) -> ReadOutcome:
  import tensorflow as tf

  from albert.data import pipeline, schema
  from albert.data.schema import pretraining_features
  from albert.data.shards import count_and_hash_shards, stat_shards
  from tests.synthetic import NUM_PREDICTIONS, SEQ_LENGTH, VOCAB_SIZE

  pattern = f"{directory}/*.tfrecord"
  stats = stat_shards(pattern, flag="--input_file")
  shards = count_and_hash_shards(list(stats), stats=stats, globs=pattern, cache_dir=str(directory / "cache"))
  features = pretraining_features(SEQ_LENGTH, NUM_PREDICTIONS, VOCAB_SIZE, 2)
  digest = hashlib.sha256()
  try:
    for batch in pipeline.ShardDataset(shards, features).evaluation_batches(batch_size=8).as_numpy_iterator():
      for name in sorted(batch):
        digest.update(batch[name].tobytes())
  except tf.errors.OpError:
    schema.explain_failure(shards.paths, features)
    raise
  return ReadOutcome([], (shards.content.sha256, digest.hexdigest()))


def read_shards_without_manifest(expected: tuple[str, str], directory: Path) -> ReadOutcome:
  """Reads shards without a manifest like `read_shards`. A resumed run refuses them if the hash of the data differs."""
  messages, (content_hash, batches_hash) = read_shards(directory)
  expected_content_hash, _ = expected
  if content_hash != expected_content_hash:
    return ReadOutcome(["a resumed run refuses the shards"], None)
  return ReadOutcome(messages, (content_hash, batches_hash))


def _featurize(numbers: Sequence[int]) -> Any:
  """Makes an example of three tokens of each number."""
  import numpy as np

  from albert.data.examples import TokenizedExamples

  ids = np.array([token for number in numbers for token in (2, number % 50 + 5, 3)], np.int32)
  ones = np.ones(len(numbers), np.int32)
  return TokenizedExamples(ids, 3 * ones, ones, {"label_ids": np.array(numbers, np.int32) % 2})


def read_features(directory: Path) -> ReadOutcome:
  """Reads cached features twice. If the cache is damaged, the first call computes the features and renews it."""
  from albert.data.examples import make_examples

  computed, cached = (
    make_examples(range(700), _featurize, name="toy", key={"a": 1}, cache_dir=str(directory), num_processes=1)
    for _ in range(2)
  )
  arrays = (computed.input_ids, computed.labels["label_ids"], cached.input_ids, cached.labels["label_ids"])
  return ReadOutcome([], [array.tobytes() for array in arrays])


def read_weights(directory: Path) -> ReadOutcome:
  """Reads all weights of a directory, as --init_checkpoint does. The result is their hash, and the model's config."""
  from albert.weights.files import open_weights

  weights = open_weights(str(directory))
  config = weights.config()
  if config is None:  # a command that needs the config reports an error
    return ReadOutcome(["there is no config.json"], None)
  arrays = {name: weights.read(name).tobytes() for name in sorted(weights.entries)}
  return ReadOutcome([], (hashlib.sha256(repr(arrays).encode()).hexdigest(), config))


def read_exported(directory: Path) -> ReadOutcome:
  """Reads what albert.predict checks before it loads an exported model. The result is the model's description."""
  from albert.export.companion_files import read_description

  return ReadOutcome([], read_description(str(directory)))


def read_vocabulary(run: Path) -> ReadOutcome:
  """Reads the vocabulary of a run and compares it with the hash in config.json, as a later command does."""
  from albert.tokenization.tokenizer import Tokenizer
  from albert.weights.files import open_weights

  weights = open_weights(str(run))
  vocabulary = weights.vocabulary
  if vocabulary is None:
    return ReadOutcome(["there is no spiece.model"], None)
  tokenizer = Tokenizer(vocabulary)
  weights.check_vocabulary(tokenizer.sha256, f"--spm_model_file={vocabulary}")
  return ReadOutcome([], tokenizer.encode("the captain sold 1,234 letters"))


def read_logs(run: Path) -> ReadOutcome:
  """Reads the logs of a run, as the report and a resumed run do. The values in a log cannot be checked."""
  from albert.runs import logs, output_files

  for name in (output_files.METRICS, output_files.EVALUATIONS):
    logs.read(str(run / name))
  return ReadOutcome([], True)
