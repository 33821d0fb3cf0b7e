"""A slow reference of albert.data.random_streams in plain Python."""

from __future__ import annotations

MASK_64 = 2**64 - 1


def draw(key: int, counter: int) -> int:
  """SplitMix64 in Python integers."""
  bits = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK_64
  bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
  bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK_64
  return bits ^ (bits >> 31)


def below(bits: int, bound: int) -> int:
  return ((bits >> 32) * bound) >> 32


def unit(bits: int) -> float:
  return (bits >> 11) * 2.0**-53
