"""Answers a stream of lines in order: groups the lines into batches of similar length, and formats the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from albert.errors import UserError
from albert.io import json_values
from albert.io.input_lines import read_line_batches
from albert.io.progress import Progress
from albert.io.text_encoding import check_first_line
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest, RequestParser

# At most this many batches of lines are sorted by length together. Only lines that have already arrived are sorted. The
# first lines are a batch of their own, so that their answers come soon.
_MAX_SORTED_BATCHES = 32
# The texts of a batch have at most this many bytes together. A longer text is a batch of its own.
_MAX_BATCH_BYTES = 4 << 20
# Characters that str.splitlines takes for the end of a line and that JSON does not escape.
_ESCAPED_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


def answer_batches(
  model: ExportedModel,
  parser: RequestParser,
  file: BinaryIO,
  *,
  batch_size: int,
  progress: Progress | None = None,
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
    requests, error = _parse_lines(parser, lines, num_lines + 1)
    num_lines += len(lines)
    sorted_indices = sorted(range(len(requests)), key=lambda index: requests[index].num_bytes)
    answers: dict[int, dict[str, Any]] = {}  # index of a request -> its answer
    for indices in _cut_into_batches(sorted_indices, requests, batch_size):
      answers |= zip(indices, model.answer([requests[index] for index in indices]), strict=True)
    if requests:
      yield [{**request.extra_fields, **answers[index]} for index, request in enumerate(requests)]
    if progress:
      progress.update(sum(map(len, lines)))
    if error:  # raised only now, so that the lines before it are answered
      raise error


def _parse_lines(
  parser: RequestParser, lines: Sequence[bytes], first_line_number: int
) -> tuple[list[PredictRequest], UserError | None]:
  """Parses lines up to the first one that is not valid.

  Returns:
    The requests, without those of blank lines, and the error of the invalid line; None if all lines are valid.
  """
  requests: list[PredictRequest] = []
  for line_number, line in enumerate(lines, start=first_line_number):
    try:
      if line_number == 1:
        check_first_line(parser.source, line)
      request = parser.parse(line_number, line.rstrip(b"\r\n"))
    except UserError as error:
      return requests, error
    if request is not None:
      requests.append(request)
  return requests, None


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
    parser.detect_format(pending, at_end=True)
    yield pending


def format_answer(answer: Mapping[str, Any]) -> str:
  """Formats an answer as one line of JSON. Characters that some programs take for the end of a line are escaped."""
  return json_values.dumps(answer, ensure_ascii=False).translate(_ESCAPED_LINE_ENDS) + "\n"
