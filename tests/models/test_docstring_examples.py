"""The examples in the docstrings of models and optimizers run and print what they say."""

from __future__ import annotations

import doctest

import pytest

from albert.models import encoder
from albert.optimizers import adamw, lamb


@pytest.mark.parametrize("module", [encoder, adamw, lamb], ids=lambda module: module.__name__)
def test_docstring_examples(module):
  failures, attempted = doctest.testmod(module)
  assert attempted >= 5
  assert failures == 0
