"""The page of the Python API: an entry for each public name of `albert`, filled by mkdocstrings with its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Modules that are used from Python though `albert` has no name of its own for them.
_MODULES = {
  "albert.config.model": "The config of an encoder.",
  "albert.config.run": "The configs of a run.",
  "albert.data.masking": "Masks of the masked language model.",
  "albert.metrics.squad": "The scores of SQuAD.",
}


def public_names() -> list[str]:
  """The names that `albert` offers: those that albert/__init__.py imports for type checkers."""
  tree = ast.parse((ROOT / "albert" / "__init__.py").read_text(encoding="utf-8"))
  names: list[str] = []
  for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("albert"):
      names += [alias.asname or alias.name for alias in node.names]
  return [name for name in names if not name.startswith("_")]


def reference() -> str:
  """The entries of the page, as directives of mkdocstrings."""
  lines = []
  for name in public_names():
    lines += [f"::: albert.{name}", ""]
  for module, title in _MODULES.items():
    lines += [f"## {title}", "", f"::: {module}", "    options:", "      heading_level: 3", ""]
  return "\n".join(lines)
