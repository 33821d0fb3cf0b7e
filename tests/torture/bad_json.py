"""JSON files with wrong syntax, and with values of the wrong type or without a key, for every kind that users write."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.tasks.race.folders import passage
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Workplace

# The way to a value inside a document: the keys and indices that lead to it.
Steps = tuple[str | int, ...]
# Kind of a value -> values of other types, which must be refused in its place.
_WRONG: dict[str, Sequence[Any]] = {
  "text": [None, 5, 1.5, True, [], ["a"], {}, {"a": 1}],
  "number": [None, "5", True, [], [5], {}, "x"],
  "switch": [None, 0, 1, "true", [], {}],
  "list": [None, 5, "a", True, {}, {"a": 1}],
  "object": [None, 5, "a", True, [], ["a"], [[]]],
}


@dataclasses.dataclass(frozen=True)
class Document:
  """A JSON file that a command reads.

  Attributes:
    name: the name of the file.
    value: the content of a valid file.
    kinds: the kinds (see _WRONG) of the values that the command checks.
    required: the values that must not be missing.
    command: returns the command that reads the file at a path.
    valid: how the command ends with the valid file.
  """

  name: str
  value: Any
  kinds: dict[Steps, str]
  required: Sequence[Steps]
  command: Callable[[Path], Sequence[str]]
  valid: Expected


def attempts(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Gives each document to its command as it is, then `number` damaged ones."""
  documents = list(_documents(workplace, rng))
  for document in documents:
    yield _attempt(document, "as it is", json.dumps(document.value).encode(), document.valid)
    pretty = b"\xef\xbb\xbf" + json.dumps(document.value, indent=2).replace("\n", "\r\n").encode()
    yield _attempt(document, "with a byte-order mark, CR LF and indents", pretty, document.valid)
  for index in range(number):
    document = documents[index % len(documents)]
    name, data = _with_wrong_syntax(document, rng) if rng.random() < 0.4 else _with_wrong_shape(document, rng)
    yield _attempt(document, name, data, Expected(BAD, (document.name,), leaves_nothing=True))


def _attempt(document: Document, name: str, data: bytes, expected: Expected) -> Attempt:
  def prepare(directory: Path) -> Sequence[str]:
    path = directory / document.name
    path.write_bytes(data)
    return document.command(path)

  return Attempt(f"JSON: {document.name}", name, prepare, expected)


def _with_wrong_syntax(document: Document, rng: random.Random) -> tuple[str, bytes]:
  """Returns a description and the content of a file that is no JSON, or JSON that must be refused whatever is read."""
  text = json.dumps(document.value)
  data = text.encode()
  cut = rng.randrange(1, len(data) - 1)
  leaf = rng.choice([steps for steps, kind in document.kinds.items() if kind in ("text", "number")])

  def with_raw(raw: str) -> bytes:
    """Writes `raw` in place of the value at `leaf`."""
    return json.dumps(_replaced(document.value, leaf, "REPLACED")).replace('"REPLACED"', raw).encode()

  first_key = next(iter(document.value))
  depth = rng.randrange(101, 200_000)
  return rng.choice(
    [
      (f"cut after {cut} bytes", data[:cut]),
      ("something behind it", data + rng.choice([b"}", b"]", b"x", b"{}", b",", b"\0"])),
      ("empty", b""),
      ("blank", rng.choice([b" ", b"\n\n", b"\t\r\n"])),
      ("UTF-16", text.encode("utf-16")),
      ("not UTF-8", data.replace(b'"', b'"\xff', 1)),
      ("single quotes", text.replace('"', "'").encode()),
      ("a comma too many", data[:-1] + b"," + data[-1:]),
      (f"NaN at {leaf}", with_raw(rng.choice(["NaN", "Infinity", "-Infinity"]))),
      (f"overflow at {leaf}", with_raw(rng.choice(["1e999", "-1e400", f"{'9' * 400}.0"]))),
      (f"an integer of many digits at {leaf}", with_raw("7" * rng.randrange(4301, 9000))),
      (f"{depth} lists in each other at {leaf}", with_raw("[" * depth + "]" * depth)),
      (f"{depth} open objects at {leaf}", with_raw('{"a":' * depth)),
      (f"key {first_key!r} twice", b"{" + json.dumps(first_key).encode() + b": null, " + data[1:]),
      ("a control character in a text", data.replace(b'": "', b'": "\x01', 1) if b'": "' in data else b'{"\x01": 1}'),
      ("another value", json.dumps(rng.choice([[], [document.value], 5, "x", None, True, 0.5])).encode()),
    ]
  )


