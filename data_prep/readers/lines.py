"""Reads forms of text that consist of lines: plain text, JSON lines, and the output of wikiextractor.

A line belongs to the piece of its file in which it begins.
"""

from __future__ import annotations

import codecs
import contextlib
import html
import io
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from albert.errors import UserError
from data_prep import text_checks, text_files, units
from data_prep.readers import records


class SourceLine(NamedTuple):
  """A line of a file: a function that returns its place, such as "line 3", and its bytes with the line end."""

  get_place: records.GetPlace
  content: bytes


def _place_getter(path: str, start: int, index: int) -> records.GetPlace:
  """Returns a function that returns the place, such as "line 3", of line `index` after byte `start` of a file."""
  return lambda: f"line {text_files.count_line_ends(path, start) + index + 1}"


def read_lines(piece: records.Piece) -> Iterator[SourceLine]:
  """Reads the lines that begin in a piece."""
  with text_files.open_stream(piece.path) as stream:
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


# Text is cut into pieces of at most this nominal size. A piece ends at the first blank line after its nominal end, at
# most this many bytes later, so its text has at most twice this size.
PIECE_BYTES = 16 << 20


def _check_text(path: str, settings: records.ReadingSettings) -> None:
  text_checks.check_head(path, text_files.read_head(path))


def _plan_text(path: str, settings: records.ReadingSettings, unit_bytes: int) -> Iterator[records.Piece]:
  return (
    iter([records.whole_file(path)]) if settings.document == records.FILE else records.byte_ranges(path, unit_bytes)
  )


def _read_text(piece: records.Piece, settings: records.ReadingSettings) -> Iterator[records.Record]:
  if piece.start == 0:
    _check_text(piece.path, settings)
  if settings.document == records.FILE:
    # The lines are read while the document is written, so a file may be larger than memory.
    yield records.SourceDocument(lambda: "line 1", _decode(read_lines(piece)))
    return
  source_lines = read_lines(piece)
  if piece.end != records.TO_THE_END:  # the lines of the documents that begin in the piece
    text_range = units.read_range(units.TextRange(piece.path, 0, piece.start, piece.end), PIECE_BYTES)
    source_lines = (
      SourceLine(_place_getter(piece.path, text_range.start, index), line)
      for index, line in enumerate(io.BytesIO(text_range.data or b""))
    )
  for is_blank, group in itertools.groupby(source_lines, _is_blank):
    if not is_blank:
      lines = list(group)
      yield records.SourceDocument(lines[0].get_place, _decode(lines))


def _is_blank(line: SourceLine) -> bool:
  content = line.content.strip()
  may_be_space = not content or not ord("!") <= content[0] < 128
  return may_be_space and not text_files.strip_line(content.decode("utf-8", "replace"))


def _decode(source_lines: Iterable[SourceLine]) -> Iterator[str]:
  """Yields the lines as text. Raises records.BadRecordError if one is not UTF-8."""
  for get_place, content in source_lines:
    try:
      yield content.decode("utf-8")
    except UnicodeDecodeError as error:
      raise records.BadRecordError(get_place(), text_files.decoding_problem(content, error)) from error


_MAX_SHOWN_FIELDS = 8
_RAW_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT_DECODER = msgspec.json.Decoder(str | None)


def _check_json_lines(path: str, settings: records.ReadingSettings) -> None:
  head = text_files.read_head(path)
  text_checks.check_format(path, head)
  body = head.lstrip()
  if body.startswith(b"["):
    raise UserError(
      f"{path}: a JSON array, not JSON lines: write an object a line, as by jq -c '.[]' < {path} > text.jsonl"
    )
  if not body.startswith(b"{"):
    raise text_files.wrong_start_error(path, body, "a JSON object: correct the file")


def _read_json_lines(piece: records.Piece, settings: records.ReadingSettings) -> Iterator[records.Record]:
  for get_place, line in read_lines(piece):
    if not line.strip():
      continue
    try:
      text = _parse_text(line, settings.text_field)
    except ValueError as error:
      yield records.BadRecord(get_place, str(error))
    else:
      yield records.SourceDocument(get_place, (text or "").split("\n"))


