"""Files of weights that must be refused: numbers that are not finite, other dtypes, damaged or malicious files."""

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
POSITION_EMBEDDINGS = "bert/embeddings/position_embeddings"
HUGGINGFACE_POSITION_EMBEDDINGS = "albert.embeddings.position_embeddings.weight"
FORMATS = ("tf1", "npz", "safetensors", "sharded")


def write_weights(format_name: str, directory: Path, weights: dict[str, np.ndarray]) -> str:
  """Writes weights and their config in one of FORMATS. Returns the path for --init_checkpoint."""
  directory.mkdir(exist_ok=True)
  (directory / "config.json").write_text(json.dumps(huggingface_config(CONFIG)))
  if format_name == "tf1":
    (directory / "config.json").rename(directory / "albert_config.json")
    write_bundle(str(directory / "model.ckpt"), weights)
    return str(directory / "model.ckpt")
  if format_name == "npz":
    np.savez(directory / "weights.npz", **weights)  # type: ignore[arg-type]  # NumPy's stub takes a name for allow_pickle
    return str(directory / "weights.npz")
  tensors = huggingface_tensors(weights)
  if format_name == "safetensors":
    save_file(tensors, str(directory / "model.safetensors"))
    return str(directory)
  # Two shards, each with every second tensor.
  names = list(tensors)
  weight_map: dict[str, str] = {}
  for shard_name, names_of_shard in (("part-0.safetensors", names[::2]), ("part-1.safetensors", names[1::2])):
    save_file({name: tensors[name] for name in names_of_shard}, str(directory / shard_name))
    weight_map |= dict.fromkeys(names_of_shard, shard_name)
  (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
  return str(directory)


def read_all_weights(file: WeightFile) -> dict[str, np.ndarray]:
  return {name: file.read(name) for name in file.names}


def change_one_number(number: str) -> np.ndarray:
  """Returns the position embeddings with one number replaced, in float64 if the number is too large for float32."""
  array = WEIGHTS[POSITION_EMBEDDINGS].astype(np.float64 if number == "1e300" else np.float32)
  array[3, 5] = float(number)
  return array


def assert_refused(format_name: str, directory: Path, position_embeddings: np.ndarray, problem: str) -> str:
  """Writes weights with other position embeddings. Checks that reading them is an error. Returns their path."""
  path = write_weights(format_name, directory, WEIGHTS | {POSITION_EMBEDDINGS: position_embeddings})
  with pytest.raises(UserError, match=rf"=.*{directory.name}.*: {name_in_format(format_name)} {problem}"):
    read_all_weights(open_weights(path))
  return path


def name_in_format(format_name: str) -> str:
  """Returns the name of the position embeddings in a format."""
  return HUGGINGFACE_POSITION_EMBEDDINGS if format_name in ("safetensors", "sharded") else POSITION_EMBEDDINGS


@pytest.mark.parametrize("format_name", FORMATS)
def test_numbers_that_are_not_finite_in_float32_are_refused(tmp_path: Path, format_name: str):
  problem = (
    rf"holds values that are not finite in float32 \(1 of {WEIGHTS[POSITION_EMBEDDINGS].size}, the first at \[3, 5\]\)"
  )
  for number in ("nan", "inf", "-inf", "1e300"):
    assert_refused(format_name, tmp_path / f"{format_name} {number}", change_one_number(number), problem)


@pytest.mark.parametrize("format_name", FORMATS)
def test_dtypes_that_are_not_floats_are_refused(tmp_path: Path, format_name: str):
  for dtype in ("int32", "int64", "uint8", "bool", "complex64", "S4", "U4"):
    if dtype in ("S4", "U4") and format_name in ("safetensors", "sharded"):
      continue  # safetensors has no strings
    array = np.array(WEIGHTS[POSITION_EMBEDDINGS] * 100).astype(dtype)
    assert_refused(format_name, tmp_path / f"{format_name} {dtype}", array, r"holds \w+ values")


@pytest.mark.parametrize("format_name", FORMATS)
def test_weights_with_nan_or_integers_are_not_hashed_converted_or_trained(tmp_path: Path, format_name: str):
  bad_arrays = {"nan": change_one_number("nan"), "int32": np.array(WEIGHTS[POSITION_EMBEDDINGS] * 100).astype("int32")}
  for array_name, array in bad_arrays.items():
    path = assert_refused(format_name, tmp_path / f"{format_name} {array_name}", array, "holds ")
    message = rf"=.*{format_name} {array_name}.*: {name_in_format(format_name)} holds "
    with pytest.raises(UserError, match=message):
      content_sha256(open_weights(path))
    with pytest.raises(UserError, match=message):
      convert(path, str(tmp_path / "out"), "albert")
    with pytest.raises(UserError, match=message):
      warm_start(path, {name: tf.Variable(weight) for name, weight in WEIGHTS.items()})
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format_name", FORMATS)
def test_other_floats_are_read_as_float32(tmp_path: Path, format_name: str):
  for dtype in (np.float16, np.float64, tf.bfloat16.as_numpy_dtype):
    if dtype is tf.bfloat16.as_numpy_dtype and format_name == "npz":
      continue  # .npz has no bfloat16
    written = {name: weight.astype(dtype) for name, weight in WEIGHTS.items()}
    path = write_weights(format_name, tmp_path / f"{format_name} {np.dtype(dtype).name}", written)
    read = read_all_weights(open_weights(path))
    assert read.keys() == written.keys()
    for name, weight in written.items():
      assert read[name].dtype == np.float32
      np.testing.assert_array_equal(read[name], weight.astype(np.float32))


def test_empty_weights_and_weights_with_the_same_name_are_refused(tmp_path: Path):
  head = {"output_weights": np.zeros([0, 20], np.float32), "output_bias": np.zeros([0], np.float32)}
  for format_name in FORMATS:
    source = write_weights(format_name, tmp_path / f"empty {format_name}", WEIGHTS | head)
    with pytest.raises(UserError, match=r"is empty: \[0"):
      convert(source, str(tmp_path / "out"), "albert")
  without_prefix = huggingface_tensors(WEIGHTS, with_prefix=False)
  np.savez(tmp_path / "both.npz", **without_prefix, **{HUGGINGFACE_POSITION_EMBEDDINGS: WEIGHTS[POSITION_EMBEDDINGS]})  # type: ignore[arg-type]
  with pytest.raises(UserError, match=r"has both embeddings.position_embeddings.weight and albert\.embeddings"):
    open_weights(str(tmp_path / "both.npz"))
  np.savez(tmp_path / "hub.npz", **WEIGHTS, **{f"module/{POSITION_EMBEDDINGS}": WEIGHTS[POSITION_EMBEDDINGS]})  # type: ignore[arg-type]
  with pytest.raises(UserError, match=rf"has both {POSITION_EMBEDDINGS} and module/{POSITION_EMBEDDINGS}"):
    open_weights(str(tmp_path / "hub.npz"))
  with pytest.raises(UserError, match="holds no weights"):
    open_weights(write_weights("npz", tmp_path / "none", {"global_step": np.zeros([], np.int64)}))


def safetensors_bytes(header: dict[str, Any] | bytes, data: bytes, header_length: int | None = None) -> bytes:
  """Returns the bytes of a safetensors file, with the length of its header or with a wrong length."""
  header_bytes = header if isinstance(header, bytes) else json.dumps(header).encode()
  return struct.pack("<Q", len(header_bytes) if header_length is None else header_length) + header_bytes + data


# A tensor of 8 bytes, as a header describes it.
TENSOR_ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TENSOR_ENTRY_TEXT = json.dumps(TENSOR_ENTRY).encode()


@pytest.mark.parametrize(
  "content",
  [
    b"",
    b"\0" * 8,
    safetensors_bytes({"x": TENSOR_ENTRY}, b"\0" * 7),  # a byte too few
    safetensors_bytes({"x": TENSOR_ENTRY}, b"\0" * 9),  # a byte too many
    safetensors_bytes({"x": TENSOR_ENTRY}, b"\0" * 8, header_length=2**63),
    safetensors_bytes({"x": TENSOR_ENTRY}, b"\0" * 8, header_length=2),
    safetensors_bytes({"x": {**TENSOR_ENTRY, "data_offsets": [8, 16]}}, b"\0" * 16),  # a gap before the tensor
    safetensors_bytes({"x": {**TENSOR_ENTRY, "data_offsets": [8, 0]}}, b"\0" * 8),  # it ends before it begins
    safetensors_bytes({"x": {**TENSOR_ENTRY, "shape": [-2]}}, b"\0" * 8),
    safetensors_bytes({"x": {**TENSOR_ENTRY, "shape": [2**62, 4]}}, b"\0" * 8),  # 2^64 elements
    safetensors_bytes({"x": {**TENSOR_ENTRY, "dtype": "F33"}}, b"\0" * 8),  # an unknown type
    safetensors_bytes({"x": TENSOR_ENTRY, "y": TENSOR_ENTRY}, b"\0" * 8),  # two tensors in the same bytes
    safetensors_bytes(b'{"x":' + TENSOR_ENTRY_TEXT + b',"x":' + TENSOR_ENTRY_TEXT + b"}", b"\0" * 8),
    safetensors_bytes(b"[]", b""),
    safetensors_bytes(b'{"__metadata__":' + b"[" * 5000 + b"]" * 5000 + b"}", b""),
    safetensors_bytes(b'{"\\ud800":' + TENSOR_ENTRY_TEXT + b"}", b"\0" * 8),
    pickle.dumps({"x": np.ones(2)}),
  ],
)
def test_damaged_headers_of_safetensors_are_refused(tmp_path: Path, content: bytes):
  path = tmp_path / "x.safetensors"
  path.write_bytes(content)
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
def test_damaged_indexes_of_safetensors_are_refused(tmp_path: Path, index: str, message: str):
  save_file({"a": np.ones(2, np.float32)}, str(tmp_path / "outside.safetensors"))
  directory = tmp_path / "model"
  directory.mkdir()
  for shard_name, tensor_names in (("part-0", ["a"]), ("part-1", ["c"]), ("part-2", ["a", "b"])):
    tensors = {name: np.ones(2, np.float32) for name in tensor_names}
    save_file(tensors, str(directory / f"{shard_name}.safetensors"))
  (directory / "directory").mkdir()
  os.mkfifo(directory / "pipe")
  text = index.replace("ABSOLUTE", str(tmp_path / "outside.safetensors"))
  (directory / "model.safetensors.index.json").write_text(text)
  with pytest.raises(UserError, match=message):
    open_weights(str(directory))


def npy_bytes(array: np.ndarray, shape_in_header: tuple[int, ...] | None = None) -> bytes:
  """Returns the bytes of a .npy file. Its header may have another shape than the array."""
  file = io.BytesIO()
  header = np.lib.format.header_data_from_array_1_0(array)
  if shape_in_header is not None:
    header["shape"] = shape_in_header
  np.lib.format.write_array_header_1_0(file, header)
  return file.getvalue() + array.tobytes()


class Bomb:
  """Creates a file when it is unpickled."""

  def __init__(self, path: Path):
    self.path = path

  def __reduce__(self):
    return (Path.touch, (self.path,))


def test_malicious_and_damaged_npz_files_are_refused(tmp_path: Path):
  path = tmp_path / "x.npz"
  pickled = pickle.dumps(Bomb(tmp_path / "exploded"))
  object_array_file = io.BytesIO()
  np.save(object_array_file, np.array([Bomb(tmp_path / "exploded")], dtype=object), allow_pickle=True)
  object_array = object_array_file.getvalue()
  valid = npy_bytes(np.ones([2, 3], np.float32))
  too_large = npy_bytes(np.zeros([1], np.float32), shape_in_header=(1 << 40,))
  deeply_nested = b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000
  # Contents of the members of the archive, which are all called a.npy, and the error.
  for contents, message in [
    ([object_array], "pickles"),
    ([pickled], "is not an .npz file"),
    ([valid, valid], "has 'a' twice"),
    ([too_large], "its header says"),
    ([valid[:-1]], "its header says"),
    ([valid + b"\0"], "its header says"),
    ([deeply_nested], "is not an .npz file"),
    ([b""], "is not an .npz file"),
  ]:
    with zipfile.ZipFile(path, "w") as archive:
      for content in contents:
        archive.writestr("a.npy", content)
    with pytest.raises(UserError, match=message):
      read_all_weights(open_weights(str(path)))
  for content in (pickled, object_array, valid):
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is not an \.npz file"):
      open_weights(str(path))
  assert not (tmp_path / "exploded").exists()


def test_a_flipped_bit_of_an_npz_file_is_an_error_when_the_array_is_read(tmp_path: Path):
  path = Path(write_weights("npz", tmp_path / "npz", WEIGHTS))
  data = bytearray(path.read_bytes())
  data[data.index(WEIGHTS[POSITION_EMBEDDINGS].tobytes()) + 100] ^= 64
  path.write_bytes(data)
  with pytest.raises(UserError, match=r"is damaged \(Bad CRC-32"):
    open_weights(str(path)).read(POSITION_EMBEDDINGS)


def test_an_error_of_a_library_without_a_message_is_named_by_its_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
  """Python's zipfile raises an EOFError without a message where an archive ends too early."""
  arrays = open_weights(write_weights("npz", tmp_path / "npz", WEIGHTS))
  monkeypatch.setattr(np.lib.format, "read_array", mock.Mock(side_effect=EOFError))
  with pytest.raises(UserError, match=r"is damaged \(EOFError\)$"):
    arrays.read(POSITION_EMBEDDINGS)


def test_an_archive_that_unpacks_to_far_more_is_not_read(tmp_path: Path):
  """257 MiB of zeros are compressed to 0.3 MB. The archive says this size before memory is allocated."""
  path = tmp_path / "bomb.npz"
  header = npy_bytes(np.zeros([0], np.float32), shape_in_header=(257 << 18,))  # 257 MiB / 4 bytes
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("a.npy", "w") as file:
    file.write(header)
    for _ in range(257):
      file.write(bytes(1 << 20))
  with pytest.raises(UserError, match=r"a\.npy unpacks \d+ bytes to 269\d+, which no trained weights do"):
    open_weights(str(path))


@pytest.mark.parametrize(
  "name", ["model.safetensors", "weights.npz", "model.ckpt.index", "model.ckpt.data-00000-of-00001"]
)
def test_directories_and_pipes_in_the_place_of_weights_are_refused(tmp_path: Path, name: str):
  format_name = {".safetensors": "safetensors", ".npz": "npz"}.get(Path(name).suffix, "tf1")
  for kind, make in (("directory", os.mkdir), ("pipe", os.mkfifo)):
    source = write_weights(format_name, tmp_path / kind, WEIGHTS)
    (tmp_path / kind / name).unlink()
    make(tmp_path / kind / name)
    with pytest.raises(UserError, match=rf"{name}: is (a {kind}|not a file, but a {kind})"):
      open_weights(source)


def test_bfloat16_is_read_from_a_remote_file_as_from_a_local_one(tmp_path: Path):
  """The safetensors library reads the bytes of a remote file, and our code those of a local file."""
  array = WEIGHTS[POSITION_EMBEDDINGS].astype(tf.bfloat16.as_numpy_dtype)
  (tmp_path / "x.safetensors").write_bytes(save({HUGGINGFACE_POSITION_EMBEDDINGS: array}))
  local = open_weights(str(tmp_path / "x.safetensors")).read(POSITION_EMBEDDINGS)
  remote = open_weights(f"file://{tmp_path}/x.safetensors").read(POSITION_EMBEDDINGS)
  np.testing.assert_array_equal(local, array.astype(np.float32))
  np.testing.assert_array_equal(remote, local)
