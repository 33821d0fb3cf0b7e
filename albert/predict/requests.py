"""Parses lines of input into requests, and answers them in order, in batches of similar length.

A line is a text, tab-separated columns, or a JSON object.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from albert.errors import UserError
from albert.io import json_text
from albert.io.progress import Progress, log
from albert.io.text import check_first_line, counted, encode_utf8, format_value, read_line_batches

if TYPE_CHECKING:
  from albert.export.companion_files import RequestField
  from albert.predict.exported_model import ExportedModel

AUTO, LINES, TSV, JSON = "auto", "lines", "tsv", "json"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BEGIN_OF_LIST = re.compile(rb"\[\s*(\{|$)")
# Prefix of an extra field whose name is also the name of an answer.
INPUT_PREFIX = "input_"
# At most this many batches of lines are sorted by length together. Only lines that have already arrived are sorted. The
# first lines are a batch of their own, so that their answers come soon.
_MAX_SORTED_BATCHES = 32
# The texts of a batch have at most this many bytes together. A longer text is a batch of its own.
_MAX_BATCH_BYTES = 4 << 20
# Characters that str.splitlines takes for the end of a line and that JSON does not escape.
_ESCAPED_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


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
    return sum(len(b"".join(value) if isinstance(value, list) else value) for value in self.texts.values())


def extra_field_name(name: str, answers: Collection[str]) -> str:
  """The name under which an extra field of the input is copied to the answer.

  A field called answer, or as an answer of the model, gets the prefix `input_`: score becomes input_score. A field that
  is already called input_score becomes input_input_score, so that two fields never get the same name. The new name
  depends only on the names of the answers, so it is the same for every line of every file.

  Args:
    name: name of the field in the input.
    answers: names of the model's answers.
  """
  unprefixed = name
  while unprefixed.startswith(INPUT_PREFIX):
    unprefixed = unprefixed.removeprefix(INPUT_PREFIX)
  return INPUT_PREFIX + name if unprefixed in (*answers, "answer") else name


class RequestParser:
  """Parses lines into requests.

  Args:
    fields: the fields of a request of the model.
    input_format: auto, lines, tsv or json. auto stands for json if the first line that is not blank begins with "{",
      else for lines if the model has one text field, else for tsv.
    source: name of the input, for error messages.
    answers: names of the model's answers, see extra_field_name.
  Raises:
    UserError: the format is lines, and a request of this model has several fields.
  """

  def __init__(self, fields: Sequence[RequestField], input_format: str, source: str, answers: Collection[str] = ()):
    self._fields = fields
    self._format = input_format
    self.source = source
    self._answers = answers
    self._format_of_texts = LINES if len(fields) == 1 and not fields[0].is_list else TSV
    if input_format == LINES and self._format_of_texts == TSV:
      names = ", ".join(field.name for field in fields)
      raise UserError(f"--format={LINES}: the model takes {names}: give {TSV} or {JSON}")

  def detect_format(self, lines: Sequence[bytes]) -> bool:
    """Decides from all lines so far what `auto` stands for. Returns whether it is known; blank lines do not tell."""
    if self._format == AUTO and (content := b"\n".join(lines).removeprefix(_BYTE_ORDER_MARK).lstrip()):
      if _BEGIN_OF_LIST.match(content):
        remedy = f"give an object a line (jq -c '.[]' writes them), or --format={self._format_of_texts} if it is a text"
        raise UserError(f"{self.source}: is a list: {remedy}")
      self._format = JSON if content.startswith(b"{") else self._format_of_texts
    return self._format != AUTO

  def parse(self, line_number: int, line: bytes) -> PredictRequest | None:
    """Parses a line, which has no line end. The first line has the number 1.

    Returns:
      The request, or None for a blank line. If each line is a text, a blank line is a request with an empty text.
    Raises:
      UserError: the line does not have the fields of the model. The message names the input and the line.
    """
    location = f"{self.source}, line {line_number}"
    if line_number == 1:
      line = line.removeprefix(_BYTE_ORDER_MARK)
    input_format = self._format if self.detect_format([line]) else self._format_of_texts
    if line_number == 1 and input_format != JSON and self._are_names(line):
      log(f"warning: {location}: names the columns, and is answered like the others: leave it out")
    if input_format == LINES:
      return PredictRequest(line_number, {self._fields[0].name: line})
    if input_format == JSON:
      if not line.strip():
        return None
      values = json_text.decode_object(location, line, "give an object a line", keep_surrogates=True)
      return self.request_from_values(line_number, location, values)
    # A line of tabs is not blank: its columns are empty texts. A single column may be an empty text, too.
    if not line.strip(b" ") and self._format_of_texts == TSV:
      return None
    return self._parse_tsv(line_number, location, line)

  def _are_names(self, line: bytes) -> bool:
    """Whether a line has the names of the fields, or those of the columns that the model was trained on."""
    columns = zip(self._fields, line.decode(errors="replace").split("\t"), strict=False)
    return all(text.strip() in (field.name, field.meaning.rpartition(": ")[2]) for field, text in columns)

  def _parse_tsv(self, line_number: int, location: str, line: bytes) -> PredictRequest:
    columns = line.split(b"\t")
    names = [field.name for field in self._fields]
    last = len(names) - 1
    list_note = ""
    texts: list[Any] = columns
    if self._fields[last].is_list:  # it has all remaining columns
      list_note = f" (each further column is one more of {names[last]})"
      texts = [*columns[:last], columns[last:]] if len(columns) > last else columns
    if len(texts) != len(names):
      raise UserError(
        f"{location}: has {counted(len(columns), 'column')}; give {', '.join(names)}{list_note}, separated by tabs"
      )
    return self._make_request(line_number, location, dict(zip(names, texts, strict=True)), {})

  def request_from_values(self, line_number: int, location: str, values: Mapping[str, Any]) -> PredictRequest:
    """Makes a request from the values of a JSON object or of a row. `location` is where they are, for errors."""
    values, texts = dict(values), {}
    for field in self._fields:
      expected_type = "a list of texts" if field.is_list else "a text"
      if field.name not in values:
        remedy = "give a passage of RACE to its script" if "questions" in values else f"call the field {field.name!r}"
        raise UserError(
          f"{location}: lacks {field.name!r} ({expected_type}: {field.meaning.rpartition(': ')[2]}): {remedy}"
        )
      value = values.pop(field.name)
      is_valid = isinstance(value, list) if field.is_list else isinstance(value, str)
      if not is_valid or (field.is_list and not all(isinstance(text, str) for text in value)):
        raise UserError(f"{location}: {field.name!r} must be {expected_type}, it is {format_value(value)}")
      texts[field.name] = [encode_utf8(text) for text in value] if field.is_list else encode_utf8(value)
    extra_fields = {extra_field_name(name, self._answers): value for name, value in values.items()}
    return self._make_request(line_number, location, texts, extra_fields)

  def _make_request(
    self, line_number: int, location: str, texts: Mapping[str, Any], extra_fields: Mapping[str, Any]
  ) -> PredictRequest:
    for field in self._fields:
      if field.is_list and not any(texts[field.name]):
        raise UserError(f"{location}: {field.name!r} has no text ({field.meaning}): give at least one")
    return PredictRequest(line_number, texts, extra_fields)


def answer_requests(model: ExportedModel, requests: Sequence[PredictRequest], batch_size: int) -> list[dict[str, Any]]:
  """Answers requests in batches of similar length. Each answer, in their order, has the request's extra fields, too."""
  sorted_indices = sorted(range(len(requests)), key=lambda index: requests[index].num_bytes)
  answers: dict[int, dict[str, Any]] = {}  # index of a request -> its answer
  for indices in _cut_into_batches(sorted_indices, requests, batch_size):
    answers |= zip(indices, model.answer([requests[index] for index in indices]), strict=True)
  if num_without := sum(answer.get("num_masks") == 0 for answer in answers.values()):
    log(f"warning: {counted(num_without, 'text')} of {len(requests)} without [MASK]: nothing is predicted for them")
  return [{**request.extra_fields, **answers[index]} for index, request in enumerate(requests)]


