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
from albert.io.wording import counted

_DOCUMENT_START = "-DOCSTART-"
_NAMES_PREFIX = re.compile(r"#\s*global\.columns\s*=")
_NUMBER = re.compile(r"-?\d+\Z")
_find_fields = re.compile(r"[^ \t]+").findall


class _Line(NamedTuple):
  """A line of a file."""

  number: int
  text: str
  word: str = ""  # "" if the line has no word
  tag: str = ""  # "" if the line has no tag, or tags are not read
  is_header: bool = False  # whether it names the columns
  begins_document: bool = False


class Sentence(NamedTuple):
  """A sentence.

  Attributes:
    words: the words.
    tags: the tag of each word; none if tags were not read.
    line_numbers: the number of each word's line, from 1.
  """

  words: list[str]
  tags: list[str]
  line_numbers: list[int]


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
  sentence = Sentence([], [], [])
  blank_line = _Line(0, "")  # ends the last sentence
  for line in itertools.chain(_parse(path, word_column, tag_column, with_tags=with_tags), [blank_line]):
    if line.word:
      sentence.words.append(line.word)
      sentence.line_numbers.append(line.number)
      if with_tags:
        sentence.tags.append(line.tag)
    elif sentence.words and (line.begins_document or not _find_fields(line.text)):
      yield sentence
      sentence = Sentence([], [], [])


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
    added = ""
    if line.word:
      added = next(remaining_tags)
    elif line.begins_document:
      added = "O"  # as in every tag column
    elif line.is_header:
      added = "prediction"
    separator = "\t" if "\t" in line.text else " "
    yield f"{line.text}{separator}{added}\n" if added else f"{line.text}\n"


def _parse(path: str, word_column: str, tag_column: str, *, with_tags: bool) -> Iterator[_Line]:
  """Yields all lines of a file. See read_sentences for the arguments."""
  lines = [(number, line.rstrip("\r\n")) for number, line in read_lines(path)]
  begins = ("#", _DOCUMENT_START)
  first_text = next((text for _, text in lines if _find_fields(text) and not text.startswith(begins)), "")
  split = _split_at_tabs if "\t" in first_text else _find_fields
  names: Sequence[str] = ()
  # If a column is given by its name, the first line must name the columns.
  needs_names = any(column and not _NUMBER.match(column) for column in (word_column, tag_column))
  word_index = tag_index = num_columns = 0
  for number, text in lines:
    fields, prefix = _find_fields(text), _NAMES_PREFIX.match(text)
    if prefix or (needs_names and not names and number == 1):
      names = _find_fields(text[prefix.end() :]) if prefix else _split_at_tabs(text) if "\t" in text else fields
      yield _Line(number, text, is_header=bool(fields))
    elif not fields or (split is _split_at_tabs and text.startswith("#") and "\t" not in text):
      yield _Line(number, text)
    elif fields[0] == _DOCUMENT_START:
      yield _Line(number, text, begins_document=True)
    else:
      location, fields = f"{path}, line {number}", split(text)
      if not num_columns:  # the first line of a word has all columns
        num_columns = len(names) or len(fields)
        word_index = _find_column(location, names, num_columns, "word_column", word_column or "0")
        tag_index = _find_column(location, names, num_columns, "tag_column", tag_column or "-1") if with_tags else -1
        if word_index == tag_index:
          raise UserError(
            f"{location}: column {word_index} is both the column of the words and that of the tags "
            f"({counted(num_columns, 'column')}): give a file with tags, or another --word_column or --tag_column"
          )
      if len(fields) != num_columns:
        raise UserError(
          f"{location}: {counted(len(fields), 'column')} instead of {num_columns}: separate columns by "
          f"{'tabs' if split is _split_at_tabs else 'spaces'}, as in the first line of words, and sentences by blank "
          "lines"
        )
      word = fields[word_index].strip(" ")
      if not word:
        raise UserError(f"{location}: the word is empty: fill it in or remove the line")
      yield _Line(number, text, word, fields[tag_index].strip(" ") if with_tags else "")


def _find_column(location: str, names: Sequence[str], number: int, flag: str, column: str) -> int:
  """Returns the index of a column among `number` ones. Raises UserError if there is none."""
  if not _NUMBER.match(column):
    if names.count(column) != 1:
      raise UserError(f"{location}: --{flag}={column}: no such column; there are: {', '.join(names)}")
    return names.index(column)
  index = int(column)
  if not -number <= index < number:
    raise UserError(
      f"{location}: --{flag}={column}: the file has {counted(number, 'column')}: give a number from 0 "
      f"to {number - 1}, or from -{number} to -1"
    )
  return index % number


def _split_at_tabs(text: str) -> list[str]:
  return text.split("\t")
