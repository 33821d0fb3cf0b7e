"""Answers from a model that albert.export wrote, for lines of standard input."""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports, so that a signal during them ends the command with one line
  from albert import startup

  startup.begin()

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from absl import flags

from albert import app
from albert.config import command_flags
from albert.config.ranges import MAX_BATCH_SIZE, Range
from albert.errors import RunError, UserError
from albert.export import file_hashes
from albert.export.formats import DESCRIPTION, TEXT_SIGNATURE
from albert.io import files, json_values
from albert.io.input_lines import windows
from albert.io.json_values import shown
from albert.io.progress import Progress
from albert.io.text_encoding import check_first_line
from albert.predict_requests import AUTO, JSON, LINES, TSV, Parser, Request

# Batches of lines that are there already, which are sorted by length together.
_WINDOW_BATCHES = 32
_PROBABILITIES = "probabilities"
_DIGITS = 6
_LONGEST_REASON = 200
_EXPORT_AGAIN = "export it again with python -m albert.export"
# Texts of a batch have at most so many bytes together; a longer text is computed alone.
_MAX_BATCH_BYTES = 4 << 20
# Ends of a line to str.splitlines. JSON escapes the others itself.
_ESCAPED = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class _Field(msgspec.Struct):
  name: str
  meaning: str
  is_list: bool


class _Checkpoint(msgspec.Struct):
  path: str | None = None
  step: int | None = None


class _Description(msgspec.Struct):
  """What is read of the description; albert.export.description writes it."""

  task: str
  fields: Annotated[list[_Field], msgspec.Meta(min_length=1)]
  answers: dict[str, str]
  labels: list[str]
  counted_by: str
  checkpoint: _Checkpoint | None = None


def _read_description(path: str) -> dict[str, Any]:
  """The description of an exported model. UserError if it is damaged."""
  values = files.read_json(path, remedy=_EXPORT_AGAIN)
  checked = json_values.convert(path, values, _Description, _EXPORT_AGAIN)
  counters = {"", *checked.answers, *(field.name for field in checked.fields)}
  if checked.counted_by not in counters:
    raise UserError(f"{path}: counted_by {shown(checked.counted_by)} is neither an answer nor a field: {_EXPORT_AGAIN}")
  return values


