"""Parses lines of input into requests. A line is a text, tab-separated columns, or a JSON object."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from albert.errors import UserError
from albert.io.json_values import encode_utf8, format_value, parse_object
from albert.io.wording import counted

AUTO, LINES, TSV, JSON = "auto", "lines", "tsv", "json"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Prefix of an extra field whose name is also the name of an answer.
INPUT_PREFIX = "input_"


@dataclasses.dataclass(frozen=True)
class PredictRequest:
  """A request, parsed from one line.

  Attributes:
    line_number: number of the line, from 1.
    texts: name of a field of the model -> a text (bytes) or a list of texts.
    extra_fields: name in the answer -> value, for the other fields of a JSON object. They are copied to the answer.
  """

  line_number: int
  texts: Mapping[str, Any]
  extra_fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def num_bytes(self) -> int:
    """Size of all texts in bytes. The time to answer the request is roughly proportional to it."""
    num_bytes = 0
    for value in self.texts.values():
      texts = value if isinstance(value, list) else [value]
      num_bytes += sum(len(text) for text in texts)
    return num_bytes


def extra_field_name(name: str, answers: Collection[str]) -> str:
  """The name under which an extra field of the input is copied to the answer.

  A field with the name of an answer gets the prefix `input_`: score becomes input_score. A field that is already called
  input_score becomes input_input_score, so that two fields never get the same name. The new name depends only on the
  names of the answers, so it is the same for every line of every file.

  Args:
    name: name of the field in the input.
    answers: names of the model's answers.
  """
  unprefixed = name
  while unprefixed.startswith(INPUT_PREFIX):
    unprefixed = unprefixed.removeprefix(INPUT_PREFIX)
  return INPUT_PREFIX + name if unprefixed in answers else name


class RequestParser:
  """Parses lines into requests.

  Args:
    fields: the fields of the model: name, meaning and is_list of each (`albert.export.companion_files.description`).
    input_format: auto, lines, tsv or json. auto stands for json if the first line that is not blank begins with "{",
      else for lines if the model has one text field, else for tsv.
    source: name of the input, for error messages.
    answers: names of the model's answers, see extra_field_name.
  Raises:
    UserError: the format is lines, and a request of this model has several fields.
  """

  def __init__(
    self, fields: Sequence[Mapping[str, Any]], input_format: str, source: str, answers: Collection[str] = ()
  ):
    self._fields = fields
    self._format = input_format
    self.source = source
    self._answers = answers
    self._has_one_text = len(fields) == 1 and not fields[0]["is_list"]
    if input_format == LINES and not self._has_one_text:
      names = ", ".join(field["name"] for field in fields)
      raise UserError(f"--format={LINES}: the model takes {names}: give {TSV} or {JSON}")

  def detect_format(self, lines: Sequence[bytes], *, at_end: bool = False) -> bool:
    """Decides what the format auto stands for.

    Args:
      lines: all lines of the input so far.
      at_end: whether the input ends here.
    Returns:
      False if all lines so far are blank and the input goes on, so that the format is still unknown.
    """
    if self._format != AUTO:
      return True
    content = b"\n".join(lines).removeprefix(_BYTE_ORDER_MARK).lstrip()
    if not content and not at_end:
      return False
    if content.startswith(b"{"):
      self._format = JSON
    else:
      self._format = LINES if self._has_one_text else TSV
    return True

  def parse(self, line_number: int, line: bytes) -> PredictRequest | None:
    """Parses a line.

    Args:
      line_number: number of the line, from 1.
      line: the line without its line end.
    Returns:
      The request, or None for a blank line. If each line is a text, a blank line is a request with an empty text.
    Raises:
      UserError: the line does not have the fields of the model. The message names the input and the line.
    """
    location = f"{self.source}, line {line_number}"
    if line_number == 1:
      line = line.removeprefix(_BYTE_ORDER_MARK)
    self.detect_format([line], at_end=True)
    if self._format == LINES:
      return PredictRequest(line_number, {self._fields[0]["name"]: line})
    if self._format == JSON:
      if not line.strip():
        return None
      request = self._parse_json(line_number, location, line)
    else:
      # A line of tabs is not blank: its columns are empty texts. A single column may be an empty text, too.
      if not line.strip(b" ") and not self._has_one_text:
        return None
      request = self._parse_tsv(line_number, location, line)
    for field in self._fields:
      if field["is_list"] and not any(request.texts[field["name"]]):
        raise UserError(f"{location}: {field['name']!r} has no text ({field['meaning']}): give at least one")
    return request

  def _parse_tsv(self, line_number: int, location: str, line: bytes) -> PredictRequest:
    columns = line.split(b"\t")
    names = [field["name"] for field in self._fields]
    ends_in_list = self._fields[-1]["is_list"]
    is_complete = len(columns) >= len(names) if ends_in_list else len(columns) == len(names)
    if not is_complete:
      list_note = f" (each further column is one more of {names[-1]})" if ends_in_list else ""
      raise UserError(
        f"{location}: has {counted(len(columns), 'column')}; give {', '.join(names)}{list_note}, separated by tabs"
      )
    if ends_in_list:
      list_start = len(names) - 1  # the last field, a list, has all remaining columns
      columns = [*columns[:list_start], columns[list_start:]]  # type: ignore[list-item]
    return PredictRequest(line_number, dict(zip(names, columns, strict=True)))

  def _parse_json(self, line_number: int, location: str, line: bytes) -> PredictRequest:
    values = parse_object(location, line)
    texts = {}
    for field in self._fields:
      name, expected_type = field["name"], "a list of texts" if field["is_list"] else "a text"
      if name not in values:
        raise UserError(f"{location}: lacks {name!r} ({expected_type}: {field['meaning']})")
      value = values.pop(name)
      is_valid = isinstance(value, list) if field["is_list"] else isinstance(value, str)
      if not is_valid or (field["is_list"] and not all(isinstance(text, str) for text in value)):
        raise UserError(f"{location}: {name!r} must be {expected_type}, it is {format_value(value)}")
      texts[name] = [encode_utf8(text) for text in value] if field["is_list"] else encode_utf8(value)
    extra_fields = {extra_field_name(name, self._answers): value for name, value in values.items()}
    return PredictRequest(line_number, texts, extra_fields)
