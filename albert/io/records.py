"""Reads and writes TFRecord files of tf.train.Example messages without importing TensorFlow.

The formats are TensorFlow's. A file is written under a staging name and renamed when it is complete. Both checksums of
each record are checked when it is read.

Legend: B records of a batch, L values of a feature.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import io
import itertools
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, cast

import google_crc32c
import numpy as np

from albert.errors import UserError
from albert.io import files
from albert.io.protobuf import decode_fields, decode_varints, encode_varint, encode_varints, fields_by_number

_HEADER = struct.Struct("<QI")  # length of the record, checksum of these eight bytes
_FOOTER = struct.Struct("<I")  # checksum of the record
_GZIP_MAGIC = b"\x1f\x8b"
_FLUSH_BYTES = 1 << 20
_GZIP_LEVEL = 6

# Numbers of the fields of tf.train.Feature (tensorflow/core/example/feature.proto); field 1 is a list of bytes.
_FLOAT_LIST, _INT64_LIST = 2, 3


def decode_example(record: bytes, source: str = "") -> dict[str, np.ndarray]:
  """Parses one tf.train.Example.

  Args:
    record: a serialized message.
    source: the file and the number of the record, for errors.

  Returns:
    Name -> array [L] of int64, float32 or bytes (dtype object).

  Raises:
    UserError: the record is not a tf.train.Example.
  """
  try:
    entries = [entry for field in decode_fields(record) for entry in decode_fields(field.value)]
    parts = [fields_by_number(entry.value) for entry in entries]
    return {part[1].decode("utf-8"): _decode_feature(part[2]) for part in parts}
  except (IndexError, KeyError, ValueError) as error:
    problem = f"{source or 'a record'}: its {len(record)} bytes are not a tf.train.Example"
    raise UserError(f"{problem}: give files that data preparation made") from error


def _decode_feature(feature: bytes) -> np.ndarray:
  """Decodes a tf.train.Feature. Its numbers may be packed, as TensorFlow writes them, or fields of their own."""
  kind, content = next(((field.number, field.value) for field in decode_fields(feature)), (_INT64_LIST, b""))
  values = [field.value for field in decode_fields(content)]
  if kind == _INT64_LIST:
    return decode_varints(b"".join(values)).view(np.int64)
  if kind == _FLOAT_LIST:
    return np.frombuffer(b"".join(values), "<f4").astype(np.float32)
  array = np.empty(len(values), object)
  array[:] = values
  return array


@functools.lru_cache(maxsize=65536)
def _feature_prefix(name: str, kind: str, num_bytes: int) -> bytes:
  """The bytes before the packed values of a feature: keys and lengths of the messages that contain them."""
  # 0x0a, 0x12 and 0x1a are the keys of the fields 1, 2 and 3; a length follows each. The messages are encoded from the
  # innermost to the outermost: the list of values, the Feature, and the map's entry of the name and the Feature.
  packed = b"\x0a" + encode_varint(num_bytes) if num_bytes else b""
  values = (b"\x12" if kind == "f" else b"\x1a") + encode_varint(len(packed) + num_bytes) + packed
  key = name.encode("utf-8")
  entry = b"\x0a" + encode_varint(len(key)) + key + b"\x12" + encode_varint(len(values) + num_bytes) + values
  return b"\x0a" + encode_varint(len(entry) + num_bytes) + entry


def _packed_rows(values: np.ndarray) -> list[bytes]:
  """Encodes each row of an array [B, L] as packed values: float32 in 4 bytes each, integers as varints."""
  num_rows, width = values.shape
  # The bytes of all rows, and where each row starts and the last one ends.
  if values.dtype.kind == "f":
    encoded, bounds = values.astype("<f4").tobytes(), np.arange(num_rows + 1) * (4 * width)
  elif values.dtype.kind == "b" or (values.min(initial=0) >= 0 and values.max(initial=0) < 128):  # one byte for each
    encoded, bounds = values.astype(np.uint8).tobytes(), np.arange(num_rows + 1) * width
  else:
    is_negative = values.min(initial=0) < 0  # the varint of a negative number is that of its two's complement
    varints, ends = encode_varints((values.astype(np.int64).view(np.uint64) if is_negative else values).ravel())
    encoded, bounds = varints.tobytes(), np.concatenate([[0], ends[width - 1 :: width]])
  return [encoded[start:end] for start, end in itertools.pairwise(bounds.tolist())]


def encode_batch(features: Mapping[str, np.ndarray]) -> list[bytes]:
  """Serializes B examples of the same shape at once, as tf.train.Example. Equal features always give equal bytes.

  Args:
    features: one or more names -> array [B, L]. L may differ between features. Integers and booleans are stored as
      int64, floats as float32.

  Returns:
    B serialized messages.

  Raises:
    TypeError: an array has another dtype.
  """
  columns: list[list[bytes]] = []
  for name in sorted(features):  # the order in which protobuf writes a map deterministically
    values = features[name]
    if values.dtype.kind not in "iubf":
      raise TypeError(f"feature {name}: no TFRecord type for dtype {values.dtype}")
    packed = _packed_rows(values)
    columns += [[_feature_prefix(name, values.dtype.kind, len(data)) for data in packed], packed]
  bodies = map(b"".join, zip(*columns, strict=True))
  return [b"\x0a" + encode_varint(len(body)) + body for body in bodies]


def _masked_crc(data: bytes) -> int:
  """The TFRecord format's checksum: CRC-32C, rotated by 15 bits, plus a constant."""
  crc = google_crc32c.value(data)
  return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(maxsize=4096)
