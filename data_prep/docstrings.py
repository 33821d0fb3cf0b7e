"""Extracts the sentences of English prose from docstrings, without markup, code, tables and lists of names.

It understands the common formats of Python documentation: reStructuredText, Markdown, and the sections of numpydoc and
of Google's style.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from data_prep.sentences import split_sentences

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


class _SkippedSection(NamedTuple):
  """A section without prose, such as "See also". Its lines are dropped.

  Attributes:
    is_google: whether the heading is in Google's style. Such a section ends at the first line that is not indented
      more than the heading; a section of another style ends at the next heading.
    indent: the indentation of the heading.
  """

  is_google: bool
  indent: int

  def ends_before(self, indent: int) -> bool:
    """Whether a line with this indentation, which is not a heading, is after the section."""
    return self.is_google and indent <= self.indent


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
    self._skipped_section: _SkippedSection | None = None  # the section without prose that the next line is in

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
    elif self._skipped_section is None or self._skipped_section.ends_before(indent):
      self._skipped_section = None
      self._add_text(text, indent)

  def _begin_section(self, section: re.Match[str], indent: int) -> None:
    self.flush()
    is_google = bool(section["colon"])
    self._parameter = ""
    self._in_entries, self._entry_indent = bool(section["list"]) and is_google, -1
    self._skipped_section = _SkippedSection(is_google, indent) if section["no_prose"] else None
    if self._skipped_section is None:
      self.joined.append(f"{section.group().rstrip(': ').capitalize()}:")

  def _add_text(self, text: str, indent: int) -> None:
    typed_name = _TYPED_NAME.match(text)
    if typed_name and not self._continues_paragraph(indent):
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

  def _continues_paragraph(self, indent: int) -> bool:
    return bool(self._lines) and self._has_hanging_indent and indent > self._indent


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
  """Returns the sentences of prose in a docstring, in order. There may be none.

  Args:
    docstring: a docstring without its common indentation.

  Returns:
    The sentences. The heading of a section, such as "Returns:", is a sentence of its own.
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
    for sentence in split_sentences(paragraph):
      # Summaries and descriptions of parameters often have no full stop.
      punctuated = sentence if sentence[-1] in ".!?:,;\"')" else f"{sentence}."
      if _is_prose(punctuated):
        sentences.append(punctuated)
  return sentences[:-1] if sentences and is_heading(sentences[-1]) else sentences


def is_heading(sentence: str) -> bool:
  """Whether a sentence is the heading of a section, such as "Returns:"."""
  return sentence.endswith(":") and _SECTION.match(sentence) is not None


def is_list_heading(sentence: str) -> bool:
  """Whether a sentence is the heading of a list of parameters, attributes, properties or errors."""
  section = _SECTION.match(sentence)
  return sentence.endswith(":") and section is not None and section["list"] is not None


def sentence_key(sentence: str) -> str:
  """Returns a key, equal for sentences that differ only in case, digits, punctuation and package prefixes."""
  names = _PACKAGE_PREFIX.sub("", sentence.lower())
  return " ".join(_LETTERS.findall(names))
