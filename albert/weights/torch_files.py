"""Opens the files that torch.save writes, such as pytorch_model.bin, without PyTorch and without running their code.

Such a file has a pickle, and the storages with the values of the tensors. A pickle is a program that calls functions by
their names. Here it finds only the names that a dictionary of tensors needs, each of which stands for plain data of
this module. Any other name is refused. torch.load(weights_only=True) does the same, but it needs PyTorch, and code got
through it before version 2.6 (CVE-2025-32434).
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.weights.arrays import Array, values_of_bytes

# The classes of storages -> NumPy's name of their type.
_STORAGES = {
  "FloatStorage": "float32",
  "HalfStorage": "float16",
  "BFloat16Storage": "bfloat16",
  "DoubleStorage": "float64",
  "LongStorage": "int64",
  "IntStorage": "int32",
  "BoolStorage": "bool",
  "ByteStorage": "uint8",
}
# The first value of a file in the form that PyTorch wrote before version 1.6: pickles, then the storages.
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_SIZE_BYTES = 8


class _Storage(NamedTuple):
  """The values of one or several tensors: their type, the name of the storage in the file, and their number."""

  dtype: str
  key: str
  size: int

  @property
  def num_bytes(self) -> int:
    return self.size * (2 if self.dtype == "bfloat16" else np.dtype(self.dtype).itemsize)


class _Tensor(NamedTuple):
  """A tensor: where its first value is in the storage, and the distances between its values, counted in values."""

  storage: _Storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


class _Unpickler(pickle.Unpickler):
  """Reads a pickle of tensors. What a name stands for is made anew or immutable, so a pickle cannot change it."""

  def find_class(self, module: str, name: str) -> Any:
    if module == "torch" and name in _STORAGES:
      return _STORAGES[name]
    known = {
      "collections.OrderedDict": OrderedDict,
      "torch._utils._rebuild_tensor_v2": lambda *arguments: _Tensor(*arguments[:4]),
      "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
    }
    if f"{module}.{name}" not in known:
      raise UserError(f"its pickle asks for {f'{module}.{name}'[:100]!r}, which weights do not need")
    return known[f"{module}.{name}"]

  def persistent_load(self, persistent_id: Any) -> _Storage:
    _, dtype, key, _, size, *view = persistent_id
    if any(view) or dtype not in _STORAGES.values():
      raise ValueError(persistent_id)
    return _Storage(dtype, str(key), int(size))


def open_torch_file(path: str, flag: str) -> dict[str, Array]:
  """Opens a file of torch.save that holds a dictionary of tensors. Otherwise like `arrays.open_safetensors`.

  Raises:
    UserError: the file is missing or damaged, or its pickle asks for anything but tensors.
  """
  file: BinaryIO = files.open_file(path)
  if files.is_remote(path):
    with file:
      file = io.BytesIO(file.read())
  remedy = "give the model.safetensors of the same model, which save_pretrained of transformers writes"
  try:
    open_parts = _open_archive if zipfile.is_zipfile(file) else _open_old_file
    tensors, read_storage = open_parts(file)
    for name, tensor in tensors.items():
      if not isinstance(name, str) or not isinstance(tensor, _Tensor):
        raise UserError(f"its entry {str(name)[:100]!r} is not a tensor")
      _check_view(tensor)
  except UserError as error:
    raise UserError(f"{flag}={path}: {error}: {remedy}") from error
  except Exception as error:  # a damaged pickle can raise any
    raise UserError(f"{flag}={path}: is not a file of torch.save, or is damaged: download it again") from error

  def read(name: str) -> np.ndarray:
    storage, offset, shape, strides = tensors[name]
    try:
      values = values_of_bytes(read_storage(storage)[: storage.num_bytes], storage.dtype)
      if len(values) != storage.size:
        raise ValueError(name)
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
      raise UserError(f"{flag}={path}: cannot read {name}, the file is damaged: download it again") from error
    strides_in_bytes = [stride * values.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(values[offset:], shape, strides_in_bytes).copy()

  return {
    name: Array(path, flag, name, tuple(tensor.shape), tensor.storage.dtype, functools.partial(read, name))
    for name, tensor in tensors.items()
  }


def _check_view(tensor: _Tensor) -> None:
  """Raises ValueError if a tensor is not a part of its storage, or has more values than that."""
  if min(tensor.offset, *tensor.shape, *tensor.strides) < 0:
    raise ValueError("a negative number")
  size = math.prod(tensor.shape)
  last = tensor.offset + sum((length - 1) * step for length, step in zip(tensor.shape, tensor.strides, strict=True))
  if size and max(size - 1, last) >= tensor.storage.size:
    raise ValueError("outside of the storage")


def _read_pickle(file: BinaryIO) -> Any:
  """Reads the pickle that begins at the position of the file, and leaves the position at its end."""
  start = file.tell()
  for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
    if opcode.name.endswith("PUT") and int(argument or 0) > count:  # the library would allocate that many entries
      raise ValueError(argument)
  end = file.tell()
  file.seek(start)
  return _Unpickler(io.BytesIO(file.read(end - start))).load()


_Parts = tuple[dict[str, _Tensor], Callable[[_Storage], bytes]]


def _open_archive(file: BinaryIO) -> _Parts:
  """Opens a zip file with data.pkl and a file for each storage."""
  archive = zipfile.ZipFile(file)
  directory = next(name for name in archive.namelist() if name.endswith("data.pkl")).removesuffix("data.pkl")
  if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
    raise ValueError("compressed")
  tensors = _read_pickle(io.BytesIO(archive.read(f"{directory}data.pkl")))
  return tensors, lambda storage: archive.read(f"{directory}data/{storage.key}")


def _open_old_file(file: BinaryIO) -> _Parts:
  """Opens a file in the form before version 1.6: five pickles, then the size and the values of each storage."""
  file.seek(0)
  magic_number, _, system = _read_pickle(file), _read_pickle(file), _read_pickle(file)
  if magic_number != _MAGIC_NUMBER or not system["little_endian"]:
    raise ValueError(magic_number)
  tensors, keys = _read_pickle(file), _read_pickle(file)
  storages = {tensor.storage.key: tensor.storage for tensor in tensors.values() if isinstance(tensor, _Tensor)}
  positions = {}
  for key in keys:
    size = int.from_bytes(file.read(_SIZE_BYTES), "little")
    if size != storages[key].size:
      raise ValueError(key)
    positions[key] = file.tell()
    file.seek(storages[key].num_bytes, io.SEEK_CUR)

  def read_storage(storage: _Storage) -> bytes:
    file.seek(positions[storage.key])
    return file.read(storage.num_bytes)

  return tensors, read_storage
