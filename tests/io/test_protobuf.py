"""The wire format against Google's protobuf library."""

from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.internal import decoder, encoder

from albert.io import protobuf

VALUES = [0, 1, 127, 128, 300, 16383, 16384, 2**21, 2**32 - 1, 2**63 - 1]


def google_varint(value: int) -> bytes:
  written: list[bytes] = []
  encoder._EncodeVarint(written.append, value)
  return b"".join(written)


@pytest.mark.parametrize("value", VALUES)
def test_varints_are_those_of_the_library(value):
  encoded = protobuf.encode_varint(value)
  assert encoded == google_varint(value)
  assert protobuf.decode_varint(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))
  assert decoder._DecodeVarint(encoded, 0) == (value, len(encoded))


@pytest.mark.parametrize("values", [VALUES, VALUES[::-1], [5], [2**40, 0]])
def test_many_varints_at_once_are_the_same_bytes(values):
  encoded, ends = protobuf.encode_varints(np.array(values, np.int64))
  varints = [google_varint(value) for value in values]
  assert encoded.tobytes() == b"".join(varints)
  assert ends.tolist() == np.cumsum([len(varint) for varint in varints]).tolist()


def test_fields_of_a_message():
  message = descriptor_pb2.FieldDescriptorProto(name="n" * 200, number=300, type_name="")
  fields = list(protobuf.decode_fields(message.SerializeToString()))
  assert [(number, value) for number, value, _ in fields] == [(1, b"n" * 200), (3, google_varint(300)), (6, b"")]
  assert b"".join(whole for _, _, whole in fields) == message.SerializeToString()
  assert fields[0][2] == protobuf.encode_bytes_field(1, b"n" * 200)


def test_fields_of_fixed_size():
  options = descriptor_pb2.UninterpretedOption(double_value=1.5, identifier_value="x")
  assert [number for number, _, _ in protobuf.decode_fields(options.SerializeToString())] == [3, 6]
  assert list(protobuf.decode_fields(b"\x15abcd\x08\x01")) == [(2, b"abcd", b"\x15abcd"), (1, b"\x01", b"\x08\x01")]
