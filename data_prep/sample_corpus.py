"""Writes the docstrings of the installed Python packages as plain text for pretraining: real English, no download.

A document holds the docstrings of one module, one sentence on each line, and ends with a blank line. Modules are parsed
and never imported. Docstrings that mostly repeat earlier ones are left out, so that the held-out documents contain
hardly any text of the training documents.

The sentences of a docstring are those of English prose, without markup, code, tables and lists of parameters, in the
common formats of Python documentation: reStructuredText, Markdown, and the sections of numpydoc and of Google's style.
"""

from __future__ import annotations

# Before the other imports, so that Ctrl-C during slow imports prints one line, not a traceback.
if __name__ == "__main__":
  from albert import startup

  startup.begin()

import ast
import hashlib
import itertools
import math
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from absl import flags

from albert.config import command_flags
from albert.config.command_flags import MAX_PROCESSES, Range, default_processes
from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress
from albert.io.workers import Workers
from data_prep.sentences import SentenceSplitter

FLAGS = flags.FLAGS

# What is left out with the lines below it that are indented more: directives, comments, footnotes and targets of links
# of reStructuredText, and fields such as :param name:.
_LEFT_OUT_BLOCK = re.compile(r"\.\.(\s|$)|:(?:param|parameter|arg|type|rtype|raises?|i?var|cvar|keyword|kwarg)\b[^:]*:")
# The first line of what is left out up to a blank line: examples, and tables of reStructuredText.
_LEFT_OUT_PARAGRAPH = re.compile(r">>>|[=\-]{2,}\s+[=\-]{2,}")
# Single lines that are left out: ---, rows of tables, options of directives such as :hidden:, and the line
# "name : type", with which numpydoc describes a result.
_LEFT_OUT_LINE = re.compile(r"([^\w\s])\1{2,}$|[|+]|:[\w-]+:(?:\s|$)|`{0,2}[A-Za-z_]\w*`{0,2}\s+:(?:\s.*)?$")
_FENCED_BLOCK = re.compile(r"^\s*(`{3,}|~{3,}).*?(?:^\s*\1|\Z)", re.MULTILINE | re.DOTALL)
_BULLET = re.compile(r"(?:[-*+•]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+(?=\S)")
# The heading of a section. A heading in Google's style ends with a colon. The sections of the group are left out: lists
# of parameters, attributes, errors and links, whose entries have no natural order.
_SECTION = re.compile(
  r"(?P<left_out>(?:other |keyword |call )?(?:parameters|arguments?)|args|kwargs|raises|warns|attributes|properties"
  r"|see also|references?|methods)?"
  r"(?:returns?|yields?|receives|notes?|warnings?|inputs?|outputs?|(?:input|output) shape|description|summary"
  r"|compatibility|examples?|usage|eager compatibility|tips?|todo)?\s*(?P<colon>:?)$",
  re.I,
)

# Patterns of inline markup and their replacements, in the order in which they are applied.
_INLINE_MARKUP = (
  (re.compile(r"\[([^\]\[]+)\]\((?:https?:|#|\.|/)[^)\s]*\)"), r"\1"),  # [text](link)
  (re.compile(r":(?:\w+:)?[\w-]+:`([^`<]*?)\s*<[^`>]*>`"), r"\1"),  # :role:`text <target>`
  (re.compile(r"(?::(?:\w+:)?[\w-]+:)?`[~!]([^`]*?\.)?([^`.]*)`"), r"\2"),  # :role:`~package.name`
  (re.compile(r":(?:\w+:)?[\w-]+:`\.?([^`]*)`"), r"\1"),  # :role:`name`
  (re.compile(r"`([^`<]*?)\s*<[^`>]*>`__?"), r"\1"),  # `text <link>`_
  (re.compile(r"\s*\[[\w#*, -]{1,12}\]_"), ""),  # [1]_
  (re.compile(r"`+([^`]*)`+_{0,2}"), r"\1"),
  (re.compile(r"(?<![\w*])\*\*?(?=\S)([^*]+?)(?<=\S)\*\*?(?![\w*])"), r"\1"),  # *text*, **text**
  (re.compile(r"\s*<?https?://\S+?>?(?=[.,;)]?(?:\s|$))"), ""),
  (re.compile(r"(?<![\w.])([A-Za-z]\w*[^\W_])_(?=[\s.,;:)]|$)"), r"\1"),  # name_
  (re.compile(r"\s+"), " "),
  (re.compile(r"\s*\(\s*(?:see)?\s*\)"), ""),  # empty parentheses, from which a link was removed
  (re.compile(r" (?=[,.;:!?](?:\s|$))"), ""),
)
_ENGLISH_WORD = re.compile(r"[A-Za-z][a-z]*(?:['’-][a-z]+)*")
# Symbols that are frequent in code and rare in prose.
_CODE_SYMBOLS = re.compile(
  r"[{}\\^~|#@$]|;\s*\w+\(|::|[-=]>|\[[^\]]*[:\]]\]|%\(|\.\.\.\S|\S/\S*/\S|[-+*/<>=]{3}|\*\*|\s[+*=]+\s"
)
_STARTS_LIKE_CODE = re.compile(
  r"(?:import|from \S+ import|def|class \w+[:(]|return \w+$|print|assert|async|with \S+ as)\b"
)

