"""docs/one_run.md names functions and classes that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_story_of_a_run_names_what_exists() -> None:
  text = (ROOT / "docs" / "one_run.md").read_text(encoding="utf-8")
  named = re.findall(r"`([\w/]+\.py)` `(\w+)`|`(\w+)` in\s+`([\w/]+\.py)`", text)
  places = {(first or second, name or other) for first, name, other, second in named}
  assert len(places) > 35
  definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
  missing = [
    f"{name} in {file}"
    for file, name in sorted(places)
    if not any(
      isinstance(node, definitions) and node.name == name
      for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    )
  ]
  assert not missing
