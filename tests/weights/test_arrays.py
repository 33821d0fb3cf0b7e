"""Untrusted files of weights: values that are not finite floating-point numbers, and wrong headers, are errors."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save, save_file

from albert.convert.convert_checkpoint import convert
from albert.errors import UserError
from albert.weights.checkpoint_files import write_bundle
from albert.weights.files import WeightFile, open_weights
from albert.weights.initial_weights import content_sha256
from albert.weights.warm_start import warm_start
from tests.convert.files_of_weights import CONFIG, huggingface_config, huggingface_tensors
from tests.golden.make_tiny_albert import random_weights

WEIGHTS = random_weights(CONFIG, 3)
NAME = "bert/embeddings/position_embeddings"
HUGGINGFACE_NAME = "albert.embeddings.position_embeddings.weight"
FORMATS = ("tf1", "npz", "safetensors", "sharded")


def write(format_name: str, directory: Path, weights: dict[str, np.ndarray]) -> str:
  """Writes weights in one of the formats, with their config; returns the value of --init_checkpoint."""
  directory.mkdir(exist_ok=True)
  (directory / "config.json").write_text(json.dumps(huggingface_config(CONFIG)))
  if format_name == "tf1":
    (directory / "config.json").rename(directory / "albert_config.json")
    write_bundle(str(directory / "model.ckpt"), weights)
    return str(directory / "model.ckpt")
  if format_name == "npz":
    np.savez(directory / "weights.npz", **weights)
    return str(directory / "weights.npz")
  tensors = huggingface_tensors(weights)
  if format_name == "safetensors":
    save_file(tensors, str(directory / "model.safetensors"))
    return str(directory)
  weight_map = {}
  for number, name in enumerate(tensors):
    part = f"part-{number % 2}.safetensors"
    weight_map[name] = part
  for part in set(weight_map.values()):
    save_file({name: value for name, value in tensors.items() if weight_map[name] == part}, str(directory / part))
  (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
  return str(directory)


def read_all(file: WeightFile) -> dict[str, np.ndarray]:
  return {name: file.read(name) for name in file.names}


def altered(value_or_dtype: str) -> np.ndarray:
  """Returns the position embeddings with one value changed, such as to "nan", or in another dtype, such as "int32"."""
  array = WEIGHTS[NAME].copy()
  if value_or_dtype in ("nan", "inf", "-inf"):
    array[3, 5] = float(value_or_dtype)
    return array
  if value_or_dtype == "1e300":
    float64_array = array.astype(np.float64)
    float64_array[3, 5] = 1e300
    return float64_array
  return np.array(array * 100).astype(value_or_dtype)


@pytest.mark.parametrize("format_name", FORMATS)
def test_weights_that_are_not_finite_floats_are_refused_by_name(tmp_path: Path, format_name: str):
  for value in ("nan", "inf", "-inf", "1e300", "int32", "int64", "uint8", "bool", "complex64", "S4", "U4"):
    if value in ("S4", "U4") and format_name in ("safetensors", "sharded"):
      continue  # safetensors has no strings
    source = write(format_name, tmp_path / f"{format_name} {value}", WEIGHTS | {NAME: altered(value)})
    tensor = HUGGINGFACE_NAME if format_name in ("safetensors", "sharded") else NAME
    is_value = value in ("nan", "inf", "-inf", "1e300")
    problem = (
      r"holds 1 values that are not finite in float32, the first at \[3, 5\]" if is_value else r"holds \w+ values"
    )
    readers = [lambda source=source: read_all(open_weights(source))]
    if value in ("nan", "int32"):
      readers += [
        lambda source=source: content_sha256(open_weights(source)),
        lambda source=source: convert(source, str(tmp_path / "out"), "albert"),
        lambda source=source: warm_start(source, {name: tf.Variable(v) for name, v in WEIGHTS.items()}),
      ]
    for reader in readers:
      with pytest.raises(UserError, match=rf"=.*{format_name} {value}.*: {tensor} {problem}"):
        reader()
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format_name", FORMATS)
def test_narrow_and_wide_floats_are_read_exactly(tmp_path: Path, format_name: str):
  for dtype in (np.float16, np.float64, tf.bfloat16.as_numpy_dtype):
    if dtype is tf.bfloat16.as_numpy_dtype and format_name == "npz":
      continue  # .npz has no bfloat16
    weights = {name: value.astype(dtype) for name, value in WEIGHTS.items()}
    values = read_all(open_weights(write(format_name, tmp_path / f"{format_name} {np.dtype(dtype).name}", weights)))
    assert values.keys() == weights.keys()
    for name, value in weights.items():
      assert values[name].dtype == np.float32
      np.testing.assert_array_equal(values[name], value.astype(np.float32))


def test_empty_weights_and_weights_with_the_same_name_are_refused(tmp_path: Path):
  head = {"output_weights": np.zeros([0, 20], np.float32), "output_bias": np.zeros([0], np.float32)}
  for format_name in FORMATS:
    source = write(format_name, tmp_path / f"empty {format_name}", WEIGHTS | head)
    with pytest.raises(UserError, match=r"is empty: \[0"):
      convert(source, str(tmp_path / "out"), "albert")
  bare = huggingface_tensors(WEIGHTS, prefix=False)
  np.savez(tmp_path / "both.npz", **bare, **{HUGGINGFACE_NAME: WEIGHTS[NAME]})
  with pytest.raises(UserError, match=r"has both embeddings.position_embeddings.weight and albert\.embeddings"):
    open_weights(str(tmp_path / "both.npz"))
  np.savez(tmp_path / "hub.npz", **WEIGHTS, **{f"module/{NAME}": WEIGHTS[NAME]})
  with pytest.raises(UserError, match=rf"has both {NAME} and module/{NAME}"):
    open_weights(str(tmp_path / "hub.npz"))
  with pytest.raises(UserError, match="holds no weights"):
    open_weights(write("npz", tmp_path / "none", {"global_step": np.zeros([], np.int64)}))


def safetensors_bytes(entries: dict[str, Any] | bytes, data: bytes, size: int | None = None) -> bytes:
  """Returns the bytes of a safetensors file. `size` replaces the length of the header at its start."""
  header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
  return struct.pack("<Q", len(header) if size is None else size) + header + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
ENTRY_TEXT = json.dumps(ENTRY).encode()


@pytest.mark.parametrize(
  "data",
  [
    b"",
    b"\0" * 8,
    safetensors_bytes({"x": ENTRY}, b"\0" * 7),
    safetensors_bytes({"x": ENTRY}, b"\0" * 9),
    safetensors_bytes({"x": ENTRY}, b"\0" * 8, size=2**63),
    safetensors_bytes({"x": ENTRY}, b"\0" * 8, size=2),
    safetensors_bytes({"x": {**ENTRY, "data_offsets": [8, 16]}}, b"\0" * 16),
    safetensors_bytes({"x": {**ENTRY, "data_offsets": [8, 0]}}, b"\0" * 8),
    safetensors_bytes({"x": {**ENTRY, "shape": [-2]}}, b"\0" * 8),
    safetensors_bytes({"x": {**ENTRY, "shape": [2**62, 4]}}, b"\0" * 8),
    safetensors_bytes({"x": {**ENTRY, "dtype": "F33"}}, b"\0" * 8),
    safetensors_bytes({"x": ENTRY, "y": ENTRY}, b"\0" * 8),
    safetensors_bytes(b'{"x":' + ENTRY_TEXT + b',"x":' + ENTRY_TEXT + b"}", b"\0" * 8),
    safetensors_bytes(b"[]", b""),
    safetensors_bytes(b'{"__metadata__":' + b"[" * 5000 + b"]" * 5000 + b"}", b""),
    safetensors_bytes(b'{"\\ud800":' + ENTRY_TEXT + b"}", b"\0" * 8),
    pickle.dumps({"x": np.ones(2)}),
  ],
)
def test_damaged_headers_of_safetensors(tmp_path: Path, data: bytes):
  path = tmp_path / "x.safetensors"
  path.write_bytes(data)
  with pytest.raises(UserError, match=r"x\.safetensors: (is not a safetensors file, or is damaged|its header)"):
    open_weights(str(path))


@pytest.mark.parametrize(
  ("index", "message"),
  [
    ("{}", "lacks 'weight_map'"),
    ('{"weight_map": {}}', "lists no weights"),
    ('{"weight_map": ["part-0.safetensors"]}', "must be an object"),
    ('{"weight_map": {"x": 5}}', "must be a text"),
    ('{"weight_map": {"x": "../outside.safetensors"}}', "must be a text that names a file of this directory"),
    ('{"weight_map": {"x": "ABSOLUTE"}}', "must be a text that names a file of this directory"),
    ('{"weight_map": {"x": "sub/part.safetensors"}}', "must be a text that names a file of this directory"),
    ('{"weight_map": {"x": "."}}', "must be a text that names a file of this directory"),
    ('{"weight_map": {"x": "gone.safetensors"}}', "lists gone.safetensors, which is missing"),
    ('{"weight_map": {"x": "part-0.safetensors"}}', "lists x in part-0.safetensors, which does not hold it"),
    (
      '{"weight_map": {"a": "part-1.safetensors", "b": "part-1.safetensors"}}',
      "lists a in part-1.safetensors, which does not hold it",
    ),
    ('{"weight_map": {"a": "part-0.safetensors", "b": "part-2.safetensors"}}', "a is in part-2.safetensors"),
    ('{"weight_map": {"a": "directory"}}', "directory.*is a directory"),
    ('{"weight_map": {"a": "pipe"}}', "pipe.*is a pipe, not a file"),
  ],
)
def test_damaged_indexes_of_safetensors(tmp_path: Path, index: str, message: str):
  save_file({"a": np.ones(2, np.float32)}, str(tmp_path / "outside.safetensors"))
  directory = tmp_path / "model"
  directory.mkdir()
  for part, names in (("part-0", "a"), ("part-1", "c"), ("part-2", "ab")):
    save_file({name: np.ones(2, np.float32) for name in names}, str(directory / f"{part}.safetensors"))
  (directory / "directory").mkdir()
  os.mkfifo(directory / "pipe")
  text = index.replace("ABSOLUTE", str(tmp_path / "outside.safetensors"))
  (directory / "model.safetensors.index.json").write_text(text)
  with pytest.raises(UserError, match=message):
    open_weights(str(directory))


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
  """The bytes of a .npy file. If `shape` is given, its header states that shape instead of the array's own."""
  file = io.BytesIO()
  header = np.lib.format.header_data_from_array_1_0(array) | ({"shape": shape} if shape else {})
  np.lib.format.write_array_header_1_0(file, header)
  return file.getvalue() + array.tobytes()


