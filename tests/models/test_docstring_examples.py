"""The examples in the docstrings of the public Python API run and print the shown output."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import albert
from tests.small_downloads import write_downloads

# The examples of these names need training data. The tests of the estimator run them.
_TESTED_WITH_THE_ESTIMATOR = {"Estimator", "tasks"}
# Types of results. The examples of the functions that return them show them.
_RESULT_TYPES = {
  "EncoderOutput",
  "MaskedSequence",
  "PretrainingOutput",
  "QuestionWindows",
  "SentencePair",
  "SpanLogits",
  "SquadV2Output",
}
_OPTIMIZERS = ("AdamW", "LAMB", "WarmupPolynomialDecay")


def modules_with_examples() -> list[str]:
  """Returns the modules of all public names whose examples are tested here."""
  optimizers = [f"albert.optimizers.{name}" for name in ("adamw", "lamb", "schedules")]
  public_names = set(albert._PUBLIC) - _TESTED_WITH_THE_ESTIMATOR
  return sorted({"albert", *optimizers, *(albert._PUBLIC[name][0] for name in public_names)})


def names_that_need_an_example() -> list[str]:
  return sorted({*albert._PUBLIC, *_OPTIMIZERS} - _TESTED_WITH_THE_ESTIMATOR - _RESULT_TYPES - {"UserError"})


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory, spm_model: str) -> Path:
  """A directory with small weights at the paths of the examples."""
  directory = tmp_path_factory.mktemp("examples")
  write_downloads(directory, spm_model)
  return directory


@pytest.mark.parametrize(
  "module",
  [
    # The examples of these optimizers train a small model for many steps.
    pytest.param(module, marks=pytest.mark.thorough) if module.endswith((".adamw", ".lamb")) else module
    for module in modules_with_examples()
  ],
)
def test_the_examples_of_a_module_print_the_shown_output(module, downloads, monkeypatch, request):
  # The examples of the optimizers have many steps, which are slow without a graph.
  if not module.startswith("albert.optimizers"):
    request.getfixturevalue("eager_steps")
  monkeypatch.chdir(downloads)
  num_failures, _ = doctest.testmod(importlib.import_module(module))
  assert num_failures == 0


@pytest.mark.parametrize("name", names_that_need_an_example())
def test_every_public_name_has_an_example(name):
  public_object = getattr(albert.optimizers if name in _OPTIMIZERS else albert, name)
  if inspect.isclass(public_object) or inspect.isfunction(public_object):
    assert ">>> " in (inspect.getdoc(public_object) or "")
