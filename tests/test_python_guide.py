"""All blocks of code in docs/python_api.md run one after another, on small weights at the paths that the page names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.small_downloads import write_downloads

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "python_api.md"


def python_blocks(text: str) -> list[str]:
  """The ```python blocks of a page. Empty lines before each block give errors the line numbers of the page."""
  return [
    "\n" * text[: match.start(1)].count("\n") + match[1]
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
  ]


def test_blocks_keep_their_line_numbers():
  assert python_blocks("a\n```python\nx = 1\n```\nb\n```\nno\n```\n```python\ny\n```\n") == [
    "\n\nx = 1\n",
    "\n" * 9 + "y\n",
  ]


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
def test_every_block_runs(tmp_path: Path, spm_model: str, monkeypatch: pytest.MonkeyPatch):
  write_downloads(tmp_path, spm_model)
  monkeypatch.chdir(tmp_path)
  text = GUIDE.read_text(encoding="utf-8")
  programs = python_blocks(text)
  assert len(programs) == text.count("```python") >= 10
  namespace: dict[str, object] = {"__name__": "__main__"}
  for program in programs:
    exec(compile(program, str(GUIDE), "exec"), namespace)
  assert {path.name for path in tmp_path.iterdir()} == {"downloads", "pretraining_run", "model.keras"}
