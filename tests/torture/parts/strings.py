"""A thousand random texts through the tokenizers, the files of tasks, every served form and albert.predict."""

from __future__ import annotations

import csv
import functools
import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albert.data import tables
from albert.errors import UserError
from albert.io.json_values import replace_surrogates
from albert.tasks import predictions
from albert.tasks.race import data as race_data
from albert.tasks.squad import data as squad_data
from albert.tasks.squad import predictions as squad_predictions
from tests.torture.campaign import Case, Context
from tests.torture.served_forms import BATCH_SIZE, ServedForm, keras_lock, make_requests
from tests.torture.texts import as_read, random_texts

# Number of texts in the full campaign.
_TEXTS = 1000


# ---- forms -----------------------------------------------------------------------------------------------


def _forms(context: Context, texts: Sequence[bytes]) -> Iterator[Case]:
  from albert.export.registry import FORMS

  names = [*FORMS, "pair"]
  forms = [ServedForm(name, make_requests(name, texts, context), context) for name in names]
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

    with keras_lock:
      tokenizer = OffsetGraphTokenizer(str(context.workplace.vocabulary))
    rows: list[list[Any]] = []
    for start in range(0, len(texts), BATCH_SIZE):
      batch = tf.constant(texts[start : start + BATCH_SIZE])
      columns = [tokenizer.tokenize(batch), *tokenizer.tokenize_with_offsets(batch)]
      rows += map(list, zip(*(values.to_list() for values in columns), strict=True))
    return rows

  @functools.cache
  def python() -> Any:
    from albert.tokenization.offsets import OffsetTokenizer

    return OffsetTokenizer(str(context.workplace.vocabulary))

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
    finished = context.workplace.run(["-m", "albert.predict", f"--model={model}", f"--input_file={path}"])
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
