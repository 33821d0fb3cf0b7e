"""Exported models for the part "strings": their answers are compared with those of the runs they come from."""

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


# Number of requests that are answered together.
BATCH_SIZE = 50


# Largest difference between a number of the exported model and that of the run: absolute up to 1, else relative.
_TOLERANCE = 2e-4


# Largest share of the answers in words that may differ, because two candidates have the same score.
_MAX_TIES = 0.01


# Longer texts are cut to this many bytes, except for _FORMS_WITH_LONG_TEXTS.
_MAX_TEXT_BYTES = 20_000


_FORMS_WITH_LONG_TEXTS = ("classifier", "pair")


_SQUAD = ("squad_v1", "squad_v2")


# Held while models are built: the global state of Keras is not safe for several threads.
keras_lock = threading.Lock()


Request = dict[str, Any]


def make_requests(form: str, texts: Sequence[bytes], context: Context) -> list[Request]:
  """Makes one request of each text. If a form has several fields, the others hold other texts. All are bytes."""
  rng = context.rng("requests", form)
  if form not in _FORMS_WITH_LONG_TEXTS:
    texts = [text[:_MAX_TEXT_BYTES] for text in texts]
  others = rng.sample(texts, len(texts))
  if form in ("classifier", "embeddings"):
    return [{"text": text} for text in texts]
  if form == "fill_mask":
    mask_offsets = [rng.randrange(min(len(text), 60) + 1) for text in texts]
    return [
      {"text": text[:offset] + b"[MASK]" + text[offset:]} for text, offset in zip(texts, mask_offsets, strict=True)
    ]
  if form in ("sentence_order", "regression", "pair"):
    return [{"text_a": text, "text_b": other} for text, other in zip(texts, others, strict=True)]
  if form in _SQUAD:
    ends = (b"", b" the river", " 東 \u200bletter\x01".encode())
    return [{"question": other, "context": text + rng.choice(ends)} for text, other in zip(texts, others, strict=True)]
  return [
    {
      "article": text,
      "question": other + rng.choice((b"", b" _ ", b"___")),
      "options": [option or b"." for option in rng.sample(texts, min(3, len(texts)))],
    }
    for text, other in zip(texts, others, strict=True)
  ]


def _decode_request(request: Request) -> Request:
  """Decodes the texts of a request as a served model does. A field holds one text or a list of texts."""
  return {
    name: [as_read(text) for text in field] if isinstance(field, list) else as_read(field)
    for name, field in request.items()
  }


def _find_difference(request: Request, answer: dict[str, Any], expected: dict[str, Any]) -> str | None:
  """Compares the numbers of an answer with the expected ones, and the text of a span with its offsets.

  Args:
    request: the request, decoded.
    answer: the answer of the exported model.
    expected: the answer of the run. Its arrays may be padded behind the elements of `answer`.

  Returns:
    The first difference; None if there is none.
  """
  for name, expected_value in expected.items():
    if isinstance(expected_value, str) or name == "option":  # the best option may differ if two have equal scores
      continue
    value = answer[name]
    numbers = np.atleast_1d(np.array(list(value.values()) if isinstance(value, dict) else value, np.float64))
    if not numbers.size:  # a text was truncated before its mask
      continue
    expected_numbers = np.atleast_1d(np.array(expected_value, np.float64))
    expected_numbers = expected_numbers[tuple(slice(size) for size in numbers.shape)]  # without padding
    if numbers.shape != expected_numbers.shape:
      return f"{name} has the shape {numbers.shape} instead of {expected_numbers.shape}"
    if np.any(np.abs(numbers - expected_numbers) > _TOLERANCE * np.maximum(1.0, np.abs(expected_numbers))):
      return f"{name} is {numbers.ravel()[:4]} instead of {expected_numbers.ravel()[:4]}"
  if "best_text" in answer and request["context"][answer["start"] : answer["end"]] != answer["best_text"]:
    return f"best_text {answer['best_text'][:40]!r} is not the text between start and end"
  return None


