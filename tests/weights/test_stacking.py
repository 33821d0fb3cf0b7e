"""Stacking: the lower layer from which each upper layer is copied."""

from __future__ import annotations

import dataclasses

import pytest

from albert.weights.names import encoder_shapes
from albert.weights.stacking import stacked_sources
from tests.synthetic import TINY_MODEL

MODEL = dataclasses.replace(TINY_MODEL, num_hidden_layers=5)


# Sharing -> number of weights of each layer that are not shared. The attention of a layer has 10 weights, and its
# feed-forward network has 6.
@pytest.mark.parametrize(("sharing", "num_unshared_weights"), [("none", 16), ("attention", 6), ("ffn", 10), ("all", 0)])
def test_weights_that_are_not_shared_are_copied_with_their_moments(sharing, num_unshared_weights):
  model = dataclasses.replace(MODEL, sharing=sharing)
  names = list(encoder_shapes(model))
  num_lower_layers, num_upper_layers = 2, 3
  sources = stacked_sources([*names, *(f"{name}/adam_m" for name in names)], model, num_lower_layers)
  assert len(sources) == 2 * num_upper_layers * num_unshared_weights  # each weight and its moment
  for name, source in sources.items():
    layer = int(name.split("/group_")[1].split("/")[0])
    assert layer >= num_lower_layers
    assert source == name.replace(f"/group_{layer}/", f"/group_{layer % num_lower_layers}/")
  assert stacked_sources(names, model, 5) == {}