def answer_batches(
  model: ExportedModel, parser: RequestParser, file: BinaryIO, *, batch_size: int, progress: Progress | None = None
) -> Iterator[list[dict[str, Any]]]:
  """Answers the lines of a file in their order.

  The lines that have already arrived are sorted by length before they are cut into batches, so that there is little
  padding. The first batch is answered at once, before further lines are sorted.

  Args:
    model: the model that answers.
    parser: turns a line into a request.
    file: the input, opened in binary mode.
    batch_size: maximum number of lines in a batch.
    progress: is advanced by the number of bytes of the answered lines.
  Yields:
    The answers to lines that arrived together. Each answer also has the extra fields of its line.
  Raises:
    UserError: a line is not a valid request. The answers to the lines before it are yielded first.
  """
  num_lines = 0
  line_batches = read_line_batches(file, batch_size * _MAX_SORTED_BATCHES, parser.source, first_lines=batch_size)
  for lines in _merge_until_format_is_known(parser, line_batches):
    requests: list[PredictRequest] = []
    error = None
    try:
      for line_number, line in enumerate(lines, start=num_lines + 1):
        if line_number == 1:
          check_first_line(parser.source, line)
        if request := parser.parse(line_number, line.rstrip(b"\r\n")):
          requests.append(request)
    except UserError as caught:
      error = caught
    num_lines += len(lines)
    if requests:
      yield answer_requests(model, requests, batch_size)
    if progress:
      progress.update(sum(map(len, lines)))
    if error:  # raised only now, so that the lines before it are answered
      raise error


def _cut_into_batches(
  indices: Sequence[int], requests: Sequence[PredictRequest], batch_size: int
) -> Iterator[list[int]]:
  """Cuts indices of requests into batches of at most batch_size requests and at most _MAX_BATCH_BYTES."""
  batch: list[int] = []
  num_bytes = 0
  for index in indices:
    if batch and (len(batch) == batch_size or num_bytes + requests[index].num_bytes > _MAX_BATCH_BYTES):
      yield batch
      batch, num_bytes = [], 0
    batch.append(index)
    num_bytes += requests[index].num_bytes
  if batch:
    yield batch


def _merge_until_format_is_known(parser: RequestParser, line_groups: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
  """Yields the groups of lines. The first groups are merged until the parser can detect the format of the input."""
  pending: list[bytes] = []
  for lines in line_groups:
    pending += lines
    if parser.detect_format(pending):
      yield pending
      pending = []
  if pending:
    yield pending


def format_answer(answer: Mapping[str, Any]) -> str:
  """Formats an answer as one line of JSON. Characters that some programs take for the end of a line are escaped."""
  return json_text.dumps(answer, ensure_ascii=False).translate(_ESCAPED_LINE_ENDS) + "\n"
