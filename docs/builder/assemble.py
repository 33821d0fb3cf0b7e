"""Collects the sources of the documentation site in one folder: `python -m docs.builder.assemble build/docs`.

The documents of docs/ are copied. Documents elsewhere in the repository (the changelog, measurements), and files that a
document links to, become pages, so that every link of a document works in the site too. A line
`<!-- generated: NAME -->` of a document is replaced by the Markdown that GENERATED makes.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from docs.builder import api, commands, tables
from docs.builder.notebooks import notebook_page

ROOT = Path(__file__).resolve().parents[2]

# Documents outside docs/ that are in the navigation.
_DOCUMENTS = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# Folder outside docs/ whose documents are pages -> the folder of these pages in the site.
_FOLDERS = {"benchmarks/results": "measurements"}
_COPIED_ENDINGS = {".png", ".svg", ".csv", ".css", ".jpg"}
# Ending of a file that is shown on a page -> the language for syntax highlighting.
_LANGUAGES = {".py": "python", ".json": "json", ".sh": "sh", ".toml": "toml", ".yml": "yaml"}
# Longer files are cut in the site.
_MAX_LINES = 3000
_GENERATED = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
# A fenced block, a code span, or the end of a link. Blocks and spans match so that links within them are left alone.
_CODE_OR_LINK = re.compile(
  r"^( *)(```+|~~~+).*?^\1\2 *$|(`+)(?!`).*?(?<!`)\3(?!`)|\]\((?P<link>[^)\s]+)\)", re.M | re.S
)


@dataclasses.dataclass
class Site:
  """Writes the pages of the site.

  Attributes:
    output: the folder of the sources.
    site_paths: path in the repository -> path in the site, of every file that the site has.
    problems: a line for each link to a missing file, and for each difference between documents and navigation.
  """

  output: Path
  site_paths: dict[str, str] = dataclasses.field(default_factory=dict)
  problems: list[str] = dataclasses.field(default_factory=list)

  def add_documents(self) -> None:
    """Copies docs/ and the documents that are in the navigation."""
    for path in _tracked("docs", *_DOCUMENTS, *_FOLDERS):
      site_path = _site_path(path)
      if site_path and PurePosixPath(path).suffix in {".md", *_COPIED_ENDINGS}:
        self.site_paths[path] = site_path
    for path, site_path in list(self.site_paths.items()):
      if path.endswith(".md"):
        self.write(site_path, fill_generated(self.with_site_links(path, _read(path))))
      else:
        target = self.output / site_path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)

  def check_navigation(self) -> None:
    """Compares the documents with the navigation of mkdocs.yml."""
    listed = set(re.findall(r"^ +- .*?([\w./-]+\.md)$", _read("mkdocs.yml"), re.MULTILINE))
    documents = {
      site_path
      for path, site_path in self.site_paths.items()
      if path.endswith(".md") and not _is_only_linked(site_path)
    }
    self.problems += [f"mkdocs.yml: the navigation lacks {site_path}" for site_path in sorted(documents - listed)]
    missing = listed - set(self.site_paths.values())
    self.problems += [
      f"mkdocs.yml: the navigation has {site_path}, which does not exist" for site_path in sorted(missing)
    ]

  def write(self, site_path: str, text: str) -> None:
    """Writes a page."""
    target = self.output / site_path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")

  def with_site_links(self, path: str, text: str) -> str:
    """The text of a document with the links of the site.

    Args:
      path: the document, relative to the root of the repository.
      text: its Markdown.
    """
    page = self.site_paths[path]

    def with_site_link(match: re.Match[str]) -> str:
      link = match["link"]
      if not link or re.match(r"[a-z]+:|#", link):
        return match[0]
      target, hash_mark, anchor = link.partition("#")
      in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
      if not (ROOT / in_repository).exists():
        self.problems.append(f"{path}: a link leads to {link}, which does not exist")
        return match[0]
      relative = posixpath.relpath(self.site_path_of(in_repository), posixpath.dirname(page) or ".")
      return f"]({relative}{hash_mark}{anchor})"

    return _CODE_OR_LINK.sub(with_site_link, text)

  def site_path_of(self, path: str) -> str:
    """Returns the page of a file or folder of the repository, and makes the page if there is none."""
    if path not in self.site_paths:
      is_folder = (ROOT / path).is_dir()
      folder = _FOLDERS.get(path, f"source/{path}")
      self.site_paths[path] = f"{folder}/index.md" if is_folder else f"source/{path}.md"
      if path.endswith(".ipynb"):
        executed = self.output.parent / "notebooks" / posixpath.basename(path)  # of `make notebooks`
        outputs = executed.read_text(encoding="utf-8") if executed.exists() else ""
        text = self.with_site_links(path, notebook_page(path, _read(path), outputs))
      else:
        text = self._folder_page(path) if is_folder else _source_page(path)
      self.write(self.site_paths[path], text)
    return self.site_paths[path]

  def _folder_page(self, path: str) -> str:
    page = self.site_paths[path]
    lines = [f"# {path}", ""]
    for file in _tracked(path):
      if file in self.site_paths or PurePosixPath(file).suffix in {".txt", ".json", ".jsonl", ".py"}:
        link = posixpath.relpath(self.site_path_of(file), posixpath.dirname(page))
        lines.append(f"- [{PurePosixPath(file).relative_to(path)}]({link})")
    return "\n".join(lines) + "\n"


def _is_only_linked(site_path: str) -> bool:
  """Whether a page is reached only by links of other pages, and need not be in the navigation."""
  is_measurement = site_path.startswith("measurements/") and site_path != "measurements/index.md"
  return is_measurement or (site_path.startswith("results/") and site_path != "results/index.md")


def _site_path(path: str) -> str:
  """Returns the path of a document's page in the site; "" for a file that has no page."""
  for folder, site_folder in _FOLDERS.items():
    if path.startswith(f"{folder}/"):
      return f"{site_folder}/{path.removeprefix(f'{folder}/')}"
  if path in _DOCUMENTS:
    return _DOCUMENTS[path]
  path_in_docs = path.removeprefix("docs/")
  if path_in_docs == path or (path_in_docs.startswith("builder/") and not path_in_docs.endswith(".css")):
    return ""
  folder, name = posixpath.split(path_in_docs)
  return posixpath.join(folder, "index.md" if name == "README.md" else name)


