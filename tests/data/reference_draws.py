"""Slow versions of the functions of albert.data.random_streams in plain Python. The tests of masking use them."""

from __future__ import annotations

LOW_64_BITS = 2**64 - 1


def draw(key: int, counter: int) -> int:
  """Returns 64 random bits: number `counter` of the SplitMix64 generator with this key."""
  bits = (key + (counter + 1) * 0x9E3779B97F4A7C15) & LOW_64_BITS
  bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & LOW_64_BITS
  bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & LOW_64_BITS
  return bits ^ (bits >> 31)


def to_int_below(bits: int, bound: int) -> int:
  return ((bits >> 32) * bound) >> 32


def to_unit_float(bits: int) -> float:
  return (bits >> 11) * 2.0**-53