def _encode_header(length: int) -> bytes:
  return _HEADER.pack(length, _masked_crc(struct.pack("<Q", length)))


class _HashingFile(io.RawIOBase):
  """Reads or writes a file, and counts and hashes the bytes."""

  def __init__(self, file: BinaryIO):
    self._file = file
    self.num_bytes = 0
    self.sha256 = hashlib.sha256()

  def readable(self) -> bool:
    return True

  def _add(self, data: bytes) -> None:
    self.sha256.update(data)
    self.num_bytes += len(data)

  def readinto(self, buffer: Any) -> int:
    data = self._file.read(len(buffer))
    buffer[: len(data)] = data
    self._add(data)
    return len(data)

  def write(self, data: Any) -> int:
    self._file.write(data)
    self._add(data)
    return len(data)


class RecordWriter(contextlib.ExitStack):
  """Writes a TFRecord file; a context manager.

  The file is written under a staging name. When the context ends it is renamed to `path`, or removed after an error.
  Equal records give equal files: a GZIP header has neither name nor time.

  Args:
    path: local or remote.
    compress: whether the file is compressed with GZIP.

  Attributes:
    num_records: number of records written.
    num_bytes: size of the file; known after the context.
    sha256: SHA-256 of the file in hexadecimal digits; known after the context.

  Raises:
    UserError: the path or its permissions are wrong.
    RunError: the disk failed.
  """

  def __init__(self, path: str, *, compress: bool = False):
    self.num_records = 0
    self.num_bytes = 0
    self.sha256 = ""
    super().__init__()
    self._hashing = _HashingFile(self.enter_context(files.write_whole(path)))
    self._file: Any = self._hashing
    if compress:
      self._file = gzip.GzipFile("", "wb", _GZIP_LEVEL, fileobj=cast("Any", self._hashing), mtime=0)
    self._pending: list[bytes] = []
    self._pending_bytes = 0
    self.push(self._finish)

  def write(self, record: bytes) -> None:
    """Adds one record."""
    self._pending += (_encode_header(len(record)), record, _FOOTER.pack(_masked_crc(record)))
    self._pending_bytes += len(record)
    self.num_records += 1
    if self._pending_bytes >= _FLUSH_BYTES:
      self._flush()

  def _flush(self) -> None:
    self._file.write(b"".join(self._pending))
    self._pending.clear()
    self._pending_bytes = 0

  def _finish(self, kind: type[BaseException] | None, *error: object) -> None:
    if kind is None:
      self._flush()
      self._file.close()
      self.num_bytes = self._hashing.num_bytes
      self.sha256 = self._hashing.sha256.hexdigest()