@dataclasses.dataclass
class ServedForm:
  """An exported model, and its answers and those of its run to the same requests.

  One case calls `prepare`, which makes them. The other cases wait until it has ended.

  Attributes:
    name: the form, or "pair".
    requests: the requests, as bytes.
    context: the context of the part.
    ready: set when `prepare` has ended.
    served: the answers of the exported model.
    expected: the answers of the run that it was exported from.
    predicted: how the command albert.predict ended, which printed its answers to these requests.
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
  def decoded_requests(self) -> list[Request]:
    return [_decode_request(request) for request in self.requests]

  def prepare(self) -> str | None:
    """Exports the model, and collects all answers. Returns what went wrong, or None."""
    try:
      return self._prepare()
    finally:
      self.ready.set()

  def _prepare(self) -> str | None:
    """Exports a newly initialized model, and collects the answers of the model, its run and albert.predict."""
    from tests.export.pipelines import FORMS, PAIR, write_run

    directory, workplace = self.context.directory / self.name, self.context.workplace
    form = PAIR if self.name == "pair" else FORMS[self.name]
    with keras_lock:
      run = write_run(directory / "run", form, str(workplace.vocabulary))
    task = [f"--task={self.name}"] if form.task == "pretraining" else []
    finished = workplace.run(
      workplace.export_command(run.directory, directory / "models", f"--name={self.name}", *task)
    )
    if wrong := finished.unexpected_end():
      return wrong
    path = directory / "requests.jsonl"
    lines = [json.dumps({"n": number, **request}) + "\n" for number, request in enumerate(self.decoded_requests)]
    path.write_text("".join(lines), encoding="utf-8")
    command = ["-m", "albert.predict", f"--model={directory / 'models' / self.name}", f"--input_file={path}"]
    prediction = workplace.start(command)
    self._answer(directory / "models" / self.name, run)
    self.predicted = prediction.finish()
    return self.predicted.unexpected_end()

  def _answer(self, directory: Path, run: Run) -> None:
    """Collects the answers of the exported model in `directory` and of the run it was exported from."""
    from albert.predict.exported_model import ExportedModel
    from albert.predict.requests import PredictRequest

    with keras_lock:
      self.model = ExportedModel(str(directory))
    for start in range(0, len(self.requests), BATCH_SIZE):
      batch = self.requests[start : start + BATCH_SIZE]
      predict_requests = [PredictRequest(line, request) for line, request in enumerate(batch, start + 1)]
      self.served += self.model.answer(predict_requests)
      with keras_lock:
        answers = run.expected_answers(self.decoded_requests[start : start + BATCH_SIZE])
      self.expected += [{name: column[row] for name, column in answers.items()} for row in range(len(batch))]

  def check(self, number: int) -> str | None:
    """Compares the exported model's answer to a request with the run's."""
    self.ready.wait()
    if number >= len(self.expected):
      return "its form was not prepared"
    return _find_difference(self.decoded_requests[number], self.served[number], self.expected[number])

  def check_words(self) -> str | None:
    """Compares the answers that are texts. A few may differ, because two candidates can have the same score."""
    self.ready.wait()
    different = []
    for answer, expected in zip(self.served, self.expected, strict=True):
      expected_texts = {name: value for name, value in expected.items() if isinstance(value, str)}
      different += [(answer[name], text) for name, text in expected_texts.items() if answer[name] != text]
    max_different = _MAX_TIES * len(self.served) + 1
    return None if len(different) <= max_different else f"{len(different)} differ: {different[:2]}"

  def check_alone(self, number: int) -> str | None:
    """Compares the answer to a single request with the answer to the same request in a batch of mixed lengths."""
    from albert.predict.requests import PredictRequest

    self.ready.wait()
    (answer,) = self.model.answer([PredictRequest(1, self.requests[number])])
    expected = {}
    for name, value in self.served[number].items():
      is_number = name == "probabilities" or not isinstance(value, str | list)
      if is_number and name not in ("start", "end"):
        expected[name] = list(value.values()) if isinstance(value, dict) else value
    return _find_difference(self.decoded_requests[number], answer, expected)

  def check_line(self, number: int) -> str | None:
    """Checks line `number` of the output of albert.predict: it must answer this request as the run does."""
    self.ready.wait()
    if self.predicted is None:
      return "its form was not prepared"
    lines = self.predicted.stdout.splitlines()
    if len(lines) != len(self.requests):
      return f"{len(lines)} lines of answers for {len(self.requests)} requests"
    answer = json.loads(lines[number])
    if answer["n"] != number:
      return f"line {number + 1} is the answer to line {answer['n'] + 1}"
    return _find_difference(self.decoded_requests[number], answer, self.expected[number])
