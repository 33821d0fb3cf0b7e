"""Exported models for the campaign's part "strings": their answers are compared with those of the runs they come from.

The part makes a case of each check of ServedForm, for each form in which models are exported.
"""

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


# Largest difference between a number of the exported model and that of the run, if the latter is at most 1; for greater
# numbers, the largest relative difference.
_TOLERANCE = 2e-4


# Largest share of the answers that are strings which may differ, because two candidates have the same score.
_MAX_TIES = 0.01


# Longer texts are cut to this many bytes, except for _FORMS_WITH_LONG_TEXTS.
_MAX_TEXT_BYTES = 20_000


_FORMS_WITH_LONG_TEXTS = ("classifier", "pair")


_SQUAD_FORMS = ("squad_v1", "squad_v2")


# Requests to these forms have different numbers of options, masks or spans. The run's answers to a batch are padded
# with zeros.
_FORMS_WITH_PADDED_ANSWERS = ("race", "fill_mask", "tagging")


# Held while models are built: the global state of Keras is not safe for several threads.
keras_lock = threading.Lock()


Request = dict[str, Any]


def make_requests(form: str, texts: Sequence[bytes], context: Context) -> list[Request]:
  """Makes one request of each text. If a form has several fields, the others hold other texts. All are bytes."""
  rng = context.rng("requests", form)
  if form not in _FORMS_WITH_LONG_TEXTS:
    texts = [text[:_MAX_TEXT_BYTES] for text in texts]
  others = rng.sample(texts, len(texts))
  if form in ("classifier", "embeddings", "tagging"):
    return [{"text": text} for text in texts]
  if form == "fill_mask":
    mask_offsets = [rng.randrange(min(len(text), 60) + 1) for text in texts]
    return [
      {"text": text[:offset] + b"[MASK]" + text[offset:]} for text, offset in zip(texts, mask_offsets, strict=True)
    ]
  if form in ("sentence_order", "regression", "pair"):
    return [{"text_a": text, "text_b": other} for text, other in zip(texts, others, strict=True)]
  if form in _SQUAD_FORMS:
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


def _to_numbers(value: Any) -> np.ndarray:
  """Converts a field of an answer, which may be a dictionary of numbers, to an array with at least one dimension."""
  return np.atleast_1d(np.array(list(value.values()) if isinstance(value, dict) else value, np.float64))


def _difference_of_numbers(name: str, numbers: np.ndarray, expected: np.ndarray) -> str | None:
  """Compares the numbers of a field. A number that is not finite is a difference."""
  if numbers.shape != expected.shape:
    return f"{name} has the shape {numbers.shape} instead of {expected.shape}"
  is_close = np.abs(numbers - expected) <= _TOLERANCE * np.maximum(1.0, np.abs(expected))
  return None if is_close.all() else f"{name} is {numbers.ravel()[:4]} instead of {expected.ravel()[:4]}"


def _find_difference(
  form_name: str, request: Request, answer: dict[str, Any], expected_answer: dict[str, Any]
) -> str | None:
  """Compares the numbers of an answer with the expected ones, and the text of a span with its offsets.

  Args:
    form_name: name of the form, or "pair".
    request: the request, decoded.
    answer: the answer of the exported model.
    expected_answer: the answer of the run. For _FORMS_WITH_PADDED_ANSWERS its arrays may be longer than those of
      `answer`.

  Returns:
    The first difference; None if there is none.
  """
  for name, expected_value in expected_answer.items():
    if isinstance(expected_value, str) or name in (
      "option",
      "label",
      "span",
    ):  # check_words compares these: two options may be equally good
      continue
    numbers, expected = _to_numbers(answer[name]), _to_numbers(expected_value)
    if form_name in _FORMS_WITH_PADDED_ANSWERS:
      if form_name == "fill_mask" and not numbers.size:  # the mask was in the part of the text that was cut off
        continue
      expected = expected[tuple(slice(size) for size in numbers.shape)]
    if difference := _difference_of_numbers(name, numbers, expected):
      return difference
  if "best_text" in answer and request["context"][answer["start"] : answer["end"]] != answer["best_text"]:
    return f"best_text {answer['best_text'][:40]!r} is not the text between start and end"
  return None


