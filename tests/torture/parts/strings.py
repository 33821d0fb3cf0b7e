"""A thousand random texts through the tokenizers, the files of tasks, every served form and albert.predict."""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albert.data import tables
from albert.errors import UserError
from albert.io.json_values import replace_surrogates
from albert.tasks import predictions
from albert.tasks.race import data as race_data
from albert.tasks.squad import data as squad_data
from albert.tasks.squad import predictions as squad_predictions
from tests.torture.campaign import Case, Context
from tests.torture.texts import as_read, random_texts
from tests.torture.workplace import Finished

if TYPE_CHECKING:
  from tests.export.pipelines import Run

_TEXTS = 1000
_BATCH = 50
# Numbers of both routes differ by no more; scores above 1 in relation to them.
_TOLERANCE = 2e-4
# Answers in words that may differ where two candidates have the same score.
_MOST_TIES = 0.01
# Texts of more bytes are cut to these, except for the forms that are asked the large ones, too.
_LONGEST = 20_000
_ASKED_LARGE = ("classifier", "pair")
_SQUAD = ("squad_v1", "squad_v2")
# TensorFlow's and Keras's global state is not made for two threads.
_making = threading.Lock()

Request = dict[str, Any]


# ---- what is asked ---------------------------------------------------------------------------------------


def _requests(form: str, texts: Sequence[bytes], context: Context) -> list[Request]:
  """A request for each text, of bytes; the other fields are other texts."""
  rng = context.rng("requests", form)
  if form not in _ASKED_LARGE:
    texts = [text[:_LONGEST] for text in texts]
  others = rng.sample(texts, len(texts))
  if form in ("classifier", "embeddings"):
    return [{"text": text} for text in texts]
  if form == "fill_mask":
    places = [rng.randrange(min(len(text), 60) + 1) for text in texts]
    return [{"text": text[:n] + b"[MASK]" + text[n:]} for text, n in zip(texts, places, strict=True)]
  if form in ("sentence_order", "regression", "pair"):
    return [{"text_a": a, "text_b": b} for a, b in zip(texts, others, strict=True)]
  if form in _SQUAD:
    ends = (b"", b" the river", " 東 \u200bletter\x01".encode())
    return [{"question": q, "context": c + rng.choice(ends)} for q, c in zip(others, texts, strict=True)]
  return [
    {
      "article": text,
      "question": other + rng.choice((b"", b" _ ", b"___")),
      "options": [option or b"." for option in rng.sample(texts, min(3, len(texts)))],
    }
    for text, other in zip(texts, others, strict=True)
  ]


def _as_texts(request: Request) -> Request:
  return {k: [as_read(t) for t in v] if isinstance(v, list) else as_read(v) for k, v in request.items()}


def _difference(row: Request, found: dict[str, Any], expected: dict[str, Any]) -> str | None:
  """How an answer differs from that of the other route, in numbers; and a span that is none."""
  for name, wanted in expected.items():
    if isinstance(wanted, str):
      continue
    value = found[name]
    numbers = np.atleast_1d(np.array(list(value.values()) if isinstance(value, dict) else value, np.float64))
    wanted = np.atleast_1d(np.array(wanted, np.float64))[tuple(slice(n) for n in numbers.shape)]  # noqa: PLW2901
    if name == "option" or not numbers.size:  # a tie may go either way; all masks were cut off
      continue
    if numbers.shape != wanted.shape:
      return f"{name} has the shape {numbers.shape} instead of {wanted.shape}"
    if np.any(np.abs(numbers - wanted) > _TOLERANCE * np.maximum(1.0, np.abs(wanted))):
      return f"{name} is {numbers.ravel()[:4]}, by the other route {wanted.ravel()[:4]}"
  if "best_text" in found and row["context"][found["start"] : found["end"]] != found["best_text"]:
    return f"best_text {found['best_text'][:40]!r} is not what the context has at start and end"
  return None


