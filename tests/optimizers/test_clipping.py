"""The clip of the global norm, and the norm itself."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert.optimizers.clipping import Gradient, clip_by_global_norm, densify
from tests.reference import optimizers as reference

DENSE = np.array([[3.0, -4.0]], np.float32)
ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]], np.float32)
INDICES = [2, 0, 2]


def gradients() -> list[Gradient]:
  return densify([tf.constant(DENSE), tf.IndexedSlices(tf.constant(ROWS), tf.constant(INDICES), tf.constant([4, 2]))])


@pytest.mark.parametrize("limit", [0.5, 1.0, 9.0, 1000.0])
def test_clip_is_that_of_tensorflow_which_counts_rows(limit):
  clipped, norm = clip_by_global_norm(gradients(), limit)
  sparse = tf.IndexedSlices(tf.constant(ROWS), tf.constant(INDICES), tf.constant([4, 2]))
  expected, expected_norm = tf.clip_by_global_norm([tf.constant(DENSE), sparse], limit)
  assert float(norm) == pytest.approx(float(expected_norm), rel=1e-6)
  for a, b in zip(clipped, expected, strict=True):
    np.testing.assert_allclose(a, tf.convert_to_tensor(b), rtol=1e-6)


def test_clip_against_numpy():
  summed = np.zeros((4, 2))
  np.add.at(summed, INDICES, ROWS.astype(np.float64))
  truth = reference.clip_by_global_norm({"a": DENSE, "b": summed}, 2.0, {"b": float((ROWS**2).sum())})
  clipped, norm = clip_by_global_norm(gradients(), 2.0)
  np.testing.assert_allclose(clipped[0], truth["a"], rtol=1e-6)
  np.testing.assert_allclose(clipped[1], truth["b"], rtol=1e-6)
  assert float(norm) == pytest.approx(np.sqrt(25 + 91), rel=1e-6)


def test_no_limit_no_clip():
  clipped, norm = clip_by_global_norm(gradients(), 0.0)
  np.testing.assert_array_equal(clipped[0], DENSE)
  assert float(norm) == pytest.approx(np.sqrt(25 + 91), rel=1e-6)


def test_parts_of_a_batch_add_up():
  """Rows cut among parts and summed give what all rows give at once: neither the gradient nor its norm changes."""
  whole = gradients()
  parts = [
    densify(
      [
        tf.constant(DENSE) * share,
        tf.IndexedSlices(tf.constant(ROWS[cut]), tf.constant(INDICES[cut]), tf.constant([4, 2])),
      ]
    )
    for share, cut in ((0.25, slice(0, 1)), (0.75, slice(1, 3)))
  ]
  summed = tf.nest.map_structure(tf.add, *parts)
  for a, b in zip(tf.nest.flatten(summed), tf.nest.flatten(whole), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
