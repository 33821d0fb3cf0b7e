"""Counter-based random numbers: a pure function of (key, counter), for arrays of keys and counters at once.

Number c of the stream with key k is output c of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, with Stafford's mix 13)
seeded with k. There is no generator state, so the numbers drawn for a document do not depend on what else is drawn. The
output of data preparation is therefore the same for any batching and any number of processes.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def as_bits(values: object) -> np.ndarray:
  """Converts integers to uint64, modulo 2**64. The result has at least one dimension."""
  if isinstance(values, int):
    return np.asarray([values & 0xFFFFFFFFFFFFFFFF], np.uint64)
  return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def draw(keys: object, counters: object) -> np.ndarray:
  """Draws 64 random bits for each pair of a key and a counter.

  Args:
    keys, counters: integers or integer arrays, which broadcast against each other.

  Returns:
    uint64 of the broadcast shape, at least [1]: random bits for `unit` and `below`, or keys of sub-streams.
  """
  bits = as_bits(keys) + (as_bits(counters) + np.uint64(1)) * _GOLDEN
  bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
  bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
  return bits ^ (bits >> np.uint64(31))


def unit(bits: np.ndarray) -> np.ndarray:
  """Converts uint64 random bits to float64, uniform in [0, 1)."""
  return (bits >> np.uint64(11)) * 2.0**-53


def below(bits: np.ndarray, bound: object) -> np.ndarray:
  """Converts uint64 random bits to int64, uniform in [0, bound).

  Args:
    bits: random bits.
    bound: 1 to 2**32, an integer or an array that broadcasts against `bits`. The probabilities of the values differ
      from 1 / bound by a factor of at most 1 + bound / 2**32.
  """
  return (((bits >> np.uint64(32)) * as_bits(bound)) >> np.uint64(32)).astype(np.int64)