# ---- forms -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Form:
  """One export and what both routes answer; made by `prepare`, which a case runs before those of its texts."""

  name: str
  requests: list[Request]
  context: Context
  ready: threading.Event = dataclasses.field(default_factory=threading.Event)
  served: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  expected: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  predicted: Finished | None = None
  model: Any = None

  @functools.cached_property
  def texts(self) -> list[Request]:
    return [_as_texts(request) for request in self.requests]

  def prepare(self) -> str | None:
    try:
      return self._prepare()
    finally:
      self.ready.set()

  def _prepare(self) -> str | None:
    from tests.export.pipelines import FORMS, PAIR, write_run

    directory, places = self.context.directory / self.name, self.context.places
    form = PAIR if self.name == "pair" else FORMS[self.name]
    with _making:
      run = write_run(directory / "run", form, str(places.vocabulary))
    task = [f"--task={self.name}"] if form.task == "pretraining" else []
    finished = places.run(places.export(run.directory, directory / "models", f"--name={self.name}", *task))
    if wrong := finished.wrong():
      return wrong
    lines = directory / "requests.jsonl"
    lines.write_text("".join(json.dumps({"n": n, **r}) + "\n" for n, r in enumerate(self.texts)), encoding="utf-8")
    command = ["-m", "albert.predict", f"--model={directory / 'models' / self.name}", f"--input_file={lines}"]
    predicting = places.start(command)
    self._answer(directory / "models" / self.name, run)
    self.predicted = predicting.finish()
    return self.predicted.wrong()

  def _answer(self, directory: Path, run: Run) -> None:
    from albert.predict.exported_model import ExportedModel
    from albert.predict.requests import PredictRequest

    with _making:
      self.model = ExportedModel(str(directory))
    for start in range(0, len(self.requests), _BATCH):
      rows = self.requests[start : start + _BATCH]
      self.served += self.model.answer([PredictRequest(start + n + 1, row) for n, row in enumerate(rows)])
      with _making:
        answers = run.answer(self.texts[start : start + _BATCH])
      self.expected += [{name: value[n] for name, value in answers.items()} for n in range(len(rows))]

  def check(self, number: int) -> str | None:
    """The served model's answer to a text against the second route's."""
    self.ready.wait()
    if number >= len(self.expected):
      return "its form was not prepared"
    return _difference(self.texts[number], self.served[number], self.expected[number])

  def check_words(self) -> str | None:
    """Answers in words: they may differ where scores are equal, which is rare."""
    self.ready.wait()
    rows = list(zip(self.served, self.expected, strict=True))
    different = [
      (found[name], wanted)
      for found, expected in rows
      for name, wanted in expected.items()
      if isinstance(wanted, str) and found[name] != wanted
    ]
    return None if len(different) <= _MOST_TIES * len(rows) + 1 else f"{len(different)} differ: {different[:2]}"

  def check_alone(self, number: int) -> str | None:
    """A text alone against the same text in a batch of mixed ones."""
    from albert.predict.requests import PredictRequest

    self.ready.wait()
    (found,) = self.model.answer([PredictRequest(1, self.requests[number])])
    numbers = {k: v for k, v in self.served[number].items() if not isinstance(v, str | list) or k == "probabilities"}
    numbers = {k: list(v.values()) if isinstance(v, dict) else v for k, v in numbers.items()}
    return _difference(self.texts[number], found, {k: v for k, v in numbers.items() if k not in ("start", "end")})

  def check_line(self, number: int) -> str | None:
    """albert.predict's answer to a line: in order, one for each line, and that of the second route."""
    self.ready.wait()
    if self.predicted is None:
      return "its form was not prepared"
    lines = self.predicted.stdout.splitlines()
    if len(lines) != len(self.requests):
      return f"{len(lines)} lines of answers for {len(self.requests)} lines"
    found = json.loads(lines[number])
    if found["n"] != number:
      return f"line {number + 1} is the answer to line {found['n'] + 1}"
    return _difference(self.texts[number], found, self.expected[number])


def _forms(context: Context, texts: Sequence[bytes]) -> Iterator[Case]:
  from albert.export.registry import FORMS

  names = [*FORMS, "pair"]
  forms = [_Form(name, _requests(name, texts, context), context) for name in names]
  for form in forms:
    yield Case("forms exported and asked", form.name, form.prepare)
  for form in forms:
    for n, text in enumerate(texts):
      name = f"{form.name} {n}: {text[:60]!r}"
      yield Case(f"served: {form.name}", name, functools.partial(form.check, n))
      yield Case(f"albert.predict: {form.name}", name, functools.partial(form.check_line, n))
    yield Case(f"served: {form.name}", "answers in words", form.check_words)
    for n in range(5, min(len(texts), 15)):
      yield Case("served: alone as in a batch", f"{form.name} {n}", functools.partial(form.check_alone, n))


