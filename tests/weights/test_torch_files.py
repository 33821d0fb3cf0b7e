"""Files of torch.save: tensors are read without torch, and no pickle runs code. tests/parity reads those of torch."""

from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.errors import UserError
from albert.weights.torch_files import open_torch_file

VALUES = np.arange(24, dtype=np.float32)
STORAGE = object()


class Call:
  """Is pickled as a call of a function."""

  def __init__(self, function: Any, *arguments: Any):
    self.parts = function, arguments

  def __reduce__(self) -> Any:
    return self.parts


class Pickler(pickle.Pickler):
  def persistent_id(self, obj: Any) -> Any:
    return ("storage", sys.modules["torch"].FloatStorage, "0", "cpu", VALUES.size, None) if obj is STORAGE else None


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
  """Makes modules with the names of torch's that pickles may hold."""
  for module, name in (("torch", "FloatStorage"), ("torch._utils", "_rebuild_tensor_v2"), ("torch", "load")):
    monkeypatch.setitem(sys.modules, module, sys.modules.get(module) or types.ModuleType(module))
    monkeypatch.setattr(sys.modules[module], name, type(name, (), {"__module__": module}), raising=False)


def tensor(offset: int = 0, shape: Any = (4, 6), strides: Any = (6, 1)) -> Call:
  function = sys.modules["torch._utils"]._rebuild_tensor_v2
  return Call(function, STORAGE, offset, shape, strides, False, OrderedDict())


def pickled(values: Any) -> bytes:
  file = io.BytesIO()
  Pickler(file, protocol=2).dump(values)
  return file.getvalue()


def write(path: Path, data: bytes, content: bytes = VALUES.tobytes(), **others: bytes) -> str:
  with zipfile.ZipFile(path, "w") as archive:
    for name, member in {"data.pkl": data, "data/0": content, **others}.items():
      archive.writestr(f"archive/{name}", member)
  return str(path)


def test_tensors_are_views_of_storages(tmp_path):
  tensors = {"whole": tensor(), "part": tensor(7, (2, 3)), "transposed": tensor(0, (6, 4), (1, 6))}
  arrays = open_torch_file(write(tmp_path / "x.bin", pickled(OrderedDict(tensors))), "--x")
  whole = VALUES.reshape(4, 6)
  for name, expected in {"whole": whole, "part": whole[1:3, 1:4], "transposed": whole.T}.items():
    assert arrays[name].shape == expected.shape
    np.testing.assert_array_equal(arrays[name].read(), expected)


def test_the_form_before_version_1_6(tmp_path):
  parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"part": tensor(7, (2, 3))}, ["0"])
  path = tmp_path / "x.bin"
  path.write_bytes(b"".join(map(pickled, parts)) + struct.pack("<q", VALUES.size) + VALUES.tobytes())
  np.testing.assert_array_equal(open_torch_file(str(path), "--x")["part"].read(), VALUES.reshape(4, 6)[1:3, 1:4])
  path.write_bytes(path.read_bytes()[:-4])
  with pytest.raises(UserError, match=r"^--x=.*x\.bin: cannot read part, the file is damaged"):
    open_torch_file(str(path), "--x")["part"].read()


@pytest.mark.parametrize(
  ("make", "asked"),
  [
    (lambda path: Call(os.mkdir, path), r"posix\.mkdir"),
    (lambda path: {"a": Call(getattr, Call(Path, path), "mkdir")}, r"__builtin__\.getattr"),
    (lambda path: Call(sys.modules["torch"].load, path), r"torch\.load"),
  ],
)
@pytest.mark.parametrize("is_archive", [False, True])
def test_a_pickle_with_another_name_is_refused(tmp_path, make, asked, is_archive):
  path, data = tmp_path / "pytorch_model.bin", pickled(make(str(tmp_path / "made")))
  write(path, data) if is_archive else path.write_bytes(data)
  message = rf"--x=.*\.bin: its pickle asks for '({asked})', which weights do not need: give the model\.safetensors"
  with pytest.raises(UserError, match=message):
    open_torch_file(str(path), "--x")
  assert not (tmp_path / "made").exists()


DAMAGED = r"pytorch_model\.bin: is not a file of torch\.save, or is damaged: download it again"


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: pickled({"a": 3}), "its entry 'a' is not a tensor"),
    (lambda: pickled({"model": {"a": tensor()}}), "its entry 'model' is not a tensor"),
    (lambda: pickled({"a": tensor(1)}), DAMAGED),
    (lambda: pickled({"a": tensor(-1, (2,), (1,))}), DAMAGED),
    (lambda: pickled({"a": tensor(6, (2,), (-1,))}), DAMAGED),
    (lambda: pickled({"a": tensor(0, (10**12,), (0,))}), DAMAGED),
    (lambda: pickled({"a": tensor()})[:-9], DAMAGED),
    (lambda: b"\x80\x02}r\xff\xff\xff\x7f.", DAMAGED),  # an entry of the memo that would need 32 GB
    (lambda: b"", DAMAGED),
  ],
)
def test_what_is_no_dictionary_of_tensors_is_refused(tmp_path, make, message):
  with pytest.raises(UserError, match=message):
    open_torch_file(write(tmp_path / "pytorch_model.bin", make()), "--x")


def test_big_endian_numbers_and_damaged_values_are_refused(tmp_path):
  data = pickled({"a": tensor()})
  with pytest.raises(UserError, match="its numbers are not little-endian"):
    open_torch_file(write(tmp_path / "x.bin", data, byteorder=b"big"), "--x")
  with pytest.raises(UserError, match="cannot read a, the file is damaged"):
    open_torch_file(write(tmp_path / "x.bin", data, VALUES.tobytes()[:-4]), "--x")["a"].read()