_PACKAGE_PREFIX = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[a-z_])")
_LETTERS = re.compile(r"[^\W\d_]+")

# At least this share of the tokens of a sentence of prose are words.
_MIN_WORD_SHARE = 0.4
_MAX_SENTENCE_CHARS = 600

# Tests have few docstrings, and vendored packages are copies of other packages.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "test", "testing", "_vendor", "node_modules"})
# Documents with fewer sentences are left out.
_MIN_SENTENCES = 3


def _prose_lines(docstring: str) -> Iterator[str]:
  """Yields the lines of prose, and "" for each line of code, tables, headings and lists of parameters."""
  skip_deeper_than = math.inf  # lines that are indented more than this are left out
  skips_paragraph = False
  for line in _FENCED_BLOCK.sub("\n\n", docstring.expandtabs()).splitlines():
    text, indent = line.strip(), len(line) - len(line.lstrip())
    section = _SECTION.match(text) if len(text) > 1 else None
    if not text:
      skips_paragraph = False
    elif section is not None:
      skip_deeper_than = math.inf
      if section["left_out"]:  # up to the next heading, or in Google's style as far as the lines are indented
        skip_deeper_than = indent if section["colon"] else -1
    elif not skips_paragraph and indent <= skip_deeper_than:
      skip_deeper_than = math.inf
      if _LEFT_OUT_BLOCK.match(text):
        skip_deeper_than = indent
      elif _LEFT_OUT_PARAGRAPH.match(text):
        skips_paragraph = True
      elif not _LEFT_OUT_LINE.match(text):
        if text.endswith("::"):  # a block of code follows
          skip_deeper_than = indent
        yield line
        continue
    yield ""


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
  """Joins the lines of each paragraph and of each entry of a list into one line."""
  joined: list[str] = []
  indent = 0
  for line in [*lines, ""]:
    text, previous_indent, indent = line.strip(), indent, len(line) - len(line.lstrip())
    bullet = _BULLET.match(text)
    if joined and (not text or bullet or indent < previous_indent):
      yield " ".join(joined)
      joined = []
    if text:
      joined.append(text[bullet.end() :] if bullet else text)


def _is_prose(sentence: str) -> bool:
  """Whether a sentence or phrase is English prose: not too long, and with few names and symbols of code."""
  if len(sentence) > _MAX_SENTENCE_CHARS or not sentence.endswith((".", "!", "?", '."', ".)")):
    return False
  if len(_CODE_SYMBOLS.findall(sentence)) > 1 or _STARTS_LIKE_CODE.match(sentence):
    return False
  if sentence.count("(") != sentence.count(")"):
    return False
  tokens = sentence.split()
  words = [token for token in tokens if _ENGLISH_WORD.fullmatch(token.strip("\"'(),.;:!?*"))]
  return len(words) >= _MIN_WORD_SHARE * len(tokens)


def docstring_sentences(docstring: str) -> list[str]:
  """Returns the sentences of prose in a docstring without common indentation, in order."""
  sentences: list[str] = []
  for paragraph in _paragraphs(_prose_lines(docstring)):
    plain = paragraph
    for pattern, replacement in _INLINE_MARKUP:
      plain = pattern.sub(replacement, plain)
    for sentence in SentenceSplitter().split(plain):
      # Summaries often have no full stop.
      punctuated = sentence if sentence[-1] in ".!?:,;\"')" else f"{sentence}."
      if _is_prose(punctuated):
        sentences.append(punctuated)
  return sentences


def sentence_key(sentence: str) -> bytes:
  """Returns a hash that is equal for sentences that differ only in case, digits, punctuation and package prefixes."""
  letters = " ".join(_LETTERS.findall(_PACKAGE_PREFIX.sub("", sentence.lower())))
  return hashlib.blake2b(letters.encode(), digest_size=8).digest()


# ---- modules and documents -----------------------------------------------------------------------------


class Document(NamedTuple):
  """The text of a module, with one sentence on each line and a blank line at the end, and the module's path."""

  name: str
  text: str


def find_modules(folder: str) -> Iterator[str]:
  """Yields the paths, relative to `folder`, of the Python files below it, in order and without tests."""
  for root, folders, names in os.walk(folder):
    folders[:] = sorted(set(folders) - _SKIPPED_FOLDERS)
    for name in sorted(names):
      if name.endswith(".py") and not name.startswith("test_") and not name.endswith("_test.py"):
        yield os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")


def _definitions(node: ast.AST) -> Iterator[ast.AST]:
  """Yields a module, and the classes and functions in it. Expressions, which are most of a tree, are not visited."""
  if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
    yield node
  for block in ("body", "handlers", "orelse", "finalbody", "cases"):
    for statement in getattr(node, block, ()):
      yield from _definitions(statement)


