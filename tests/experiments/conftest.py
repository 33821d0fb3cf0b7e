"""Fixtures of the tests of experiments."""

import importlib.machinery
import sys
import types

import pytest


@pytest.fixture
def tokenizers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
  """Plans run no command, so they need the package tokenizers only to be found. The tests' environment lacks it."""
  module = types.ModuleType("tokenizers")
  module.__spec__ = importlib.machinery.ModuleSpec("tokenizers", None)
  monkeypatch.setitem(sys.modules, "tokenizers", module)
