"""All blocks of code in docs/python_api.md run one after another, on small weights at the paths that the page names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.small_downloads import write_downloads

GUIDE = ROOT / "docs" / "python_api.md"


@pytest.mark.thorough
@pytest.mark.usefixtures("eager_steps")
def test_every_block_runs(tmp_path: Path, spm_model: str, monkeypatch: pytest.MonkeyPatch):
  write_downloads(tmp_path, spm_model)
  monkeypatch.chdir(tmp_path)
  programs = [block.text for block in blocks(GUIDE) if block.language == "python"]
  assert len(programs) >= 10
  namespace: dict[str, object] = {"__name__": "__main__"}
  for number, program in enumerate(programs):
    exec(compile(program, f"{GUIDE.name}, block {number}", "exec"), namespace)
  assert {path.name for path in tmp_path.iterdir()} == {"downloads", "pretraining_run", "model.keras"}
