"""Reads plain text: a document ends at a blank line, or at the end of its file."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator

from data_prep import units
from data_prep.readers import lines, streams
from data_prep.readers.records import BadRecord, BadRecordError, Piece, Record, SourceDocument
from data_prep.readers.settings import FILE, TEXT, ReadingSettings
from data_prep.text import text_checks
from data_prep.text.text_files import decoding_problem, strip_line

# Greatest nominal size of a piece. A piece ends at the first blank line after its nominal end, at most this many bytes
# later, so its text has at most twice this size.
PIECE_BYTES = 16 << 20


def check(path: str, settings: ReadingSettings) -> None:
  """See `records.Reader`."""
  streams.check_libraries(path)
  text_checks.check_head(path, streams.read_head(path))


def plan(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """See `records.Reader`."""
  if settings.document == FILE:
    yield lines.whole_file(path, TEXT)
  else:
    yield from lines.byte_ranges(path, TEXT, min(unit_bytes, PIECE_BYTES))


def read(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  """See `records.Reader`."""
  joins_lines = settings.joins_lines(TEXT)
  if piece.start == 0:
    text_checks.check_head(piece.path, streams.read_head(piece.path))
  source_lines = lines.read_lines(piece) if piece.end == lines.TO_THE_END else _lines_of_documents(piece)
  if settings.document == FILE:
    # The lines are read while the document is written, so a file may be larger than memory.
    yield SourceDocument(lambda: "line 1", lines.paragraphs_of(_decode(source_lines), joins_lines=joins_lines))
    return
  for is_blank, group in itertools.groupby(source_lines, lambda line: not line.content.strip()):
    if not is_blank:
      yield from _read_group(list(group), joins_lines=joins_lines)


def _lines_of_documents(piece: Piece) -> Iterator[lines.SourceLine]:
  """Reads the lines of the documents that begin in a piece. Long documents are cut (`units.read_range`)."""
  text_range = units.TextRange(piece.path, 0, piece.start, piece.end)
  text, start, _ = units.read_range(text_range, PIECE_BYTES)
  numbers = lines.LineNumbers(piece.path, start)
  for index, line in enumerate(io.BytesIO(text)):
    yield lines.SourceLine(numbers.place_getter(index), line)


def _decode(source_lines: Iterable[lines.SourceLine]) -> Iterator[str]:
  """Yields the lines as text.

  Raises:
    BadRecordError: a line is not UTF-8.
  """
  for get_place, content in source_lines:
    try:
      yield content.decode("utf-8")
    except UnicodeDecodeError as error:
      raise BadRecordError(get_place(), decoding_problem(content, error)) from error


def _read_group(group: list[lines.SourceLine], *, joins_lines: bool) -> Iterator[Record]:
  """Yields the documents in a group of lines, or one bad record if a line is not UTF-8.

  The group has no line of ASCII white space, so it is usually one document. Lines of other white space, such as
  no-break spaces, separate documents, too.
  """
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
      yield SourceDocument(group[first_line].get_place, lines.paragraphs_of(document_lines, joins_lines=joins_lines))
    first_line += len(document_lines)