@dataclasses.dataclass
class ServedForm:
  """An exported model, and its answers and those of its run to the same requests.

  The first check that needs them makes the model and all answers. Checks in other threads wait until it has ended.

  Attributes:
    name: name of the form, such as "squad_v1"; "pair" for a classifier of pairs of texts.
    requests: the requests, as bytes.
    context: the workplace and the random numbers of the part.
    lock: held while the answers are made.
    is_prepared: whether the answers were made, or whether the attempt failed; None before it.
    served: the answers of the exported model.
    expected: the answers of the run that it was exported from.
    predicted: the command albert.predict with these requests as its input: its output and its exit code.
    model: the exported model.
  """

  name: str
  requests: list[Request]
  context: Context
  lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
  is_prepared: bool | None = None
  served: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  expected: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  predicted: Finished | None = None
  model: Any = None

  @functools.cached_property
  def decoded_requests(self) -> list[Request]:
    return [_decode_request(request) for request in self.requests]

  def prepare(self) -> str | None:
    """Exports the model and collects all answers, unless that is done. Returns what went wrong, or None."""
    with self.lock:
      if self.is_prepared is not None:
        return None if self.is_prepared else "its form was not prepared"
      self.is_prepared = False
      wrong = self._prepare()
      self.is_prepared = wrong is None
      return wrong

  def _prepare(self) -> str | None:
    """Exports a newly initialized model, and collects the answers of the model, its run and albert.predict."""
    from tests.export.pipelines import FORMS, PAIR_CLASSIFIER, write_run

    directory, workplace = self.context.directory / self.name, self.context.workplace
    form = PAIR_CLASSIFIER if self.name == "pair" else FORMS[self.name]
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
    if wrong := self.prepare():
      return wrong
    return _find_difference(self.name, self.decoded_requests[number], self.served[number], self.expected[number])

  def check_words(self) -> str | None:
    """Compares the answers that are strings. A few may differ, because two candidates can have the same score."""
    if wrong := self.prepare():
      return wrong
    different = []
    for answer, expected in zip(self.served, self.expected, strict=True):
      expected_texts = {name: value for name, value in expected.items() if isinstance(value, str)}
      different += [(answer[name], text) for name, text in expected_texts.items() if answer[name] != text]
    max_different = _MAX_TIES * len(self.served) + 1
    return None if len(different) <= max_different else f"{len(different)} differ: {different[:2]}"

  def check_alone(self, number: int) -> str | None:
    """Compares the numbers in the answer to a single request with those in the answer to a batch of mixed lengths.

    Strings, lists of strings and the offsets of a span are left out: they may differ if two candidates have the same
    score.
    """
    from albert.predict.requests import PredictRequest

    if wrong := self.prepare():
      return wrong
    (answer,) = self.model.answer([PredictRequest(1, self.requests[number])])
    expected = {}
    for name, value in self.served[number].items():
      has_numbers = name == "probabilities" or not isinstance(value, str | list)
      if has_numbers and name not in ("start", "end"):
        expected[name] = _to_numbers(value)
    return _find_difference(self.name, self.decoded_requests[number], answer, expected)

  def check_line(self, number: int) -> str | None:
    """Checks line `number` of the output of albert.predict: it must answer this request as the run does."""
    if wrong := self.prepare():
      return wrong
    assert self.predicted is not None
    lines = self.predicted.stdout.splitlines()
    if len(lines) != len(self.requests):
      return f"{len(lines)} lines of answers for {len(self.requests)} requests"
    answer = json.loads(lines[number])
    if answer["n"] != number:
      return f"line {number + 1} is the answer to line {answer['n'] + 1}"
    return _find_difference(self.name, self.decoded_requests[number], answer, self.expected[number])
