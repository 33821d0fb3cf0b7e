"""Extracts the paragraphs of an article from wikitext, with mwparserfromhell.

Tables, lists, headings, references, images, categories and most templates are left out. The text of templates that
stand within sentences is kept: numbers with units, dates, dashes and marked words. Only templates of the English
Wikipedia are known. Many other Wikipedias have copies of them.
"""

from __future__ import annotations

import calendar
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from albert.io.local_files import required_library

# Name of a parameter -> its text. Parameters without a name are called "1", "2" and so on, as in MediaWiki.
Parameters = Mapping[str, str]
# Returns the text of a template; None if its parameters are not understood.
Expand = Callable[[Parameters], str | None]

# Name of a template, in lower case -> its text. {1} stands for the parameter "1". Of several patterns, the first one
# whose parameters are all given counts.
_MARKED_TEXT = ("{1}",)
_PATTERNS: dict[str, tuple[str, ...]] = {
  **dict.fromkeys(("nowrap", "nobr", "small", "abbr", "em", "strong", "sic", "sub", "sup", "formatnum"), _MARKED_TEXT),
  **dict.fromkeys(("lang", "langx"), ("{2}",)),
  **dict.fromkeys(("transl", "transliteration"), ("{3}", "{2}")),
  **dict.fromkeys(("ill", "interlanguage link"), ("{lt}", "{1}")),
  **dict.fromkeys(("circa", "c.", "ca."), ("c. {1} – c. {2}", "c. {1}")),
  **dict.fromkeys(("floruit", "fl."), ("fl. {1}–{2}", "fl. {1}")),
  "reign": ("r. {1}–{2}", "r. {1}"),
  **dict.fromkeys(("oldstyledate", "oldstyledatedy"), ("{1} {2}",)),
  **dict.fromkeys(("frac", "fraction", "sfrac"), ("{1} {2}/{3}", "{1}/{2}", "1/{1}")),
  "val": ("{1} × 10^{e} {u}", "{1} × 10^{e} {ul}", "{1} × 10^{e}", "{1} {u}/{up}", "{1} {u}", "{1} {ul}", "{1}"),
  **dict.fromkeys(("e", "x10^"), (" × 10^{1}",)),
  "gaps": ("{1}{2}{3}{4}", "{1}{2}{3}", "{1}{2}"),
  **dict.fromkeys(("us$", "usd"), ("US${1}",)),
  **dict.fromkeys(("gbp", "£"), ("£{1}",)),
  **dict.fromkeys(("eur", "euro", "€"), ("€{1}",)),
  **dict.fromkeys(("nbsp", "space", "spaces"), (" ",)),
  **dict.fromkeys(("snd", "spnd", "spaced ndash", "spaced en dash"), (" – ",)),
  **dict.fromkeys(("ndash", "en dash"), ("–",)),
  **dict.fromkeys(("mdash", "em dash"), ("—",)),
  "'": ("'",),
  "'s": ("'s",),
}
_PARAMETER = re.compile(r"\{(\w+)\}")

# In {{convert|5|to|10|km}}: the word between two numbers -> how it is printed.
_RANGE_WORDS = {
  **dict.fromkeys(("-", "–"), "–"),
  **dict.fromkeys(("x", "×", "*", "xx"), " × "),
  **dict.fromkeys(("±", "+/-"), " ± "),
  **dict.fromkeys(("to", "to(-)"), " to "),
  **dict.fromkeys(("and", "and(-)", "&"), " and "),
  **dict.fromkeys(("by", "by(x)"), " by "),
  "or": " or ",
  ",": ", ",
  ", and": ", and ",
  ", or": ", or ",
}
_NUMBER = re.compile(r"[-+−±]?[.\d½¼¾][\d.,/⁄+\-–−±×\s½¼¾]*(?:e[-+−]?\d+)?", re.IGNORECASE)
_MIXED_FRACTION = re.compile(r"(?<=\d)\+(?=\d+[/⁄])")
_UNIT = re.compile(r"(?:e(?P<power>3|6|9|12))?(?P<unit>(?!(?:to|and|or|by|up|then)\b)[^\W\d]\S*.*|[°%'\"$£€].*)")
_POWERS = {"3": "thousand ", "6": "million ", "9": "billion ", "12": "trillion "}
# The second unit of a measure such as 5 feet 7 inches.
_SMALLER_UNITS = frozenset(("ft", "in", "yd", "ch", "lb", "oz"))


def _expander(name: str) -> Expand | None:
  """Returns the function that makes the text of a template; None if it is not known. The name is in lower case."""
  if name in ("convert", "cvt"):
    return _measure
  if name == "as of":
    return _as_of
  patterns = _MARKED_TEXT if name.startswith("lang-") else _PATTERNS.get(name)
  return None if patterns is None else functools.partial(_fill, patterns)


def _fill(patterns: Sequence[str], parameters: Parameters) -> str | None:
  for pattern in patterns:
    if all(parameters.get(name, "").strip() for name in _PARAMETER.findall(pattern)):
      return _PARAMETER.sub(lambda match: parameters[match[1]], pattern)
  return None