def module_sentences(path: str) -> list[list[str]]:
  """Returns the sentences of each docstring of a Python file, in order; [] if the file cannot be read."""
  try:
    source = Path(path).read_bytes()
    if b'"""' not in source and b"'''" not in source:
      return []
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # such as invalid escapes
      tree = ast.parse(source)
    docstrings = [docstring_sentences(ast.get_docstring(node) or "") for node in _definitions(tree)]  # type: ignore[arg-type]
  except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
    return []
  return list(filter(None, docstrings))


def unique_documents(modules: Iterable[tuple[str, list[list[str]]]]) -> Iterator[Document]:
  """Yields the documents with at least three sentences, without docstrings that mostly repeat earlier ones.

  A docstring is left out if more than half of its characters are in sentences that have appeared before. It is either
  kept or left out as a whole, so that its sentences stay consecutive. `modules` are names of modules, and the sentences
  of each of their docstrings.
  """
  seen_keys: set[bytes] = set()
  for name, docstrings in modules:
    kept_sentences: list[str] = []
    for sentences in docstrings:
      keys = {sentence: sentence_key(sentence) for sentence in sentences}
      num_new_chars = sum(len(sentence) for sentence, key in keys.items() if key not in seen_keys)
      if 2 * num_new_chars >= sum(map(len, keys)):
        kept_sentences += sentences
      seen_keys.update(keys.values())
    if len(kept_sentences) >= _MIN_SENTENCES:
      yield Document(name, "\n".join(kept_sentences) + "\n\n")


def split_documents(
  documents: list[Document], heldout_fraction: float, max_bytes: float = math.inf
) -> tuple[list[Document], list[Document]]:
  """Splits documents at random into training and held-out ones, both in the order given. Hashes of their names decide.

  At least one document is held out. Documents beyond `max_bytes` of UTF-8 are left out.
  """
  ranked = sorted(documents, key=lambda document: hashlib.sha256(os.fsencode(document.name)).digest())
  total_bytes = itertools.accumulate(len(document.text.encode("utf-8")) for document in ranked)
  num_selected = sum(total <= max_bytes for total in total_bytes)
  num_heldout = max(1, round(heldout_fraction * num_selected))
  heldout_names = {document.name for document in ranked[: min(num_heldout, num_selected)]}
  train_names = {document.name for document in ranked[num_heldout:num_selected]}
  heldout = [document for document in documents if document.name in heldout_names]
  return [document for document in documents if document.name in train_names], heldout


def read_packages(folders: list[str], num_processes: int) -> list[Document]:
  """Reads the documents of all modules below the directories, sorted by name, in some processes. Shows a progress bar.

  If two directories hold a module of the same name, the first one counts.
  """
  paths: dict[str, str] = {}  # name of a module -> its file
  for folder in folders:
    for name in find_modules(folder):
      paths.setdefault(name, os.path.join(folder, name))
  docstrings: dict[str, list[list[str]]] = {}  # path -> sentences of each docstring
  with Progress(len(paths), " modules", "reading docstrings") as progress, Workers(num_processes) as workers:
    for path, sentences in workers.map(module_sentences, paths.values()):
      docstrings[path] = sentences
      progress.update(1)
  return list(unique_documents((name, docstrings[paths[name]]) for name in sorted(paths)))


def write_corpus(output_dir: str, train: list[Document], heldout: list[Document]) -> None:
  """Writes train.txt and heldout.txt, and prints their sizes."""
  files.makedirs(output_dir)
  for name, documents in (("train.txt", train), ("heldout.txt", heldout)):
    text = "".join(document.text for document in documents).encode("utf-8")
    path = files.join(output_dir, name)
    files.write_atomically(path, text)
    sentences = text.count(b"\n") - len(documents)
    print(f"{path}: {len(documents):,} documents, {sentences:,} sentences, {len(text):,} bytes")


def define_flags() -> None:
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
  paths = sysconfig.get_paths()
  site_packages = dict.fromkeys(os.path.realpath(paths[kind]) for kind in ("purelib", "platlib"))
  folders = [FLAGS.packages_dir] if FLAGS.packages_dir else list(site_packages)
  for folder in folders:
    if not os.path.isdir(folder):
      raise UserError(f"{folder}: no such directory: give a directory of Python packages with --packages_dir")
  documents = read_packages(folders, FLAGS.num_processes)
  max_bytes = 1e6 * (FLAGS.max_megabytes or math.inf)
  train, heldout = split_documents(documents, FLAGS.heldout_fraction, max_bytes)
  if not train or not heldout:
    raise UserError(
      f"{', '.join(folders)}: {len(documents)} documents of prose, of which at least 2 are needed within the limit: "
      "install the project's packages, or raise --max_megabytes"
    )
  write_corpus(FLAGS.output_dir, train, heldout)


if __name__ == "__main__":
  startup.run_command_of(__name__)
