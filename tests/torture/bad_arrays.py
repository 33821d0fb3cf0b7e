"""Pretraining shards and weight files with wrong shapes, names, types and values, for the part "inputs"."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from albert.io.records import RecordWriter, encode_example
from tests.synthetic import VOCAB_SIZE, example
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Workplace

Arrays = dict[str, np.ndarray]  # by their name in the file
PathFunction = Callable[[Path], Any]  # writes or damages the file at a path

# ---- shards ----------------------------------------------------------------------------------------------


def shard_attempts(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Trains on `number` shards with one bad example each, then on damaged files. All must be refused.

  The shards have no manifest, like those that the original's scripts write.
  """
  for _ in range(number):
    name, make_bad = _bad_feature(rng)
    seed, num_examples = rng.randrange(2**31), rng.randrange(4, 20)
    yield _shard_attempt(workplace, name, partial(_write_shard, seed, num_examples, make_bad))
  for name, damage in _file_damages(rng):
    yield _shard_attempt(workplace, name, partial(_write_shard, rng.randrange(2**31), 12, None), damage)


def _write_shard(seed: int, num_examples: int, make_bad: Callable[[dict[str, Any]], None] | None, path: Path) -> None:
  """Writes a shard of random examples, and calls `make_bad` on the features of one of them."""
  rng = np.random.default_rng(seed)
  index_of_bad = seed % num_examples
  with RecordWriter(str(path), compress=False) as writer:
    for index in range(num_examples):
      features: dict[str, Any] = example(index, rng)
      if make_bad and index == index_of_bad:
        make_bad(features)
      writer.write(encode_example(features))


_FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
             "next_sentence_labels")  # fmt: skip


def _values_out_of_range(rng: random.Random) -> dict[str, list[float]]:
  """Returns values that a feature must not contain, by its name. A sequence has 16 positions (SEQ_LENGTH)."""
  return {
    "input_ids": [VOCAB_SIZE, VOCAB_SIZE + rng.randrange(1, 10**6), -1, 2**31, -(2**40), 2**62],
    "input_mask": [2, -1, 2**33],
    "segment_ids": [2, -1, 7, 2**32],
    "masked_lm_positions": [16, 17 + rng.randrange(1000), -1, 2**32],
    "masked_lm_ids": [VOCAB_SIZE, -1, 2**31, 2**60],
    "masked_lm_weights": [float("nan"), float("inf"), float("-inf"), -1.0],
    "next_sentence_labels": [2, -1, 2**32],
  }


def _bad_feature(rng: random.Random) -> tuple[str, Callable[[dict[str, Any]], None]]:
  """Returns a description, and a function that makes one feature of an example bad."""
  name = rng.choice(_FEATURES)
  # One of the first three values, which all features have except the label with its one value.
  index = rng.randrange(3) if name != "next_sentence_labels" else 0
  value = rng.choice(_values_out_of_range(rng)[name])
  damage = rng.choice(["value", "value", "value", "missing", "length", "type", "text"])
  longer = rng.random() < 0.7  # for "length"

  def make_bad(features: dict[str, Any]) -> None:
    feature = features[name] = np.array(features[name])
    if damage == "missing":
      del features[name]
    elif damage == "length":
      features[name] = np.concatenate([feature, feature[:1]]) if longer else feature[:-1]
    elif damage == "type":
      features[name] = feature.astype(np.int64 if name == "masked_lm_weights" else np.float32)
    elif damage == "text":
      features[name] = [b"x"] * len(feature)
    else:
      feature[index] = value

  return f"{name}: {f'{value} at {index}' if damage == 'value' else damage}", make_bad


def _file_damages(rng: random.Random) -> Iterator[tuple[str, PathFunction]]:
  """Yields descriptions, and functions that damage the shard at a path."""
  yield "empty", lambda path: path.write_bytes(b"")
  yield "text", lambda path: path.write_bytes(b"not records at all\n" * 20)
  share = rng.random()
  yield (
    f"cut at {share:.3f}",
    # At least 20 bytes are kept, and at least 20 are cut off.
    lambda path: path.write_bytes(path.read_bytes()[: 20 + int(share * (path.stat().st_size - 40))]),
  )
  yield "something behind it", lambda path: path.write_bytes(path.read_bytes() + b"x" * 7)
  yield "GZIP header", lambda path: path.write_bytes(b"\x1f\x8b\x08" + path.read_bytes())

  def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 0x10
    path.write_bytes(bytes(content))

  yield f"a bit flipped at {share:.3f}", flip_bit


def _shard_attempt(workplace: Workplace, name: str, write: PathFunction, damage: PathFunction | None = None) -> Attempt:
  """Trains on a shard that `write` writes and `damage` damages. The error must name the shard."""

  def prepare(directory: Path) -> list[str]:
    path = directory / "part-00.tfrecord"
    write(path)
    if damage:
      damage(path)
    model = [*workplace.model_flags, f"--vocab_size={VOCAB_SIZE}", "--max_position_embeddings=32"]
    steps = ["--train_batch_size=4", "--num_train_steps=6", "--num_warmup_steps=1", "--log_every_steps=6"]
    files = [f"--input_file={directory}/part-*.tfrecord", "--output_dir=out"]
    return ["run_pretraining.py", "--do_train", *model, *steps, *files]

  return Attempt("shards", name, prepare, Expected(BAD, ("part-",)))


