"""The model and the training loop give recorded numbers: those of the NumPy reference, and those of the original code.

The numbers of the original code are read from tf1_tiny in ALBERT_GOLDEN_DIR, if it is set.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.golden import make_tiny_albert
from tests.parity import golden, original
from tests.parity.golden import Golden
from tests.parity.rows import assert_ok, relative_distance
from tests.reference.albert import Reference
from tests.reference.training import train as reference_train

NEEDS_ORIGINAL = pytest.mark.skipif("ALBERT_GOLDEN_DIR" not in os.environ, reason="ALBERT_GOLDEN_DIR not set")


def read_recorded_by_original() -> Golden:
  return golden.read_original(Path(os.environ["ALBERT_GOLDEN_DIR"], "tf1_tiny"))


@pytest.fixture(scope="module", params=["own", pytest.param("original", marks=NEEDS_ORIGINAL)])
def recorded(request) -> Golden:
  return golden.read_shipped() if request.param == "own" else read_recorded_by_original()


def test_every_output_equals_the_recorded_one(recorded):
  rows = list(original.output_rows(recorded, "recorded"))
  # The embeddings, each layer, the pooled output and the two heads.
  assert len(rows) == 4 + recorded.config.num_hidden_layers
  assert_ok(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_losses_and_weights_of_eight_steps_equal_the_recorded_ones(recorded, optimizer):
  losses, weights = recorded.training[optimizer]
  assert len(losses) == 8
  changes = [relative_distance(weights[name], value) for name, value in recorded.weights.items()]
  assert max(changes) > 0.01  # training has an effect
  assert_ok(original.training_rows(recorded, optimizer, "recorded"))


@NEEDS_ORIGINAL
@pytest.mark.parametrize(("name", "rescale"), [("lamb", True), ("adamw", False)])
def test_the_reference_agrees_with_the_original(name, rescale):
  """Tests compare the implementation with the NumPy reference, so the reference itself must be right."""
  recorded = read_recorded_by_original()
  rates = [float(recorded.schedule(tf.constant(step))) for step in range(8)]
  losses, weights = recorded.training[name]
  reference_losses, final_weights = reference_train(
    recorded.config, recorded.weights, recorded.batch, rates, rescale=rescale
  )
  np.testing.assert_allclose(reference_losses, losses, rtol=1e-5)
  assert max(relative_distance(final_weights[key], weights[key]) for key in final_weights) < 1e-5


def test_the_script_makes_the_shipped_file():
  arrays = make_tiny_albert.make_arrays()
  with np.load(make_tiny_albert.PATH) as file:
    shipped = dict(file)
  assert arrays.keys() == shipped.keys()
  for name, value in shipped.items():
    np.testing.assert_allclose(arrays[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_recorded_training_depends_on_when_the_gradient_norm_is_computed():
  """The gradient of a lookup has a row for each token. The norm must be computed before equal tokens' rows are added.

  This test shows that the other order gives another norm, so that the tests above would fail with it.
  """
  shipped = golden.read_shipped()
  computed = Reference(shipped.config, shipped.weights).pretrain(shipped.batch)
  squared_norms = {name: float((gradient**2).sum()) for name, gradient in computed.gradients.items()}
  squared_global_norm = sum(squared_norms.values())
  assert squared_global_norm > 1  # so the gradients are clipped
  after_adding_rows = sum(squared_norms[name] for name in computed.row_squares)
  before_adding_rows = sum(computed.row_squares.values())
  assert abs(before_adding_rows - after_adding_rows) / squared_global_norm > 1e-3