# ---- tokenizers ------------------------------------------------------------------------------------------


def _tokenizers(context: Context, texts: Sequence[bytes]) -> Iterator[Case]:
  @functools.cache
  def graph() -> list[list[Any]]:
    import tensorflow as tf

    from albert.tokenization.graph_offsets import OffsetGraphTokenizer

    with _making:
      tokenizer = OffsetGraphTokenizer(str(context.places.vocabulary))
    rows: list[list[Any]] = []
    for start in range(0, len(texts), _BATCH):
      batch = tf.constant(texts[start : start + _BATCH])
      columns = [tokenizer.tokenize(batch), *tokenizer.tokenize_with_offsets(batch)]
      rows += map(list, zip(*(values.to_list() for values in columns), strict=True))
    return rows

  @functools.cache
  def python() -> Any:
    from albert.tokenization.offsets import OffsetTokenizer

    return OffsetTokenizer(str(context.places.vocabulary))

  lock = threading.Lock()

  def check(n: int) -> str | None:
    with lock:
      ids, *placed = graph()[n]
      text = as_read(texts[n])
      tokens = [values.tolist() for values in python().encode_with_offsets(text)]
      if python().encode(text) != ids:
        return f"{len(ids)} ids in the graph, {len(python().encode(text))} in Python, or others"
    if placed != tokens:
      return "ids or offsets differ between the graph and Python"
    pieces = (text[start:end] for start, end in zip(tokens[1], tokens[2], strict=True))
    return None if all(piece == piece.strip() for piece in pieces) else "an offset begins or ends in whitespace"

  for n, text in enumerate(texts):
    yield Case("tokenizers: Python and graph", f"{n}: {text[:60]!r}", functools.partial(check, n))


# ---- files -----------------------------------------------------------------------------------------------


def _read_back(name: str, texts: Sequence[str], directory: Path) -> list[str]:
  """The texts, written as a file of this kind and read by the task's own reader."""
  path = directory / name
  if name == "a.tsv":
    path.write_text("".join(f"{text}\t1\n" for text in ["text", *texts]), encoding="utf-8", newline="")
  elif name == "a.csv":
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([["text"], *([text] for text in texts)])
    path.write_text(out.getvalue(), encoding="utf-8", newline="")
  elif name == "a.jsonl":
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
  elif name == "squad.json":
    entries = [{"context": t, "qas": [{"id": str(n), "question": t}]} for n, t in enumerate(texts)]
    path.write_text(json.dumps({"data": [{"paragraphs": entries}]}))
    questions = squad_data.read_questions([str(path)], version_2=False, with_answers=False)
    return [q.paragraph.context if q.text == q.paragraph.context else "the question differs" for q in questions]
  elif name == "race.jsonl":
    path.write_text("".join(json.dumps({"article": t, "question": t, "options": [t, t]}) + "\n" for t in texts))
    return [q.article for q in race_data.read_questions([str(path)], with_answers=False)]
  elif name == "predictions":
    found = {str(n): [{"text": text, "probability": 1.0}] for n, text in enumerate(texts)}
    squad_predictions.write(str(directory), "dev", squad_predictions.SquadPredictions(found), 0.0)
    official = json.loads((directory / "predictions_dev.json").read_text(encoding="utf-8"))
    return [official[str(n)] for n in range(len(texts))]
  else:
    labels = np.zeros(len(texts), np.int32)
    result = predictions.Predictions(list(map(str, labels)), ("a", "b"), np.array([[0.1, 0.9]] * len(texts)), labels)
    written = predictions.write_mistakes(str(directory), "dev", result, [("text", texts)])
    return tables.read_table(written, ["text"]).columns["text"]
  return tables.read_table(str(path), ["text"]).columns["text"]


def _cell(text: str) -> str:
  return text.translate({ord(character): " " for character in "\t\r\n"})


_FILES: dict[str, Callable[[str], str]] = {
  "a.tsv": _cell,
  "a.csv": lambda text: text or " ",
  "a.jsonl": str,
  "squad.json": str,
  "race.jsonl": str,
  "predictions": str,
  "mistakes": str,
}


