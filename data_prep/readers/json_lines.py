"""Reads JSON lines: each line is a JSON object, and one of its fields is the text of a document."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from albert.errors import UserError
from albert.io import json_values
from data_prep import text_checks
from data_prep.readers import lines, streams
from data_prep.readers.records import NO_TEXT, BadRecord, DroppedRecord, Piece, Record, SourceDocument
from data_prep.readers.settings import JSON_LINES, ReadingSettings

_MAX_SHOWN_FIELDS = 8


def check(path: str, settings: ReadingSettings) -> None:
  """See `records.Reader`."""
  streams.check_libraries(path)
  head = streams.read_head(path)
  text_checks.check_format(path, head)
  body = head.lstrip()
  if body.startswith(b"["):
    raise UserError(
      f"{path}: a JSON array, not JSON lines: write one object on each line, for example with "
      f"jq -c '.[]' < {path} > text.jsonl"
    )
  if not body.startswith(b"{"):
    raise UserError(
      f"{path}: begins with {body[:40].decode('utf-8', errors='replace')!r}, not with a JSON object: give --text_format"
    )


def plan(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """See `records.Reader`."""
  yield from lines.byte_ranges(path, JSON_LINES, unit_bytes)


def read(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  """See `records.Reader`."""
  joins_lines = settings.joins_lines(JSON_LINES)
  for place, line in lines.read_lines(piece):
    if not line.strip():
      continue
    try:
      text = text_of(line, settings.text_field)
    except UnicodeDecodeError as error:
      yield BadRecord(place, lines.decoding_problem(line, error))
    except ValueError as error:
      yield BadRecord(place, str(error))
    else:
      if text is None:
        yield DroppedRecord(place, NO_TEXT, "")
      else:
        yield SourceDocument(place, lines.paragraphs_of(iter(text.split("\n")), joins_lines=joins_lines))


def text_of(line: bytes, field: str) -> str | None:
  """Returns the text of a line; None if it is null.

  Args:
    line: a JSON object.
    field: the name of the field that holds the text.

  Raises:
    ValueError: the line is not a JSON object with this field; the text says why.
    UnicodeDecodeError: it is not UTF-8.
  """
  try:
    return json_values.read_text_field(line.removeprefix(codecs.BOM_UTF8), field)
  except KeyError as error:
    names = ", ".join(error.args[:_MAX_SHOWN_FIELDS]) or "none"
    raise ValueError(f"no field {field!r} (its fields: {names}): give --text_field") from None
  except ValueError as error:
    line.decode("utf-8")  # bytes that are not UTF-8 are reported as such
    raise ValueError(f"not a JSON object with a text {field!r} ({error}): correct or remove the line") from None
