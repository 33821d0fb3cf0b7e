"""Writes the documentation of the installed Python packages as plain text to pretrain on: real English, no download.

A document is a module's docstrings, a sentence a line; a blank line ends a document. Modules are parsed, never
imported. Each sentence is written once, so that the held-out documents hold nothing that training has seen.
"""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports, so that a signal during them ends the command with one line
  from albert import startup

  startup.begin()

import ast
import dataclasses
import hashlib
import inspect
import multiprocessing
import os
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.ranges import MAX_PROCESSES, Range, default_processes
from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress
from data_prep.docstrings import docstring_sentences, is_heading, is_list_heading, sentence_key

FLAGS = flags.FLAGS

# Tests say little; vendored packages repeat others.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "test", "testing", "_vendor", "node_modules"})
_SENTENCES_OF_A_LIST = 2
_MIN_SENTENCES = 3


@dataclasses.dataclass(frozen=True)
class Document:
  """The sentences of one module; `name` is its path below the folder of packages, with "/"."""

  name: str
  sentences: tuple[str, ...]

  @property
  def text(self) -> str:
    return "\n".join(self.sentences) + "\n\n"

  @property
  def rank(self) -> bytes:
    """A hash of the name alone: its order is the same wherever the packages lie."""
    return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).digest()


def site_packages() -> list[str]:
  """Folders where this interpreter has its packages."""
  paths = sysconfig.get_paths()
  return list(dict.fromkeys(os.path.realpath(paths[kind]) for kind in ("purelib", "platlib")))


def find_modules(folder: str) -> Iterator[str]:
  """Names of the Python files below `folder`, in order, without those of tests."""
  for root, folders, names in os.walk(folder):
    folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
    for name in sorted(names):
      if name.endswith(".py") and not name.startswith("test_") and not name.endswith("_test.py"):
        yield os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
  """The node and the statements in it, at any depth. Expressions, most of a tree, are not walked."""
  yield node
  for block in ("body", "handlers", "orelse", "finalbody", "cases"):
    for child in getattr(node, block, ()):
      yield from _statements(child)


def _long_strings(statement: ast.stmt) -> Iterator[ast.Constant]:
  """Strings of three lines or more: some packages keep docstrings in variables and arguments."""
  if (statement.end_lineno or 0) < statement.lineno + 2:
    return
  nodes = list(ast.walk(statement))
  parts = {id(value) for node in nodes if isinstance(node, ast.JoinedStr) for value in node.values}
  for node in nodes:
    if (
      isinstance(node, ast.Constant)
      and isinstance(node.value, str)
      and node.value.count("\n") >= 2
      and id(node) not in parts
    ):
      yield node


def _documentation(tree: ast.Module) -> list[str]:
  """Docstrings and long strings, from the top of the file to its end."""
  found: dict[tuple[int, int], str] = {}
  for node in _statements(tree):
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
      found[node.lineno, node.col_offset] = node.value.value
    elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
      found |= {(string.lineno, string.col_offset): str(string.value) for string in _long_strings(node)}
  return [found[place] for place in sorted(found)]


def module_sentences(path: str) -> list[list[str]]:
  """Sentences of each docstring of the Python file, in order; none if it cannot be parsed."""
  try:
    with open(path, "rb") as file:
      source = file.read()
    if b'"""' not in source and b"'''" not in source:
      return []
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # other people's invalid escapes
      tree = ast.parse(source)
  except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
    return []
  docstrings = (docstring_sentences(inspect.cleandoc(text)) for text in _documentation(tree))
  return [shorten_lists(sentences) for sentences in docstrings if sentences]


def shorten_lists(sentences: list[str]) -> list[str]:
  """Keeps the first sentences of each list of parameters, attributes or errors.

  Its entries stand in no order that a reader could tell, so a corpus full of them has no sentence order to learn.
  """
  kept: list[str] = []
  room = len(sentences)
  for sentence in sentences:
    if is_heading(sentence):
      room = _SENTENCES_OF_A_LIST if is_list_heading(sentence) else len(sentences)
      kept.append(sentence)
    elif room > 0:
      room -= 1
      kept.append(sentence)
  return kept


