"""Writes the docstrings of the installed Python packages as plain text for pretraining: real English, no download.

A document holds the docstrings of one module, one sentence on each line, and ends with a blank line. Modules are parsed
and never imported. Docstrings that mostly repeat earlier ones are left out, so that the held-out documents contain
hardly any text of the training documents.

The sentences of a docstring are those of English prose, without markup, code, tables and lists of names, in the common
formats of Python documentation: reStructuredText, Markdown, and the sections of numpydoc and of Google's style.
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
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator

from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.command_flags import MAX_PROCESSES, Range, default_processes
from albert.errors import UserError
from albert.io import files
from albert.io.progress import Progress
from albert.io.workers import Workers
from data_prep.sentences import SentenceSplitter

FLAGS = flags.FLAGS

# Directives whose body is prose. The other directives (code, math, plots, tables) are dropped with their body.
_PROSE_DIRECTIVES = frozenset(
  {
  "note", "warning", "important", "tip", "hint", "caution", "attention", "seealso", "deprecated", "versionadded",
  "versionchanged",
  }
)  # fmt: skip
_DIRECTIVE = re.compile(r"\.\.\s+(?:\|[^|]*\|\s+)?([\w:+-]+?)::(?:\s+(.*))?$")
# Comments of reStructuredText; link targets, footnotes and citations begin in the same way.
_COMMENT = re.compile(r"\.\.(\s|$)")
_FENCE = re.compile(r"(`{3,}|~{3,})")  # the first line of a fenced block of code
_FIELD = re.compile(  # :param name:
  r":(?:param|parameter|arg|type|rtype|return|returns|raises|raise|var|ivar|cvar|keyword|kwarg)\b[^:]*:\s*"
)
_OPTION = re.compile(r":[\w-]+:(\s|$)")  # an option of a directive, such as :hidden:
_HORIZONTAL_LINE = re.compile(r"([^\w\s])\1{2,}$")  # between paragraphs or below a heading, such as ---
_GRID_TABLE = re.compile(r"[|+]")
_SIMPLE_TABLE = re.compile(r"[=\-]{2,}\s+[=\-]{2,}")
_BULLET = re.compile(r"(?:[-*+•]|\(?(?:\d{1,2}|[a-zA-Z])[.)])\s+(?=\S)")
# The line "name : type", with which numpydoc describes a parameter.
_TYPED_NAME = re.compile(r"`{0,2}\*{0,2}([A-Za-z_]\w*)(?:\s*,\s*\*{0,2}\w+)*`{0,2}\s+:(?:\s.*)?$")
# The heading of a section. There are three kinds of sections: lists of entries (group "list"), sections without prose
# (group "no_prose"), and other sections. A heading in Google's style ends with a colon.
_SECTION = re.compile(
  r"(?P<list>(?:(?:other |keyword )?(?:parameters|arguments?))|args|kwargs|raises|warns|attributes|properties)?"
  r"(?P<no_prose>see also|references?|methods)?"
  r"(?:returns?|yields?|receives|notes?|warnings?|inputs?|outputs?|(?:input|output) shape|description|summary"
  r"|compatibility|examples?|usage|call arguments|eager compatibility|tips?|todo)?\s*(?P<colon>:?)$",
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

# A sentence of prose has at least this many words, and at least this share of its tokens are words.
_MIN_WORDS, _MIN_WORD_SHARE = 1, 0.4
_MAX_SENTENCE_CHARS = 600

# Tests have few docstrings, and vendored packages are copies of other packages.
_SKIPPED_FOLDERS = frozenset({"__pycache__", "tests", "test", "testing", "_vendor", "node_modules"})
# Number of sentences that are kept of a list of parameters, attributes or errors.
_MAX_LIST_SENTENCES = 2
# Documents with fewer sentences are left out.
_MIN_SENTENCES = 3
# Number of modules that a process reads at a time.
_MODULES_PER_CALL = 16


def _indent(line: str) -> int:
  return len(line) - len(line.lstrip())


def _drop_blocks(lines: list[str]) -> Iterator[str]:
  """Yields the lines without fenced, literal and doctest blocks, directives, tables and horizontal lines.

  A dropped block is replaced by one blank line, so that the paragraphs around it stay apart.
  """
  position = 0  # index of the next line
  skip_deeper_than = -1  # in a dropped block: lines that are indented more than this belong to it; -1 outside of blocks
  while position < len(lines):
    line = lines[position].rstrip()
    text = line.strip()
    position += 1
    if skip_deeper_than >= 0:
      if not text or _indent(line) > skip_deeper_than:
        continue
      skip_deeper_than = -1
    fence = _FENCE.match(text)
    if fence:
      while position < len(lines) and not lines[position].strip().startswith(fence.group()):
        position += 1
      position += 1
      yield ""
      continue
    if text.startswith(">>>") or _SIMPLE_TABLE.match(text):
      while position < len(lines) and lines[position].strip():
        position += 1
      yield ""
      continue
    directive = _DIRECTIVE.match(text)
    if directive or _COMMENT.match(text):
      kind = directive.group(1).lower() if directive else ""
      if kind not in _PROSE_DIRECTIVES:
        skip_deeper_than = _indent(line)
      yield ""
      continue
    if _HORIZONTAL_LINE.match(text) or _GRID_TABLE.match(text) or _OPTION.match(text):
      yield ""
      continue
    if text.endswith("::"):
      skip_deeper_than = _indent(line)
      yield line[: line.rindex("::")] + ":"
      continue
    yield line


class _Paragraphs:
  """Joins the lines of each paragraph, list item and description of a parameter into one line.

  Attributes:
    joined: the joined lines, one string for each paragraph.
  """

  def __init__(self) -> None:
    self.joined: list[str] = []
    self._lines: list[str] = []  # the lines of the current paragraph
    self._indent = 0  # the indentation of its first line
    self._has_hanging_indent = False  # whether its other lines are indented more than the first one
    self._parameter = ""  # the numpydoc parameter that the next paragraph describes
    self._in_entries = False  # whether the current section has entries "name: text" in Google's style
    self._entry_indent = -1  # the indentation of these entries, -1 before the first one
    # In a section without prose, such as "See also", lines that are indented more than this are dropped. In Google's
    # style it is the indentation of the heading, else -1: such a section ends at the next heading.
    self._skip_deeper_than: int | None = None

  def flush(self) -> None:
    """Ends the current paragraph."""
    if self._lines:
      self.joined.append(" ".join(self._lines))
    self._lines = []

  def add(self, line: str) -> None:
    """Adds the next line of the docstring."""
    text, indent = line.strip(), _indent(line)
    if not text:
      self.flush()
    elif (section := _SECTION.match(text)) and len(text) > 1:
      self._begin_section(section, indent)
    elif self._skip_deeper_than is None or indent <= self._skip_deeper_than:
      self._skip_deeper_than = None
      self._add_text(text, indent)

  def _begin_section(self, section: re.Match[str], indent: int) -> None:
    self.flush()
    is_google = bool(section["colon"])
    self._parameter = ""
    self._in_entries, self._entry_indent = bool(section["list"]) and is_google, -1
    self._skip_deeper_than = None
    if section["no_prose"]:
      self._skip_deeper_than = indent if is_google else -1
    else:
      self.joined.append(f"{section.group().rstrip(': ').capitalize()}:")

  def _add_text(self, text: str, indent: int) -> None:
    typed_name = _TYPED_NAME.match(text)
    continues_paragraph = bool(self._lines) and self._has_hanging_indent and indent > self._indent
    if typed_name and not continues_paragraph:
      self.flush()
      self._parameter = typed_name.group(1)
      return
    bullet = _BULLET.match(text) or _FIELD.match(text)
    if self._in_entries and self._entry_indent < 0:
      self._entry_indent = indent
    is_entry = self._in_entries and indent == self._entry_indent
    if bullet or is_entry or indent < self._indent or (indent > self._indent and not self._has_hanging_indent):
      self.flush()
    if not self._lines:
      self._indent, self._has_hanging_indent = indent, bool(bullet) or is_entry
      if self._parameter:
        self._lines.append(f"{self._parameter}:")
        self._parameter = ""
    self._lines.append(text[bullet.end() :] if bullet else text)


def _remove_inline_markup(paragraph: str) -> str:
  for pattern, replacement in _INLINE_MARKUP:
    paragraph = pattern.sub(replacement, paragraph)
  return paragraph.strip()


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
  return len(words) >= max(_MIN_WORDS, _MIN_WORD_SHARE * len(tokens))


def docstring_sentences(docstring: str) -> list[str]:
  """Returns the sentences of prose in a docstring without common indentation, in order.

  The heading of a section, such as "Returns:", is a sentence of its own.
  """
  paragraphs = _Paragraphs()
  for line in _drop_blocks(docstring.expandtabs().splitlines()):
    paragraphs.add(line)
  paragraphs.flush()
  sentences: list[str] = []
  for paragraph in map(_remove_inline_markup, paragraphs.joined):
    if is_heading(paragraph):
      if sentences and is_heading(sentences[-1]):  # the previous section has no prose: its heading is dropped
        sentences.pop()
      sentences.append(paragraph)
      continue
    for sentence in SentenceSplitter().split(paragraph):
      # Summaries and descriptions of parameters often have no full stop.
      punctuated = sentence if sentence[-1] in ".!?:,;\"')" else f"{sentence}."
      if _is_prose(punctuated):
        sentences.append(punctuated)
  return sentences[:-1] if sentences and is_heading(sentences[-1]) else sentences


def is_heading(sentence: str) -> bool:
  """Whether a sentence is the heading of a section, such as "Returns:"."""
  return sentence.endswith(":") and _SECTION.match(sentence) is not None


def sentence_key(sentence: str) -> bytes:
  """Returns a hash that is equal for sentences that differ only in case, digits, punctuation and package prefixes."""
  letters = " ".join(_LETTERS.findall(_PACKAGE_PREFIX.sub("", sentence.lower())))
  return hashlib.blake2b(letters.encode(), digest_size=8).digest()


# ---- modules and documents -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Document:
  """The sentences of a module, whose name is its path below the directory of packages, with "/"."""

  name: str
  sentences: tuple[str, ...]

  @property
  def text(self) -> str:
    """The document as it is written: one sentence on each line, and a blank line at the end."""
    return "\n".join(self.sentences) + "\n\n"


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
  """Yields the strings of three or more lines in a statement: some packages keep docstrings in variables."""
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
    if (section := _SECTION.match(sentence)) and is_heading(sentence):
      num_to_keep = _MAX_LIST_SENTENCES if section["list"] else len(sentences)
      kept.append(sentence)
    elif num_to_keep > 0:
      num_to_keep -= 1
      kept.append(sentence)
  return kept


def unique_documents(modules: Iterable[tuple[str, list[list[str]]]]) -> Iterator[Document]:
  """Yields the documents with at least three sentences, without docstrings that mostly repeat earlier ones.

  A docstring is left out if more than half of its characters are in sentences that have appeared before. It is either
  kept or left out as a whole, so that its sentences stay consecutive. `modules` are names of modules, and the sentences
  of each of their docstrings.
  """
  seen_hashes: set[bytes] = set()
  for name, docstrings in modules:
    kept_sentences: list[str] = []
    for sentences in docstrings:
      hashes = {sentence: sentence_key(sentence) for sentence in sentences if not is_heading(sentence)}
      num_chars = sum(map(len, hashes))
      num_new_chars = sum(len(sentence) for sentence in hashes if hashes[sentence] not in seen_hashes)
      if 2 * num_new_chars >= num_chars:
        kept_sentences += sentences
      seen_hashes.update(hashes.values())
    if len(kept_sentences) >= _MIN_SENTENCES:
      yield Document(name, tuple(kept_sentences))


def split_documents(
  documents: list[Document], heldout_fraction: float, max_bytes: float = float("inf")
) -> tuple[list[Document], list[Document]]:
  """Splits documents at random into training and held-out ones, both in the order given. Hashes of their names decide.

  At least one document is held out. Documents beyond `max_bytes` of UTF-8 are left out.
  """

  def rank(document: Document) -> bytes:
    return hashlib.sha256(document.name.encode("utf-8", "surrogateescape")).digest()

  selected: list[Document] = []
  num_bytes = 0
  for document in sorted(documents, key=rank):
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
  """Reads the documents of all modules below the directories, sorted by name, in some processes. Shows a progress bar.

  If two directories hold a module of the same name, the first one counts.
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
