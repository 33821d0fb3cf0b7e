"""Reads JSON lines: each line is a JSON object, and one of its fields is the text of a document."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from albert.errors import UserError
from albert.io import json_values
from data_prep.readers import lines, streams
from data_prep.readers.records import BadRecord, Piece, Record
from data_prep.readers.settings import JSON_LINES, ReadingSettings
from data_prep.text import text_checks
from data_prep.text.text_files import decoding_problem

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
    raise UserError(f"{path}: begins with {streams.show_start(body)}, not with a JSON object: give --text_format")


def plan(path: str, settings: ReadingSettings, unit_bytes: int) -> Iterator[Piece]:
  """See `records.Reader`."""
  yield from lines.byte_ranges(path, JSON_LINES, unit_bytes)


def read(piece: Piece, settings: ReadingSettings) -> Iterator[Record]:
  """See `records.Reader`."""
  joins_lines = settings.joins_lines(JSON_LINES)
  for get_place, line in lines.read_lines(piece):
    if not line.strip():
      continue
    try:
      text = _parse_text(line, settings.text_field)
    except UnicodeDecodeError as error:
      yield BadRecord(get_place, decoding_problem(line, error))
    except ValueError as error:
      yield BadRecord(get_place, str(error))
    else:
      yield lines.text_to_record(get_place, text, joins_lines=joins_lines)


def _parse_text(line: bytes, field: str) -> str | None:
  """Returns the text in a field of a JSON object; None if the field is null.

  Args:
    line: the JSON object.
    field: the name of the field.

  Raises:
    ValueError: the line is not a JSON object with a text in this field. The message says why, and gives the remedy.
    UnicodeDecodeError: the line is not UTF-8.
  """
  try:
    return json_values.read_text_field(line.removeprefix(codecs.BOM_UTF8), field)
  except KeyError as error:
    names = ", ".join(error.args[:_MAX_SHOWN_FIELDS]) or "none"
    raise ValueError(f"no field {field!r} (its fields: {names}): give --text_field") from None
  except ValueError as error:
    line.decode("utf-8")  # raises UnicodeDecodeError if this is the reason
    raise ValueError(f"not a JSON object with a text {field!r} ({error}): correct or remove the line") from None
