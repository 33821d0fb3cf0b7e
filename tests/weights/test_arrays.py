"""Files of weights that must be refused: numbers that are not finite, other dtypes, damaged or malicious files."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save, save_file

from albert.convert.convert_checkpoint import convert
from albert.errors import UserError
from albert.weights.checkpoints import write_bundle
from albert.weights.files import WeightFile, open_weights
from albert.weights.initial_weights import content_sha256, warm_start
from tests.convert.files_of_weights import CONFIG, huggingface_config, huggingface_tensors
from tests.golden.make_tiny_albert import random_weights

WEIGHTS = random_weights(CONFIG, 3)
POSITION_EMBEDDINGS = "bert/embeddings/position_embeddings"
HUGGINGFACE_POSITION_EMBEDDINGS = "albert.embeddings.position_embeddings.weight"
FORMATS = ("tf1", "safetensors")


def write_weights(format_name: str, directory: Path, weights: dict[str, np.ndarray]) -> str:
  """Writes weights and their config in one of FORMATS. Returns the path for --init_checkpoint."""
  directory.mkdir(exist_ok=True)
  (directory / "config.json").write_text(json.dumps(huggingface_config(CONFIG)))
  if format_name == "tf1":
    (directory / "config.json").rename(directory / "albert_config.json")
    write_bundle(str(directory / "model.ckpt"), weights)
    return str(directory / "model.ckpt")
  save_file(huggingface_tensors(weights), str(directory / "model.safetensors"))
  return str(directory)


def read_all_weights(file: WeightFile) -> dict[str, np.ndarray]:
  return {name: file.read(name) for name in file.entries}


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
  return HUGGINGFACE_POSITION_EMBEDDINGS if format_name == "safetensors" else POSITION_EMBEDDINGS


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
    if dtype in ("S4", "U4") and format_name == "safetensors":
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
    written = {name: weight.astype(dtype) for name, weight in WEIGHTS.items()}
    path = write_weights(format_name, tmp_path / f"{format_name} {np.dtype(dtype).name}", written)
    read = read_all_weights(open_weights(path))
    assert read.keys() == written.keys()
    for name, weight in written.items():
      assert read[name].dtype == np.float32
      np.testing.assert_array_equal(read[name], weight.astype(np.float32))


def test_weights_with_the_same_name_are_refused(tmp_path: Path):
  without_prefix = huggingface_tensors(WEIGHTS, with_prefix=False)
  both = without_prefix | {HUGGINGFACE_POSITION_EMBEDDINGS: WEIGHTS[POSITION_EMBEDDINGS]}
  hub = WEIGHTS | {f"module/{POSITION_EMBEDDINGS}": WEIGHTS[POSITION_EMBEDDINGS]}
  for name, tensors in (("embeddings.position_embeddings.weight", both), (POSITION_EMBEDDINGS, hub)):
    save_file(tensors, str(tmp_path / "both.safetensors"))
    with pytest.raises(UserError, match=rf"both.safetensors: has both .*{name}; give a file with one of them"):
      open_weights(str(tmp_path / "both.safetensors"))


def test_a_file_without_weights_is_refused(tmp_path: Path):
  with pytest.raises(UserError, match="holds no weights"):
    open_weights(write_weights("tf1", tmp_path / "none", {"global_step": np.zeros([], np.int64)}))


def safetensors_bytes(header: dict[str, Any] | bytes, data: bytes, header_length: int | None = None) -> bytes:
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


def test_a_pipe_in_the_place_of_weights_is_refused(tmp_path: Path):
  os.mkfifo(tmp_path / "model.safetensors")
  with pytest.raises(UserError, match=r"model\.safetensors: is not a file, but a pipe|model\.safetensors: is a pipe"):
    open_weights(str(tmp_path))


def test_bfloat16_is_read_from_a_remote_file_as_from_a_local_one(tmp_path: Path):
  """The safetensors library reads the bytes of a remote file, and our code those of a local file."""
  array = WEIGHTS[POSITION_EMBEDDINGS].astype(tf.bfloat16.as_numpy_dtype)
  (tmp_path / "x.safetensors").write_bytes(save({HUGGINGFACE_POSITION_EMBEDDINGS: array}))
  local = open_weights(str(tmp_path / "x.safetensors")).read(POSITION_EMBEDDINGS)
  remote = open_weights(f"file://{tmp_path}/x.safetensors").read(POSITION_EMBEDDINGS)
  np.testing.assert_array_equal(local, array.astype(np.float32))
  np.testing.assert_array_equal(remote, local)
