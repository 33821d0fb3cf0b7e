"""Exported models, and the answers of two routes to the same texts: the exported model, and the run that it is from."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.torture.campaign import Context
from tests.torture.texts import as_read
from tests.torture.workplace import Finished

if TYPE_CHECKING:
  from tests.export.pipelines import Run


# Requests that are answered together.
BATCH_SIZE = 50


# Largest difference between the numbers of both routes: absolute for numbers up to 1, else relative.
_TOLERANCE = 2e-4


# Largest share of the answers in words that may differ, because two candidates have the same score.
_MAX_TIES = 0.01


# Longer texts are cut to this many bytes, except for _FORMS_WITH_LONG_TEXTS.
_MAX_BYTES = 20_000


_FORMS_WITH_LONG_TEXTS = ("classifier", "pair")


_SQUAD = ("squad_v1", "squad_v2")


# The global state of TensorFlow and Keras is not safe for several threads.
keras_lock = threading.Lock()


Request = dict[str, Any]


def make_requests(form: str, texts: Sequence[bytes], context: Context) -> list[Request]:
  """Makes a request of each text, as bytes. Further fields of a request hold other texts."""
  rng = context.rng("requests", form)
  if form not in _FORMS_WITH_LONG_TEXTS:
    texts = [text[:_MAX_BYTES] for text in texts]
  others = rng.sample(texts, len(texts))
  if form in ("classifier", "embeddings"):
    return [{"text": text} for text in texts]
  if form == "fill_mask":
    offsets = [rng.randrange(min(len(text), 60) + 1) for text in texts]
    return [{"text": text[:n] + b"[MASK]" + text[n:]} for text, n in zip(texts, offsets, strict=True)]
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


def _find_difference(request: Request, answer: dict[str, Any], expected: dict[str, Any]) -> str | None:
  """Compares the numbers of an answer with those of the other route, and its span with its offsets.

  Returns:
    The first difference; None if there is none.
  """
  for name, expected_value in expected.items():
    if isinstance(expected_value, str):
      continue
    value = answer[name]
    numbers = np.atleast_1d(np.array(list(value.values()) if isinstance(value, dict) else value, np.float64))
    if name == "option" or not numbers.size:  # options may have equal scores; all masks may have been cut off
      continue
    expected_numbers = np.atleast_1d(np.array(expected_value, np.float64))
    expected_numbers = expected_numbers[tuple(slice(size) for size in numbers.shape)]  # without padding
    if numbers.shape != expected_numbers.shape:
      return f"{name} has the shape {numbers.shape} instead of {expected_numbers.shape}"
    if np.any(np.abs(numbers - expected_numbers) > _TOLERANCE * np.maximum(1.0, np.abs(expected_numbers))):
      return f"{name} is {numbers.ravel()[:4]}, by the other route {expected_numbers.ravel()[:4]}"
  if "best_text" in answer and request["context"][answer["start"] : answer["end"]] != answer["best_text"]:
    return f"best_text {answer['best_text'][:40]!r} is not the text between start and end"
  return None


@dataclasses.dataclass
class ServedForm:
  """An exported model, and the answers of both routes to the same requests.

  One case calls `prepare`. The other cases wait for it.

  Attributes:
    name: the form, or "pair".
    requests: the requests, as bytes.
    context: the context of the part.
    ready: set when `prepare` has ended.
    served: the answers of the exported model.
    expected: the answers of the run that it was exported from.
    predicted: the end of the command albert.predict for these requests.
    model: the exported model.
  """

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
    """Exports the model, and collects all answers. Returns what went wrong, or None."""
    try:
      return self._prepare()
    finally:
      self.ready.set()

  def _prepare(self) -> str | None:
    from tests.export.pipelines import FORMS, PAIR, write_run

    directory, workplace = self.context.directory / self.name, self.context.workplace
    form = PAIR if self.name == "pair" else FORMS[self.name]
    with keras_lock:
      run = write_run(directory / "run", form, str(workplace.vocabulary))
    task = [f"--task={self.name}"] if form.task == "pretraining" else []
    finished = workplace.run(
      workplace.export_command(run.directory, directory / "models", f"--name={self.name}", *task)
    )
    if wrong := finished.wrong():
      return wrong
    lines = directory / "requests.jsonl"
    lines.write_text("".join(json.dumps({"n": n, **r}) + "\n" for n, r in enumerate(self.texts)), encoding="utf-8")
    command = ["-m", "albert.predict", f"--model={directory / 'models' / self.name}", f"--input_file={lines}"]
    predicting = workplace.start(command)
    self._answer(directory / "models" / self.name, run)
    self.predicted = predicting.finish()
    return self.predicted.wrong()

  def _answer(self, directory: Path, run: Run) -> None:
    from albert.predict.exported_model import ExportedModel
    from albert.predict.requests import PredictRequest

    with keras_lock:
      self.model = ExportedModel(str(directory))
    for start in range(0, len(self.requests), BATCH_SIZE):
      rows = self.requests[start : start + BATCH_SIZE]
      self.served += self.model.answer([PredictRequest(start + n + 1, row) for n, row in enumerate(rows)])
      with keras_lock:
        answers = run.expected_answers(self.texts[start : start + BATCH_SIZE])
      self.expected += [{name: value[n] for name, value in answers.items()} for n in range(len(rows))]

  def check(self, number: int) -> str | None:
    """Compares the exported model's answer to a request with the run's."""
    self.ready.wait()
    if number >= len(self.expected):
      return "its form was not prepared"
    return _find_difference(self.texts[number], self.served[number], self.expected[number])

  def check_words(self) -> str | None:
    """Compares answers in words. They may differ if two candidates have the same score, which is rare."""
    self.ready.wait()
    different = []
    for answer, expected in zip(self.served, self.expected, strict=True):
      words = {name: value for name, value in expected.items() if isinstance(value, str)}
      different += [(answer[name], value) for name, value in words.items() if answer[name] != value]
    max_different = _MAX_TIES * len(self.served) + 1
    return None if len(different) <= max_different else f"{len(different)} differ: {different[:2]}"

  def check_alone(self, number: int) -> str | None:
    """Compares the answer to a request alone with the answer in a batch of texts of mixed lengths."""
    from albert.predict.requests import PredictRequest

    self.ready.wait()
    (answer,) = self.model.answer([PredictRequest(1, self.requests[number])])
    expected = {}
    for name, value in self.served[number].items():
      is_number = name == "probabilities" or not isinstance(value, str | list)
      if is_number and name not in ("start", "end"):
        expected[name] = list(value.values()) if isinstance(value, dict) else value
    return _find_difference(self.texts[number], answer, expected)

  def check_line(self, number: int) -> str | None:
    """Checks a line that albert.predict printed: it answers request `number`, as the run does."""
    self.ready.wait()
    if self.predicted is None:
      return "its form was not prepared"
    lines = self.predicted.stdout.splitlines()
    if len(lines) != len(self.requests):
      return f"{len(lines)} lines of answers for {len(self.requests)} lines"
    answer = json.loads(lines[number])
    if answer["n"] != number:
      return f"line {number + 1} is the answer to line {answer['n'] + 1}"
    return _find_difference(self.texts[number], answer, self.expected[number])
