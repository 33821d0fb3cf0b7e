"""Clipping by the global norm, compared with TensorFlow and NumPy. Gradients of embeddings are sums of rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from albert.optimizers.gradients import Gradient, clip_by_global_norm, densify

DENSE = np.array([[3.0, -4.0]], np.float32)
ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]], np.float32)
INDICES = [2, 0, 2]
# The norm counts each row alone, as in TensorFlow: 3^2 + 4^2 = 25 for DENSE and 1 + 4 + 9 + 16 + 25 + 36 = 91 for ROWS.
NORM = np.sqrt(25 + 91)


def sparse_gradient(rows: slice = slice(None)) -> tf.IndexedSlices:
  """Returns the gradient of a table of four rows: ROWS are added to its rows INDICES."""
  return tf.IndexedSlices(tf.constant(ROWS[rows]), tf.constant(INDICES[rows]), tf.constant([4, 2]))


def dense_gradients() -> dict[str, Gradient]:
  return {"dense": densify(tf.constant(DENSE)), "table": densify(sparse_gradient())}


@pytest.mark.parametrize("limit", [0.5, 1.0, 9.0, 1000.0])
def test_clipped_gradients_and_their_norm_equal_tensorflows(limit):
  clipped, norm = clip_by_global_norm(dense_gradients(), limit)
  expected, expected_norm = tf.clip_by_global_norm([tf.constant(DENSE), sparse_gradient()], limit)
  assert float(norm) == pytest.approx(float(expected_norm), rel=1e-6)
  for gradient, expected_gradient in zip(clipped.values(), expected, strict=True):
    np.testing.assert_allclose(gradient, tf.convert_to_tensor(expected_gradient), rtol=1e-6)


def test_a_limit_of_zero_clips_nothing():
  clipped, norm = clip_by_global_norm(dense_gradients(), 0.0)
  np.testing.assert_array_equal(clipped["dense"], DENSE)
  assert float(norm) == pytest.approx(NORM, rel=1e-6)


def test_the_gradients_of_micro_batches_add_up_to_those_of_the_batch():
  """Neither the gradients nor the sums of squares for their norm depend on the division into micro-batches."""
  first = [densify(0.25 * tf.constant(DENSE)), densify(sparse_gradient(slice(0, 1)))]
  second = [densify(0.75 * tf.constant(DENSE)), densify(sparse_gradient(slice(1, 3)))]
  total = tf.nest.map_structure(tf.add, first, second)
  for actual, expected in zip(tf.nest.flatten(total), tf.nest.flatten(dense_gradients()), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
