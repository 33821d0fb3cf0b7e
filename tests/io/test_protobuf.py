"""Protocol buffers are encoded and decoded as google.protobuf does."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from albert.io.protobuf import decode_fields, decode_varint, encode_bytes_field, encode_varint


@pytest.mark.parametrize(("value", "encoded"), [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02")])
def test_varints_have_seven_bits_in_each_byte(value: int, encoded: str) -> None:
  assert encode_varint(value).hex() == encoded
  # Decoded from offset 1 on, between two bytes that are not part of it. The second result is the offset of its end.
  assert decode_varint(b"\xff" + bytes.fromhex(encoded) + b"\xff", 1) == (value, 1 + len(encoded) // 2)


def test_a_truncated_varint_is_an_error() -> None:
  with pytest.raises(IndexError):
    decode_varint(b"\x80", 0)


def test_fields_equal_those_of_google_protobuf() -> None:
  # A field of each wire type: 2 is a message whose length takes two bytes, 4 is a varint, and 6 is a double.
  name_part = descriptor_pb2.UninterpretedOption.NamePart(name_part="n" * 200, is_extension=True)
  option = descriptor_pb2.UninterpretedOption(name=[name_part], positive_int_value=300, double_value=0.5)
  message = option.SerializeToString()
  fields = list(decode_fields(message))
  assert b"".join(field.encoded for field in fields) == message
  value_of_field = {field.number: field.value for field in fields}
  assert value_of_field[2] == name_part.SerializeToString()
  assert decode_varint(value_of_field[4], 0) == (300, 2)
  assert len(value_of_field[6]) == 8
  assert encode_bytes_field(2, value_of_field[2]) == fields[0].encoded
