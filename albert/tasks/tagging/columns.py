"""Reads and writes files of columns, as the shared tasks of CoNLL have them: one word a line, with its tag.

    -DOCSTART- -X- -X- O

    EU NNP B-NP B-ORG
    rejects VBZ B-VP O

A blank line ends a sentence. A line whose word is -DOCSTART- begins a document and is no word. Columns are separated by
tabs if the first line of words has one, else by any number of ASCII spaces. Other spaces, such as no-break spaces, are
parts of words. The columns have no names, unless the first line names them: `word<tab>tag`, or
`# global.columns = word tag` as in CoNLL-U Plus. In a file with tabs, a line that begins with # and has no tab is a
comment.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from albert.data.tables import read_lines
from albert.errors import UserError
from albert.io.text import counted

_DOCUMENT_START = "-DOCSTART-"
_NAMES_PREFIX = re.compile(r"#\s*global\.columns\s*=")
_NUMBER = re.compile(r"-?\d+\Z")
_find_fields = re.compile(r"[^ \t]+").findall
# The name of the added column, if the columns have names.
PREDICTION = "prediction"


class _Line(NamedTuple):
  """A line of a file.

  Attributes:
    number: its number, from 1.
    text: its text, without the line end.
    fields: its fields; () for a blank line, a comment and the line that names the columns.
    word: the word; "" if the line has none.
    tag: the tag; "" if the line has none, or tags are not read.
    ends_sentence: whether the line is blank, or begins a document.
  """

  number: int
  text: str
  fields: Sequence[str] = ()
  word: str = ""
  tag: str = ""
  ends_sentence: bool = False


class Sentence(NamedTuple):
  """A sentence.

  Attributes:
    words: the words.
    tags: the tag of each word; () if tags were not read.
    line_numbers: the number of each word's line, from 1.
  """

  words: Sequence[str]
  tags: Sequence[str]
  line_numbers: Sequence[int]


def location(path: str, sentence: Sentence, word: int) -> str:
  """Returns the file and the line of a word of a sentence, for a message."""
  return f"{path}, line {sentence.line_numbers[word]}"


def read_sentences(path: str, word_column: str, tag_column: str, *, with_tags: bool) -> Iterator[Sentence]:
  """Yields the sentences of a file.

  Args:
    path: the file.
    word_column, tag_column: the number of a column, from 0 (-1: the last), or its name; "" for the first column and for
      the last one.
    with_tags: whether tags are read.
  Raises:
    UserError: there is no such column, a line has another number of columns than the first one, or a word is empty.
  """
  lines: list[_Line] = []
  for line in _parse(path, word_column, tag_column, with_tags=with_tags):
    if line.word:
      lines.append(line)
    elif line.ends_sentence and lines:
      yield _make_sentence(lines, with_tags=with_tags)
      lines = []
  if lines:
    yield _make_sentence(lines, with_tags=with_tags)


def _make_sentence(lines: Sequence[_Line], *, with_tags: bool) -> Sentence:
  tags = [line.tag for line in lines] if with_tags else []
  return Sentence([line.word for line in lines], tags, [line.number for line in lines])


def lines_with_predictions(
  path: str, word_column: str, tag_column: str, tags: Iterable[Sequence[str]]
) -> Iterator[str]:
  """Yields the lines of a file with a further column, the predicted tag.

  Args:
    path: the file.
    word_column, tag_column: see read_sentences.
    tags: the predicted tags of each sentence.
  """
  remaining_tags = itertools.chain.from_iterable(tags)
  for line in _parse(path, word_column, tag_column, with_tags=False):
    if line.word:
      added = next(remaining_tags)
    elif line.fields:  # the line that begins a document, which has O in every tag column
      added = "O"
    elif _is_header(line, word_column, tag_column):
      added = PREDICTION
    else:
      yield f"{line.text}\n"
      continue
    yield f"{line.text}{_separator(line.text)}{added}\n"


def _separator(line: str) -> str:
  return "\t" if "\t" in line else " "


def _is_header(line: _Line, word_column: str, tag_column: str) -> bool:
  """Whether a line without a word names the columns."""
  if _NAMES_PREFIX.match(line.text):
    return True
  return bool(_find_fields(line.text)) and line.number == 1 and _has_names(word_column, tag_column)


def _has_names(word_column: str, tag_column: str) -> bool:
  """Whether a column is given by its name, so that the first line must name the columns."""
  return any(column and not _NUMBER.match(column) for column in (word_column, tag_column))


def _parse(path: str, word_column: str, tag_column: str, *, with_tags: bool) -> Iterator[_Line]:
  """Yields all lines of a file. See read_sentences for the arguments."""
  lines = [(number, line.rstrip("\r\n")) for number, line in read_lines(path)]
  first_text = next(
    (text for _, text in lines if _find_fields(text) and not text.startswith(("#", _DOCUMENT_START))), ""
  )
  has_tabs = "\t" in first_text
  names: Sequence[str] = ()
  needs_names = _has_names(word_column, tag_column)
  layout: _Layout | None = None
  for number, text in lines:
    prefix = _NAMES_PREFIX.match(text)
    if prefix or (needs_names and not names and number == 1):
      names = _find_fields(text[prefix.end() :]) if prefix else _split(text, has_tabs="\t" in text)
      yield _Line(number, text)
    elif not (fields := _find_fields(text)):
      yield _Line(number, text, ends_sentence=True)
    elif has_tabs and text.startswith("#") and "\t" not in text:
      yield _Line(number, text)
    elif fields[0] == _DOCUMENT_START:
      yield _Line(number, text, fields=fields, ends_sentence=True)
    else:
      location = f"{path}, line {number}"
      if layout is None:
        num_columns = len(names) or len(_split(text, has_tabs=has_tabs))
        layout = _Layout(location, names, num_columns, has_tabs=has_tabs)
        layout.choose(word_column, tag_column, with_tags=with_tags)
      yield layout.parse(location, number, text)


class _Layout:
  """The columns of a file.

  Args:
    location: the file and the line of the first word, for messages.
    names: the names of the columns; () if they have none.
    num_columns: the number of columns.
    has_tabs: whether columns are separated by tabs.
  """

  def __init__(self, location: str, names: Sequence[str], num_columns: int, *, has_tabs: bool):
    self._location = location
    self._names = names
    self._num_columns = num_columns
    self._has_tabs = has_tabs
    self._word_index = 0
    self._tag_index: int | None = None

  def choose(self, word_column: str, tag_column: str, *, with_tags: bool) -> None:
    """Chooses the columns that are read. See read_sentences for the arguments."""
    self._word_index = self._find("word_column", word_column or "0")
    self._tag_index = self._find("tag_column", tag_column or "-1") if with_tags else None
    if self._word_index == self._tag_index:
      raise UserError(
        f"{self._location}: column {self._word_index} is both the column of the words and that of the tags "
        f"({counted(self._num_columns, 'column')}): give a file with tags, or another --word_column or --tag_column"
      )

  def _find(self, flag: str, column: str) -> int:
    """Returns the index of a column. Raises UserError if there is none."""
    number = self._num_columns
    if not _NUMBER.match(column):
      if self._names.count(column) != 1:
        raise UserError(f"{self._location}: --{flag}={column}: no such column; there are: {', '.join(self._names)}")
      return self._names.index(column)
    index = int(column)
    if not -number <= index < number:
      raise UserError(
        f"{self._location}: --{flag}={column}: the file has {counted(number, 'column')}: give a number from 0 "
        f"to {number - 1}, or from -{number} to -1"
      )
    return index % number

  def parse(self, location: str, number: int, text: str) -> _Line:
    """Parses the line of a word."""
    fields = _split(text, has_tabs=self._has_tabs)
    if len(fields) != self._num_columns:
      separator = "tabs" if self._has_tabs else "spaces"
      raise UserError(
        f"{location}: {counted(len(fields), 'column')} instead of {self._num_columns}: separate columns by "
        f"{separator}, as in the first line of words, and sentences by blank lines"
      )
    word = fields[self._word_index].strip(" ")
    if not word:
      raise UserError(f"{location}: the word is empty: fill it in or remove the line")
    tag = "" if self._tag_index is None else fields[self._tag_index].strip(" ")
    return _Line(number, text, fields, word, tag)


def _split(text: str, *, has_tabs: bool) -> list[str]:
  return text.split("\t") if has_tabs else _find_fields(text)