def _measure(parameters: Parameters) -> str | None:
  """Returns the numbers and the unit that {{convert}} was given, such as "5 to 10 km"."""
  values: list[str] = []
  while (value := parameters.get(str(len(values) + 1))) is not None:
    values.append(value.strip())
  text = ""
  while len(values) >= 2 and _NUMBER.fullmatch(values[0]):
    number, unit_or_word, *values = values
    text += _MIXED_FRACTION.sub(" ", number)
    if unit_or_word in _RANGE_WORDS:
      text += _RANGE_WORDS[unit_or_word]
    elif unit := _UNIT.fullmatch(unit_or_word):
      text += f" {_POWERS.get(unit['power'], '')}{unit['unit']}"
      if len(values) < 2 or values[1] not in _SMALLER_UNITS or not _NUMBER.fullmatch(values[0]):
        return text
      text += " "
    else:
      return None
  return None


def _as_of(parameters: Parameters) -> str | None:
  """Returns the words and the date of {{as of|year|month|day}}, such as "As of January 2010"."""
  given = {name: value.strip() for name, value in parameters.items()}
  if given.get("alt"):
    return given["alt"]
  year, month, day = (given.get(str(number), "") for number in (1, 2, 3))
  if month.isdecimal():
    if not 1 <= int(month) <= 12:
      return None
    month = calendar.month_name[int(month)]
  if not year:
    return None
  words = "since" if given.get("since") else "as of"
  words = words if given.get("lc") else words.capitalize()
  parts = ["" if given.get("bare") else words, given.get("pre", ""), day, month, year]
  return " ".join(filter(None, parts)) + given.get("post", "")


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


def import_parser(dump: str) -> Any:
  """Imports mwparserfromhell. Without it, the UserError says that `dump` cannot be read."""
  with required_library(
    dump, "reading a dump of Wikipedia needs mwparserfromhell", "pip install 'mwparserfromhell>=0.6.5'"
  ):
    import mwparserfromhell
  return mwparserfromhell


def parse(text: str, namespaces: frozenset[str]) -> tuple[list[str], dict[str, int]]:
  """Extracts the paragraphs of an article. Which exceptions the parser raises is not documented.

  `namespaces` are the names of the wiki's namespaces in lower case, such as "datei" and "kategorie".

  Returns:
    The paragraphs, and the number of parts that were left out, by kind.
  """
  module = import_parser("wikitext")
  code = module.parse(text.replace(_MARK, " "), skip_style_tags=True)
  extraction = _Extraction(module.nodes, namespaces)
  plain = _MAGIC_WORD.sub("", _QUOTES.sub("", "".join(extraction.texts(code))))
  paragraphs = []
  for line in plain.split("\n"):
    stripped = line.strip()
    if stripped.startswith(_MARK) or _UNCLOSED_MARKUP.match(stripped):
      continue
    # Templates and links that were left out have left traces, such as empty parentheses.
    cleaned = _PUNCTUATION_AFTER_PARENTHESIS.sub("(", _EMPTY_PARENTHESES.sub("", stripped.replace(_MARK, " ")))
    cleaned = _SPACE_BEFORE_PUNCTUATION.sub("", _SPACES.sub(" ", cleaned)).strip()
    if any(character.isalnum() for character in cleaned):
      paragraphs.append(cleaned)
  return paragraphs, extraction.left_out


class _Extraction:
  """Walks through the nodes of an article, whose classes are in the module `nodes`, and counts the parts left out."""

  def __init__(self, nodes: Any, namespaces: frozenset[str]):
    self.left_out: dict[str, int] = {}
    self._namespaces = namespaces | _ENGLISH_NAMESPACES
    self._nodes = nodes

  def texts(self, code: Any) -> Iterator[str]:
    """Yields the text of some wikitext, in parts. Nodes of other classes, such as comments, have no text."""
    nodes = self._nodes
    for node in code.nodes:
      if isinstance(node, nodes.Text):
        yield node.value
      elif isinstance(node, nodes.Wikilink):
        yield from self._link(node)
      elif isinstance(node, nodes.Tag):
        yield from self._tag(node)
      elif isinstance(node, nodes.Template):
        yield from self._template(node)
      elif isinstance(node, nodes.HTMLEntity):
        yield _LONE_SURROGATE.sub("", node.normalize())
      elif isinstance(node, nodes.ExternalLink) and node.title is not None:
        yield from self.texts(node.title)
      elif isinstance(node, nodes.Heading):
        self._leave_out("headings")
        yield _MARK

  def _leave_out(self, kind: str) -> None:
    self.left_out[kind] = self.left_out.get(kind, 0) + 1

  def _link(self, node: Any) -> Iterator[str]:
    target = str(node.title).strip()
    prefix = target.partition(":")[0].strip().lower().replace("_", " ")
    is_left_out = prefix in self._namespaces or _INTERLANGUAGE.match(target) or _MEDIA_FILE.search(target)
    if ":" in target and not target.startswith(":") and is_left_out:
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

  def _template(self, node: Any) -> Iterator[str]:
    # A parser function such as {{formatnum:1000}} has its first parameter in its name.
    name, colon, argument = "".join(self.texts(node.name)).strip().partition(":")
    expand = _expander(name.lower().replace("_", " "))
    text = None
    if expand is not None:
      parameters = {str(parameter.name).strip(): "".join(self.texts(parameter.value)) for parameter in node.params}
      text = expand({"1": argument} if colon else parameters)
    if text is None:
      self._leave_out("templates")
    else:
      yield text
