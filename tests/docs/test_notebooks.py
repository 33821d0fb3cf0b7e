"""The notebooks of examples/ are valid, their commands have only flags that exist, and they run without downloads."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

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
def test_the_flags_of_commands_in_a_notebook_exist(path: Path) -> None:
  code = "\n".join(cell.source for cell in read_notebook(path).cells if cell.cell_type == "code")
  commands = re.findall(r"^\s*!(.*)", code.replace("\\\n", " "), re.MULTILINE)
  assert commands
  invocations = [invocation for line in commands for invocation in invocations_in(line)]
  assert len(invocations) == len(commands)
  assert [line for invocation in invocations for line in flag_problems(invocation)] == []


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
