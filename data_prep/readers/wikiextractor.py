"""Reads the output of wikiextractor: lines <doc id=... title=...> and </doc> around each article, or JSON lines."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator

from albert.errors import UserError
from albert.io import json_values
from data_prep.readers import lines, streams
from data_prep.readers.records import BadRecord, Piece, Record, SourceDocument
from data_prep.readers.settings import WIKIEXTRACTOR, ReadingSettings

_BEGIN = re.compile(r'<doc\s[^>]*?(?:title="(?P<title>.*)")?\s*>$')
_END = "</doc>"


def check(path: str, settings: ReadingSettings) -> None:
  """See `records.Reader`."""
  streams.check_libraries(path)
  head = streams.read_head(path).lstrip()
  if not head.startswith((b"<doc ", b"{")):
    begin = head[:40].decode("utf-8", errors="replace")
    raise UserError(f"{path}: begins with {begin!r}, not with <doc ...> or a JSON object: give --text_format")


def plan(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """See `records.Reader`. wikiextractor writes files of 1 MB, so a file is a piece."""
  yield lines.whole_file(path, WIKIEXTRACTOR)


def read(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  """See `records.Reader`."""
  joins_lines = settings.joins_lines(WIKIEXTRACTOR)
  title, begin = "", None
  article: list[str] = []
  for place, line in lines.read_lines(piece):
    try:
      text = line.decode("utf-8")
    except UnicodeDecodeError as error:
      yield BadRecord(begin or place, lines.decoding_problem(line, error))
      begin, article = None, []
      continue
    if begin is None and text.startswith("{"):
      yield _read_json(line, place, settings)
    elif match := _BEGIN.match(text.rstrip()):
      title, begin, article = html.unescape(match["title"] or ""), place, []
    elif text.rstrip() == _END and begin is not None:
      yield _to_document(begin, article, title, joins_lines=joins_lines)
      begin, article = None, []
    elif begin is not None:
      article.append(text)
  if begin is not None:
    yield BadRecord(begin, "the article does not end with </doc>: run wikiextractor again, or remove the article")


def _to_document(place: Callable[[], str], article: list[str], title: str, *, joins_lines: bool) -> SourceDocument:
  """Returns the document of an article without its title, which is its first line, and without HTML's entities."""
  paragraphs = lines.paragraphs_of((html.unescape(line) for line in article), joins_lines=joins_lines)
  return SourceDocument(place, (text for index, text in enumerate(paragraphs) if index or text != title))


def _read_json(line: bytes, place: Callable[[], str], settings: ReadingSettings) -> Record:
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
