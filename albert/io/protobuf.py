"""The wire format of protocol buffers, as far as the project reads and writes it without generated classes.

See https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple


class Field(NamedTuple):
  """One field of a message.

  Attributes:
    number: the field's number in the message definition.
    value: its bytes without key and length; of a varint, the varint itself.
    encoded: the whole field, key and length included.
  """

  number: int
  value: bytes
  encoded: bytes


@functools.lru_cache(maxsize=65536)
def encode_varint(value: int) -> bytes:
  """Encodes an integer >= 0 as a varint: seven bits a byte, lowest first; the high bit marks all but the last byte."""
  encoded = bytearray()
  while value > 0x7F:
    encoded.append(value & 0x7F | 0x80)
    value >>= 7
  encoded.append(value)
  return bytes(encoded)


def decode_varint(message: bytes, start: int) -> tuple[int, int]:
  """Decodes the varint at message[start:].

  Returns:
    Its value, and the index of the byte after it.

  Raises:
    IndexError: the message ends within the varint.
  """
  value = shift = 0
  while True:
    byte = message[start]
    start += 1
    value |= (byte & 0x7F) << shift
    if byte < 0x80:
      return value, start
    shift += 7


def encode_bytes_field(number: int, value: bytes) -> bytes:
  """Encodes a field of type bytes, string or message: its key (wire type 2), its length, its value."""
  return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


def decode_fields(message: bytes) -> Iterator[Field]:
  """Yields the fields of a message in order, without descending into messages inside it.

  Raises:
    IndexError: the message ends within a varint.
  """
  start = 0
  while start < len(message):
    key, value_start = decode_varint(message, start)
    wire_type = key & 7
    if wire_type == 2:
      length, value_start = decode_varint(message, value_start)
      end = value_start + length
    elif wire_type == 0:
      end = decode_varint(message, value_start)[1]
    else:
      end = value_start + (8 if wire_type == 1 else 4)
    yield Field(key >> 3, message[value_start:end], message[start:end])
    start = end