def unique_documents(modules: Iterable[tuple[str, list[list[str]]]]) -> Iterator[Document]:
  """Documents of docstrings that are mostly new; a copy of an earlier one, with small changes or none, is left out.

  A docstring is kept whole or not at all, so that its sentences read on.

  Args:
    modules: (name, sentences of each docstring).
  """
  seen: set[int] = set()
  for name, docstrings in modules:
    kept: list[str] = []
    for sentences in docstrings:
      keys = {s: _hash(sentence_key(s)) for s in sentences if not is_heading(s)}
      new = sum(len(sentence) for sentence, key in keys.items() if key not in seen)
      if 2 * new >= sum(map(len, keys)):
        kept += sentences
      seen.update(keys.values())
    if len(kept) >= _MIN_SENTENCES:
      yield Document(name, tuple(kept))


def _hash(text: str) -> int:
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def split_documents(
  documents: list[Document], heldout_fraction: float, max_bytes: float = float("inf")
) -> tuple[list[Document], list[Document]]:
  """(training documents, held-out documents), each in the given order; at least one held out.

  Which ones are held out, and which are left out over `max_bytes` (UTF-8), depends on the names' hashes.
  """
  by_rank = sorted(documents, key=lambda document: document.rank)
  chosen: list[Document] = []
  total = 0
  for document in by_rank:
    total += len(document.text.encode("utf-8"))
    if total > max_bytes:
      break
    chosen.append(document)
  num_heldout = max(1, round(heldout_fraction * len(chosen)))
  heldout = {document.name for document in chosen[:num_heldout]}
  names = {document.name for document in chosen}
  train = [document for document in documents if document.name in names - heldout]
  return train, [document for document in documents if document.name in heldout]


def read_packages(folders: list[str], num_processes: int) -> list[Document]:
  """The documents of all modules below the folders, by name. Shows its progress."""
  modules = {name: os.path.join(folder, name) for folder in reversed(folders) for name in find_modules(folder)}
  names = sorted(modules)

  def found() -> Iterator[tuple[str, list[list[str]]]]:
    # Spawned processes start clean, whatever threads the caller runs.
    with multiprocessing.get_context("spawn").Pool(num_processes) as pool:
      docstrings = pool.imap(module_sentences, [modules[name] for name in names], chunksize=16)
      with Progress(len(names), " modules", "reading docstrings") as progress:
        for name, sentences in zip(names, docstrings, strict=True):
          progress.update(1)
          yield name, sentences

  return list(unique_documents(found()))


def write_corpus(output_dir: str, train: list[Document], heldout: list[Document]) -> None:
  """Writes train.txt and heldout.txt and prints what they hold."""
  files.makedirs(output_dir)
  for name, documents in (("train.txt", train), ("heldout.txt", heldout)):
    text = "".join(document.text for document in documents).encode("utf-8")
    path = files.join(output_dir, name)
    files.write_atomically(path, text)
    sentences = sum(len(document.sentences) for document in documents)
    print(f"{path}: {len(documents):,} documents, {sentences:,} sentences, {len(text):,} bytes")


def _define_flags() -> None:
  packages = "Python packages to read (default: this interpreter's site-packages)"
  share = "share of the documents in heldout.txt, in (0, 1)"
  megabytes = "write at most this much text (default: all)"
  processes = "processes; the output does not depend on it"
  command_flags.define("str", "output_dir", None, "where train.txt and heldout.txt are written", required=True)
  command_flags.define("str", "packages_dir", None, packages)
  command_flags.define("float", "heldout_fraction", 0.05, share, allowed=Range(above=0, below=1))
  command_flags.define("float", "max_megabytes", None, megabytes, allowed=Range(above=0))
  command_flags.define("int", "num_processes", default_processes(), processes, allowed=Range(1, MAX_PROCESSES))


def main() -> None:
  folders = [FLAGS.packages_dir] if FLAGS.packages_dir else site_packages()
  for folder in folders:
    if not os.path.isdir(folder):
      raise UserError(f"{folder}: no such folder: give a folder of Python packages with --packages_dir")
  documents = read_packages(folders, FLAGS.num_processes)
  max_bytes = 1e6 * FLAGS.max_megabytes if FLAGS.max_megabytes else float("inf")
  train, heldout = split_documents(documents, FLAGS.heldout_fraction, max_bytes)
  if not train or not heldout:
    raise UserError(
      f"{', '.join(folders)}: {len(documents)} documents of prose within the limit, 2 are needed: "
      "install the project's packages, or raise --max_megabytes"
    )
  write_corpus(FLAGS.output_dir, train, heldout)


if __name__ == "__main__":
  _define_flags()
  app.run(main)