def _with_wrong_shape(document: Document, rng: random.Random) -> tuple[str, bytes]:
  """Returns a description and the content of a file of valid JSON with a value of a wrong type, or without a key."""
  if document.required and rng.random() < 0.3:
    steps = rng.choice(document.required)
    value = copy.deepcopy(document.value)
    del _value_at(value, steps[:-1])[steps[-1]]
    return f"without {steps}", json.dumps(value).encode()
  steps = rng.choice(list(document.kinds))
  wrong = rng.choice(_WRONG[document.kinds[steps]])
  return f"{wrong!r} at {steps}", json.dumps(_replaced(document.value, steps, wrong)).encode()


def _value_at(value: Any, steps: Steps) -> Any:
  for step in steps:
    value = value[step]
  return value


def _replaced(value: Any, steps: Steps, new: Any) -> Any:
  """Returns a copy of `value` with `new` in the place that `steps` lead to."""
  value = copy.deepcopy(value)
  _value_at(value, steps[:-1])[steps[-1]] = new
  return value


# ---- the documents ---------------------------------------------------------------------------------------


def _documents(workplace: Workplace, rng: random.Random) -> Iterator[Document]:
  yield _recipe(workplace)
  yield _model(workplace)
  yield _squad(workplace)
  yield _squad_with_answers(workplace)
  yield _race(rng)
  yield _experiment()
  yield _run(workplace)


_NOTHING = Expected(BAD, ("nothing to do",))


def _squad_words(workplace: Workplace, *flags: str) -> list[str]:
  data = [f"--spm_model_file={workplace.vocabulary}", "--output_dir=out", "--max_query_length=12", "--doc_stride=16"]
  return ["run_squad.py", *data, "--max_seq_length=48", *flags]


def _recipe(workplace: Workplace) -> Document:
  value = {
    "task": "squad",
    "model": {"hidden_dropout_prob": 0.1, "sharing": "all"},
    "optimizer": {"optimizer": "adamw", "learning_rate": 1e-4, "bias_correction": True},
    "train": {"train_batch_size": 8, "num_train_epochs": 2.0},
    "data": {"do_lower_case": True, "max_answer_length": 7},
  }
  kinds: dict[Steps, str] = {
    ("task",): "text",
    ("optimizer",): "object",
    ("train",): "object",
    ("data",): "object",
    ("model", "hidden_dropout_prob"): "number",
    ("model", "sharing"): "text",
    ("optimizer", "optimizer"): "text",
    ("optimizer", "learning_rate"): "number",
    ("optimizer", "bias_correction"): "switch",
    ("train", "train_batch_size"): "number",
    ("train", "num_train_epochs"): "number",
    ("data", "do_lower_case"): "switch",
    ("data", "max_answer_length"): "number",
  }
  return Document(
    "recipe.json",
    value,
    kinds,
    (),
    lambda path: _squad_words(workplace, *workplace.model_flags, f"--recipe={path}"),
    _NOTHING,
  )


def _model(workplace: Workplace) -> Document:
  value = {
    "vocab_size": workplace.vocab_size,
    "embedding_size": 8,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "hidden_act": "gelu",
    "initializer_range": 0.02,
  }
  kinds: dict[Steps, str] = {(key,): "text" if key == "hidden_act" else "number" for key in value}
  return Document(
    "albert_config.json",
    value,
    kinds,
    (),
    lambda path: _squad_words(workplace, f"--albert_config_file={path}"),
    _NOTHING,
  )


_SQUAD_KINDS: dict[Steps, str] = {
  ("data",): "list",
  ("data", 0): "object",
  ("data", 0, "paragraphs"): "list",
  ("data", 0, "paragraphs", 0): "object",
  ("data", 0, "paragraphs", 0, "context"): "text",
  ("data", 0, "paragraphs", 0, "qas"): "list",
  ("data", 0, "paragraphs", 0, "qas", 0): "object",
  ("data", 0, "paragraphs", 0, "qas", 0, "id"): "text",
  ("data", 0, "paragraphs", 0, "qas", 0, "question"): "text",
}


def _keys(kinds: dict[Steps, str]) -> list[Steps]:
  return [steps for steps in kinds if isinstance(steps[-1], str)]


def _squad(workplace: Workplace) -> Document:
  value = json.loads(workplace.squad_dev_file.read_text(encoding="utf-8"))

  def words(path: Path) -> list[str]:
    return ["-m", "data_prep.question_texts", f"--squad_file={path}", "--output_file=out"]

  return Document("questions.json", value, _SQUAD_KINDS, _keys(_SQUAD_KINDS), words, Expected(VALID, ("documents",)))


