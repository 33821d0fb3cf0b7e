"""Reads forms of text that consist of lines: plain text, JSON lines, and the output of wikiextractor.

A line belongs to the piece of its file in which it begins.
"""

from __future__ import annotations

import codecs
import html
import io
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from albert.errors import UserError
from albert.io import json_values
from data_prep import text_checks, text_files, units
from data_prep.readers.records import (
  FILE,
  JSON_LINES,
  TEXT,
  TO_THE_END,
  WIKIEXTRACTOR,
  BadRecord,
  BadRecordError,
  GetPlace,
  Piece,
  Reader,
  ReadingSettings,
  Record,
  SourceDocument,
  byte_ranges,
  paragraphs_of,
  text_to_record,
  whole_file,
)
from data_prep.text_files import count_line_ends, decoding_problem, open_stream, strip_line


class SourceLine(NamedTuple):
  """A line of a file: a function that returns its place, such as "line 3", and its bytes with the line end."""

  get_place: GetPlace
  content: bytes


def _place_getter(path: str, start: int, index: int) -> GetPlace:
  """Returns a function that returns the place, such as "line 3", of line `index` after byte `start` of a file."""
  return lambda: f"line {count_line_ends(path, start) + index + 1}"


def read_lines(piece: Piece) -> Iterator[SourceLine]:
  """Reads the lines that begin in a piece."""
  with open_stream(piece.path) as stream:
    position = piece.start
    if position:
      # The piece may begin inside a line. It begins with a line if the byte before it is a line end.
      stream.seek(position - 1)
      position += len(stream.readline()) - 1
    start, index = position, 0
    while position < piece.end and (line := stream.readline()):
      yield SourceLine(_place_getter(piece.path, start, index), line)
      position += len(line)
      index += 1


# Greatest nominal size of a piece. A piece ends at the first blank line after its nominal end, at most this many bytes
# later, so its text has at most twice this size.
PIECE_BYTES = 16 << 20


def _check_text(path: str, settings: ReadingSettings) -> None:
  text_checks.check_head(path, text_files.read_head(path))


