"""Shards of pretraining examples and files of weights, with wrong shapes, names, types and values."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from albert.io.records import RecordWriter, encode_example
from tests.synthetic import VOCAB_SIZE, example
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Workplace

Arrays = dict[str, np.ndarray]
PathFunction = Callable[[Path], Any]

# ---- shards ----------------------------------------------------------------------------------------------


def shards(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Trains on shards without a manifest, as the original's scripts write them.

  `number` shards have a bad example; the others are damaged files.
  """
  for _ in range(number):
    name, change = _bad_example(rng)
    write = _shard_writer(rng.randrange(2**31), rng.randrange(4, 20), change)
    yield _of_shard(workplace, name, write, Expected(BAD, ("part-",)))
  for name, damage in _file_damages(rng):
    write = _shard_writer(rng.randrange(2**31), 12, None)

    def write_damaged(path: Path, write: Callable[[Path], Path] = write, damage: PathFunction = damage) -> None:
      damage(write(path))

    yield _of_shard(workplace, name, write_damaged, Expected(BAD, ("part-",)))


def _shard_writer(seed: int, number: int, change: Callable[[dict[str, Any]], None] | None) -> Callable[[Path], Path]:
  """Returns a function that writes a shard of `number` examples. `change` is applied to one of them."""

  def write(path: Path) -> Path:
    rng = np.random.default_rng(seed)
    changed = seed % number
    with RecordWriter(str(path), compress=False) as writer:
      for index in range(number):
        values: dict[str, Any] = example(index, rng)
        if change and index == changed:
          change(values)
        writer.write(encode_example(values))
    return path

  return write


_FEATURES = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights",
             "next_sentence_labels")  # fmt: skip


def _bad_example(rng: random.Random) -> tuple[str, Callable[[dict[str, Any]], None]]:
  """Returns a description, and a function that makes one feature of an example bad."""
  name = rng.choice(_FEATURES)
  index = rng.randrange(3)
  values: dict[str, list[float]] = {
    "input_ids": [VOCAB_SIZE, VOCAB_SIZE + rng.randrange(1, 10**6), -1, 2**31, -(2**40), 2**62],
    "input_mask": [2, -1, 2**33],
    "segment_ids": [2, -1, 7, 2**32],
    "masked_lm_positions": [16, 17 + rng.randrange(1000), -1, 2**32],
    "masked_lm_ids": [VOCAB_SIZE, -1, 2**31, 2**60],
    "masked_lm_weights": [float("nan"), float("inf"), float("-inf"), -1.0],
    "next_sentence_labels": [2, -1, 2**32],
  }
  value = rng.choice(values[name])
  kind = rng.choice(["value", "value", "value", "missing", "length", "type", "text"])

  def change(features: dict[str, Any]) -> None:
    feature = features[name] = np.array(features[name])
    if kind == "missing":
      del features[name]
    elif kind == "length":
      features[name] = np.concatenate([feature, feature[:1]]) if index else feature[:-1]
    elif kind == "type":
      features[name] = feature.astype(np.int64 if name == "masked_lm_weights" else np.float32)
    elif kind == "text":
      features[name] = [b"x"] * len(feature)
    else:
      feature[index if name != "next_sentence_labels" else 0] = value

  return f"{name}: {kind}{f' {value} at {index}' if kind == 'value' else ''}", change


def _file_damages(rng: random.Random) -> Iterator[tuple[str, PathFunction]]:
  """Yields descriptions, and functions that damage the shard at a path."""
  yield "empty", lambda path: path.write_bytes(b"")
  yield "text", lambda path: path.write_bytes(b"not records at all\n" * 20)
  share = rng.random()
  yield (
    f"cut at {share:.3f}",
    lambda path: path.write_bytes(path.read_bytes()[: 20 + int(share * (path.stat().st_size - 40))]),
  )
  yield "something behind it", lambda path: path.write_bytes(path.read_bytes() + b"x" * 7)
  yield "GZIP header", lambda path: path.write_bytes(b"\x1f\x8b\x08" + path.read_bytes())

  def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[int(share * len(data))] ^= 0x10
    path.write_bytes(bytes(data))

  yield f"a bit turned at {share:.3f}", flip_bit


def _of_shard(workplace: Workplace, name: str, write: PathFunction, expected: Expected) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    write(directory / "part-00.tfrecord")
    model = [*workplace.model_flags, f"--vocab_size={VOCAB_SIZE}", "--max_position_embeddings=32"]
    steps = ["--train_batch_size=4", "--num_train_steps=6", "--num_warmup_steps=1", "--log_every_steps=6"]
    files = [f"--input_file={directory}/part-*.tfrecord", "--output_dir=out"]
    return ["run_pretraining.py", "--do_train", *model, *steps, *files]

  return Attempt("shards", name, prepare, expected)


