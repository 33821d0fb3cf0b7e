"""Reads the output of wikiextractor: lines <doc id=... title=...> and </doc> around each article, or JSON lines."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from albert.errors import UserError
from albert.io import json_values
from data_prep.readers import lines, streams
from data_prep.readers.records import BadRecord, Piece, Place, Record, SourceDocument
from data_prep.readers.settings import WIKIEXTRACTOR, ReadingSettings
from data_prep.text_files import decoding_problem

_BEGIN = re.compile(r'<doc\s[^>]*?(?:title="(?P<title>.*)")?\s*>$')
_END = "</doc>"


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
  # Of the current article: the place where it begins (None between articles), its title, and its lines so far.
  article_place: Place | None = None
  title = ""
  article_lines: list[str] = []
  for place, line in lines.read_lines(piece):
    try:
      text = line.decode("utf-8")
    except UnicodeDecodeError as error:
      yield BadRecord(article_place or place, decoding_problem(line, error))
      article_place = None
      continue
    if article_place is None and text.startswith("{"):
      yield _read_json(line, place, settings)
    elif begin_tag := _BEGIN.match(text.rstrip()):
      title, article_place, article_lines = html.unescape(begin_tag["title"] or ""), place, []
    elif article_place is None:
      continue  # a line outside of articles
    elif text.rstrip() == _END:
      yield _to_document(article_place, article_lines, title, joins_lines=joins_lines)
      article_place = None
    else:
      article_lines.append(text)
  if article_place is not None:
    reason = "the article does not end with </doc>: run wikiextractor again, or remove the article"
    yield BadRecord(article_place, reason)


def _to_document(place: Place, article_lines: list[str], title: str, *, joins_lines: bool) -> SourceDocument:
  """Makes a document from the lines of an article.

  HTML entities are replaced by their characters. A first paragraph that is the title is left out.
  """
  paragraphs = lines.paragraphs_of(map(html.unescape, article_lines), joins_lines=joins_lines)
  return SourceDocument(place, (text for index, text in enumerate(paragraphs) if index > 0 or text != title))


def _read_json(line: bytes, place: Place, settings: ReadingSettings) -> Record:
  try:
    text = json_values.read_text_field(line, "text")
  except (KeyError, ValueError) as error:
    return BadRecord(place, f"not a JSON object with a text ({error}): run wikiextractor again, or remove the line")
  try:
    title = json_values.read_text_field(line, "title") or ""
  except (KeyError, ValueError):
    title = ""
  joins_lines = settings.joins_lines(WIKIEXTRACTOR)
  return _to_document(place, (text or "").split("\n"), title, joins_lines=joins_lines)
