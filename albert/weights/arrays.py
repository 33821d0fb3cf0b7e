"""Opens the arrays in files of weights: TensorFlow checkpoints and safetensors.

Files may come from untrusted sources. The sizes in a file's header are checked before memory is allocated, and values
are checked before they are used: they must be finite floating-point numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from albert import startup
from albert.errors import UserError
from albert.io import files, json_values
from albert.runs import output_files

SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX_FILE = SAFETENSORS_FILE + ".index.json"
# Weights of these types are accepted, and converted to float32.
_FLOAT_TYPES = ("float32", "float16", "bfloat16", "float64")
_SAFETENSORS_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
# A safetensors file begins with the size of its header, in this number of bytes.
_SIZE_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Array:
  """An array in a file, whose values are read later.

  Attributes:
    file: path of the file; for a TensorFlow checkpoint its prefix.
    flag: the flag with which the user gave the file, for errors.
    name: the name of the array in the file.
    shape: shape of the array.
    dtype: NumPy's name of its type, such as "float32"; for a type that is not accepted, the type's name in the file.
    read_raw: reads the array without any check.
    sha256: SHA-256 of its float32 values, if conversion.tsv lists the array; else empty.
  """

  file: str
  flag: str
  name: str
  shape: tuple[int, ...]
  dtype: str
  read_raw: Callable[[], np.ndarray]
  sha256: str = ""

  def read(self) -> np.ndarray:
    """Reads the array and converts it to float32.

    Raises:
      UserError: the array does not hold floating-point numbers, holds one that is not finite, or is damaged.
    """
    description = f"{self.flag}={self.file}: {self.name}"
    if self.dtype not in _FLOAT_TYPES:
      raise UserError(
        f"{description} holds {self.dtype} values: weights are {', '.join(_FLOAT_TYPES)}; give the trained file"
      )
    with np.errstate(over="ignore"):  # a float64 too large for float32 becomes infinite, which is refused below
      value = np.asarray(self.read_raw(), np.float32)
    if self.sha256 and float32_sha256(value) != self.sha256:
      raise UserError(
        f"{description} is not what {output_files.CONVERSION} beside it says: the file is damaged; restore it, or "
        f"delete {output_files.CONVERSION} if the weights were changed on purpose"
      )
    is_finite = np.isfinite(value)
    if not is_finite.all():
      first_index = [int(index[0]) for index in np.nonzero(~is_finite)]
      num_bad = value.size - np.count_nonzero(is_finite)
      raise UserError(
        f"{description} holds values that are not finite in float32 ({num_bad} of {value.size}, the first at "
        f"{first_index}): the file is damaged, or its training diverged; give another one"
      )
    return value


def values_of_bytes(data: bytes | bytearray, dtype: str) -> np.ndarray:
  """Returns the values of a type, such as "float32", that little-endian bytes hold. Those of bfloat16 are float32."""
  if dtype == "bfloat16":  # its 16 bits are the upper half of the equal float32
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
  return np.frombuffer(data, np.dtype(dtype).newbyteorder("<"))


def float32_sha256(value: np.ndarray) -> str:
  """Returns the SHA-256 of an array's values as float32, little-endian, in row-major order."""
  return hashlib.sha256(np.ascontiguousarray(value, "<f4").tobytes()).hexdigest()


def open_bundle(prefix: str, flag: str) -> dict[str, Array]:
  """Opens a TensorFlow checkpoint.

  Args:
    prefix: the path of its files without .index and .data-*.
    flag: the flag with which the user gave it, for errors.
  Returns: Name -> array.
  Raises:
    UserError: the files are missing or damaged.
  """
  with startup.quick_imports():
    import tensorflow as tf  # takes seconds, so `find_weights` reports missing files before it is imported

  try:
    with files.tensorflow_path(prefix) as path:
      reader = tf.train.load_checkpoint(path)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
  except (tf.errors.OpError, ValueError) as error:
    raise UserError(f"{prefix}.index: is not a TensorFlow checkpoint, or is damaged; give another one") from error

  def read(name: str) -> np.ndarray:
    try:
      with files.tensorflow_path(prefix) as path:  # a link to the data is needed only until they are read
        return (reader if path == prefix else tf.train.load_checkpoint(path)).get_tensor(name)
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
      raise UserError(f"{prefix}: cannot read {name}, the data file is damaged or missing; copy it again") from error

  return {
    name: Array(prefix, flag, name, tuple(shape), tf.as_dtype(dtypes[name]).name, functools.partial(read, name))
    for name, shape in shapes.items()
  }


class _HeaderEntry(msgspec.Struct):
  """The entry of one array in the header of a safetensors file. data_offsets: start and end of its values, in bytes."""

  dtype: str
  shape: list[int]
  data_offsets: tuple[int, int]


def open_safetensors(path: str, flag: str) -> dict[str, Array]:
  """Opens a .safetensors file. Arrays of a local file are read when they are needed.

  Args:
    path: the file.
    flag: the flag with which the user gave the file, for errors.
  Returns: Name -> array.
  Raises:
    UserError: the file is missing or damaged.
  """
  from safetensors import SafetensorError, deserialize, safe_open

  files.check_not_special(path, name=f"{flag}={path}", remedy="give a file")
  content: bytes | np.ndarray
  try:
    # The library checks sizes and offsets. But it accepts two entries with the same name, and it cannot read bfloat16
    # into NumPy. Therefore the header and the arrays are read here.
    if files.is_remote(path):
      content = files.read(path)
      deserialize(content)
    else:
      safe_open(path, framework="np")
      content = np.memmap(path, np.uint8, "r")
  except (SafetensorError, OSError) as error:
    raise UserError(f"{flag}={path}: is not a safetensors file, or is damaged ({error}); download it again") from error

  data_start = _SIZE_BYTES + int.from_bytes(bytes(content[:_SIZE_BYTES]), "little")
  source = f"{flag}={path}: its header"
  values = json_values.parse(source, bytes(content[_SIZE_BYTES:data_start]), dict[str, Any], "download it again")
  values.pop("__metadata__", None)
  header = json_values.convert(source, values, dict[str, _HeaderEntry], "download it again")

  def read(entry: _HeaderEntry) -> np.ndarray:
    start, end = entry.data_offsets
    data = bytearray(content[data_start + start : data_start + end])
    return values_of_bytes(data, _SAFETENSORS_TYPES[entry.dtype]).reshape(entry.shape)

  hashes = _recorded_hashes(path.rpartition("/")[0] or ".")
  arrays = {}
  for name, entry in header.items():
    shape, dtype = tuple(entry.shape), _SAFETENSORS_TYPES.get(entry.dtype, entry.dtype)
    arrays[name] = Array(path, flag, name, shape, dtype, functools.partial(read, entry), hashes.get(name, ""))
  return arrays


def _recorded_hashes(directory: str) -> dict[str, str]:
  """Name -> SHA-256 of the weights in a directory that albert.convert wrote; {} for any other directory."""
  path = files.join(directory, output_files.CONVERSION)
  if not files.exists(path):
    return {}
  rows = [line.split("\t") for line in files.read(path).decode("utf-8", errors="replace").splitlines()]
  if not rows or any(len(row) != 4 or not re.match(r"^[0-9a-f]{64}\Z", row[3]) for row in rows[1:]):
    raise UserError(f"{path}: is not the list that albert.convert wrote: restore it, or delete it")
  return {target: sha256 for _, target, _, sha256 in rows[1:]}