def _squad_with_answers(workplace: Workplace) -> Document:
  value = json.loads(workplace.squad_train_file.read_text(encoding="utf-8"))
  inner = ("data", 0, "paragraphs", 0, "qas", 0)
  kinds: dict[Steps, str] = {
    (*inner, "answers"): "list",
    (*inner, "answers", 0): "object",
    (*inner, "answers", 0, "text"): "text",
    (*inner, "answers", 0, "answer_start"): "number",
    (*inner, "is_impossible"): "switch",
  }
  required = [steps for steps in _keys(kinds) if steps[-1] != "is_impossible"]

  def words(path: Path) -> list[str]:
    # --predict_file names a file that doesn't exist: with a valid training file the error is about that file.
    flags = ["--do_train", "--from_scratch", "--version_2_with_negative", f"--train_file={path}"]
    return _squad_words(workplace, *workplace.model_flags, *flags, "--do_predict", "--predict_file=absent.json")

  return Document("answers.json", value, _SQUAD_KINDS | kinds, required, words, Expected(BAD, ("absent.json",)))


def _race(rng: random.Random) -> Document:
  value = passage(2, rng, ["The captain sold the river.", "Nobody watched the small teacher before breakfast."])
  kinds: dict[Steps, str] = {
    ("article",): "text",
    ("questions",): "list",
    ("questions", 0): "text",
    ("options",): "list",
    ("options", 1): "list",
    ("options", 1, 0): "text",
  }

  def words(path: Path) -> list[str]:
    return ["-m", "data_prep.question_texts", f"--race_file={path}", "--output_file=out"]

  required = [("article",), ("questions",), ("options",)]
  return Document("passage.txt", value, kinds, required, words, Expected(VALID, ("1 documents",)))


def _experiment() -> Document:
  value: dict[str, Any] = {
    "title": "Two sizes",
    "source": "none",
    "model": "albert_base",
    "intrinsic": ["mlm"],
    "finetuned": True,
    "variants": [
      {"name": "small", "fields": {"hidden_size": 1024, "num_attention_heads": 16}, "steps": 0.5, "x": 1, "paper": {}},
      {"name": "large", "data": {"masking": "none"}, "starts_from": "small", "batch": 2.0, "paper": {"mlm": 54.0}},
    ],
  }
  first: Steps = ("variants", 0)
  second: Steps = ("variants", 1)
  kinds: dict[Steps, str] = {
    ("title",): "text",
    ("source",): "text",
    ("model",): "text",
    ("intrinsic",): "list",
    ("finetuned",): "switch",
    ("variants",): "list",
    first: "object",
    (*first, "name"): "text",
    (*first, "fields"): "object",
    (*first, "fields", "hidden_size"): "number",
    (*first, "steps"): "number",
    (*second, "data"): "object",
    (*second, "data", "masking"): "text",
    (*second, "batch"): "number",
    (*second, "paper"): "object",
    (*second, "paper", "mlm"): "number",
  }
  required: list[Steps] = [("title",), ("source",), ("model",), ("variants",), (*first, "name")]

  def words(path: Path) -> list[str]:
    flags = [f"--run={path}", "--output_dir=out", "--dry_run", "--gflops=5"]
    return ["-m", "albert.experiments", *flags]

  return Document("experiment.json", value, kinds, required, words, Expected(VALID, ("Two sizes",)))


def _run(workplace: Workplace) -> Document:
  value = json.loads((workplace.pretraining_run / "config.json").read_text(encoding="utf-8"))
  kinds: dict[Steps, str] = {
    ("task",): "text",
    ("model",): "object",
    ("optimizer",): "object",
    ("train",): "object",
    ("data",): "object",
    ("model", "hidden_size"): "number",
    ("model", "sharing"): "text",
    ("train", "num_train_steps"): "number",
    ("optimizer", "learning_rate"): "number",
    ("data", "do_lower_case"): "switch",
  }

  def words(path: Path) -> list[str]:
    directory = path.parent / "run"
    shutil.copytree(workplace.pretraining_run, directory)
    shutil.copy(path, directory / "config.json")
    # --eval_input_file names a file that doesn't exist: with a valid config.json the error is about that file.
    return ["run_pretraining.py", f"--output_dir={directory}", "--do_eval", "--eval_input_file=absent.tfrecord"]

  return Document("config.json", value, kinds, (), words, Expected(BAD, ("absent.tfrecord",)))
