"""The allowed values of numbers and texts, for flags, for fields of configs, and for values in files."""

from __future__ import annotations

import dataclasses
import math
import os
import struct

# The largest values of TensorFlow's int32 and int64.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
# The largest number of worker processes of one command. More would exhaust the machine's memory.
MAX_PROCESSES = 1024
# The largest number of sequences in a batch. No device has the memory for more.
MAX_BATCH_SIZE = 1 << 20
# The smallest normal float32. Devices replace smaller numbers by 0.
_SMALLEST_FLOAT32 = 2.0**-126


@dataclasses.dataclass(frozen=True)
class Range:
  """The numbers that a setting may have.

  NaN, infinity, and floats that are infinite as float32 are never allowed. The absolute value of an integer is at most
  INT32_MAX unless `maximum` or `below` is given.

  Attributes:
    minimum: the smallest allowed value.
    maximum: the largest allowed value.
    above: a bound that every allowed value is greater than.
    below: a bound that every allowed value is less than.
  """

  minimum: float | None = None
  maximum: float | None = None
  above: float | None = None
  below: float | None = None

  def violation(self, value: float) -> str | None:
    """The rule that `value` violates, in words that follow "must be", such as "at least 1"; None if it is allowed.

    A float must be in the range both as it is and after rounding to float32, because training computes in float32: a
    dropout of 0.999999999 is rounded to 1.
    """
    if isinstance(value, bool) or not isinstance(value, float):
      return self._violated_bound(value) or self._violated_int32_limit(value)
    if not math.isfinite(value):
      return "a finite number"
    rounded = as_float32(value)
    if math.isinf(rounded):
      return "a finite number in float32"
    violation, float32_violation = self._violated_bound(value), self._violated_bound(rounded)
    if violation is None and float32_violation is not None:
      return f"{float32_violation} in float32"
    return violation

  def _violated_int32_limit(self, value: int) -> str | None:
    if self.maximum is not None or self.below is not None or abs(value) <= INT32_MAX:
      return None
    return f"at most {INT32_MAX}" if value > 0 else f"at least {-INT32_MAX}"

  def _violated_bound(self, value: float) -> str | None:
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
  """The default number of worker processes: one for each core, at most MAX_PROCESSES."""
  return min(os.cpu_count() or 1, MAX_PROCESSES)


def as_float32(value: float) -> float:
  """Rounds to float32. Values that are too large become infinite; those below the smallest normal number become 0."""
  try:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
  except OverflowError:
    return math.copysign(math.inf, value)
  return rounded if abs(rounded) >= _SMALLEST_FLOAT32 else math.copysign(0.0, value)


def text_violation(value: str) -> str | None:
  """The rule that a text violates, in words that follow "must be"; None if it can be a path or a name."""
  if value and value.isspace():
    return "more than white space"
  if "\0" in value:
    return "without NUL characters"
  try:
    value.encode("utf-8")
  except UnicodeEncodeError:
    return "UTF-8"
  return None
