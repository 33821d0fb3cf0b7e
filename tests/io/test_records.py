"""TFRecord files, compared with TensorFlow's reader and writer; damaged files."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.io import records

names = st.text(min_size=1, max_size=8)
integers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6).map(lambda x: np.array(x, np.int64))
floats = st.lists(st.floats(width=32, allow_nan=False), max_size=6).map(lambda x: np.array(x, np.float32))
byte_strings = st.lists(st.binary(max_size=5), max_size=4).map(lambda x: np.array([*x, b""], object)[: len(x)])


def tf_example(features: dict[str, np.ndarray]) -> tf.train.Example:
  example = tf.train.Example()
  for name, values in features.items():
    feature = example.features.feature[name]
    if values.dtype.kind == "i":
      feature.int64_list.value.extend(values.tolist())
    elif values.dtype.kind == "f":
      feature.float_list.value.extend(values.tolist())
    else:
      feature.bytes_list.value.extend(values.tolist())
  return example


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, st.one_of(integers, floats, byte_strings), max_size=5))
def test_example_interoperates_with_tensorflow(features: dict[str, np.ndarray]) -> None:
  encoded = records.encode_example(features)
  parsed = tf.train.Example.FromString(encoded)
  for name, values in features.items():
    kind = {"i": "int64_list", "f": "float_list", "O": "bytes_list"}[values.dtype.kind]
    assert list(getattr(parsed.features.feature[name], kind).value) == values.tolist()
  decoded = records.decode_example(tf_example(features).SerializeToString())
  assert set(decoded) == set(features)
  for name, values in features.items():
    assert decoded[name].tolist() == values.tolist()
    if values.size:
      assert decoded[name].dtype == values.dtype
  assert records.encode_example(dict(reversed(features.items()))) == encoded


def test_booleans_are_encoded_and_complex_numbers_are_refused() -> None:
  record = records.encode_example({"mask": np.array([True, False])})
  assert records.decode_example(record)["mask"].tolist() == [1, 0]
  with pytest.raises(TypeError, match="feature x: no TFRecord type for dtype complex128"):
    records.encode_example({"x": np.array([1j])})


def test_decoding_bytes_that_are_no_example_is_an_error() -> None:
  with pytest.raises(UserError, match=r"a record: its 4 bytes are not a tf\.train\.Example"):
    records.decode_example(b"\xff\xff\xff\xff")


limits = st.sampled_from([1, 127, 128, 16_383, 16_384, 2**21, 2**32, 2**62])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 300), limits, st.integers(0, 1000))
def test_a_batch_equals_its_examples_encoded_one_by_one(num_rows: int, width: int, limit: int, seed: int) -> None:
  rng = np.random.default_rng(seed)
  features = {
    "numbers": rng.integers(0, limit, (num_rows, width), endpoint=True) * rng.integers(0, 2, (num_rows, width)),
    "words": rng.integers(0, min(limit, 65_535), (num_rows, 3)).astype(np.uint16),
    "mask": rng.random((num_rows, width)) < 0.5,
    "weights": rng.random((num_rows, 2)),
    "label": rng.integers(0, 2, (num_rows, 1)),
  }
  batch = records.encode_batch(features)
  rows = [{name: values[row] for name, values in features.items()} for row in range(num_rows)]
  assert batch == [records.encode_example(row) for row in rows]


@pytest.mark.parametrize(
  ("values", "message"),
  [
    (np.array([[1, -1]]), r"feature x: a negative value \(-1\)"),
    (np.array([1, 2]), "feature x: expected a .B, L. array"),
    (np.array([[b"x"]]), "feature x: expected a .B, L. array"),
  ],
)
def test_a_batch_with_a_bad_array_is_an_error(values: np.ndarray, message: str) -> None:
  with pytest.raises(ValueError, match=message):
    records.encode_batch({"x": values})


RECORDS = [b"", b"x", b"some bytes" * 10, bytes(range(40))]


def write(path: Path, compress: bool = False) -> records.RecordWriter:
  with records.RecordWriter(str(path), compress=compress) as writer:
    for record in RECORDS:
      writer.write(record)
  return writer


@pytest.mark.parametrize("compress", [False, True])
def test_tensorflow_reads_our_files(tmp_path: Path, compress: bool) -> None:
  writer = write(tmp_path / "file", compress)
  dataset = tf.data.TFRecordDataset(str(tmp_path / "file"), compression_type="GZIP" if compress else "")
  assert list(dataset.as_numpy_iterator()) == RECORDS
  data = (tmp_path / "file").read_bytes()
  assert (writer.num_records, writer.num_bytes) == (4, len(data))
  assert writer.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_we_read_tensorflows_files(tmp_path: Path, compression: str) -> None:
  path = str(tmp_path / "file")
  with tf.io.TFRecordWriter(path, options=compression) as writer:
    for record in RECORDS:
      writer.write(record)
  assert list(records.read_records(path)) == RECORDS
  assert records.scan(path).num_records == 4


def test_gzip_files_of_equal_records_are_equal(tmp_path: Path) -> None:
  hashes = {write(tmp_path / name, compress=True).sha256 for name in ("one", "another")}
  assert len(hashes) == 1
  header = (tmp_path / "one").read_bytes()[:10]
  assert header[3] == 0  # no name
  assert header[4:8] == bytes(4)  # no time
  assert b"".join(RECORDS[2:3]) in gzip.decompress((tmp_path / "one").read_bytes())


def test_long_files_are_written_in_pieces(tmp_path: Path) -> None:
  record = bytes(1 << 18)
  with records.RecordWriter(str(tmp_path / "file")) as writer:
    for _ in range(9):
      writer.write(record)
  assert writer.num_bytes == 9 * (len(record) + 16)
  assert sum(1 for _ in tf.data.TFRecordDataset(str(tmp_path / "file"))) == 9


def _write_and_fail(path: Path) -> None:
  with records.RecordWriter(str(path)) as writer:
    writer.write(b"x")
    raise RuntimeError("stop")


def test_a_failed_writer_leaves_no_file_and_keeps_the_earlier_one(tmp_path: Path) -> None:
  (tmp_path / "file").write_bytes(b"before")
  with pytest.raises(RuntimeError, match="stop"):
    _write_and_fail(tmp_path / "file")
  assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"before")]


def _read(path: Path) -> list[bytes] | str:
  """Returns the records, or the error message."""
  try:
    return list(records.read_records(str(path)))
  except UserError as error:
    return str(error)


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path, compress: bool) -> None:
  path = tmp_path / "file"
  write(path, compress)
  data = path.read_bytes()
  num_harmless = 0
  for offset in range(len(data)):
    path.write_bytes(data[:offset] + bytes([data[offset] ^ 16]) + data[offset + 1 :])
    result = _read(path)
    if isinstance(result, str):
      assert result.startswith(f"{path}: record ")
      assert "(counted from 0) is damaged" in result
    else:
      assert result == RECORDS
      num_harmless += 1
  # A flipped bit is harmless only in the header of a GZIP file, in the bytes for its time and its compression.
  assert num_harmless <= (6 if compress else 0)


@pytest.mark.parametrize("compress", [False, True])
def test_every_cut_is_found_unless_between_records(tmp_path: Path, compress: bool) -> None:
  path = tmp_path / "file"
  write(path, compress)
  data = path.read_bytes()
  ends = np.cumsum([0] + [len(record) + 16 for record in RECORDS]).tolist()
  for offset in range(len(data)):
    path.write_bytes(data[:offset])
    result = _read(path)
    if offset == 0 or (offset in ends and not compress):
      assert result == RECORDS[: ends.index(offset)]
    else:
      assert "(counted from 0) is damaged" in result


@pytest.mark.parametrize(
  ("offset", "message"),
  [
    (0, "record 0 .* the checksum of its length"),
    (16 + 17 + 3, "record 2 .* the checksum of its length"),
    (16 + 17 + 12 + 5, "record 2 .* the checksum of its data"),
  ],
)
def test_damage_names_file_and_record(tmp_path: Path, offset: int, message: str) -> None:
  path = tmp_path / "file"
  write(path)
  data = bytearray(path.read_bytes())
  data[offset] ^= 1
  path.write_bytes(bytes(data))
  with pytest.raises(UserError, match=f"{path}: {message}"):
    list(records.read_records(str(path)))


def test_truncation_names_record_and_bytes(tmp_path: Path) -> None:
  path = tmp_path / "file"
  write(path)
  data = path.read_bytes()
  path.write_bytes(data[:-1])
  with pytest.raises(UserError, match=r"record 3 .* the file ends after 43 of its 44 bytes"):
    list(records.read_records(str(path)))
  path.write_bytes(data + b"more")
  with pytest.raises(UserError, match=r"record 4 .* the file ends inside its header"):
    list(records.read_records(str(path)))


def test_a_length_that_looks_like_gzip(tmp_path: Path) -> None:
  """A record of 0x8b1f bytes makes a file that starts with GZIP's magic number."""
  record = bytes(0x8B1F)
  with records.RecordWriter(str(tmp_path / "file")) as writer:
    writer.write(record)
  assert (tmp_path / "file").read_bytes()[:2] == b"\x1f\x8b"
  assert list(records.read_records(str(tmp_path / "file"))) == [record]


def test_the_bytes_of_an_empty_record(tmp_path: Path) -> None:
  """A record is its length as uint64, the masked CRC-32C of the length, the data, and the masked CRC-32C of these."""
  with records.RecordWriter(str(tmp_path / "file")) as writer:
    writer.write(b"")
  crc_of_eight_zeros = 0x8C28B28A  # CRC-32C of eight zero bytes
  masked = (((crc_of_eight_zeros >> 15) | (crc_of_eight_zeros << 17)) + 0xA282EAD8) % 2**32
  assert (tmp_path / "file").read_bytes() == struct.pack("<QII", 0, masked, 0xA282EAD8)
