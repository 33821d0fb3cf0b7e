"""Extracts the paragraphs of an article from wikitext, with mwparserfromhell.

Tables, lists, headings, references, images, categories and most templates are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from albert.io.local_files import required_library
from data_prep.readers import templates

# Tags whose contents are not text.
_SKIPPED_TAGS = frozenset(
  {
  "ref", "references", "gallery", "math", "chem", "ce", "code", "syntaxhighlight", "source", "pre", "timeline", "score",
  "imagemap", "mapframe", "graph", "templatestyles", "hiero", "inputbox", "section", "indicator",
  }
)  # fmt: skip
_LIST_TAGS = frozenset(("li", "dd", "dt"))
# The names that MediaWiki's namespaces have in every wiki, beside those in the wiki's language.
_ENGLISH_NAMESPACES = frozenset(("media", "special", "talk"))
_ENGLISH_NAMESPACES |= {
  f"{name}{ending}"
  for name in ("user", "project", "file", "image", "mediawiki", "template", "help", "category", "module")
  for ending in ("", " talk")
}
# A link with a prefix to such a file is an image, whatever the prefix: wikis have further names for the namespace.
_MEDIA_FILE = re.compile(
  r"\.(?:jpe?g|png|gif|svg|webp|tiff?|xcf|pdf|djvu|og[agvx]|webm|wav|mp[34g]|mpeg|flac|midi?|opus|stl)$", re.IGNORECASE
)
# This control character is inserted where a heading or an entry of a list begins. Lines that begin with it are left
# out.
_MARK = "\x02"
_QUOTES = re.compile(r"'{2,}")
# Magic words have names in every language, such as __TOC__ and __KEIN_INHALTSVERZEICHNIS__.
_MAGIC_WORD = re.compile(r"__(?:(?![a-z])\w)+?__")
_INTERLANGUAGE = re.compile(r"(?:[a-z]{2,3}(?:-[a-z]+)*|simple):")
# Lines that begin like this are parts of tables and templates that are not closed.
_UNCLOSED_MARKUP = re.compile(r"\{\||\|\}|[|!]|\{\{|\}\}")
_EMPTY_PARENTHESES = re.compile(r"\(\s*(?:[;,:/]\s*)*\)|\[\s*\]")
_PUNCTUATION_AFTER_PARENTHESIS = re.compile(r"\(\s*[;,:]\s*")
# The character of an entity such as &#xD800; is no text.
_LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SPACES = re.compile(r"[ \t\xa0]+")
_SPACE_BEFORE_PUNCTUATION = re.compile(r" (?=[,.;:!?)](?:\s|$))")


class Article(NamedTuple):
  """The text of an article.

  Attributes:
    paragraphs: its paragraphs.
    left_out: kind -> number of parts that were left out.
  """

  paragraphs: list[str]
  left_out: dict[str, int]


def _import_parser(dump: str) -> Any:
  """Imports mwparserfromhell. `dump` is what an error message says cannot be read without it."""
  with required_library(
    dump, "reading a dump of Wikipedia needs mwparserfromhell", "pip install 'mwparserfromhell>=0.6.5'"
  ):
    import mwparserfromhell
  return mwparserfromhell


def check_library(path: str) -> None:
  """Checks that mwparserfromhell is installed.

  Args:
    path: the dump to read, for the error message.
  Raises:
    UserError: it is not.
  """
  _import_parser(path)


def parse(text: str, namespaces: frozenset[str]) -> Article:
  """Extracts the paragraphs of an article.

  Args:
    text: its wikitext.
    namespaces: names of the wiki's namespaces in lower case, such as "datei" and "kategorie".

  Raises:
    Exception: the parser fails; which exceptions it raises is not documented.
  """
  module = _import_parser("wikitext")
  code = module.parse(text.replace(_MARK, " "), skip_style_tags=True)
  extraction = _Extraction(module.nodes, namespaces)
  plain = _MAGIC_WORD.sub("", _QUOTES.sub("", "".join(extraction.texts(code))))
  paragraphs = []
  for line in plain.split("\n"):
    stripped = line.strip()
    if stripped.startswith(_MARK) or _UNCLOSED_MARKUP.match(stripped):
      continue
    if cleaned := _clean(stripped):
      paragraphs.append(cleaned)
  return Article(paragraphs, extraction.left_out)


def _clean(line: str) -> str:
  """Removes traces of templates and links that were left out, such as empty parentheses. "" if no word remains."""
  line = _PUNCTUATION_AFTER_PARENTHESIS.sub("(", _EMPTY_PARENTHESES.sub("", line.replace(_MARK, " ")))
  line = _SPACE_BEFORE_PUNCTUATION.sub("", _SPACES.sub(" ", line)).strip()
  return line if any(character.isalnum() for character in line) else ""


class _Extraction:
  """Walks through the nodes of an article.

  Args:
    nodes: the module of mwparserfromhell that has the classes of nodes.
    namespaces: see `parse`.

  Attributes:
    left_out: kind -> number of parts that were left out.
  """

  def __init__(self, nodes: Any, namespaces: frozenset[str]):
    self.left_out: dict[str, int] = {}
    self._namespaces = namespaces | _ENGLISH_NAMESPACES
    # Nodes of other classes, such as comments, have no text.
    self._methods: dict[type, Callable[[Any], Iterator[str]]] = {
      nodes.Text: self._plain_text,
      nodes.Wikilink: self._link,
      nodes.ExternalLink: self._external_link,
      nodes.Tag: self._tag,
      nodes.Template: self._template,
      nodes.HTMLEntity: self._entity,
      nodes.Heading: self._heading,
    }

  def texts(self, code: Any) -> Iterator[str]:
    """Yields the text of some wikitext, in parts."""
    for node in code.nodes:
      method = self._methods.get(type(node))
      if method is not None:
        yield from method(node)

  def _leave_out(self, kind: str) -> None:
    """Counts a part that is left out."""
    self.left_out[kind] = self.left_out.get(kind, 0) + 1

  def _plain_text(self, node: Any) -> Iterator[str]:
    yield node.value

  def _entity(self, node: Any) -> Iterator[str]:
    yield _LONE_SURROGATE.sub("", node.normalize())

  def _external_link(self, node: Any) -> Iterator[str]:
    if node.title is not None:
      yield from self.texts(node.title)

  def _link(self, node: Any) -> Iterator[str]:
    target = str(node.title).strip()
    prefix = target.partition(":")[0].strip().lower().replace("_", " ")
    has_prefix = ":" in target and not target.startswith(":")
    is_left_out = prefix in self._namespaces or _INTERLANGUAGE.match(target) or _MEDIA_FILE.search(target)
    if has_prefix and is_left_out:
      self._leave_out("images and categories")
    elif node.text is None:
      yield target.lstrip(":").partition("#")[0] or target
    else:
      yield from self.texts(node.text)

  def _tag(self, node: Any) -> Iterator[str]:
    name = str(node.tag).strip().lower()
    if name in _LIST_TAGS and node.wiki_markup:
      self._leave_out("entries of lists")
      yield _MARK
    elif name == "table":
      self._leave_out("tables")
    elif name in _SKIPPED_TAGS:
      self._leave_out("references, formulas and code")
    elif name in ("br", "hr"):
      yield " "
    elif name in ("ul", "ol", "dl"):
      self._leave_out("entries of lists")
    elif node.contents is not None:
      yield from self.texts(node.contents)

  def _heading(self, node: Any) -> Iterator[str]:
    del node
    self._leave_out("headings")
    yield _MARK

  def _template(self, node: Any) -> Iterator[str]:
    # A parser function such as {{formatnum:1000}} has its first parameter in its name.
    name, colon, argument = "".join(self.texts(node.name)).strip().partition(":")
    expand = templates.expander(name.lower().replace("_", " "))
    text = None
    if expand is not None:
      parameters = {str(parameter.name).strip(): "".join(self.texts(parameter.value)) for parameter in node.params}
      text = expand({"1": argument} if colon else parameters)
    if text is None:
      self._leave_out("templates")
    else:
      yield text
