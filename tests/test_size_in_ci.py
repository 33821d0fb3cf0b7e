"""`make lint` counts the size of the source (.ci/size.py) and refuses growth."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / ".ci" / "size.py"
FILES = {
  "albert/__init__.py": '"""Says what this is."""\n\nfrom albert import model\n',
  # 7 lines, 3 of code.
  "albert/model.py": '"""A model."""\n\n# Why.\ndef build():\n  """Builds it."""\n  import albert.layers\n  return 1\n',
  "albert/layers.py": "x = 1\n" * 60,
  "albert/registry.py": 'TASKS = {"a": "data_prep.task:Task"}\n',
  "data_prep/task.py": "x = 1\n",
  "data_prep/unused.py": "x = 1\n",
  "run_classifier.py": "import albert.model, albert.registry\n",
  "tests/test_model.py": "assert 1\n\n",
  "README.md": "four words of it\n",
  "docs/results/table.md": "not counted\n",
}
COUNTS = {
  "lines": 73,  # 3 + 7 + 60 + 1 + 1 + 1
  "code": 67,
  "modules": 6,
  "small_modules": 4,
  "import_closure": 4,
  "test_lines": 2,
  "words": 4,
}


def run_size(folder: Path, limits: dict[str, int]) -> subprocess.CompletedProcess[str]:
  (folder / ".ci/size_limits.json").write_text(json.dumps(limits))
  return subprocess.run([sys.executable, ".ci/size.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_counts_and_refuses_growth(tmp_path: Path) -> None:
  for name, text in FILES.items():
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)
  (tmp_path / ".ci").mkdir()
  shutil.copy(SCRIPT, tmp_path / ".ci")
  for command in (["git", "init", "--quiet"], ["git", "add", "."]):
    subprocess.run(command, cwd=tmp_path, check=True)
  (tmp_path / "albert/not_in_git.py").write_text("x = 1\n")

  within = run_size(tmp_path, COUNTS)
  assert within.stdout.splitlines() == [f"{name}: {number:,} of {number:,}" for name, number in COUNTS.items()]
  assert within.returncode == 0, within.stderr
  beyond = run_size(tmp_path, COUNTS | {"code": COUNTS["code"] - 1, "words": 0})
  assert beyond.returncode == 1
  assert "too large: code, words" in beyond.stderr
