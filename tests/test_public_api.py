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
# Public names that are neither a class nor a function.
_CONSTANTS = {"MODELS"}


def output_of_python(program: str) -> str:
  command = [sys.executable, "-c", program]
  return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_import_is_fast_and_imports_no_tensorflow():
  program = """
import sys, time
start = time.process_time()
import albert
print(time.process_time() - start)
print(*{'tensorflow', 'tf_keras', 'numpy', 'sentencepiece'}.intersection(sys.modules))
"""
  seconds, imported = output_of_python(program).splitlines()
  assert float(seconds) < 0.2
  assert not imported


def test_tokenizer_and_configs_need_no_tensorflow():
  # Reading an attribute of albert imports the module that defines it.
  program = (
    "import sys, albert; albert.Tokenizer, albert.ModelConfig, albert.MODELS; print('tensorflow' in sys.modules)"
  )
  assert output_of_python(program).strip() == "False"


def test_dunder_all_and_the_imports_for_type_checkers_list_every_public_name():
  assert sorted(albert.__all__) == sorted({*albert._PUBLIC, "__version__"})
  assert set(albert.__all__) <= set(dir(albert))
  # Type checkers do not see lazy imports (PEP 562), so the module repeats them under TYPE_CHECKING.
  source = inspect.getsource(albert)
  for name, (module, attribute) in albert._PUBLIC.items():
    statement = f"from {module} import {attribute} as {name}" if attribute else f"from albert import {name} as {name}"
    assert statement in source


@pytest.mark.parametrize("name", sorted(albert._PUBLIC))
def test_a_public_name_resolves(name):
  value = getattr(albert, name)
  module_name, attribute = albert._PUBLIC[name]
  module = sys.modules[module_name]
  assert value is (getattr(module, attribute) if attribute else module)
  namespace: dict[str, object] = {}
  exec(f"from albert import {name}", namespace)
  assert namespace[name] is value


def sections(docstring: str) -> set[str]:
  """The headings in a docstring, such as "Args:"."""
  return {line.strip() for line in docstring.splitlines() if line.strip().endswith(":")}


@pytest.mark.parametrize("name", sorted(set(albert._PUBLIC) - _CONSTANTS))
def test_a_public_name_is_documented(name):
  value = getattr(albert, name)
  docstring = inspect.getdoc(value) or ""
  assert len(docstring) > 40
  if isinstance(value, types.FunctionType):
    assert {"Args:", "Returns:", "Raises:"} <= sections(docstring)
    assert ">>> " in docstring


def test_an_unknown_name_is_an_attribute_error():
  with pytest.raises(AttributeError, match="has no attribute 'Tokeniser'"):
    _ = albert.Tokeniser  # type: ignore[attr-defined]