def _plan_text(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  if settings.document == FILE:
    yield whole_file(path, TEXT)
  else:
    yield from byte_ranges(path, TEXT, min(unit_bytes, PIECE_BYTES))


def _read_text(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  joins_lines = settings.joins_lines(TEXT)
  if piece.start == 0:
    text_checks.check_head(piece.path, text_files.read_head(piece.path))
  source_lines = read_lines(piece) if piece.end == TO_THE_END else _lines_of_documents(piece)
  if settings.document == FILE:
    # The lines are read while the document is written, so a file may be larger than memory.
    yield SourceDocument(lambda: "line 1", paragraphs_of(_decode(source_lines), joins_lines=joins_lines))
    return
  for is_blank, group in itertools.groupby(source_lines, lambda line: not line.content.strip()):
    if not is_blank:
      yield from _read_group(list(group), joins_lines=joins_lines)


def _lines_of_documents(piece: Piece) -> Iterator[SourceLine]:
  """Reads the lines of the documents that begin in a piece. Long documents are cut (`units.read_range`)."""
  text_range = units.TextRange(piece.path, 0, piece.start, piece.end)
  text, start, _ = units.read_range(text_range, PIECE_BYTES)
  for index, line in enumerate(io.BytesIO(text)):
    yield SourceLine(_place_getter(piece.path, start, index), line)


def _decode(source_lines: Iterable[SourceLine]) -> Iterator[str]:
  """Yields the lines as text. Raises BadRecordError if one is not UTF-8."""
  for get_place, content in source_lines:
    try:
      yield content.decode("utf-8")
    except UnicodeDecodeError as error:
      raise BadRecordError(get_place(), decoding_problem(content, error)) from error


def _read_group(group: list[SourceLine], *, joins_lines: bool) -> Iterator[Record]:
  """Yields the documents in a group of lines without blank ones, or one bad record if a line is not UTF-8."""
  texts: list[str] = []
  for get_place, content in group:
    try:
      texts.append(strip_line(content.decode("utf-8")))
    except UnicodeDecodeError as error:
      yield BadRecord(get_place, decoding_problem(content, error))
      return
  first_line = 0  # index in `group`
  for has_text, consecutive_lines in itertools.groupby(texts, bool):
    document_lines = list(consecutive_lines)
    if has_text:
      yield SourceDocument(group[first_line].get_place, paragraphs_of(document_lines, joins_lines=joins_lines))
    first_line += len(document_lines)


_MAX_SHOWN_FIELDS = 8


def _check_json_lines(path: str, settings: ReadingSettings) -> None:
  head = text_files.read_head(path)
  text_checks.check_format(path, head)
  body = head.lstrip()
  if body.startswith(b"["):
    raise UserError(
      f"{path}: a JSON array, not JSON lines: write one object on each line, for example with "
      f"jq -c '.[]' < {path} > text.jsonl"
    )
  if not body.startswith(b"{"):
    raise UserError(f"{path}: begins with {text_files.show_start(body)}, not with a JSON object: give --text_format")


def _plan_json_lines(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  yield from byte_ranges(path, JSON_LINES, unit_bytes)


def _read_json_lines(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  joins_lines = settings.joins_lines(JSON_LINES)
  for get_place, line in read_lines(piece):
    if not line.strip():
      continue
    try:
      text = _parse_text(line, settings.text_field)
    except UnicodeDecodeError as error:
      yield BadRecord(get_place, decoding_problem(line, error))
    except ValueError as error:
      yield BadRecord(get_place, str(error))
    else:
      yield text_to_record(get_place, text, joins_lines=joins_lines)


def _parse_text(line: bytes, field: str) -> str | None:
  """Returns the text in a field of a JSON object; None if it is null. A ValueError says what is wrong."""
  try:
    return json_values.read_text_field(line.removeprefix(codecs.BOM_UTF8), field)
  except KeyError as error:
    names = ", ".join(error.args[:_MAX_SHOWN_FIELDS]) or "none"
    raise ValueError(f"no field {field!r} (its fields: {names}): give --text_field") from None
  except ValueError as error:
    line.decode("utf-8")  # raises UnicodeDecodeError if this is the reason
    raise ValueError(f"not a JSON object with a text {field!r} ({error}): correct or remove the line") from None


_ARTICLE_BEGIN = re.compile(r'<doc\s[^>]*?(?:title="(?P<title>.*)")?\s*>$')
_ARTICLE_END = "</doc>"
# What is wrong with an article that ends at the end of the file, or at the beginning of another article.
_NO_END = "the article does not end with </doc>: run wikiextractor again, or remove the article"


def _check_articles(path: str, settings: ReadingSettings) -> None:
  head = text_files.read_head(path).lstrip()
  if not head.startswith((b"<doc ", b"{")):
    raise UserError(
      f"{path}: begins with {text_files.show_start(head)}, not with <doc ...> or a JSON object: give --text_format"
    )


def _plan_articles(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """wikiextractor writes files of 1 MB, so a file is a piece."""
  yield whole_file(path, WIKIEXTRACTOR)


def _read_articles(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  joins_lines = settings.joins_lines(WIKIEXTRACTOR)
  # The current article: a function that returns the place of its first line, or None between two articles; then its
  # title, and its lines so far.
  get_article_place: GetPlace | None = None
  title = ""
  article_lines: list[str] = []
  for get_place, line in read_lines(piece):
    try:
      text = line.decode("utf-8")
    except UnicodeDecodeError as error:
      yield BadRecord(get_article_place or get_place, decoding_problem(line, error))
      get_article_place = None
      continue
    if get_article_place is None and text.startswith("{"):
      yield _read_json(line, get_place, settings)
    elif begin_tag := _ARTICLE_BEGIN.match(text.rstrip()):
      if get_article_place is not None:
        yield BadRecord(get_article_place, _NO_END)
      title, get_article_place, article_lines = html.unescape(begin_tag["title"] or ""), get_place, []
    elif get_article_place is None:
      continue  # a line outside of articles
    elif text.rstrip() == _ARTICLE_END:
      yield _to_document(get_article_place, article_lines, title, joins_lines=joins_lines)
      get_article_place = None
    else:
      article_lines.append(text)
  if get_article_place is not None:
    yield BadRecord(get_article_place, _NO_END)


def _to_document(get_place: GetPlace, article_lines: list[str], title: str, *, joins_lines: bool) -> SourceDocument:
  """Makes a document of an article. Entities become characters; a first paragraph that is the title is left out."""
  paragraphs = paragraphs_of(map(html.unescape, article_lines), joins_lines=joins_lines)
  return SourceDocument(get_place, (text for index, text in enumerate(paragraphs) if index > 0 or text != title))


def _read_json(line: bytes, get_place: GetPlace, settings: ReadingSettings) -> Record:
  try:
    text = json_values.read_text_field(line, "text")
  except (KeyError, ValueError) as error:
    return BadRecord(get_place, f"not a JSON object with a text ({error}): run wikiextractor again, or remove the line")
  try:
    title = json_values.read_text_field(line, "title") or ""
  except (KeyError, ValueError):
    title = ""
  joins_lines = settings.joins_lines(WIKIEXTRACTOR)
  return _to_document(get_place, (text or "").split("\n"), title, joins_lines=joins_lines)


TEXT_READER = Reader(_check_text, _plan_text, _read_text)
JSON_LINES_READER = Reader(_check_json_lines, _plan_json_lines, _read_json_lines)
WIKIEXTRACTOR_READER = Reader(_check_articles, _plan_articles, _read_articles)
