"""The page of the Python API: an entry for each public name of `albert`. mkdocstrings adds the docstring."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def public_names(package: str = "albert") -> Iterator[str]:
  """Yields the public names of a package: those that its __init__.py imports for type checkers.

  Args:
    package: the package. If one of its public names is a package itself, the names in that package are listed instead,
      such as albert.optimizers.LAMB.
  """
  path = ROOT.joinpath(*package.split("."), "__init__.py")
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("albert"):
      for alias in node.names:
        name = alias.asname or alias.name
        if node.module == "albert":
          yield from public_names(f"albert.{name}")
        elif not name.startswith("_"):
          yield f"{package}.{name}"


def reference() -> str:
  """The entries of the page, as directives of mkdocstrings."""
  lines = ["## albert", ""]
  options = ["    options:", "      heading_level: 3", ""]
  package = "albert"
  for name in sorted(public_names(), key=lambda name: (name.rpartition(".")[0], name)):
    if name.rpartition(".")[0] != package:
      package = name.rpartition(".")[0]
      lines += [f"## {package}", ""]
    lines += [f"::: {name}", *options]
  return "\n".join([*lines, "## albert.config.run", "", "::: albert.config.run", *options])
