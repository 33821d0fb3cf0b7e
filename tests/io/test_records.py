"""TFRecord files are compatible with TensorFlow's reader and writer, and any damage to a file is found."""

from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from albert.errors import UserError
from albert.io import records
from albert.io.protobuf import encode_bytes_field, encode_varint
from tests.synthetic import encode_example


def _array_of_bytes(items: list[bytes]) -> np.ndarray:
  array = np.empty(len(items), object)
  array[:] = items
  return array


names = st.text(min_size=1, max_size=8)
integers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6).map(lambda items: np.array(items, np.int64))
floats = st.lists(st.floats(width=32, allow_nan=False), max_size=6).map(lambda items: np.array(items, np.float32))
byte_strings = st.lists(st.binary(max_size=5), max_size=4).map(_array_of_bytes)


def make_tf_example(features: dict[str, np.ndarray]) -> tf.train.Example:
  example = tf.train.Example()
  for name, values in features.items():
    feature = example.features.feature[name]
    if values.dtype.kind in "iub":
      feature.int64_list.value.extend(values.astype(np.int64).tolist())
    elif values.dtype.kind == "f":
      feature.float_list.value.extend(values.tolist())
    else:
      feature.bytes_list.value.extend(values.tolist())
  return example


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, st.one_of(integers, floats, byte_strings), max_size=5))
def test_we_read_tensorflows_examples(features: dict[str, np.ndarray]) -> None:
  decoded = records.decode_example(make_tf_example(features).SerializeToString())
  assert set(decoded) == set(features)
  for name, values in features.items():
    assert decoded[name].tolist() == values.tolist()
    if values.size:
      assert decoded[name].dtype == values.dtype


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(names, st.one_of(integers, floats), min_size=1, max_size=5))
def test_tensorflow_reads_our_examples(features: dict[str, np.ndarray]) -> None:
  encoded = encode_example(features)
  parsed = tf.train.Example.FromString(encoded)
  for name, values in features.items():
    list_name = {"i": "int64_list", "f": "float_list"}[values.dtype.kind]
    assert list(getattr(parsed.features.feature[name], list_name).value) == values.tolist()
  assert encode_example(dict(reversed(features.items()))) == encoded


def test_complex_numbers_are_refused() -> None:
  with pytest.raises(TypeError, match="feature x: no TFRecord type for dtype complex128"):
    encode_example({"x": np.array([1j])})


def test_decoding_bytes_that_are_no_example_is_an_error() -> None:
  with pytest.raises(UserError, match=r"a record: its 4 bytes are not a tf\.train\.Example"):
    records.decode_example(b"\xff\xff\xff\xff")


def test_numbers_that_are_not_packed_are_read() -> None:
  """Protocol buffers allow both forms. TensorFlow packs them, but other writers may not."""
  feature = encode_bytes_field(3, b"\x08\x05" + b"\x08" + encode_varint(300))  # field 1, twice
  entry = encode_bytes_field(1, b"x") + encode_bytes_field(2, feature)
  record = encode_bytes_field(1, encode_bytes_field(1, entry))
  assert list(tf.train.Example.FromString(record).features.feature["x"].int64_list.value) == [5, 300]
  assert records.decode_example(record)["x"].tolist() == [5, 300]


# The length of a varint depends on its value, with steps at powers of 128.
largest_values = st.sampled_from([1, 127, 128, 16_383, 16_384, 2**21, 2**32, 2**62])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 300), largest_values, st.integers(0, 1000))
def test_a_batch_has_the_bytes_of_tensorflows_examples(num_rows: int, width: int, largest: int, seed: int) -> None:
  rng = np.random.default_rng(seed)
  features = {
    "numbers": rng.integers(0, largest, (num_rows, width), endpoint=True) * rng.integers(0, 2, (num_rows, width)),
    "words": rng.integers(0, min(largest, 65_535), (num_rows, 3)).astype(np.uint16),
    "mask": rng.random((num_rows, width)) < 0.5,
    "weights": rng.random((num_rows, 2)),
    "label": rng.integers(0, 2, (num_rows, 1)),
  }
  rows = [{name: values[row] for name, values in features.items()} for row in range(num_rows)]
  assert records.encode_batch(features) == [make_tf_example(row).SerializeToString(deterministic=True) for row in rows]


RECORDS = [b"", b"x", b"some bytes" * 10, bytes(range(40))]
# In a file, 12 bytes are before the data of a record (its length and the checksum of the length), and 4 bytes are after
# them (the checksum of the data).
HEADER_BYTES, FOOTER_BYTES = 12, 4
OVERHEAD_BYTES = HEADER_BYTES + FOOTER_BYTES


def write_records(path: Path, compress: bool = False) -> records.RecordWriter:
  with records.RecordWriter(str(path), compress=compress) as writer:
    for record in RECORDS:
      writer.write(record)
  return writer


@pytest.mark.parametrize("compress", [False, True])
def test_tensorflow_reads_our_files(tmp_path: Path, compress: bool) -> None:
  writer = write_records(tmp_path / "file", compress)
  dataset = tf.data.TFRecordDataset(str(tmp_path / "file"), compression_type="GZIP" if compress else "")
  assert list(dataset.as_numpy_iterator()) == RECORDS
  content = (tmp_path / "file").read_bytes()
  assert (writer.num_records, writer.num_bytes) == (4, len(content))
  assert writer.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("compression", ["", "GZIP"])
