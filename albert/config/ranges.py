"""Ranges of numbers, and what a text setting may hold: for flags, fields of configs and values of files."""

from __future__ import annotations

import dataclasses
import math
import os
import struct

# Whole numbers that fit TensorFlow's int32.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# Processes of one command: more exhaust any machine before they are of use.
MAX_PROCESSES = 1024
# Sequences of one batch: more than any device holds.
MAX_BATCH_SIZE = 1 << 20
# The smallest normal float32: devices replace smaller numbers by 0.
_SMALLEST_FLOAT32 = 2.0**-126


@dataclasses.dataclass(frozen=True)
class Range:
  """The numbers that a setting may have.

  Not-a-number, infinity, and a float that is infinite as a float32 are in no range. Whole numbers are at most
  INT32_MAX unless `maximum` says otherwise.

  Attributes:
    minimum: least value.
    maximum: greatest value.
    above: values are greater than this.
    below: values are less than this.
  """

  minimum: float | None = None
  maximum: float | None = None
  above: float | None = None
  below: float | None = None

  def violation(self, value: float) -> str | None:
    """What `value` must be, if it is not in the range, such as "at least 1"; None if it is in it.

    A float must be in the range both as it is and rounded to float32, in which training computes: a dropout of
    0.999999999 is 1 there.
    """
    if isinstance(value, bool) or not isinstance(value, float):
      return self._bound(value) or self._int32(value)
    if not math.isfinite(value):
      return "a finite number"
    rounded = as_float32(value)
    if math.isinf(rounded):
      return "a finite number in float32"
    as_it_is, in_float32 = self._bound(value), self._bound(rounded)
    return as_it_is or (in_float32 and f"{in_float32} in float32")

  def _int32(self, value: int) -> str | None:
    if self.maximum is not None or self.below is not None or abs(value) <= INT32_MAX:
      return None
    return f"at most {INT32_MAX}" if value > 0 else f"at least {-INT32_MAX}"

  def _bound(self, value: float) -> str | None:
    if self.minimum is not None and value < self.minimum:
      return f"at least {self.minimum}"
    if self.above is not None and value <= self.above:
      return f"above {self.above}"
    if self.maximum is not None and value > self.maximum:
      return f"at most {self.maximum}"
    if self.below is not None and value >= self.below:
      return f"below {self.below}"
    return None


def default_processes() -> int:
  """One process for each core."""
  return min(os.cpu_count() or 1, MAX_PROCESSES)


def as_float32(value: float) -> float:
  """The value rounded to float32: infinite if it is too large, 0 if it is smaller than all normal numbers."""
  try:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
  except OverflowError:
    return math.copysign(math.inf, value)
  return rounded if abs(rounded) >= _SMALLEST_FLOAT32 else math.copysign(0.0, value)


def text_violation(value: str) -> str | None:
  """What the text of a setting must be, if it cannot be a path or a name; None if it can."""
  if value and value.isspace():
    return "more than white space"
  if "\0" in value:
    return "without NUL characters"
  try:
    value.encode("utf-8")
  except UnicodeEncodeError:
    return "UTF-8"
  return None
