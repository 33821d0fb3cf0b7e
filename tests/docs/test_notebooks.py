"""The notebooks of examples/ are valid, use only names that exist, and run without downloads."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from albert.config.base import option_fields
from albert.config.model import ModelConfig
from albert.config.run import OptimizerConfig, RunConfig, TrainConfig
from albert.tasks import registry
from tests.docs.blocks import ROOT, invocations_in
from tests.docs.test_flags import flag_problems

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# Notebook -> an expression of its variables that must be true after its last cell.
FINAL_CHECKS = {
  "fine_tune_csv": "results['accuracy'] > results['majority_accuracy'] + 0.2",
  "pretraining": "results['masked_lm_loss'] < 7 and len(training.evaluations) == 4",
  "question_answering": "results['exact'] > 60 and len(answers) == 3",
  "sentence_embeddings": "vectors.shape == (1000, 128) and accuracies.mean() > 0.58",
}


def read_notebook(path: Path) -> Any:
  return nbformat.read(path, as_version=4)


def code_cells(notebook: Any) -> list[str]:
  return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def without_shell_commands(source: str) -> str:
  """The code of a cell, with `pass` in place of each shell command."""
  return re.sub(r"^( *)!.*$", r"\1pass", source.replace("\\\n", " "), flags=re.MULTILINE)


def wrong_names(source: str) -> Iterator[str]:
  """Yields a line for each import, name of `albert`, or argument of a function of `albert` that does not exist."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      for alias in node.names:
        importlib.import_module(alias.name)
    elif isinstance(node, ast.ImportFrom):
      module = importlib.import_module(node.module or "")
      yield from (f"{node.module} has no {alias.name}" for alias in node.names if not hasattr(module, alias.name))
    elif isinstance(node, ast.Attribute) and _is_name_of_albert(node):
      if _named_object(node) is None:
        yield f"there is no {ast.unparse(node)}"
    elif isinstance(node, ast.Call) and _is_name_of_albert(node.func):
      arguments = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
      for name in sorted(arguments - _argument_names(_named_object(node.func))):
        yield f"{ast.unparse(node.func)} has no argument {name}"


def _is_name_of_albert(node: ast.AST) -> bool:
  """Whether a node is a name such as albert.tasks.Glue."""
  return re.fullmatch(r"albert(\.\w+)+", ast.unparse(node)) is not None


def _named_object(node: ast.AST) -> Any:
  """The object that `albert.a.b` names; None if there is none."""
  value: Any = importlib.import_module("albert")
  for name in ast.unparse(node).split(".")[1:]:
    value = getattr(value, name, None)
  return value


def _argument_names(function: Any) -> set[str]:
  """The names of a function's arguments. For **settings, these are the names of the fields of all configs."""
  names = set(inspect.signature(function).parameters) if function is not None else set()
  if "settings" in names:
    task_configs = [task.config_class for task in registry.TASKS.values()]
    for config in [RunConfig, TrainConfig, OptimizerConfig, ModelConfig, *task_configs]:
      names |= set(option_fields(config))
  return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_has_no_outputs(path: Path) -> None:
  assert path.stem in FINAL_CHECKS
  notebook = read_notebook(path)
  nbformat.validate(notebook)
  assert notebook.metadata == {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
  }
  for cell in notebook.cells:
    assert not cell.metadata
    if cell.cell_type == "code":
      assert (cell.outputs, cell.execution_count) == ([], None), "clear all outputs before you commit a notebook"


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_names_and_flags_in_a_notebook_exist(path: Path) -> None:
  sources = code_cells(read_notebook(path))
  assert [line for source in sources for line in wrong_names(without_shell_commands(source))] == []
  commands = [line for source in sources for line in _shell_commands(source)]
  assert commands
  invocations = [invocation for line in commands for invocation in invocations_in(line)]
  assert len(invocations) == len(commands)
  assert [line for invocation in invocations for line in flag_problems(invocation)] == []


def _shell_commands(source: str) -> list[str]:
  """The shell commands of a cell, which begin with "!"."""
  lines = source.replace("\\\n", " ").splitlines()
  return [line.strip().removeprefix("!") for line in lines if line.strip().startswith("!")]


def test_wrong_names_are_found() -> None:
  source = (
    "import albert\nfrom pathlib import Paths\ntask = albert.tasks.Classifier(x)\n"
    "albert.Estimator(task, learning_rate=0.1, lerning_rate=0.1, **more)\nalbert.encode(x, batch_size=3, pool=1)\n"
  )
  assert sorted(wrong_names(source)) == [
    "albert.Estimator has no argument lerning_rate",
    "albert.encode has no argument pool",
    "pathlib has no Paths",
    "there is no albert.tasks.Classifier",
  ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Runs all cells in an empty directory. The notebook's commands run with this Python, and import this checkout."""
  monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
  monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
  notebook = read_notebook(path)
  notebook.cells.append(nbformat.v4.new_code_cell(f"assert {FINAL_CHECKS[path.stem]}"))
  NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}).execute()
  outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
  assert any("image/png" in output.get("data", {}) for output in outputs)
  assert {entry.name for entry in tmp_path.iterdir()} <= {"output", "ipython"}
