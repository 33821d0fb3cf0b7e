"""Answers a stream of lines in order: groups the lines into batches of similar length, and formats the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from albert.errors import UserError
from albert.io import json_values
from albert.io.input_lines import windows
from albert.io.progress import Progress
from albert.io.text_encoding import check_first_line
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import PredictRequest, RequestParser

# At most this many batches of lines are sorted by length together. Only lines that have already arrived are sorted.
_WINDOW_BATCHES = 32
# The texts of a batch have at most this many bytes together. A longer text is a batch of its own.
_MAX_BATCH_BYTES = 4 << 20
# Characters that str.splitlines takes for the end of a line and that JSON does not escape.
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


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
  padding.

  Args:
    model: the model that answers.
    parser: turns a line into a request.
    file: the input, opened in binary mode.
    batch_size: maximum number of lines in a batch.
    progress: advanced by the number of bytes that were answered.
  Yields: the answers to lines that arrived together. Each answer also has the extra fields of its line.
  Raises:
    UserError: a line is wrong. The lines before it have been answered.
  """
  line_number = 0
  for lines in _first_with_known_format(parser, windows(file, batch_size * _WINDOW_BATCHES, parser.source)):
    requests: list[PredictRequest] = []
    error: UserError | None = None
    for line in lines:
      line_number += 1
      try:
        if line_number == 1:
          check_first_line(parser.source, line)
        request = parser.parse(line_number, line.rstrip(b"\r\n"))
      except UserError as line_error:
        error = line_error
        break
      if request is not None:
        requests.append(request)
    by_length = sorted(range(len(requests)), key=lambda i: requests[i].num_bytes)
    answers: dict[int, dict[str, Any]] = {}
    for batch in _batches(by_length, requests, batch_size):
      answers |= zip(batch, model.answer([requests[i] for i in batch]), strict=True)
    yield [{**requests[i].extra_fields, **answers[i]} for i in range(len(requests))]
    if progress:
      progress.update(sum(map(len, lines)))
    if error:
      raise error


def _batches(order: Sequence[int], requests: Sequence[PredictRequest], batch_size: int) -> Iterator[list[int]]:
  """Cuts the indices `order` of requests into batches of at most batch_size requests and _MAX_BATCH_BYTES."""
  batch: list[int] = []
  num_bytes = 0
  for index in order:
    if batch and (len(batch) == batch_size or num_bytes + requests[index].num_bytes > _MAX_BATCH_BYTES):
      yield batch
      batch, num_bytes = [], 0
    batch.append(index)
    num_bytes += requests[index].num_bytes
  if batch:
    yield batch


def _first_with_known_format(parser: RequestParser, line_groups: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
  """The same lines, with the first groups merged until the parser can tell the format of the input."""
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
  """An answer as one line of JSON. No reader of lines takes a character inside it for the end of a line."""
  return json_values.dumps(answer, ensure_ascii=False).translate(_LINE_ENDS) + "\n"