# ---- weights ---------------------------------------------------------------------------------------------


def weight_attempts(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Converts a Hugging Face directory: as it is, with `number` bad tensors, then with damaged files."""
  source = workplace.directory / "weights_of_inputs"
  if not source.exists():
    conversion = workplace.run(workplace.convert_command(workplace.pretraining_run, source))
    if conversion.code:
      raise RuntimeError(conversion.stderr)
  yield _weights_attempt(source, "as they are", _keep, Expected(VALID))
  for _ in range(number):
    name, make_bad, names_in_error = _bad_array(rng)
    yield _weights_attempt(source, name, make_bad, Expected(BAD, names_in_error, leaves_nothing=True))
  expected = Expected(BAD, ("model.safetensors",), leaves_nothing=True)
  for name, damage in _weight_file_damages(rng):
    yield _weights_attempt(source, name, _keep, expected, damage)


def _keep(arrays: Arrays) -> None:
  del arrays  # they stay as they are


_ARRAY_NAMES = (
  "albert.embeddings.word_embeddings.weight",
  "albert.embeddings.position_embeddings.weight",
  "albert.embeddings.LayerNorm.weight",
  "albert.encoder.embedding_hidden_mapping_in.weight",
  "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight",
  "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias",
)


def _bad_array(rng: random.Random) -> tuple[str, Callable[[Arrays], Any], tuple[str, ...]]:
  """Returns a description, a function that makes one array bad, and what the error must name."""
  name = rng.choice(_ARRAY_NAMES)
  position = rng.random()  # 0 is the first element of the array, 1 would be behind the last one
  infinity = rng.choice([float("inf"), float("-inf")])

  def with_element(array: np.ndarray, value: float) -> np.ndarray:
    changed = np.array(array)
    changed.reshape(-1)[int(position * array.size)] = value
    return changed

  # What is wrong -> a function that returns the bad array, and whether the error must name the array.
  bad_arrays: dict[str, tuple[Callable[[np.ndarray], Any], bool]] = {
    "missing": (lambda array: None, False),
    "NaN": (lambda array: with_element(array, float("nan")), True),
    "infinity": (lambda array: with_element(array, infinity), True),
    "one row less": (lambda array: array[:-1], False),
    "one row more": (lambda array: np.concatenate([array, array[:1]]), False),
    "another axis": (lambda array: array[None], False),
    "a scalar": (lambda array: np.float32(1.0).reshape(()), False),
    "whole numbers": (lambda array: np.round(array).astype(np.int32), True),
    "truth values": (lambda array: array > 0, True),
    "no values": (lambda array: array[:0], False),
    "too large for float32": (lambda array: np.full_like(array, 1e300, np.float64), True),
  }
  description = rng.choice(list(bad_arrays))
  make_bad_array, is_named = bad_arrays[description]

  def make_bad(arrays: Arrays) -> None:
    bad_array = make_bad_array(arrays.pop(name))
    if bad_array is not None:
      arrays[name] = np.ascontiguousarray(bad_array)

  return f"{name}: {description}", make_bad, (name,) if is_named else ("--init_checkpoint=", "weights")


def _weight_file_damages(rng: random.Random) -> Iterator[tuple[str, PathFunction]]:
  """Yields descriptions, and functions that damage the safetensors file at a path."""

  def header(size: int, text: bytes) -> PathFunction:
    """Replaces the file by its beginning: the size of the header in bytes, and the header."""
    return lambda path: path.write_bytes(size.to_bytes(8, "little") + text)

  yield "empty", lambda path: path.write_bytes(b"")
  yield "a header of 2**63 bytes", header(2**63, b"{}")
  yield "a header that is no JSON", header(5, b"{{{{{")
  yield "a header that is a list", header(4, b"[1] ")
  yield "nesting", header(200_000, b"[" * 200_000)
  yield "random bytes", lambda path: path.write_bytes(rng.randbytes(300))
  yield "halved", lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  yield "a directory", lambda path: (path.unlink(), path.mkdir())


def _weights_attempt(
  source: Path,
  name: str,
  make_bad: Callable[[Arrays], Any],
  expected: Expected,
  damage: PathFunction | None = None,
) -> Attempt:
  """Converts a copy of `source` whose arrays `make_bad` has changed, and whose file `damage` has damaged."""

  def prepare(directory: Path) -> list[str]:
    from safetensors.numpy import load_file, save_file

    copied = directory / "weights"
    # conversion.tsv is left out: its checksums would show that the arrays were changed, before their values are read.
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("conversion.tsv"))
    path = copied / "model.safetensors"
    arrays = dict(load_file(path))
    make_bad(arrays)
    save_file(arrays, path)
    if damage:
      damage(path)
    return ["-m", "albert.convert", f"--init_checkpoint={copied}", "--output_dir=out", "--format=tf1"]

  return Attempt("weights", name, prepare, expected)
