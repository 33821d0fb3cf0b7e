"""Counts the size of the source, and refuses growth beyond the limits in .ci/size_limits.json.

  python .ci/size.py

It counts the files that git knows. A feature that needs more raises a limit once, by its own size, and says so in its
commit; work that deletes lowers the limits to what is left.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("albert", "data_prep")
SMALL = 60  # A module with fewer lines is small.
# Tokens that do not make a line a line of code.
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstring(node: ast.AST) -> ast.Expr | None:
  if not isinstance(node, _DOCUMENTED) or ast.get_docstring(node, clean=False) is None:
    return None
  (first, *_) = node.body
  return first if isinstance(first, ast.Expr) else None


def count_code_lines(source: str) -> int:
  """Counts the lines that have more than comments, blanks and docstrings."""
  docstrings = set[int]()
  for node in ast.walk(ast.parse(source)):
    if docstring := _docstring(node):
      docstrings |= set(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
  code = set[int]()
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type not in _LAYOUT:
      code |= set(range(token.start[0], token.end[0] + 1))
  return len(code - docstrings)


def is_small(path: Path, source: str) -> bool:
  """Whether a module has fewer than SMALL lines and is not an __init__.py of imports alone."""
  body = [node for node in ast.parse(source).body if not isinstance(getattr(node, "value", None), ast.Constant)]
  only_imports = all(isinstance(node, ast.Import | ast.ImportFrom | ast.Assign) for node in body)
  return len(source.splitlines()) < SMALL and not (path.name == "__init__.py" and only_imports)


def _named_modules(source: str) -> Iterator[str]:
  """Yields what a module may import: import statements wherever they stand, and strings "module:name"."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
      yield node.value.partition(":")[0]


def import_closure(sources: dict[str, str], start: str) -> set[str]:
  """Returns the modules that a module leads to, itself included.

  Args:
    sources: name of each module -> its source.
    start: the name of the first module.
  """
  seen, waiting = set[str](), [start]
  while waiting:
    name = waiting.pop()
    if name not in seen:
      seen.add(name)
      waiting += sorted(set(_named_modules(sources[name])) & sources.keys())
  return seen


def count(root: Path) -> dict[str, int]:
  """Counts the source of a checkout.

  Args:
    root: the checkout.

  Returns:
    lines and lines of code of the packages, their modules, how many of them are small, the modules that
    run_classifier.py leads to, the lines of the tests, and the words of the documents without docs/results.
  """

  def read(*patterns: str) -> dict[Path, str]:
    listing = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=root, capture_output=True, check=True, text=True)
    paths = [Path(name) for name in listing.stdout.split("\0") if name and (root / name).exists()]
    return {path: (root / path).read_text(encoding="utf-8") for path in paths}

  packages = read(*(f"{package}/*.py" for package in PACKAGES))
  scripts = read("run_*.py")
  modules = {
    re.sub(r"/__init__$", "", path.with_suffix("").as_posix()).replace("/", "."): source
    for path, source in {**packages, **scripts}.items()
  }
  documents = read("docs/*.md", "README.md", "CONTRIBUTING.md")
  return {
    "lines": sum(len(source.splitlines()) for source in packages.values()),
    "code": sum(map(count_code_lines, packages.values())),
    "modules": len(packages),
    "small_modules": sum(is_small(path, source) for path, source in packages.items()),
    "import_closure": len(import_closure(modules, "run_classifier")) - 1,
    "test_lines": sum(len(source.splitlines()) for source in read("tests/*.py").values()),
    "words": sum(len(text.split()) for path, text in documents.items() if "results" not in path.parts),
  }


def main() -> None:
  root = Path(__file__).resolve().parent.parent
  counts = count(root)
  limits = json.loads((root / ".ci/size_limits.json").read_text(encoding="utf-8"))
  for name, number in counts.items():
    print(f"{name}: {number:,} of {limits[name]:,}")
  larger = [name for name, number in counts.items() if number > limits[name]]
  if larger:
    sys.exit(f"error: too large: {', '.join(larger)}. Delete something, or raise the limit in .ci/size_limits.json")


if __name__ == "__main__":
  main()