def _parse_text(line: bytes, field: str) -> str | None:
  """Returns the text in a field of a JSON object; None if it is null. A ValueError says what is wrong.

  Other fields are not decoded, which saves time.
  """
  try:
    raw_fields = _RAW_FIELDS_DECODER.decode(line.removeprefix(codecs.BOM_UTF8))
    if field in raw_fields:
      return _TEXT_DECODER.decode(raw_fields[field])
  except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
    reason = f"not a JSON object with a text {field!r} ({error}): correct or remove the line"
    try:
      line.decode("utf-8")
    except UnicodeDecodeError as decoding_error:
      reason = text_files.decoding_problem(line, decoding_error)
    raise ValueError(reason) from None
  names = ", ".join(itertools.islice(raw_fields, _MAX_SHOWN_FIELDS)) or "none"
  raise ValueError(f"no field {field!r} (its fields: {names}): give --text_field")


_ARTICLE_BEGIN = re.compile(r'<doc\s[^>]*?(?:title="(?P<title>.*)")?\s*>$')
_ARTICLE_END = "</doc>"
# What is wrong with an article that ends at the end of the file, or at the beginning of another article.
_NO_END = "the article does not end with </doc>: run wikiextractor again, or remove the article"


def _check_articles(path: str, settings: records.ReadingSettings) -> None:
  head = text_files.read_head(path).lstrip()
  if not head.startswith((b"<doc ", b"{")):
    raise text_files.wrong_start_error(path, head, "<doc ...> or a JSON object: run wikiextractor again")


def _read_articles(piece: records.Piece, settings: records.ReadingSettings) -> Iterator[records.Record]:
  # The current article: a function that returns the place of its first line, or None between two articles; then its
  # title, and its lines so far.
  get_article_place: records.GetPlace | None = None
  title = ""
  article_lines: list[str] = []
  for get_place, line in read_lines(piece):
    try:
      text = line.decode("utf-8")
    except UnicodeDecodeError as error:
      yield records.BadRecord(get_article_place or get_place, text_files.decoding_problem(line, error))
      get_article_place = None
      continue
    if get_article_place is None and text.startswith("{"):
      yield _read_json(line, get_place, settings.text_field)
    elif begin_tag := _ARTICLE_BEGIN.match(text.rstrip()):
      if get_article_place is not None:
        yield records.BadRecord(get_article_place, _NO_END)
      title, get_article_place, article_lines = html.unescape(begin_tag["title"] or ""), get_place, []
    elif get_article_place is None:
      continue  # a line outside of articles
    elif text.rstrip() == _ARTICLE_END:
      yield _to_document(get_article_place, article_lines, title)
      get_article_place = None
    else:
      article_lines.append(text)
  if get_article_place is not None:
    yield records.BadRecord(get_article_place, _NO_END)


def _to_document(get_place: records.GetPlace, article_lines: list[str], title: str) -> records.SourceDocument:
  """Makes a document of an article. Entities become characters; a first line that is the title is left out."""
  lines = list(map(html.unescape, article_lines))
  return records.SourceDocument(get_place, lines[1:] if lines and text_files.strip_line(lines[0]) == title else lines)


def _read_json(line: bytes, get_place: records.GetPlace, field: str) -> records.Record:
  title = ""
  try:
    text = _parse_text(line, field) or ""
    with contextlib.suppress(ValueError):
      title = _parse_text(line, "title") or ""
  except ValueError as error:
    return records.BadRecord(get_place, str(error))
  return _to_document(get_place, text.split("\n"), title)


TEXT_READER = records.Reader(_check_text, _plan_text, _read_text)
JSON_LINES_READER = records.Reader(
  _check_json_lines, lambda path, settings, unit_bytes: records.byte_ranges(path, unit_bytes), _read_json_lines
)
# wikiextractor writes files of 1 MB, so a file is a piece.
WIKIEXTRACTOR_READER = records.Reader(
  _check_articles, lambda path, settings, unit_bytes: iter([records.whole_file(path)]), _read_articles
)
