"""The wire format of protocol buffers: the parts that the project reads and writes without generated classes.

See https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Field(NamedTuple):
  """One field of a message.

  Attributes:
    number: the field's number in the message definition.
    value: its bytes without key and length; for a number, its encoded bytes.
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


def encode_varints(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Encodes many integers at once.

  Args:
    values: integers >= 0 [N].

  Returns:
    The concatenated varints, uint8 [bytes], and the offset at which each one ends, int64 [N].
  """
  sizes: np.ndarray = np.ones(values.size, np.int64)
  max_size, limit = 1, 128  # values below `limit` need at most `max_size` bytes
  max_value = int(values.max(initial=0))
  while max_value >= limit:
    sizes += values >= limit
    max_size, limit = max_size + 1, limit << 7
  ends = np.cumsum(sizes)
  encoded = np.empty(int(sizes.sum()), np.uint8)
  # Writes the first byte of all values, then the second byte of the values that have one, and so on.
  remaining: np.ndarray = values
  starts: np.ndarray = ends - sizes
  for index in range(max_size):
    has_more = sizes > index + 1
    encoded[starts + index] = (remaining >> (7 * index) & 127).astype(np.uint8) | has_more.astype(np.uint8) << 7
    remaining, starts, sizes = remaining[has_more], starts[has_more], sizes[has_more]
  return encoded, ends


def decode_varints(encoded: bytes) -> np.ndarray:
  """Decodes concatenated varints, uint64 [N].

  Raises:
    IndexError: the last one is incomplete.
  """
  if not encoded:
    return np.zeros(0, np.uint64)
  values = np.frombuffer(encoded, np.uint8)
  ends = np.flatnonzero(values < 0x80) + 1
  if not ends.size or ends[-1] < values.size:
    raise IndexError("an incomplete varint")
  starts = np.concatenate([[0], ends[:-1]])
  shifts = 7 * (np.arange(values.size) - np.repeat(starts, ends - starts))
  return np.add.reduceat((values & 0x7F).astype(np.uint64) << shifts.astype(np.uint64), starts)


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
    IndexError: the message ends within a field.
  """
  start = 0
  while start < len(message):
    key, value_start = decode_varint(message, start)
    wire_type = key & 7
    if wire_type == 2:  # bytes, strings and messages
      length, value_start = decode_varint(message, value_start)
      end = value_start + length
    elif wire_type == 0:  # a varint
      _, end = decode_varint(message, value_start)
    else:  # a number of 64 bits (wire type 1) or 32 bits (wire type 5)
      end = value_start + (8 if wire_type == 1 else 4)
    if end > len(message):
      raise IndexError("an incomplete field")
    yield Field(key >> 3, message[value_start:end], message[start:end])
    start = end


def fields_by_number(message: bytes) -> dict[int, bytes]:
  """Returns the last value of each field of a message."""
  return {field.number: field.value for field in decode_fields(message)}