def test_hostile_npz(tmp_path: Path):
  path = tmp_path / "x.npz"

  class Bomb:
    def __reduce__(self):
      return (Path.touch, (tmp_path / "exploded",))

  objects = io.BytesIO()
  np.save(objects, np.array([Bomb()], dtype=object), allow_pickle=True)
  good = npy(np.ones([2, 3], np.float32))
  huge = npy(np.zeros([1], np.float32), (1 << 40,))
  deep = b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000
  for members, message in [
    ([("a.npy", objects.getvalue())], "pickles"),
    ([("a.npy", pickle.dumps(Bomb()))], "is not an .npz file"),
    ([("a.npy", good), ("a.npy", good)], "has 'a' twice"),
    ([("a.npy", huge)], "its header says"),
    ([("a.npy", good[:-1])], "its header says"),
    ([("a.npy", good + b"\0")], "its header says"),
    ([("a.npy", deep)], "is not an .npz file"),
    ([("a.npy", b"")], "is not an .npz file"),
  ]:
    with zipfile.ZipFile(path, "w") as archive:
      for name, data in members:
        archive.writestr(name, data)
    with pytest.raises(UserError, match=message):
      read_all(open_weights(str(path)))
  for data in (pickle.dumps(Bomb()), objects.getvalue(), good):
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"is not an \.npz file"):
      open_weights(str(path))
  assert not (tmp_path / "exploded").exists()