def _source_page(path: str) -> str:
  """Returns a page that shows a file. The site's search leaves it out."""
  lines = _read(path).splitlines()
  text = "\n".join(lines[:_MAX_LINES])
  note = f"\nThe first {_MAX_LINES:,} of {len(lines):,} lines.\n" if len(lines) > _MAX_LINES else ""
  language = _LANGUAGES.get(PurePosixPath(path).suffix, "text")
  fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", text))]))
  return f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n{note}\n{fence}{language}\n{text}\n{fence}\n"


def _read(path: str) -> str:
  return (ROOT / path).read_text(encoding="utf-8")


def _tracked(*paths: str) -> list[str]:
  """Lists the files below some paths, relative to the root. Files that git ignores are left out, if there is git."""
  command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *paths]
  try:
    output = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    listed = [path for path in output.split("\0") if path]
  except (OSError, subprocess.CalledProcessError):
    listed = [file.relative_to(ROOT).as_posix() for path in paths for file in _files(ROOT / path)]
  return sorted(path for path in set(listed) if (ROOT / path).is_file())


def _files(path: Path) -> Iterator[Path]:
  if path.is_file():
    yield path
  else:
    yield from (file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def fill_generated(text: str) -> str:
  """Replaces the lines `<!-- generated: NAME -->` of a document.

  Raises:
    KeyError: GENERATED does not have the name.
  """
  return _GENERATED.sub(lambda match: GENERATED[match[1]](), text)


def _commands_table() -> str:
  rows = []
  for command in _all_commands():
    link = posixpath.relpath(command.page, "reference")
    rows.append((f"[`{command.title}`]({link})", commands.markdown_text(command.summary)))
  return tables.table(("command", "what it does"), rows)


@functools.cache
def _all_commands() -> list[commands.Command]:
  return commands.read_commands(commands.targets())


# Name in `<!-- generated: NAME -->` -> the function that makes the Markdown.
GENERATED: dict[str, Callable[[], str]] = {
  "api": api.reference,
  "commands": _commands_table,
  "models": tables.models_table,
  "recipes": tables.recipes,
}


def main(output: str) -> None:
  """Writes the sources of the site. Those of an earlier build are removed first.

  Args:
    output: the folder.
  """
  shutil.rmtree(output, ignore_errors=True)
  site = Site(Path(output))
  site.add_documents()
  site.check_navigation()
  if site.problems:
    sys.exit("\n".join(f"error: {line}" for line in site.problems))
  for command in _all_commands():
    site.write(command.page, commands.command_page(command))
  print(f"{output}: {sum(len(names) for _, _, names in os.walk(output))} files")


if __name__ == "__main__":
  main(*sys.argv[1:])
