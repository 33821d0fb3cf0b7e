"""Random streams are those of SplitMix64, equal a computation in Python integers, and are uniform."""

from __future__ import annotations

import numpy as np
import pytest

from albert.data import random_streams

# First outputs of SplitMix64 from seed 1234567, as widely published.
SPLITMIX64 = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]


def test_draw_is_splitmix64_and_broadcasts_and_takes_keys_modulo_2_to_64() -> None:
  keys = np.array([1234567, 1], np.uint64)
  draws = random_streams.draw(keys[:, None], np.arange(5))
  assert draws.shape == (2, 5)
  assert draws[0].tolist() == SPLITMIX64
  assert random_streams.draw(-1, 0) == random_streams.draw(2**64 - 1, 0)


def test_to_unit_float_maps_all_bits_to_numbers_from_0_to_below_1() -> None:
  bits = np.array([0, 1 << 63, 2**64 - 1], np.uint64)
  assert random_streams.to_unit_float(bits).tolist() == [0.0, 0.5, 1 - 2.0**-53]


@pytest.mark.parametrize("bound", [1, 2, 7, 30_000, 2**32])
def test_to_int_below_equals_python_integers(bound: int) -> None:
  bits = random_streams.draw(5, np.arange(1000))
  expected = [((int(value) >> 32) * bound) >> 32 for value in bits]
  assert random_streams.to_int_below(bits, bound).tolist() == expected
  assert max(expected) < bound


def test_draws_are_uniform_across_keys_and_counters() -> None:
  # Consecutive keys and counters, such as document offsets and steps.
  keys = random_streams.draw(random_streams.draw(0, np.arange(400)), 3)
  draws = random_streams.to_int_below(random_streams.draw(keys[:, None], np.arange(400)), 20)
  counts = np.bincount(draws.ravel(), minlength=20)
  expected = draws.size / 20
  chi_square = float(((counts - expected) ** 2 / expected).sum())
  assert 5 < chi_square < 45  # 19 degrees of freedom: 1 in 1000 is beyond either bound
