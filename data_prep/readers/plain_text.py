"""Reads plain text: a document ends at a blank line, or at the end of its file."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator

from data_prep import text_checks, units
from data_prep.readers import lines, streams
from data_prep.readers.records import BadRecord, BadRecordError, Piece, Record, SourceDocument
from data_prep.readers.settings import FILE, TEXT, ReadingSettings

# A piece of plain text ends at the first blank line after its nominal end. So much text is searched for it.
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
  numbered_lines = _lines_of_documents(piece) if piece.end != lines.TO_THE_END else lines.read_lines(piece)
  if settings.document == FILE:
    # The lines are read while the document is written, so a file may be larger than memory.
    yield SourceDocument(lambda: "line 1", lines.paragraphs_of(_decode(numbered_lines), joins_lines=joins_lines))
    return
  for is_blank, group in itertools.groupby(numbered_lines, lambda numbered: not numbered[1].strip()):
    if not is_blank:
      yield from _read_group(list(group), joins_lines=joins_lines)


def _lines_of_documents(piece: Piece) -> Iterator[tuple[Callable[[], str], bytes]]:
  """Reads the lines of the documents that begin in a piece. Long documents are cut (`units.read_range`)."""
  text_range = units.TextRange(piece.path, 0, piece.start, piece.end)
  data, start, _ = units.read_range(text_range, PIECE_BYTES)
  numbers = lines.LineNumbers(piece.path, start)
  for index, line in enumerate(io.BytesIO(data)):
    yield numbers.place(index), line


def _decode(numbered_lines: Iterator[tuple[Callable[[], str], bytes]]) -> Iterator[str]:
  for place, line in numbered_lines:
    try:
      yield line.decode("utf-8")
    except UnicodeDecodeError as error:
      raise BadRecordError(place(), lines.decoding_problem(line, error)) from error


def _read_group(group: list[tuple[Callable[[], str], bytes]], *, joins_lines: bool) -> Iterator[Record]:
  """Yields the document of consecutive lines that are not blank, or the bad record; nothing if it is blank after all.

  Lines of white space that is not ASCII separate documents, too.
  """
  texts: list[str] = []
  for place, line in group:
    try:
      texts.append(line.decode("utf-8"))
    except UnicodeDecodeError as error:
      yield BadRecord(place, lines.decoding_problem(line, error))
      return
  numbered = [(place, lines.clean(text)) for (place, _), text in zip(group, texts, strict=True)]
  for has_text, part in itertools.groupby(numbered, lambda item: bool(item[1])):
    if has_text:
      document = list(part)
      yield SourceDocument(document[0][0], lines.paragraphs_of((text for _, text in document), joins_lines=joins_lines))
