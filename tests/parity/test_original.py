"""The model and the training loop against recorded numbers: the project's own, and the original code's where they are.

The original's need the directory of tf1_tiny in ALBERT_GOLDEN_DIR.
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


def recorded_by_the_original() -> Golden:
  return golden.original(Path(os.environ["ALBERT_GOLDEN_DIR"], "tf1_tiny"))


@pytest.fixture(scope="module", params=["own", pytest.param("original", marks=NEEDS_ORIGINAL)])
def recorded(request) -> Golden:
  return golden.own() if request.param == "own" else recorded_by_the_original()


def test_every_output(recorded):
  rows = list(original.outputs(recorded, "recorded"))
  assert len(rows) == 4 + recorded.config.num_hidden_layers
  assert_ok(rows)


@pytest.mark.parametrize("optimizer", ["lamb", "adamw"])
def test_losses_and_eight_steps(recorded, optimizer):
  losses, weights = recorded.training[optimizer]
  assert len(losses) == 8
  assert max(relative_distance(weights[n], w) for n, w in recorded.weights.items()) > 0.01  # they have moved
  assert_ok(original.training(recorded, optimizer, "recorded"))


@NEEDS_ORIGINAL
@pytest.mark.parametrize(("name", "rescale"), [("lamb", True), ("adamw", False)])
def test_the_reference_agrees_with_the_original(name, rescale):
  """So that what the tests compare with is itself compared with."""
  recorded = recorded_by_the_original()
  rates = [float(recorded.schedule(tf.constant(t))) for t in range(8)]
  losses, weights = recorded.training[name]
  found, final = reference_train(recorded.config, recorded.weights, recorded.batch, rates, rescale=rescale)
  np.testing.assert_allclose(found, losses, rtol=1e-5)
  assert max(relative_distance(final[key], weights[key]) for key in final) < 1e-5


def test_the_shipped_golden_is_what_its_script_makes():
  made = make_tiny_albert.make()
  with np.load(make_tiny_albert.PATH) as file:
    shipped = dict(file)
  assert made.keys() == shipped.keys()
  for name, value in shipped.items():
    np.testing.assert_allclose(made[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_golden_tells_wrong_clips_apart():
  """Eight steps are not enough to hide another norm: the test above would see it."""
  config, weights, batch = make_tiny_albert.CONFIG, golden.own().weights, golden.own().batch
  squares = Reference(config, weights).pretrain(batch)
  dense = sum(float((g**2).sum()) for name, g in squares.gradients.items() if name not in squares.row_squares)
  summed = sum(float((squares.gradients[name] ** 2).sum()) for name in squares.row_squares)
  assert dense + summed > 1  # the clip acts
  assert abs(sum(squares.row_squares.values()) - summed) / (dense + summed) > 1e-3
