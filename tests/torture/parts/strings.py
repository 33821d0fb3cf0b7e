"""A thousand random texts through the tokenizers, the files of tasks, every served form and albert.predict."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

from albert.errors import UserError
from tests.torture.campaign import Case, Context
from tests.torture.served_forms import BATCH_SIZE, ServedForm, keras_lock, make_requests
from tests.torture.task_files import TASK_FILES, TaskFile
from tests.torture.texts import as_read, random_texts

# Number of texts in the full campaign.
_NUM_TEXTS = 1000


def _describe(number: int, text: bytes) -> str:
  """Returns the name of the case for a text: its number and its first bytes."""
  return f"{number}: {text[:60]!r}"


# ---- exported models -------------------------------------------------------------------------------------

# Numbers of the texts that are also answered alone. Texts 0 to 4 are the empty one and the large ones.
_ANSWERED_ALONE = range(5, 15)


def _served_form_cases(context: Context, texts: Sequence[bytes]) -> Iterator[Case]:
  """Exports a model of each form, and compares its answers to the texts with those of the run it is exported from."""
  from albert.export.registry import FORMS

  forms = [ServedForm(name, make_requests(name, texts, context), context) for name in [*FORMS, "pair"]]
  for form in forms:
    yield Case("forms exported and asked", form.name, form.prepare)
  for form in forms:
    for number, text in enumerate(texts):
      name = f"{form.name} {_describe(number, text)}"
      yield Case(f"served: {form.name}", name, partial(form.check, number))
      yield Case(f"albert.predict: {form.name}", name, partial(form.check_line, number))
    yield Case(f"served: {form.name}", "answers in words", form.check_words)
    for number in _ANSWERED_ALONE:
      yield Case("served: alone as in a batch", f"{form.name} {number}", partial(form.check_alone, number))


# ---- tokenizers ------------------------------------------------------------------------------------------


class _Tokens(NamedTuple):
  """The tokens of a text: their ids, and where each starts and ends in the text."""

  ids: list[int]
  starts: list[int]
  ends: list[int]


class _TokenizerComparison:
  """Compares the tokenizer in TensorFlow's graph with the one in Python, text by text."""

  def __init__(self, context: Context, texts: Sequence[bytes]):
    self._vocabulary, self._texts = str(context.workplace.vocabulary), texts
    self._lock = threading.Lock()

  @cached_property
  def _graph_results(self) -> list[tuple[list[int], _Tokens]]:
    """The ids that tokenize returns for each text, and the tokens that tokenize_with_offsets returns."""
    import tensorflow as tf

    from albert.tokenization.graph import make_graph_tokenizer
    from albert.tokenization.vocabulary import TokenizerConfig

    with keras_lock:
      tokenizer = make_graph_tokenizer(TokenizerConfig(self._vocabulary), with_offsets=True)
    graph_results: list[tuple[list[int], _Tokens]] = []
    for start in range(0, len(self._texts), BATCH_SIZE):
      batch = tf.constant(self._texts[start : start + BATCH_SIZE])
      batch_ids = tokenizer.tokenize(batch).to_list()
      ids, starts, ends = (ragged.to_list() for ragged in tokenizer.tokenize_with_offsets(batch))
      tokens = map(_Tokens, ids, starts, ends)
      graph_results += zip(batch_ids, tokens, strict=True)
    return graph_results

  @cached_property
  def _python_tokenizer(self) -> Any:
    from albert.tokenization.tokenizer import Tokenizer

    return Tokenizer(self._vocabulary)

  def check(self, number: int) -> str | None:
    """Compares the tokens of one text. Returns what is wrong, or None."""
    text = as_read(self._texts[number])
    with self._lock:
      graph_ids, graph_tokens = self._graph_results[number]
      python_ids = self._python_tokenizer.encode(text)
      python_tokens = _Tokens(*(array.tolist() for array in self._python_tokenizer.encode_with_offsets(text)))
    if python_ids != graph_ids:
      return f"other ids: {len(graph_ids)} in the graph, {len(python_ids)} in Python"
    if python_tokens != graph_tokens:
      return "ids or offsets differ between the graph and Python"
    for start, end in zip(python_tokens.starts, python_tokens.ends, strict=True):
      token_text = text[start:end]
      if token_text != token_text.strip():
        return f"the token at [{start}, {end}) begins or ends with whitespace"
    return None


def _tokenizer_cases(context: Context, texts: Sequence[bytes]) -> Iterator[Case]:
  comparison = _TokenizerComparison(context, texts)
  for number, text in enumerate(texts):
    yield Case("tokenizers: Python and graph", _describe(number, text), partial(comparison.check, number))


# ---- files of tasks --------------------------------------------------------------------------------------