def test_a_flipped_bit_of_an_npz_is_found_when_it_is_read(tmp_path: Path):
  path = Path(write("npz", tmp_path / "npz", WEIGHTS))
  data = bytearray(path.read_bytes())
  data[data.index(WEIGHTS[NAME].tobytes()) + 100] ^= 64
  path.write_bytes(data)
  with pytest.raises(UserError, match=r"is damaged \(Bad CRC-32"):
    open_weights(str(path)).read(NAME)


def test_damage_that_is_found_by_an_error_without_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
  """zipfile raises a bare EOFError where an archive ends too early."""
  arrays = open_weights(write("npz", tmp_path / "npz", WEIGHTS))
  monkeypatch.setattr(np.lib.format, "read_array", mock.Mock(side_effect=EOFError))
  with pytest.raises(UserError, match=r"is damaged \(EOFError\)$"):
    arrays.read(NAME)


def test_an_archive_that_unpacks_to_far_more_is_not_read(tmp_path: Path):
  """257 MiB of zeros are compressed to 0.3 MB. The sizes in the archive show it before memory is allocated."""
  path = tmp_path / "bomb.npz"
  header = npy(np.zeros([0], np.float32), (257 << 18,))
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("a.npy", "w") as file:
    file.write(header)
    for _ in range(257):
      file.write(bytes(1 << 20))
  with pytest.raises(UserError, match=r"a\.npy unpacks \d+ bytes to 269\d+, which no trained weights do"):
    open_weights(str(path))


@pytest.mark.parametrize(
  "name", ["model.safetensors", "weights.npz", "model.ckpt.index", "model.ckpt.data-00000-of-00001"]
)
def test_directories_and_pipes_in_the_place_of_weights(tmp_path: Path, name: str):
  for kind in ("directory", "pipe"):
    format_name = "tf1" if "ckpt" in name else "npz" if name.endswith(".npz") else "safetensors"
    source = write(format_name, tmp_path / kind, WEIGHTS)
    (tmp_path / kind / name).unlink()
    (tmp_path / kind / name).mkdir() if kind == "directory" else os.mkfifo(tmp_path / kind / name)
    with pytest.raises(UserError, match=rf"{name}: is (a {kind}|not a file, but a {kind})"):
      open_weights(source)


def test_bfloat16_of_a_remote_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
  """A remote file is read at once by the library, and gives the same bits as a local one."""
  array = WEIGHTS[NAME].astype(tf.bfloat16.as_numpy_dtype)
  (tmp_path / "x.safetensors").write_bytes(save({HUGGINGFACE_NAME: array}))
  local = open_weights(str(tmp_path / "x.safetensors")).read(NAME)
  remote = open_weights(f"file://{tmp_path}/x.safetensors").read(NAME)
  np.testing.assert_array_equal(local, array.astype(np.float32))
  np.testing.assert_array_equal(remote, local)
