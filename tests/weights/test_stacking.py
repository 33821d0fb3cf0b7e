"""Stacking: which layers the upper layers are copied from."""

from __future__ import annotations

import dataclasses

import pytest

from albert.weights.names import encoder_shapes
from albert.weights.stacking import stacked_sources
from tests.synthetic import TINY_MODEL

MODEL = dataclasses.replace(TINY_MODEL, num_hidden_layers=5)


@pytest.mark.parametrize(("sharing", "copied"), [("none", 16), ("attention", 6), ("ffn", 10), ("all", 0)])
def test_each_part_that_is_not_shared_is_copied(sharing, copied):
  model = dataclasses.replace(MODEL, sharing=sharing)
  names = list(encoder_shapes(model))
  sources = stacked_sources([*names, *(f"{name}/adam_m" for name in names)], model, 2)
  assert len(sources) == 2 * 3 * copied
  for name, source in sources.items():
    layer = int(name.split("/group_")[1].split("/")[0])
    assert layer >= 2
    assert source == name.replace(f"/group_{layer}/", f"/group_{layer % 2}/")
  assert stacked_sources(names, model, 5) == {}
