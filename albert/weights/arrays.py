"""The arrays in files of weights: tensor bundles, safetensors, .npz. Nothing that could run code is read.

Files may come from anybody. What they say of themselves is checked before memory is allocated for it, and what they
hold before it is used: floating-point numbers, all of them finite.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import msgspec
import numpy as np
import tensorflow as tf

from albert.errors import UserError
from albert.io import files, json_values
from albert.runs import output_files

SAFETENSORS = "model.safetensors"
INDEX = SAFETENSORS + ".index.json"
# Weights of these types are read, as float32.
_FLOATS = ("float32", "float16", "bfloat16", "float64")
_SAFETENSORS_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
# An array of trained weights shrinks by a few percent. One that is larger than this and shrinks more than that many
# times is there to exhaust memory.
_LARGE, _MOST_SHRUNK = 256 << 20, 100


@dataclasses.dataclass(frozen=True)
class Array:
  """An array of a file.

  Attributes:
    file: path of the file; the prefix of a tensor bundle.
    shape: of the array.
    dtype: as NumPy calls it, or as the file does, if that is none of ours.
    read_raw: reads it, whatever it holds.
    sha256: of its float32 values, if conversion.tsv tells; else empty.
  """

  file: str
  shape: tuple[int, ...]
  dtype: str
  read_raw: Callable[[], np.ndarray]
  sha256: str = ""

  def read(self, name: str, flag: str) -> np.ndarray:
    """The array as float32.

    Args:
      name: of the array in the file, for errors.
      flag: what the file was given with, for errors.
    Raises:
      UserError: it holds something else than floating-point numbers, or one that is not finite.
    """
    if self.dtype not in _FLOATS:
      raise UserError(
        f"{flag}={self.file}: {name} holds {self.dtype} values: weights are {', '.join(_FLOATS)}; give the file of the "
        "model as it was trained"
      )
    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite, which is refused
      value = np.asarray(self.read_raw(), np.float32)
    if value.shape != self.shape:
      raise UserError(f"{flag}={self.file}: {name} is {list(value.shape)}, the file says {list(self.shape)}: damaged")
    if self.sha256 and hashlib.sha256(np.ascontiguousarray(value, "<f4").tobytes()).hexdigest() != self.sha256:
      raise UserError(
        f"{flag}={self.file}: {name} is not what {output_files.CONVERSION} beside it says: the file is damaged; "
        f"restore it, or delete {output_files.CONVERSION} if the weights were changed on purpose"
      )
    is_finite = np.isfinite(value)
    if not is_finite.all():
      place = [int(index[0]) for index in np.nonzero(~is_finite)]
      raise UserError(
        f"{flag}={self.file}: {name} holds {value.size - np.count_nonzero(is_finite)} values that are not finite in "
        f"float32, the first at {place}: the file is damaged, or its training diverged; give another one"
      )
    return value


def check_is_file(path: str, flag: str) -> None:
  """UserError if the path is a pipe or a device, whose reader may wait for ever, or a directory."""
  if files.is_special(path):
    raise UserError(f"{flag}={path}: is no file, but a pipe or a device: give a file")
  if not files.exists(path):
    raise UserError(f"{flag}={path}: no such file")
  if files.is_dir(path):
    raise UserError(f"{flag}={path}: is a directory, not a file: give the directory above it, or a file")


def open_bundle(prefix: str, flag: str) -> dict[str, Array]:
  """The arrays of a TensorFlow checkpoint."""
  directory, base = prefix.rpartition("/")[::2]
  for name in files.listdir(directory or "."):
    if name == f"{base}.index" or name.startswith(f"{base}.data-"):
      check_is_file(files.join(directory, name) if directory else name, flag)
  try:
    reader = tf.train.load_checkpoint(prefix)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
  except (tf.errors.OpError, ValueError) as error:
    raise UserError(f"{prefix}.index: is no TensorFlow checkpoint, or is damaged; give another one") from error

  def read(name: str) -> np.ndarray:
    try:
      return reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, IndexError, RuntimeError) as error:
      raise UserError(f"{prefix}: cannot read {name}, the data file is damaged or missing; copy it again") from error

  return {
    name: Array(prefix, tuple(shape), tf.as_dtype(dtypes[name]).name, lambda name=name: read(name))  # type: ignore[misc]
    for name, shape in shapes.items()
  }


def open_npz(path: str, flag: str) -> dict[str, Array]:
  """The arrays of a .npz file. Objects, which are pickles, are not read."""
  check_is_file(path, flag)
  file = files.open_file(path)
  arrays: dict[str, Array] = {}
  try:
    archive = zipfile.ZipFile(file)
    members = archive.infolist()
    for member in members:
      name = member.filename.removesuffix(".npy")
      if name in arrays:
        raise ValueError(f"has {name!r} twice")
      arrays[name] = _npy(archive, member, path, flag)
    if sum(member.compress_size for member in members) > files.size(path):
      raise ValueError("its arrays overlap")
  except UserError:
    raise
  except Exception as error:  # damaged bytes make zipfile, zlib and NumPy raise errors of a dozen types
    raise _npz_error(path, flag, error) from error
  return arrays


def _npz_error(path: str, flag: str, error: Exception) -> UserError:
  return UserError(f"{flag}={path}: is no .npz file of plain arrays, or is damaged ({error or type(error).__name__})")


def _npy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str, flag: str) -> Array:
  """An array of a .npz file: its header is read now, its values are read when they are asked for."""
  headers: dict[tuple[int, int], Callable[[Any], tuple[Any, ...]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
  }
  with archive.open(member) as file:
    version = np.lib.format.read_magic(file)
    if version not in headers:
      raise ValueError(f"{member.filename} has version {version} of the format")
    shape, _, dtype = headers[version](file)
    start = file.tell()
  if dtype.hasobject:
    raise ValueError(f"{member.filename} holds Python objects, which are pickles")
  size = dtype.itemsize
  for length in shape:
    size *= length
  if start + size != member.file_size:
    raise ValueError(f"{member.filename} has {member.file_size} bytes, its header says {start + size}")
  if member.file_size > max(_LARGE, _MOST_SHRUNK * member.compress_size):
    raise UserError(
      f"{flag}={path}: {member.filename} unpacks {member.compress_size} bytes to {member.file_size}, which no trained "
      "weights do: it is not read"
    )

  def read() -> np.ndarray:
    try:
      with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
    except MemoryError:
      raise
    except Exception as error:
      raise _npz_error(path, flag, error) from error

  return Array(path, tuple(shape), dtype.name, read)


class _Index(msgspec.Struct):
  """model.safetensors.index.json: tensor -> the file that holds it."""

  weight_map: dict[str, json_values.FileName]


def safetensors_in(directory: str, names: list[str], flag: str) -> dict[str, Array] | None:
  """The arrays of a Hugging Face directory: of model.safetensors, or of the parts that its index lists.

  Args:
    directory: the directory.
    names: what is in it.
    flag: what it was given with, for errors.
  Returns: None if there is neither.
  """
  if SAFETENSORS in names:
    return open_safetensors(files.join(directory, SAFETENSORS), flag)
  if INDEX not in names:
    return None
  path = files.join(directory, INDEX)
  check_is_file(path, flag)
  weight_map = files.read_json(path, _Index, "fetch it again").weight_map
  if not weight_map:
    raise UserError(f"{path}: lists no weights; fetch it again")
  arrays: dict[str, Array] = {}
  for part in sorted(set(weight_map.values())):
    if part not in names:
      raise UserError(f"{flag}={directory}: {INDEX} lists {part}, which is not there; fetch it, too")
    found = open_safetensors(files.join(directory, part), flag)
    for name in itertools.chain(arrays.keys() & found.keys(), (n for n in found if weight_map.get(n, part) != part)):
      raise UserError(f"{flag}={directory}: {name} is in {part}, and {INDEX} lists it in {weight_map.get(name)}")
    arrays |= found
  missing = sorted(weight_map.keys() - arrays.keys())
  if missing:
    raise UserError(f"{path}: lists {missing[0]} in {weight_map[missing[0]]}, which does not hold it; fetch both again")
  return arrays


class _Tensor(msgspec.Struct):
  """An entry of the header of a safetensors file."""

  dtype: str
  shape: list[int]
  data_offsets: tuple[int, int]


def open_safetensors(path: str, flag: str) -> dict[str, Array]:
  """The arrays of a .safetensors file; those of a local one are read when they are asked for."""
  from safetensors import SafetensorError, deserialize, safe_open

  check_is_file(path, flag)
  hashes = _recorded_hashes(path.rpartition("/")[0] or ".")
  try:
    # The library checks sizes and offsets. It takes the last of two entries with one name, and reads no bfloat16 into
    # NumPy; so the header is read here, too.
    local = None if files.is_remote(path) else safe_open(path, framework="np")
    with files.open_file(path) as file:
      remote = dict(deserialize(file.read())) if local is None else {}
      header, start = _header(file, path, flag)
  except (SafetensorError, OSError) as error:
    raise UserError(f"{flag}={path}: is no safetensors file, or is damaged ({error}); fetch it again") from error

  def read(name: str, tensor: _Tensor) -> np.ndarray:
    if tensor.dtype != "BF16" and local is not None:
      return local.get_tensor(name)
    if local is None:
      data = bytes(remote[name]["data"])
    else:
      with files.open_file(path) as file:
        file.seek(start + tensor.data_offsets[0])
        data = file.read(tensor.data_offsets[1] - tensor.data_offsets[0])
    return _decoded(data, tensor)

  return {
    name: Array(
      path,
      tuple(tensor.shape),
      _SAFETENSORS_TYPES.get(tensor.dtype, tensor.dtype),
      lambda name=name, tensor=tensor: read(name, tensor),  # type: ignore[misc]
      hashes.get(name, ""),
    )
    for name, tensor in header.items()
  }


def _recorded_hashes(directory: str) -> dict[str, str]:
  """Name -> SHA-256 of the weights that albert.convert wrote to a directory; {} for others, whose files have none."""
  path = files.join(directory, output_files.CONVERSION)
  if not files.exists(path):
    return {}
  with files.open_file(path) as file:
    rows = [line.split("\t") for line in file.read().decode("utf-8", errors="replace").splitlines()]
  if not rows or any(len(row) != 4 or not re.match(r"^[0-9a-f]{64}\Z", row[3]) for row in rows[1:]):
    raise UserError(f"{path}: is not the list that albert.convert wrote: restore it, or delete it")
  return {target: sha256 for _, target, _, sha256 in rows[1:]}


def _header(file: BinaryIO, path: str, flag: str) -> tuple[Mapping[str, _Tensor], int]:
  """The entries of a header that the library has read, and where the data begin."""
  file.seek(0)
  size = int.from_bytes(file.read(8), "little")
  where = f"{flag}={path}: its header"
  values = json_values.parse(where, file.read(size), dict[str, Any], "fetch it again")
  values.pop("__metadata__", None)
  return json_values.convert(where, values, dict[str, _Tensor], "fetch it again"), 8 + size


def _decoded(data: bytes, tensor: _Tensor) -> np.ndarray:
  """A tensor's bytes as an array; the bits of bfloat16 are the upper half of those of float32."""
  if tensor.dtype == "BF16":
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
  return np.frombuffer(data, np.dtype(_SAFETENSORS_TYPES[tensor.dtype]).newbyteorder("<")).reshape(tensor.shape)
