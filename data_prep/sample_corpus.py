"""Writes the docstrings of the installed Python packages as plain text for pretraining: real English, no download.

A document holds the docstrings of one module, one sentence on each line, and ends with a blank line. Modules are parsed
and never imported. Docstrings that mostly repeat earlier ones are left out, so that the held-out documents contain
hardly any text of the training documents.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import ast
import dataclasses
import hashlib
import inspect
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
from albert.io.workers import Workers
from data_prep.docstrings import docstring_sentences, is_heading, is_list_heading, sentence_key

FLAGS = flags.FLAGS

# Tests have few docstrings, and vendored packages are copies of other packages.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "test", "testing", "_vendor", "node_modules"})
# Number of sentences that are kept of a list of parameters, attributes or errors.
_MAX_LIST_SENTENCES = 2
# Documents with fewer sentences are left out.
_MIN_SENTENCES = 3
# Number of modules that a process reads at a time.
_MODULES_PER_CALL = 16


@dataclasses.dataclass(frozen=True)
class Document:
  """The sentences of a module.

  Attributes:
    name: path of the module below the directory of packages, with "/".
    sentences: its sentences, in order.
  """

  name: str
  sentences: tuple[str, ...]

  @property
  def text(self) -> str:
    """The document as it is written: one sentence on each line, and a blank line at the end."""
    return "\n".join(self.sentences) + "\n\n"

  @property
  def rank(self) -> bytes:
    """A hash of the name, by which documents are put into a random order that is the same on every machine."""
    return hashlib.sha256(self.name.encode("utf-8", "surrogateescape")).digest()


def find_site_packages() -> list[str]:
  """Returns the directories in which this interpreter's packages are installed."""
  paths = sysconfig.get_paths()
  return list(dict.fromkeys(os.path.realpath(paths[kind]) for kind in ("purelib", "platlib")))


def find_modules(folder: str) -> Iterator[str]:
  """Yields the paths, relative to `folder`, of the Python files below it, in order and without tests."""
  for root, folders, names in os.walk(folder):
    folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
    for name in sorted(names):
      if name.endswith(".py") and not name.startswith("test_") and not name.endswith("_test.py"):
        yield os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
  """Yields the node and all statements inside it. Expressions, which are most of a tree, are not visited."""
  yield node
  for block in ("body", "handlers", "orelse", "finalbody", "cases"):
    for child in getattr(node, block, ()):
      yield from _statements(child)


def _long_strings(statement: ast.stmt) -> Iterator[ast.Constant]:
  """Yields the strings of three or more lines in a statement, except parts of f-strings.

  These are documentation, too: some packages keep their docstrings in variables and arguments.
  """
  if (statement.end_lineno or 0) < statement.lineno + 2:
    return
  nodes = list(ast.walk(statement))
  fstring_parts = {id(value) for node in nodes if isinstance(node, ast.JoinedStr) for value in node.values}
  for node in nodes:
    if (
      isinstance(node, ast.Constant)
      and isinstance(node.value, str)
      and node.value.count("\n") >= 2
      and id(node) not in fstring_parts
    ):
      yield node


def _find_docstrings(tree: ast.Module) -> list[str]:
  """Returns the docstrings and other long strings of a module, in the order of the file."""
  strings: dict[tuple[int, int], str] = {}
  for node in _statements(tree):
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
      strings[node.lineno, node.col_offset] = node.value.value
    elif isinstance(node, ast.stmt) and not hasattr(node, "body"):
      strings |= {(string.lineno, string.col_offset): str(string.value) for string in _long_strings(node)}
  return [strings[position] for position in sorted(strings)]


def module_sentences(path: str) -> list[list[str]]:
  """Returns the sentences of each docstring of a Python file, in order; [] if the file cannot be read."""
  try:
    with open(path, "rb") as file:
      source = file.read()
    if b'"""' not in source and b"'''" not in source:
      return []
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # such as invalid escapes
      tree = ast.parse(source)
    docstrings = [docstring_sentences(inspect.cleandoc(text)) for text in _find_docstrings(tree)]
  except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
    return []
  return [shorten_lists(sentences) for sentences in docstrings if sentences]


def shorten_lists(sentences: list[str]) -> list[str]:
  """Keeps only the first two sentences of each list of parameters, attributes or errors.

  The entries of such a list have no natural order, so sentence-order prediction can learn nothing from them.
  """
  kept: list[str] = []
  num_to_keep = len(sentences)  # of the sentences before the next heading
  for sentence in sentences:
    if is_heading(sentence):
      num_to_keep = _MAX_LIST_SENTENCES if is_list_heading(sentence) else len(sentences)
      kept.append(sentence)
    elif num_to_keep > 0:
      num_to_keep -= 1
      kept.append(sentence)
  return kept