# ---- weights ---------------------------------------------------------------------------------------------


def weights(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Converts a Hugging Face directory: as it is, with `number` bad tensors, then with damaged files."""
  source = workplace.directory / "weights_of_inputs"
  if not source.exists():
    conversion = workplace.run(workplace.convert_command(workplace.pretraining_run, source))
    if conversion.code:
      raise RuntimeError(conversion.stderr)
  yield _of_weights(source, "as they are", lambda arrays: None, Expected(VALID))
  for _ in range(number):
    name, change, names_in_error = _bad_weights(rng)
    yield _of_weights(source, name, change, Expected(BAD, names_in_error, leaves_nothing=True))
  expected = Expected(BAD, ("model.safetensors",), leaves_nothing=True)
  for name, damage in _weight_file_damages(rng):
    yield _of_weights(source, name, lambda arrays: None, expected, damage)


_NAMES = (
  "albert.embeddings.word_embeddings.weight",
  "albert.embeddings.position_embeddings.weight",
  "albert.embeddings.LayerNorm.weight",
  "albert.encoder.embedding_hidden_mapping_in.weight",
  "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.query.weight",
  "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn.bias",
)


def _bad_weights(rng: random.Random) -> tuple[str, Callable[[Arrays], Any], tuple[str, ...]]:
  """Returns a description, a function that makes one array bad, and what the error must name."""
  name = rng.choice(_NAMES)
  share = rng.random()

  def with_value(value: float) -> Callable[[Arrays], None]:
    """Writes `value` into the array, behind the share of its values that was drawn."""

    def change(arrays: Arrays) -> None:
      arrays[name] = np.array(arrays[name])
      arrays[name].reshape(-1)[int(share * arrays[name].size)] = value

    return change

  def changed(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], None]:
    """Replaces the array by function(array)."""
    return lambda arrays: arrays.update({name: np.ascontiguousarray(function(arrays[name]))})

  what, change = rng.choice(
    [
      ("missing", lambda arrays: arrays.pop(name)),
      ("NaN", with_value(float("nan"))),
      ("infinity", with_value(rng.choice([float("inf"), float("-inf")]))),
      ("one row less", changed(lambda array: array[:-1])),
      ("one row more", changed(lambda array: np.concatenate([array, array[:1]]))),
      ("another axis", changed(lambda array: array[None])),
      ("a scalar", changed(lambda array: np.float32(1.0).reshape(()))),
      ("whole numbers", changed(lambda array: np.round(array).astype(np.int32))),
      ("truth values", changed(lambda array: array > 0)),
      ("no values", changed(lambda array: array[:0])),
      ("too large for float32", changed(lambda array: np.full_like(array, 1e300, np.float64))),
    ]
  )
  errors_with_name = {"NaN", "infinity", "whole numbers", "truth values", "too large for float32"}
  return f"{name}: {what}", change, (name,) if what in errors_with_name else ("--init_checkpoint=", "weights")


def _weight_file_damages(rng: random.Random) -> Iterator[tuple[str, PathFunction]]:
  """Yields descriptions, and functions that damage the safetensors file at a path."""

  def header(size: int, text: bytes) -> PathFunction:
    return lambda path: path.write_bytes(size.to_bytes(8, "little") + text)

  yield "empty", lambda path: path.write_bytes(b"")
  yield "a header of 2**63 bytes", header(2**63, b"{}")
  yield "a header that is no JSON", header(5, b"{{{{{")
  yield "a header that is a list", header(4, b"[1] ")
  yield "nesting", header(200_000, b"[" * 200_000)
  yield "random bytes", lambda path: path.write_bytes(rng.randbytes(300))
  yield "halved", lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  yield "a directory", lambda path: (path.unlink(), path.mkdir())


def _of_weights(
  source: Path,
  name: str,
  change: Callable[[Arrays], Any],
  expected: Expected,
  damage: PathFunction | None = None,
) -> Attempt:
  def prepare(directory: Path) -> list[str]:
    from safetensors.numpy import load_file, save_file

    copied = directory / "weights"
    # Without conversion.tsv, whose checksums would give the change away.
    shutil.copytree(source, copied, ignore=shutil.ignore_patterns("conversion.tsv"))
    path = copied / "model.safetensors"
    arrays = dict(load_file(path))
    change(arrays)
    save_file(arrays, path)
    if damage:
      damage(path)
    return ["-m", "albert.convert", f"--init_checkpoint={copied}", "--output_dir=out", "--format=tf1"]

  return Attempt("weights", name, prepare, expected)
