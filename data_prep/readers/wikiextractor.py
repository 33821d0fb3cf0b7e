"""Reads the output of wikiextractor: lines <doc id=... title=...> and </doc> around each article, or JSON lines."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from albert.errors import UserError
from albert.io import json_values
from data_prep.readers import lines, streams
from data_prep.readers.records import BadRecord, GetPlace, Piece, Record, SourceDocument
from data_prep.readers.settings import WIKIEXTRACTOR, ReadingSettings
from data_prep.text.text_files import decoding_problem

_ARTICLE_BEGIN = re.compile(r'<doc\s[^>]*?(?:title="(?P<title>.*)")?\s*>$')
_ARTICLE_END = "</doc>"
# What is wrong with an article that ends at the end of the file, or at the beginning of another article.
_NO_END = "the article does not end with </doc>: run wikiextractor again, or remove the article"


def check(path: str, settings: ReadingSettings) -> None:
  """See `records.Reader`."""
  streams.check_libraries(path)
  head = streams.read_head(path).lstrip()
  if not head.startswith((b"<doc ", b"{")):
    raise UserError(
      f"{path}: begins with {streams.show_start(head)}, not with <doc ...> or a JSON object: give --text_format"
    )


def plan(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """See `records.Reader`. wikiextractor writes files of 1 MB, so a file is a piece."""
  yield lines.whole_file(path, WIKIEXTRACTOR)


def read(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  """See `records.Reader`."""
  joins_lines = settings.joins_lines(WIKIEXTRACTOR)
  # The current article: a function that returns the place of its first line, or None between two articles; then its
  # title, and its lines so far.
  get_article_place: GetPlace | None = None
  title = ""
  article_lines: list[str] = []
  for get_place, line in lines.read_lines(piece):
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
  """Makes a document from the lines of an article.

  HTML entities are replaced by their characters. A first paragraph that is the title is left out.
  """
  paragraphs = lines.paragraphs_of(map(html.unescape, article_lines), joins_lines=joins_lines)
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