def test_we_read_tensorflows_files(tmp_path: Path, compression: str) -> None:
  path = str(tmp_path / "file")
  with tf.io.TFRecordWriter(path, options=compression) as writer:
    for record in RECORDS:
      writer.write(record)
  assert list(records.read_records(path)) == RECORDS
  assert records.scan(path).num_records == 4


def test_gzip_files_of_equal_records_are_equal(tmp_path: Path) -> None:
  hashes = {write_records(tmp_path / name, compress=True).sha256 for name in ("one", "another")}
  assert len(hashes) == 1
  header = (tmp_path / "one").read_bytes()[:10]
  assert header[3] == 0  # no name
  assert header[4:8] == bytes(4)  # no time
  assert RECORDS[2] in gzip.decompress((tmp_path / "one").read_bytes())


def test_files_longer_than_the_buffer_are_written(tmp_path: Path) -> None:
  record = bytes(1 << 18)
  with records.RecordWriter(str(tmp_path / "file")) as writer:
    for _ in range(9):
      writer.write(record)
  assert writer.num_bytes == 9 * (len(record) + OVERHEAD_BYTES)
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


def _records_or_error(path: Path) -> list[bytes] | str:
  try:
    return list(records.read_records(str(path)))
  except UserError as error:
    return str(error)


def with_flipped_bit(content: bytes, offset: int) -> bytes:
  return content[:offset] + bytes([content[offset] ^ 16]) + content[offset + 1 :]


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path, compress: bool) -> None:
  path = tmp_path / "file"
  write_records(path, compress)
  content = path.read_bytes()
  num_harmless = 0
  for offset in range(len(content)):
    path.write_bytes(with_flipped_bit(content, offset))
    records_or_error = _records_or_error(path)
    if isinstance(records_or_error, str):
      assert records_or_error.startswith(f"{path}: record ")
      assert "(counted from 0) is damaged" in records_or_error
    else:
      assert records_or_error == RECORDS
      num_harmless += 1
  # A flipped bit is harmless only in 6 bytes of the header of a GZIP file: its time (4 bytes), its compression level,
  # and its operating system.
  assert num_harmless <= (6 if compress else 0)


@pytest.mark.parametrize("compress", [False, True])
def test_a_file_that_was_cut_inside_a_record_is_refused(tmp_path: Path, compress: bool) -> None:
  path = tmp_path / "file"
  write_records(path, compress)
  content = path.read_bytes()
  ends = np.cumsum([0] + [len(record) + OVERHEAD_BYTES for record in RECORDS]).tolist()  # offsets between records
  for size in range(len(content)):
    path.write_bytes(content[:size])
    records_or_error = _records_or_error(path)
    if size == 0 or (size in ends and not compress):
      assert records_or_error == RECORDS[: ends.index(size)]
    else:
      assert "(counted from 0) is damaged" in records_or_error


START_OF_RECORD_2 = len(RECORDS[0]) + OVERHEAD_BYTES + len(RECORDS[1]) + OVERHEAD_BYTES


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (lambda content: with_flipped_bit(content, 0), "record 0 .* the checksum of its length"),
    (lambda content: with_flipped_bit(content, START_OF_RECORD_2 + 3), "record 2 .* the checksum of its length"),
    (
      lambda content: with_flipped_bit(content, START_OF_RECORD_2 + HEADER_BYTES + 5),
      "record 2 .* the checksum of its data",
    ),
    # 40 bytes of data, and the checksum of 4 bytes.
    (lambda content: content[:-1], "record 3 .* the file ends after 43 of its 44 bytes"),
    (
      lambda content: b"They drank the pub dry.",
      "is text: .* python -m data_prep.create_pretraining_data --input_file=",
    ),
    (lambda content: content + b"more", "record 4 .* the file ends inside its header"),
  ],
)
def test_an_error_names_the_damaged_record(tmp_path: Path, damage: Callable[[bytes], bytes], message: str) -> None:
  path = tmp_path / "file"
  write_records(path)
  path.write_bytes(damage(path.read_bytes()))
  with pytest.raises(UserError, match=f"{path}: {message}"):
    list(records.read_records(str(path)))


def test_a_file_whose_first_length_looks_like_gzip_is_read(tmp_path: Path) -> None:
  """If the first record has 0x8b1f bytes, the file starts with GZIP's magic number."""
  record = bytes(0x8B1F)
  with records.RecordWriter(str(tmp_path / "file")) as writer:
    writer.write(record)
  assert (tmp_path / "file").read_bytes()[:2] == b"\x1f\x8b"
  assert list(records.read_records(str(tmp_path / "file"))) == [record]


def test_an_empty_record_has_the_bytes_of_the_tfrecord_format(tmp_path: Path) -> None:
  """The format: the length as uint64, the masked CRC-32C of the length, the data, and the masked CRC-32C of the data.

  A CRC is masked by rotating it by 15 bits and adding 0xA282EAD8.
  """
  with records.RecordWriter(str(tmp_path / "file")) as writer:
    writer.write(b"")
  crc_of_length = 0x8C28B28A  # of eight zero bytes
  masked_crc_of_length = (((crc_of_length >> 15) | (crc_of_length << 17)) + 0xA282EAD8) % 2**32
  masked_crc_of_data = 0xA282EAD8  # the CRC of no bytes is 0
  assert (tmp_path / "file").read_bytes() == struct.pack("<QII", 0, masked_crc_of_length, masked_crc_of_data)
