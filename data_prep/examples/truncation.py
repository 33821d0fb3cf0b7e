"""Shortens pairs of segments to the greatest number of tokens of an instance."""

from __future__ import annotations

import numpy as np

from albert.data import random_streams

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # a_start, a_end, b_start, b_end: each int64 [I]


def truncate(pairs: Pairs, longest: int, keys: np.ndarray) -> Pairs:
  """Shortens pairs to `longest` tokens, as the original scripts do.

  The scripts remove tokens one by one from the longer segment (from the second one if the lengths are equal), each from
  its front or its back with probability 1/2. Here the number of tokens to remove from each segment is computed
  directly, and the number to remove from its front is a sum of random bits.

  Args:
    pairs: the segments, as positions of their first tokens and after their last tokens.
    longest: the greatest number of tokens of a pair.
    keys: uint64 [I], random keys.
  """
  a_start, a_end, b_start, b_end = (bound.copy() for bound in pairs)
  too_long = np.flatnonzero(a_end - a_start + b_end - b_start > longest)
  if not too_long.size:
    return pairs
  a_length, b_length = (a_end - a_start)[too_long], (b_end - b_start)[too_long]
  excess = a_length + b_length - longest
  # First the longer segment is shortened to the other's length. Then both lose tokens in turn, the second one first.
  to_equal_length = np.minimum(np.abs(a_length - b_length), excess)
  in_turn = excess - to_equal_length
  a_removed = np.where(a_length > b_length, to_equal_length, 0) + in_turn // 2
  b_removed = np.where(a_length > b_length, 0, to_equal_length) + (in_turn + 1) // 2
  for segment, (start, end, num_removed) in enumerate(((a_start, a_end, a_removed), (b_start, b_end, b_removed))):
    removed_from_front = _count_heads(random_streams.draw(keys[too_long], segment), num_removed)
    start[too_long] += removed_from_front
    end[too_long] -= num_removed - removed_from_front
  return a_start, a_end, b_start, b_end


def _count_heads(keys: np.ndarray, num_tosses: np.ndarray) -> np.ndarray:
  """Returns the number of heads in `num_tosses` tosses of a fair coin, [I], for random keys [I]."""
  num_integers = -(-int(num_tosses.max(initial=0)) // 64)  # rounded up; each random integer gives 64 tosses
  integers = random_streams.draw(keys[:, None], np.arange(num_integers))
  tosses = np.unpackbits(integers.astype("<u8").view(np.uint8).reshape(keys.size, -1), axis=1)
  is_counted = np.arange(tosses.shape[1]) < num_tosses[:, None]
  return (tosses * is_counted).sum(axis=1, dtype=np.int64)
