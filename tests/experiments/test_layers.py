"""Tests of the distances between layers."""

from __future__ import annotations

import numpy as np

from albert.experiments import layers


def test_distances_and_angles_between_layers_are_means_over_unmasked_tokens():
  layer_0 = np.array([[[3.0, 0.0], [1.0, 0.0]]])
  layer_1 = np.array([[[0.0, 4.0], [9.0, 9.0]]])
  input_mask = np.array([[1, 0]])
  distances = layers.mean_distances([layer_0, layer_1, layer_1], input_mask)
  np.testing.assert_allclose(distances["l2"], [5.0, 0.0], atol=1e-12)
  np.testing.assert_allclose(distances["degrees"], [90.0, 0.0], atol=1e-5)