def _is_gzip(start: bytes) -> bool:
  # The first bytes of an uncompressed file are the length of a record, which may happen to equal GZIP's magic number.
  # Then a correct checksum of the length shows that the file is uncompressed.
  is_plain = len(start) == _HEADER.size and start == _encode_header(_HEADER.unpack(start)[0])
  return start.startswith(_GZIP_MAGIC) and not is_plain


def is_gzip(path: str) -> bool:
  """Whether a TFRecord file is compressed with GZIP. Opens the file."""
  with files.open_file(path) as file:
    return _is_gzip(file.read(_HEADER.size))


def _damage_error(path: str, index: int, reason: str) -> UserError:
  return UserError(f"{path}: record {index} (counted from 0) is damaged: {reason}: make it again or restore a copy")


def read_records(path: str) -> Iterator[bytes]:
  """Yields the records of a TFRecord file. Whether it is compressed with GZIP is recognized by its first bytes.

  Args:
    path: local or remote.

  Raises:
    UserError: the file ends within a record, or a checksum is wrong. The error names the file and the record.
  """
  with files.open_file(path) as file:
    start = file.read(_HEADER.size)
    file.seek(0)
    yield from _iterate_records(gzip.GzipFile(fileobj=file) if _is_gzip(start) else file, path)


def _iterate_records(stream: Any, path: str) -> Iterator[bytes]:
  """Yields the records of an open file. `path` is used in errors."""
  for index in itertools.count():
    try:
      header = stream.read(_HEADER.size)
      if not header:
        return
      yield _read_body(stream, header, path, index)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
      raise _damage_error(path, index, f"its GZIP stream is broken ({error})") from error


def _read_body(stream: Any, header: bytes, path: str, index: int) -> bytes:
  if len(header) < _HEADER.size:
    raise _damage_error(path, index, "the file ends inside its header")
  length = _HEADER.unpack(header)[0]
  if header != _encode_header(length):
    if index == 0 and 0 not in header:  # the length of a record has zeros in its higher bytes
      raise UserError(
        f"{path}: is text: make shards of it first, with python -m data_prep.create_pretraining_data "
        f"--input_file={path} --output_dir=shards and the vocabulary as --spm_model_file"
      )
    raise _damage_error(path, index, "the checksum of its length is wrong")
  body = stream.read(length + _FOOTER.size)
  if len(body) < length + _FOOTER.size:
    raise _damage_error(path, index, f"the file ends after {len(body)} of its {length + _FOOTER.size} bytes")
  data = body[:length]
  if _FOOTER.unpack(body[length:])[0] != _masked_crc(data):
    raise _damage_error(path, index, "the checksum of its data is wrong")
  return data


class RecordFileInfo(NamedTuple):
  """Description of a TFRecord file.

  Attributes:
    num_records: number of records.
    num_bytes: size of the file.
    sha256: SHA-256 of the file in hexadecimal digits.
    is_gzip: whether it is compressed with GZIP.
  """

  num_records: int
  num_bytes: int
  sha256: str
  is_gzip: bool


def scan(path: str) -> RecordFileInfo:
  """Reads a TFRecord file once to count its records, check their checksums and hash the file.

  Raises:
    UserError: the file ends within a record, or a checksum is wrong.
  """
  with files.open_file(path) as file:
    hashing = _HashingFile(file)
    buffered = io.BufferedReader(hashing, _FLUSH_BYTES)
    is_gzip = _is_gzip(buffered.peek(_HEADER.size)[: _HEADER.size])
    stream = gzip.GzipFile(fileobj=buffered, mode="rb") if is_gzip else buffered
    num_records = sum(1 for _ in _iterate_records(stream, path))
  return RecordFileInfo(num_records, hashing.num_bytes, hashing.sha256.hexdigest(), is_gzip)
