"""Counter-based random numbers: a pure function of (key, counter), for arrays of keys and counters at once.

Number c of the stream with key k is output c of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, with Stafford's mix 13)
seeded with k. There is no generator state, so the numbers drawn for a document do not depend on what else is drawn. The
output of data preparation is therefore the same for any batching and any number of processes.
"""

from __future__ import annotations

import numpy as np

# The constants of SplitMix64: the increment of its state (2**64 / golden ratio), and two multipliers that mix the bits.
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def to_uint64(values: object) -> np.ndarray:
  """Converts integers to uint64, modulo 2**64. The result has at least one dimension."""
  if isinstance(values, int):
    return np.asarray([values & 0xFFFFFFFFFFFFFFFF], np.uint64)
  return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def draw(keys: object, counters: object) -> np.ndarray:
  """Draws 64 random bits for each pair of a key and a counter.

  Args:
    keys, counters: integers or integer arrays, which broadcast against each other.

  Returns:
    uint64 of the broadcast shape, with at least one dimension. Pass them to `to_unit_float` or `to_int_below`, or use
    them as the keys of other streams.
  """
  bits = to_uint64(keys) + (to_uint64(counters) + np.uint64(1)) * _INCREMENT
  bits = (bits ^ (bits >> np.uint64(30))) * _MULTIPLIER_1
  bits = (bits ^ (bits >> np.uint64(27))) * _MULTIPLIER_2
  return bits ^ (bits >> np.uint64(31))


def to_unit_float(bits: np.ndarray) -> np.ndarray:
  """Converts uint64 random bits to float64, uniform in [0, 1)."""
  return (bits >> np.uint64(11)) * 2.0**-53


def to_int_below(bits: np.ndarray, bound: object) -> np.ndarray:
  """Converts uint64 random bits to int64, uniform in [0, bound).

  Args:
    bits: random bits.
    bound: 1 to 2**32, an integer or an array that broadcasts against `bits`. Each value's probability is 1 / bound,
      with a relative error below bound / 2**32.
  """
  return (((bits >> np.uint64(32)) * to_uint64(bound)) >> np.uint64(32)).astype(np.int64)