class Model:
  """A SavedModel, and what it says of itself.

  Args:
    path: a version's directory, or the one that holds versions (the newest is taken).
  Raises:
    UserError: not a model that albert.export wrote, or one that does not load.
  """

  def __init__(self, path: str):
    directory = _newest_version(path.rstrip("/") or "/")
    description = files.join(directory, DESCRIPTION)
    if not files.exists(description):
      raise UserError(f"--model={path}: has no {DESCRIPTION}: give a directory that python -m albert.export wrote")
    self.directory = directory
    self.description = _read_description(description)
    self.fields: Sequence[Mapping[str, Any]] = self.description["fields"]
    file_hashes.check_hashes(directory, description, self.description, _EXPORT_AGAIN)
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (the tokenizer's op)

    try:
      self._loaded = tf.saved_model.load(directory)
    except Exception as error:
      raise UserError(f"--model={path}: does not load ({_reason(error)}): {_EXPORT_AGAIN}") from error
    self._tf = tf
    signature = self._loaded.signatures.get(TEXT_SIGNATURE) if hasattr(self._loaded, "signatures") else None
    if signature is None:
      raise UserError(f"--model={path}: has no signature {TEXT_SIGNATURE}: {_EXPORT_AGAIN}")
    self._call = signature
    self._check_description(description)

  def _check_description(self, path: str) -> None:
    """UserError if the file describes another model."""
    inputs = {name: spec.shape.rank == 2 for name, spec in self._call.structured_input_signature[1].items()}
    fields = {field["name"]: field["is_list"] for field in self.fields}
    if fields != inputs or not self.fields:
      takes, described = (", ".join(names) or "nothing" for names in (inputs, fields))
      raise UserError(f"{path} describes a model that takes {described}, this one takes {takes}: {_EXPORT_AGAIN}")
    answers = self._call.structured_outputs
    missing = [name for name in self.description["answers"] if name not in answers]
    counted = self.description["counted_by"]
    if missing or (counted and counted not in answers and not fields.get(counted)):
      raise UserError(f"{path} describes the answer {(missing or [counted])[0]!r}, which the model does not give: "
                      f"{_EXPORT_AGAIN}")  # fmt: skip

  def origin(self) -> str:
    """The directory, the form, and the checkpoint that it was made of, as far as the export says so."""
    checkpoint = self.description.get("checkpoint") or {}
    step = checkpoint.get("step")
    made_of = f", made of {checkpoint['path']}" if checkpoint.get("path") else ""
    return f"{self.directory}: {self.description['task']}{made_of}" + ("" if step is None else f" (step {step})")

  def answer(self, requests: Sequence[Request]) -> list[dict[str, Any]]:
    """Plain JSON values for each request, in order, computed as one batch."""
    inputs = {}
    for field in self.fields:
      values = [request.texts[field["name"]] for request in requests]
      if field["is_list"]:
        longest = max(1, *map(len, values))
        values = [[*texts, *[b""] * (longest - len(texts))] for texts in values]
      inputs[field["name"]] = self._tf.constant(values, self._tf.string)
    try:
      arrays = {name: tensor.numpy() for name, tensor in self._call(**inputs).items()}
    except self._tf.errors.ResourceExhaustedError:  # has a line of its own
      raise
    except self._tf.errors.OpError as error:
      raise RunError(f"{_lines(requests)}: the model fails ({_reason(error)}): {_EXPORT_AGAIN}") from error
    names = list(self.description["answers"])
    for name in names:
      if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
        raise RunError(f"{_lines(requests)}: {name!r} is not finite; do the weights of the model hold NaN?")
    return [self._row({name: arrays[name][i] for name in names}, request) for i, request in enumerate(requests)]

  def _row(self, answers: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """One row of the answers, without what fills up shorter ones."""
    counted = self.description["counted_by"]
    count = None
    if counted:
      count = int(answers[counted]) if counted in answers else len(request.texts[counted])
    row = {name: _plain(value[:count] if np.ndim(value) else value) for name, value in answers.items()}
    labels = self.description["labels"]
    if labels and len(row.get(_PROBABILITIES, ())) == len(labels):
      row[_PROBABILITIES] = dict(zip(labels, row[_PROBABILITIES], strict=True))
    return row


def _reason(error: Exception) -> str:
  return " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__


def _lines(requests: Sequence[Request]) -> str:
  numbers = [request.line for request in requests]
  return f"line {numbers[0]}" if len(numbers) == 1 else f"lines {min(numbers)} to {max(numbers)} (some of them)"


def _newest_version(path: str) -> str:
  if files.exists(files.join(path, "saved_model.pb")):
    return path
  versions = (
    [int(name) for name in files.listdir(path) if name.isascii() and name.isdecimal()] if files.is_dir(path) else []
  )
  if not versions:
    raise UserError(f"--model={path}: neither a SavedModel nor a directory of versions of one")
  return files.join(path, str(max(versions)))


def _plain(value: Any) -> Any:
  if isinstance(value, np.ndarray):
    return [_plain(item) for item in value]
  if isinstance(value, bytes):
    return value.decode("utf-8", errors="replace")
  if isinstance(value, np.floating):
    return float(f"{value:.{_DIGITS}g}")
  return value.item() if isinstance(value, np.generic) else value


def answers(
  model: Model, parser: Parser, file: BinaryIO, *, batch_size: int, progress: Progress | None = None
) -> Iterator[list[dict[str, Any]]]:
  """Answers to the lines of a file, in order, as lists of those that came together.

  Lines of similar lengths are computed together. A line that is wrong ends it, after the answers to those before it.
  """
  number = 0
  for window in _settled(parser, windows(file, batch_size * _WINDOW_BATCHES, parser.source)):
    requests: list[Request] = []
    failure: UserError | None = None
    for line in window:
      number += 1
      try:
        if number == 1:
          check_first_line(parser.source, line)
        request = parser.parse(number, line.rstrip(b"\r\n"))
      except UserError as error:
        failure = error
        break
      if request is not None:
        requests.append(request)
    order = sorted(range(len(requests)), key=lambda i: requests[i].length)
    found: dict[int, dict[str, Any]] = {}
    for batch in _batches(order, requests, batch_size):
      found |= zip(batch, model.answer([requests[i] for i in batch]), strict=True)
    yield [{**requests[i].others, **found[i]} for i in range(len(requests))]
    if progress:
      progress.update(sum(map(len, window)))
    if failure:
      raise failure


def _batches(order: Sequence[int], requests: Sequence[Request], batch_size: int) -> Iterator[list[int]]:
  """The requests in this order, cut into batches that are not too large."""
  batch: list[int] = []
  num_bytes = 0
  for index in order:
    if batch and (len(batch) == batch_size or num_bytes + requests[index].length > _MAX_BATCH_BYTES):
      yield batch
      batch, num_bytes = [], 0
    batch.append(index)
    num_bytes += requests[index].length
  if batch:
    yield batch


def _settled(parser: Parser, found: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
  """The windows, the first of which has the line that settles the parser's form."""
  held: list[bytes] = []
  for window in found:
    held += window
    if parser.settle(held):
      yield held
      held = []
  if held:
    parser.settle(held, at_end=True)
    yield held


def _define_flags() -> None:
  command_flags.define("str", "model", "", "directory that albert.export wrote: of a version, or of all")
  command_flags.define("str", "input_file", "", "what to read instead of standard input")
  command_flags.define(
    "str",
    "format",
    AUTO,
    "a text a line; columns with tabs between, in the order of the model's fields; or a JSON object a line, whose "
    "other fields come back with the answer (as input_NAME if an answer has that name). auto: as the first line that "
    "is not blank looks",
    choices=(AUTO, LINES, TSV, JSON),
  )
  command_flags.define("int", "batch_size", 32, "lines computed together", allowed=Range(1, MAX_BATCH_SIZE))


def main() -> None:
  """Reads, answers, writes a JSON object a line."""
  values = flags.FLAGS
  if not values.model:
    raise UserError("--model is missing: a directory that python -m albert.export wrote (--help explains it)")
  path = values.input_file
  if path and not files.exists(path):
    raise UserError(f"--input_file={path}: no such file")
  model = Model(values.model)
  parser = Parser(model.fields, values.format, path or "standard input", model.description["answers"])
  print(f"answers from {model.origin()}", file=sys.stderr, flush=True)
  with files.open_file(path, or_pipe=True) if path else nullcontext(_standard_input()) as file:
    size = _regular_size(file)
    show = size is not None and not sys.stdout.isatty()
    with Progress(size or 0, "B", "answering") if show else nullcontext() as progress:
      for rows in answers(model, parser, file, batch_size=values.batch_size, progress=progress):
        sys.stdout.write("".join(answer_line(row) for row in rows))
        sys.stdout.flush()


def _standard_input() -> BinaryIO:
  if sys.stdin is None:
    raise UserError("standard input is closed: pipe the texts into the command, or give --input_file")
  return sys.stdin.buffer


def answer_line(row: Mapping[str, Any]) -> str:
  """The row as a line of JSON, which has no other end of a line in it, whatever a reader takes for one."""
  return json_values.dumps(row, ensure_ascii=False).translate(_ESCAPED) + "\n"


def _regular_size(file: BinaryIO) -> int | None:
  """Bytes of a file; None for a pipe, a terminal or a remote file."""
  try:
    status = os.fstat(file.fileno())
  except (AttributeError, OSError):
    return None
  return status.st_size if stat.S_ISREG(status.st_mode) else None


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  # A lone surrogate in a field that comes back is written as it came: "\ud800" is JSON's own escape.
  sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
  _define_flags()
  app.run(main)