def unique_documents(modules: Iterable[tuple[str, list[list[str]]]]) -> Iterator[Document]:
  """Yields the documents of modules, without docstrings that mostly repeat earlier ones.

  A docstring is left out if more than half of its characters are in sentences that have appeared before. It is either
  kept or left out as a whole, so that its sentences stay consecutive.

  Args:
    modules: name of each module, and the sentences of each of its docstrings.

  Yields:
    The documents with at least three sentences.
  """
  seen_hashes: set[int] = set()
  for name, docstrings in modules:
    kept_sentences: list[str] = []
    for sentences in docstrings:
      hashes = {sentence: _hash(sentence_key(sentence)) for sentence in sentences if not is_heading(sentence)}
      num_chars = sum(map(len, hashes))
      num_new_chars = sum(len(sentence) for sentence in hashes if hashes[sentence] not in seen_hashes)
      if 2 * num_new_chars >= num_chars:
        kept_sentences += sentences
      seen_hashes.update(hashes.values())
    if len(kept_sentences) >= _MIN_SENTENCES:
      yield Document(name, tuple(kept_sentences))


def _hash(text: str) -> int:
  return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def split_documents(
  documents: list[Document], heldout_fraction: float, max_bytes: float = float("inf")
) -> tuple[list[Document], list[Document]]:
  """Splits documents at random into training and held-out documents. The order of `Document.rank` decides.

  Args:
    documents: all documents.
    heldout_fraction: share of the documents to hold out. At least one is held out.
    max_bytes: greatest size of both parts together, in bytes of UTF-8. The documents beyond it are left out.

  Returns:
    The training and the held-out documents, both in the order of `documents`.
  """
  selected: list[Document] = []
  num_bytes = 0
  for document in sorted(documents, key=lambda document: document.rank):
    num_bytes += len(document.text.encode("utf-8"))
    if num_bytes > max_bytes:
      break
    selected.append(document)
  num_heldout = max(1, round(heldout_fraction * len(selected)))
  heldout_names = {document.name for document in selected[:num_heldout]}
  train_names = {document.name for document in selected[num_heldout:]}
  train = [document for document in documents if document.name in train_names]
  heldout = [document for document in documents if document.name in heldout_names]
  return train, heldout


def read_packages(folders: list[str], num_processes: int) -> list[Document]:
  """Reads the documents of all modules below the directories, sorted by name. Shows a progress bar.

  Args:
    folders: directories of Python packages. If two hold a module of the same name, the first one counts.
    num_processes: number of processes that parse modules.
  """
  paths: dict[str, str] = {}  # name of a module -> its file
  for folder in folders:
    for name in find_modules(folder):
      paths.setdefault(name, os.path.join(folder, name))
  names = sorted(paths)
  starts = range(0, len(names), _MODULES_PER_CALL)
  calls = [tuple(paths[name] for name in names[start : start + _MODULES_PER_CALL]) for start in starts]
  docstrings: dict[str, list[list[str]]] = {}  # path -> sentences of each docstring
  with Progress(len(names), " modules", "reading docstrings") as progress, Workers(num_processes) as workers:
    for paths_read, results in workers.map(_read_modules, calls):
      docstrings |= zip(paths_read, results, strict=True)
      progress.update(len(paths_read))
  return list(unique_documents((name, docstrings[paths[name]]) for name in names))


def _read_modules(paths: tuple[str, ...]) -> list[list[list[str]]]:
  return list(map(module_sentences, paths))


def write_corpus(output_dir: str, train: list[Document], heldout: list[Document]) -> None:
  """Writes train.txt and heldout.txt, and prints their sizes."""
  files.makedirs(output_dir)
  for name, documents in (("train.txt", train), ("heldout.txt", heldout)):
    text = "".join(document.text for document in documents).encode("utf-8")
    path = files.join(output_dir, name)
    files.write_atomically(path, text)
    sentences = sum(len(document.sentences) for document in documents)
    print(f"{path}: {len(documents):,} documents, {sentences:,} sentences, {len(text):,} bytes")


def _define_flags() -> None:
  packages = "directory of the Python packages to read (default: this interpreter's site-packages)"
  share = "share of the documents that are written to heldout.txt, between 0 and 1"
  megabytes = "greatest number of megabytes of text to write (default: no limit)"
  processes = "number of local processes; the output does not depend on it"
  command_flags.define("str", "output_dir", None, "directory to write train.txt and heldout.txt to", required=True)
  command_flags.define("str", "packages_dir", None, packages)
  command_flags.define("float", "heldout_fraction", 0.05, share, allowed=Range(above=0, below=1))
  command_flags.define("float", "max_megabytes", None, megabytes, allowed=Range(above=0))
  command_flags.define("int", "num_processes", default_processes(), processes, allowed=Range(1, MAX_PROCESSES))


def main() -> None:
  folders = [FLAGS.packages_dir] if FLAGS.packages_dir else find_site_packages()
  for folder in folders:
    if not os.path.isdir(folder):
      raise UserError(f"{folder}: no such directory: give a directory of Python packages with --packages_dir")
  documents = read_packages(folders, FLAGS.num_processes)
  max_bytes = 1e6 * FLAGS.max_megabytes if FLAGS.max_megabytes else float("inf")
  train, heldout = split_documents(documents, FLAGS.heldout_fraction, max_bytes)
  if not train or not heldout:
    raise UserError(
      f"{', '.join(folders)}: {len(documents)} documents of prose, of which at least 2 are needed within the limit: "
      "install the project's packages, or raise --max_megabytes"
    )
  write_corpus(FLAGS.output_dir, train, heldout)


def run_command() -> None:
  """Runs the command: albert-sample-corpus, or python -m data_prep.sample_corpus."""
  _define_flags()
  app.run(main)


if __name__ == "__main__":
  run_command()
