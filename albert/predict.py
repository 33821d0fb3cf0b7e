"""Answers from a model that albert.export wrote, for lines of standard input."""

from __future__ import annotations

if __name__ == "__main__":  # before the other imports, so that a signal during them ends the command with one line
  from albert import startup

  startup.begin()

import dataclasses
import os
import queue
import stat
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from absl import flags

from albert import app, command_flags, files, json_values
from albert.errors import UserError
from albert.export.formats import DESCRIPTION, TEXT_SIGNATURE
from albert.json_values import encoded, parse_object, shown
from albert.progress import Progress
from albert.ranges import MAX_BATCH_SIZE, Range

AUTO, LINES, TSV, JSON = "auto", "lines", "tsv", "json"
# Batches of lines that are there already, which are sorted by length together.
_WINDOW_BATCHES = 32
_PROBABILITIES = "probabilities"
_DIGITS = 6
# Seconds that a line is waited for before those that are there are answered.
_PATIENCE = 0.05
_BOM = b"\xef\xbb\xbf"
# Put before the name of a field of the input that an answer has, too.
INPUT_PREFIX = "input_"


@dataclasses.dataclass(frozen=True)
class Request:
  """A line: its number from 1, its texts (or lists of them) by the names of the fields, and what else it has."""

  line: int
  texts: Mapping[str, Any]
  others: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def length(self) -> int:
    """Bytes of all texts, which the time to answer grows with."""
    return sum(sum(map(len, value)) if isinstance(value, list) else len(value) for value in self.texts.values())


def returned_name(name: str, answers: Collection[str]) -> str:
  """The name that a field of the input comes back under: its own, or with input_ before it if an answer has it.

  It depends on nothing but the names of the answers, so that it is the same for all lines of all files. A field that
  has input_ before the name of an answer gets another one, so that no two fields come back under one name.
  """
  rest = name
  while rest.startswith(INPUT_PREFIX):
    rest = rest.removeprefix(INPUT_PREFIX)
  return INPUT_PREFIX + name if rest in answers else name


class Parser:
  """Lines -> requests.

  Args:
    fields: of the model, see albert.export.description.
    form: auto, lines, tsv or json; auto is settled by the first line that is not blank: "{" begins JSON.
    source: what lines come from, for errors.
    answers: names of the model's answers, see returned_name.
  """

  def __init__(self, fields: Sequence[Mapping[str, Any]], form: str, source: str, answers: Collection[str] = ()):
    self._fields = fields
    self._form = form
    self._source = source
    self._answers = answers
    # An empty line is an empty text where a line is a text.
    self._takes_blank = len(fields) == 1 and not fields[0]["is_list"]
    if form == LINES and not self._takes_blank:
      names = ", ".join(field["name"] for field in fields)
      raise UserError(f"--format={LINES}: the model takes {names}: give {TSV} or {JSON}")

  def settle(self, lines: Sequence[bytes], *, at_end: bool = False) -> bool:
    """Settles what auto stands for by the first lines of the input.

    Args:
      lines: all lines up to here.
      at_end: no others follow.
    Returns: False if all lines are blank and others may follow, which is too early to tell.
    """
    if self._form == AUTO:
      stripped = (line.removeprefix(_BOM if i == 0 else b"").strip() for i, line in enumerate(lines))
      first = next(filter(None, stripped), b"")
      if not first and not at_end:
        return False
      self._form = JSON if first.startswith(b"{") else LINES if self._takes_blank else TSV
    return True

  def parse(self, number: int, line: bytes) -> Request | None:
    """Line `number` (from 1), without its end; None if it is blank and no request.

    Raises:
      UserError: it is wrong; with source and line.
    """
    where = f"{self._source}, line {number}"
    if number == 1:
      line = line.removeprefix(_BOM)
    self.settle([line], at_end=True)
    if self._form == LINES:
      return Request(number, {self._fields[0]["name"]: line})
    is_blank = not line.strip() if self._form == JSON else not line.strip(b" ") and not self._takes_blank
    if is_blank:
      return None
    request = self._json(number, where, line) if self._form == JSON else self._tsv(number, where, line)
    for field in self._fields:
      if field["is_list"] and not any(request.texts[field["name"]]):
        raise UserError(f"{where}: {field['name']!r} has no text ({field['meaning']}): give at least one")
    return request

  def _tsv(self, number: int, where: str, line: bytes) -> Request:
    columns = line.split(b"\t")
    names = [field["name"] for field in self._fields]
    *_, last = self._fields
    is_enough = len(columns) >= len(names) if last["is_list"] else len(columns) == len(names)
    if not is_enough:
      more = " (each further column one more of the last)" if last["is_list"] else ""
      raise UserError(f"{where}: has {len(columns)} columns; give {', '.join(names)}{more}, with tabs between")
    if last["is_list"]:
      columns = [*columns[: len(names) - 1], columns[len(names) - 1 :]]  # type: ignore[list-item]
    return Request(number, dict(zip(names, columns, strict=True)))

  def _json(self, number: int, where: str, line: bytes) -> Request:
    values = parse_object(where, line)
    texts = {}
    for field in self._fields:
      name, kind = field["name"], "a list of texts" if field["is_list"] else "a text"
      if name not in values:
        raise UserError(f"{where}: lacks {name!r} ({kind}: {field['meaning']})")
      value = values.pop(name)
      is_right = isinstance(value, list) if field["is_list"] else isinstance(value, str)
      if not is_right or (field["is_list"] and not all(isinstance(text, str) for text in value)):
        raise UserError(f"{where}: {name!r} must be {kind}, it is {shown(value)}")
      texts[name] = [encoded(text) for text in value] if field["is_list"] else encoded(value)
    return Request(number, texts, {returned_name(name, self._answers): value for name, value in values.items()})


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
  remedy = "export the model again"
  values = files.read_json(path, remedy=remedy)
  checked = json_values.convert(path, values, _Description, remedy)
  counters = {"", *checked.answers, *(field.name for field in checked.fields)}
  if checked.counted_by not in counters:
    raise UserError(f"{path}: counted_by {shown(checked.counted_by)} is neither an answer nor a field: {remedy}")
  return values


