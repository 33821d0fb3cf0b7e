"""The examples in the docstrings of the public Python API run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import albert
from tests.small_downloads import write_downloads

# Their examples need more than weights; the tests of the estimator run them.
_ELSEWHERE = {"Estimator", "tasks"}
# What functions return; the examples of the functions show it.
_RESULTS = {"EncoderOutput", "MaskedSequence", "PretrainingOutput", "SentencePair", "SpanLogits", "SquadV2Output"}
_OPTIMIZERS = ("AdamW", "LAMB", "WarmupPolynomialDecay")


def modules() -> list[str]:
  """The modules of all public names."""
  optimizers = [f"albert.optimizers.{name}" for name in ("adamw", "lamb", "schedules")]
  return sorted({"albert", *optimizers, *(albert._PUBLIC[name][0] for name in set(albert._PUBLIC) - _ELSEWHERE)})


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> Path:
  """A directory with small weights at the paths of the examples."""
  directory = tmp_path_factory.mktemp("examples")
  write_downloads(directory, spm_model)
  return directory


@pytest.mark.parametrize(
  "name",
  [
    # The optimizers train a small model for many steps.
    pytest.param(name, marks=pytest.mark.thorough) if name.endswith((".adamw", ".lamb")) else name
    for name in modules()
  ],
)
def test_docstring_examples(name, downloads, monkeypatch, request):
  if not name.startswith("albert.optimizers"):  # their examples train a small model for many steps
    request.getfixturevalue("eager_steps")
  monkeypatch.chdir(downloads)
  failures, _ = doctest.testmod(importlib.import_module(name))
  assert failures == 0


@pytest.mark.parametrize("name", sorted({*albert._PUBLIC, *_OPTIMIZERS} - _ELSEWHERE - _RESULTS - {"UserError"}))
def test_every_public_name_has_an_example(name):
  value = getattr(albert.optimizers if name in _OPTIMIZERS else albert, name)
  if inspect.isclass(value) or inspect.isfunction(value):
    assert ">>> " in (inspect.getdoc(value) or "")