class _FileComparison:
  """Writes all texts to one file of a task, reads it back, and compares the texts one by one."""

  def __init__(self, context: Context, task_file: TaskFile, texts: Sequence[bytes]):
    self._context, self._task_file = context, task_file
    self._written = [task_file.to_writable(_decode(text)) for text in texts]
    self._lock = threading.Lock()

  @cached_property
  def _texts_read(self) -> list[str]:
    return self._task_file.write_and_read(self._written, self._context.new_directory("files"))

  def check(self, number: int) -> str | None:
    """Compares one text. The first call writes and reads the file. Returns what is wrong, or None."""
    with self._lock:
      texts_read = self._texts_read
    if len(texts_read) != len(self._written):
      return f"{len(texts_read)} texts instead of {len(self._written)}"
    expected = self._task_file.to_expected(self._written[number])
    return None if texts_read[number] == expected else f"{texts_read[number][:60]!r} instead of {expected[:60]!r}"


def _decode(text: bytes) -> str:
  """Decodes UTF-8 in which lone surrogates are allowed. In any other text, U+FFFD replaces the invalid bytes."""
  try:
    return text.decode("utf-8", "surrogatepass")
  except UnicodeDecodeError:
    return text.decode("utf-8", "replace")


def _file_cases(context: Context, texts: Sequence[bytes]) -> Iterator[Case]:
  for task_file in TASK_FILES:
    comparison = _FileComparison(context, task_file, texts)
    for number, text in enumerate(texts):
      yield Case(f"files: {task_file.name}", _describe(number, text), partial(comparison.check, number))


# ---- lines that are refused ------------------------------------------------------------------------------

_BAD_LINES = (
  b'{"text": null}', b'{"text": 5}', b'{"text": ["a"]}', b"{}", b"[]", b"5", b'{"text": "a"', b'{"text": "\xff"}',
  b"{'text': 'a'}",
  b'{"text": "a", "text": "b"}', b'{"text": "a", "x": NaN}', b'{"text": "a", "x": 1e999}', b'{"text": "a"} b',
  b'{"text": "a", "x": ' + b"[" * 100_000, b'{"text": "a", "x": ' + b"9" * 5000 + b"}", b'{"text": "\x01"}',
  b'{"text": "' + b"x" * (17 << 20) + b'"}',  # longer than a line may be
)  # fmt: skip


class _LengthModel:
  """Stands in for an exported model: it answers with the length of each request. Only the reading is tested."""

  def answer(self, requests: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"length": request.num_bytes} for request in requests]


def _check_refused(bad_line: bytes, num_before: int) -> str | None:
  """Reads a bad line after `num_before` good ones. The good ones must be answered, and the error must name the line."""
  from albert.predict.requests import JSON, RequestParser, answer_batches

  fields = [{"name": "text", "meaning": "any", "is_list": False}]
  file = io.BytesIO(b'{"text": "a"}\n' * num_before + bad_line + b"\n" + b'{"text": "b"}\n')
  parser = RequestParser(fields, JSON, "requests")
  num_answers = 0
  try:
    for answers in answer_batches(_LengthModel(), parser, file, batch_size=3):  # type: ignore[arg-type]
      num_answers += len(answers)
  except UserError as error:
    if num_answers != num_before:
      return f"{num_answers} answers before line {num_before + 1}"
    names_line = str(error).startswith(f"requests, line {num_before + 1}: ")
    return None if names_line else f"the error is {str(error)[:200]!r}"
  return "it was not refused"


def _check_command_refuses(context: Context) -> str | None:
  """Gives albert.predict a file whose second line is bad. It must answer the first line, then name the second."""
  path = context.directory / "bad.jsonl"
  path.write_bytes(b'{"text": "a"}\n{"text": null}\n{"text": "b"}\n')
  model = context.directory / "classifier" / "models" / "classifier"  # exported by _served_form_cases
  finished = context.workplace.run(["-m", "albert.predict", f"--model={model}", f"--input_file={path}"])
  if wrong := finished.unexpected_end(2):
    return wrong
  answers = finished.stdout.splitlines()
  if len(answers) != 1 or f"{path}, line 2: 'text'" not in finished.error:
    return f"{len(answers)} answers, then {finished.error}"
  return None


def _bad_line_cases(context: Context) -> Iterator[Case]:
  group = "albert.predict: lines refused"
  for bad_line in _BAD_LINES:
    for num_before in (0, 1, 3, 7):  # in the first batch of three lines, and in later ones
      name = f"line {num_before + 1}: {bad_line[:40]!r}"
      yield Case(group, name, partial(_check_refused, bad_line, num_before))
  yield Case(group, "as a command", partial(_check_command_refuses, context))


def cases(context: Context) -> Iterator[Case]:
  """The cases of this part."""
  texts = random_texts(context.rng("texts"), max(20, context.count(_NUM_TEXTS)))
  yield from _served_form_cases(context, texts)
  yield from _tokenizer_cases(context, texts)
  yield from _file_cases(context, texts)
  yield from _bad_line_cases(context)
