"""`import albert` is fast, and every public name resolves and is documented."""

from __future__ import annotations

import inspect
import subprocess
import sys
import types
from pathlib import Path

import pytest

import albert

ROOT = Path(__file__).resolve().parents[1]
# Names that are no classes or functions.
_VALUES = {"MODELS"}


def python(program: str) -> str:
  """Runs a program in a new interpreter; returns its output."""
  command = [sys.executable, "-c", program]
  return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_import_is_fast_and_imports_no_tensorflow():
  program = (
    "import sys, time; start = time.process_time(); import albert; seconds = time.process_time() - start\n"
    "print(seconds, *(name for name in ('tensorflow', 'tf_keras', 'numpy', 'sentencepiece') if name in sys.modules))"
  )
  seconds, *imported = python(program).split()
  assert float(seconds) < 0.2
  assert not imported


def test_the_vocabulary_needs_no_tensorflow():
  program = (
    "import sys, albert; albert.Tokenizer, albert.ModelConfig, albert.MODELS; print('tensorflow' in sys.modules)"
  )
  assert python(program).strip() == "False"


def test_the_lists_of_names_agree():
  assert sorted(albert.__all__) == sorted({*albert._PUBLIC, "__version__"})
  assert set(albert.__all__) <= set(dir(albert))
  # The imports for type checkers, which PEP 562 hides from them.
  source = inspect.getsource(albert)
  for name, (module, there) in albert._PUBLIC.items():
    statement = f"from {module} import {there} as {name}" if there else f"from albert import {name} as {name}"
    assert statement in source


@pytest.mark.parametrize("name", sorted(albert._PUBLIC))
def test_a_public_name_resolves(name):
  value = getattr(albert, name)
  module, there = albert._PUBLIC[name]
  assert (value is sys.modules[module]) if not there else (value is getattr(sys.modules[module], there))
  namespace: dict[str, object] = {}
  exec(f"from albert import {name}", namespace)
  assert namespace[name] is value


def sections(docstring: str) -> set[str]:
  return {line.strip() for line in docstring.splitlines() if line.strip().endswith(":")}


@pytest.mark.parametrize("name", sorted(set(albert._PUBLIC) - _VALUES))
def test_a_public_name_is_documented(name):
  value = getattr(albert, name)
  docstring = inspect.getdoc(value) or ""
  assert len(docstring) > 40
  if isinstance(value, types.FunctionType):
    assert {"Args:", "Returns:", "Raises:"} <= sections(docstring) or name == "evaluate_squad_v2"
    assert ">>> " in docstring


def test_an_unknown_name():
  with pytest.raises(AttributeError, match="has no attribute 'Tokeniser'"):
    _ = albert.Tokeniser  # type: ignore[attr-defined]