def _files(context: Context, texts: Sequence[bytes]) -> Iterator[Case]:
  for name, prepare in _FILES.items():

    def make(name: str = name, prepare: Callable[[str], str] = prepare) -> tuple[list[str], list[str]]:
      # Lone surrogates as JSON has them: the readers replace each.
      given = [prepare(text.decode("utf-8", "surrogatepass" if _has_surrogates(text) else "replace")) for text in texts]
      if name in ("a.tsv", "a.csv"):
        given = [replace_surrogates(text) for text in given]
      if name == "a.tsv":
        given = [text or "." for text in given]
      directory = context.new_directory("files")
      expected = given if name == "predictions" else [replace_surrogates(text) for text in given]
      expected = [_cell(text) for text in expected][:_TEXTS] if name == "mistakes" else expected
      return _read_back(name, given, directory), expected

    made = functools.cache(make)
    lock = threading.Lock()

    def check(n: int, made: Callable[[], Any] = made, lock: threading.Lock = lock) -> str | None:
      with lock:
        found, expected = made()
      if len(found) != len(expected):
        return f"{len(found)} texts instead of {len(expected)}"
      return None if found[n] == expected[n] else f"{found[n][:60]!r} instead of {expected[n][:60]!r}"

    for n, text in enumerate(texts):
      yield Case(f"files: {name}", f"{n}: {text[:60]!r}", functools.partial(check, n))


def _has_surrogates(text: bytes) -> bool:
  try:
    text.decode("utf-8", "surrogatepass")
  except UnicodeDecodeError:
    return False
  return True


# ---- lines that are refused ------------------------------------------------------------------------------

_BAD_LINES = (
  b'{"text": null}', b'{"text": 5}', b'{"text": ["a"]}', b"{}", b"[]", b"5", b'{"text": "a"', b'{"text": "\xff"}',
  b"{'text': 'a'}",
  b'{"text": "a", "text": "b"}', b'{"text": "a", "x": NaN}', b'{"text": "a", "x": 1e999}', b'{"text": "a"} b',
  b'{"text": "a", "x": ' + b"[" * 100_000, b'{"text": "a", "x": ' + b"9" * 5000 + b"}", b'{"text": "\x01"}',
  b'{"text": "' + b"x" * (17 << 20) + b'"}',
)  # fmt: skip


def _bad_lines(context: Context) -> Iterator[Case]:
  from albert.predict.answers import answer_batches
  from albert.predict.requests import JSON, RequestParser

  class Lengths:
    """Answers without a model: what is tested is the reading."""

    def answer(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
      return [{"length": request.num_bytes} for request in requests]

  def check(line: bytes, before: int) -> str | None:
    fields = [{"name": "text", "meaning": "any", "is_list": False}]
    file = io.BytesIO(b'{"text": "a"}\n' * before + line + b"\n" + b'{"text": "b"}\n')
    parser = RequestParser(fields, JSON, "it")
    found = 0
    try:
      for rows in answer_batches(Lengths(), parser, file, batch_size=3):  # type: ignore[arg-type]
        found += len(rows)
    except UserError as error:
      if found != before:
        return f"{found} answers before line {before + 1}"
      return None if str(error).startswith(f"it, line {before + 1}: ") else f"the error is {str(error)[:200]!r}"
    return "it was not refused"

  def command() -> str | None:
    path = context.directory / "bad.jsonl"
    path.write_bytes(b'{"text": "a"}\n{"text": null}\n{"text": "b"}\n')
    model = context.directory / "classifier" / "models" / "classifier"
    finished = context.places.run(["-m", "albert.predict", f"--model={model}", f"--input_file={path}"])
    wrong = finished.wrong(2)
    if wrong or len(finished.stdout.splitlines()) != 1 or f"{path}, line 2: 'text'" not in finished.error:
      return wrong or f"{len(finished.stdout.splitlines())} answers, then {finished.error}"
    return None

  for line in _BAD_LINES:
    for before in (0, 1, 3, 7):
      yield Case(
        "albert.predict: lines refused", f"line {before + 1}: {line[:40]!r}", functools.partial(check, line, before)
      )
  yield Case("albert.predict: lines refused", "as a command", command)


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  texts = random_texts(context.rng("texts"), max(20, context.count(_TEXTS)))
  yield from _forms(context, texts)
  yield from _tokenizers(context, texts)
  yield from _files(context, texts)
  yield from _bad_lines(context)
