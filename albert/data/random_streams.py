"""Random numbers as a pure function of (key, counter), for whole arrays of streams at once.

Draw number c of the stream with key k is SplitMix64's (Steele, Lea and Flood, OOPSLA 2014, with Stafford's
mix 13). No state is carried along: a document's draws are the same whatever else is drawn beside them, so
the output depends neither on batching nor on the number of processes.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def as_bits(values: object) -> np.ndarray:
  """Integers of any size as an array of 64-bit patterns (modulo 2**64)."""
  if isinstance(values, int):
    return np.asarray([values & 0xFFFFFFFFFFFFFFFF], np.uint64)
  return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def draw(keys: object, counters: object) -> np.ndarray:
  """64 random bits per (key, counter); the two broadcast. Also makes the key of a stream within a stream."""
  bits = as_bits(keys) + (as_bits(counters) + np.uint64(1)) * _GOLDEN
  bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
  bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
  return bits ^ (bits >> np.uint64(31))


def unit(bits: np.ndarray) -> np.ndarray:
  """Random bits as float64 in [0, 1)."""
  return (bits >> np.uint64(11)) * 2.0**-53


def below(bits: np.ndarray, bound: object) -> np.ndarray:
  """Random bits as int64 in [0, bound), for bounds from 1 to 2**32; uneven by at most bound / 2**32."""
  return (((bits >> np.uint64(32)) * as_bits(bound)) >> np.uint64(32)).astype(np.int64)