class Model:
  """A SavedModel, and what it says of itself.

  Args:
    path: a version's directory, or the one that holds versions (the newest is taken).
  Raises:
    UserError: not a model that albert.export wrote, or one that does not load.
  """

  def __init__(self, path: str):
    directory = _newest_version(path.rstrip("/"))
    description = files.join(directory, DESCRIPTION)
    if not files.exists(description):
      raise UserError(f"--model={path}: has no {DESCRIPTION}: give a directory that python -m albert.export wrote")
    self.directory = directory
    self.description = _read_description(description)
    self.fields: Sequence[Mapping[str, Any]] = self.description["fields"]
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (the tokenizer's op)

    try:
      self._loaded = tf.saved_model.load(directory)
    except Exception as error:
      raise UserError(f"--model={path}: does not load: {str(error).splitlines()[0]}") from error
    self._tf = tf
    if TEXT_SIGNATURE not in self._loaded.signatures:
      raise UserError(f"--model={path}: has no signature {TEXT_SIGNATURE}: give a directory that albert.export wrote")
    self._call = self._loaded.signatures[TEXT_SIGNATURE]
    inputs, named = set(self._call.structured_input_signature[1]), {field["name"] for field in self.fields}
    if inputs != named:
      raise UserError(
        f"{description}: names the inputs {', '.join(sorted(named))}, the model takes {', '.join(sorted(inputs))}: "
        "export it again"
      )

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
    arrays = {name: tensor.numpy() for name, tensor in self._call(**inputs).items()}
    names = [name for name in self.description["answers"] if name in arrays]
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


def _newest_version(path: str) -> str:
  if files.exists(files.join(path, "saved_model.pb")):
    return path
  versions = [int(name) for name in files.listdir(path) if name.isdecimal()] if files.is_dir(path) else []
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


def windows(file: BinaryIO, size: int) -> Iterator[list[bytes]]:
  """Lists of at most `size` lines: what is there, so that a slow writer is answered line by line."""
  lines: queue.Queue[bytes | BaseException | None] = queue.Queue(maxsize=2 * size)

  def read() -> None:
    try:
      for line in file:
        lines.put(line)
      lines.put(None)
    except BaseException as error:  # e.g. a directory
      lines.put(error)

  threading.Thread(target=read, daemon=True).start()
  at_end = False
  while not at_end:
    window: list[bytes] = []
    while len(window) < size and not at_end:
      try:
        line = lines.get(timeout=_PATIENCE if window else None)
      except queue.Empty:
        break
      if isinstance(line, BaseException):
        raise UserError(f"cannot read the input: {line}") from line
      at_end = line is None
      if line is not None:
        window.append(line)
    if window:
      yield window


def answers(
  model: Model, parser: Parser, file: BinaryIO, *, batch_size: int, progress: Progress | None = None
) -> Iterator[list[dict[str, Any]]]:
  """Answers to the lines of a file, in order, as lists of those that came together.

  Lines of similar lengths are computed together. A line that is wrong ends it, after the answers to those before it.
  """
  number = 0
  for window in _settled(parser, windows(file, batch_size * _WINDOW_BATCHES)):
    requests: list[Request] = []
    failure: UserError | None = None
    for line in window:
      number += 1
      try:
        request = parser.parse(number, line.rstrip(b"\r\n"))
      except UserError as error:
        failure = error
        break
      if request is not None:
        requests.append(request)
    order = sorted(range(len(requests)), key=lambda i: requests[i].length)
    found: dict[int, dict[str, Any]] = {}
    for start in range(0, len(order), batch_size):
      batch = order[start : start + batch_size]
      found |= zip(batch, model.answer([requests[i] for i in batch]), strict=True)
    yield [{**requests[i].others, **found[i]} for i in range(len(requests))]
    if progress:
      progress.update(sum(map(len, window)))
    if failure:
      raise failure


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
  with files.open_file(path, or_pipe=True) if path else nullcontext(sys.stdin.buffer) as file:
    size = _regular_size(file)
    show = size is not None and not sys.stdout.isatty()
    with Progress(size or 0, "B", "answering") if show else nullcontext() as progress:
      for rows in answers(model, parser, file, batch_size=values.batch_size, progress=progress):
        sys.stdout.write("".join(json_values.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        sys.stdout.flush()


def _regular_size(file: BinaryIO) -> int | None:
  """Bytes of a file; None for a pipe or a terminal."""
  status = os.fstat(file.fileno())
  return status.st_size if stat.S_ISREG(status.st_mode) else None


if __name__ == "__main__":
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  # A lone surrogate in a field that comes back is written as it came: "\ud800" is JSON's own escape.
  sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
  _define_flags()
  app.run(main)
