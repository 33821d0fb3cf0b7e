"""Files of torch.save: tensors are read without torch, and no pickle runs code. tests/parity reads those of torch."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from albert.errors import UserError
from albert.weights.torch_files import open_torch_file

VALUES = np.arange(24, dtype=np.float32)
WHOLE = VALUES.reshape(4, 6)


def tensor(offset: int = 0, shape: tuple[int, ...] = (4, 6), strides: tuple[int, ...] = (6, 1)) -> bytes:
  """The pickle of a tensor, without its end."""
  numbers = [b"(" + b"".join(b"I%d\n" % number for number in values) + b"t" for values in (shape, strides)]
  storage = b"(S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI24\ntQ"
  function = b"ctorch._utils\n_rebuild_tensor_v2\n("
  return function + storage + b"I%d\n" % offset + b"".join(numbers) + b"I00\nNtR"


def dictionary(**values: bytes) -> bytes:
  return b"(d" + b"".join(b"S'%s'\n%ss" % (name.encode(), value) for name, value in values.items()) + b"."


def write(path: Path, pickled: bytes, content: bytes = VALUES.tobytes()) -> str:
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("archive/data.pkl", pickled)
    archive.writestr("archive/data/0", content)
  return str(path)


def test_tensors_are_views_of_storages(tmp_path):
  pickled = dictionary(whole=tensor(), part=tensor(7, (2, 3)), transposed=tensor(0, (6, 4), (1, 6)))
  arrays = open_torch_file(write(tmp_path / "x.bin", pickled), "--x")
  for name, expected in {"whole": WHOLE, "part": WHOLE[1:3, 1:4], "transposed": WHOLE.T}.items():
    np.testing.assert_array_equal(arrays[name].read(), expected)
    assert arrays[name].shape == expected.shape
  with pytest.raises(UserError, match="cannot read whole, the file is damaged"):
    open_torch_file(write(tmp_path / "x.bin", pickled, VALUES.tobytes()[:-4]), "--x")["whole"].read()


def test_the_form_before_version_1_6(tmp_path):
  header = b"I%d\n.I1001\n.(dS'little_endian'\nI01\ns." % 0x1950A86A20F9469CFC6C
  content = header + dictionary(part=tensor(7, (2, 3))) + b"(lS'0'\na." + struct.pack("<q", 24) + VALUES.tobytes()
  (tmp_path / "x.bin").write_bytes(content)
  read = open_torch_file(str(tmp_path / "x.bin"), "--x")["part"].read
  np.testing.assert_array_equal(read(), WHOLE[1:3, 1:4])


DAMAGED = r"x\.bin: is not a file of torch\.save, or is damaged: download it again"
ASKS = r"x\.bin: its pickle asks for '%s', which weights do not need: give the model\.safetensors"


@pytest.mark.parametrize(
  ("pickled", "message"),
  [
    (b"cposix\nmkdir\n(S'made'\ntR.", ASKS % r"posix\.mkdir"),
    (b"c__builtin__\ngetattr\n(ctorch\nFloatStorage\nS'upper'\ntR.", ASKS % r"__builtin__\.getattr"),
    (b"\x80\x04\x8c\x05torch\x8c\x04load\x93.", ASKS % r"torch\.load"),
    (dictionary(a=b"I3\n"), "its entry 'a' is not a tensor"),
    (dictionary(model=dictionary(a=tensor())[:-1]), "its entry 'model' is not a tensor"),
    (dictionary(a=tensor(1)), DAMAGED),
    (dictionary(a=tensor(-1, (2,), (1,))), DAMAGED),
    (dictionary(a=tensor(6, (2,), (-1,))), DAMAGED),
    (dictionary(a=tensor(0, (10**12,), (0,))), DAMAGED),
    (dictionary(a=tensor())[:-9], DAMAGED),
    (b"\x80\x02}r\xff\xff\xff\x7f.", DAMAGED),  # an entry of the memo that would need 32 GB
    (b"", DAMAGED),
  ],
)
@pytest.mark.parametrize("is_archive", [False, True])
def test_what_is_no_dictionary_of_tensors_is_refused(tmp_path, monkeypatch, pickled, message, is_archive):
  monkeypatch.chdir(tmp_path)
  write(Path("x.bin"), pickled) if is_archive else Path("x.bin").write_bytes(pickled)
  asks = message.startswith(ASKS[:20])
  with pytest.raises(UserError, match=message if is_archive or asks else DAMAGED):
    open_torch_file("x.bin", "--x")
  assert not Path("made").exists()
