"""Damaged JSON files: wrong syntax, values of a wrong type, and missing keys, for every JSON file that users write.

Used by the part "inputs". `_documents` lists the files, each with the command that reads it.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.tasks.race.folders import make_passage
from tests.torture.attempts import BAD, VALID, Attempt, Expected
from tests.torture.workplace import Workplace

# The keys and indices that lead to a value inside a document, from the outside in.
KeyPath = tuple[str | int, ...]
# Kind of value -> values of other kinds, which a command must refuse where it expects this kind.
_VALUES_OF_OTHER_KINDS: dict[str, Sequence[Any]] = {
  "text": [None, 5, 1.5, True, [], ["a"], {}, {"a": 1}],
  "number": [None, "5", True, [], [5], {}, "x"],
  "switch": [None, 0, 1, "true", [], {}],
  "switch or null": [0, 1, "true", [], {}],
  "list": [None, 5, "a", True, {}, {"a": 1}],
  "object": [None, 5, "a", True, [], ["a"], [[]]],
}


@dataclasses.dataclass(frozen=True)
class Document:
  """A JSON file that a command reads.

  Attributes:
    name: the name of the file.
    value: the content of a valid file.
    value_kinds: the values whose type the command checks, and their kinds (see _VALUES_OF_OTHER_KINDS).
    required: the values that must not be missing.
    command: returns the command that reads the file at a path.
    end_if_valid: how the command ends with the valid file.
  """

  name: str
  value: Any
  value_kinds: dict[KeyPath, str]
  required: Sequence[KeyPath]
  command: Callable[[Path], Sequence[str]]
  end_if_valid: Expected


class DamagedFile(NamedTuple):
  """What is wrong with a damaged file, and its content."""

  description: str
  content: bytes


def json_attempts(workplace: Workplace, rng: random.Random, number: int) -> Iterator[Attempt]:
  """Gives each valid document to its command in two notations, then `number` damaged documents."""
  documents = list(_documents(workplace, rng))
  for document in documents:
    yield _attempt(document, "as it is", json.dumps(document.value).encode(), document.end_if_valid)
    indented = json.dumps(document.value, indent=2).replace("\n", "\r\n").encode()
    name = "with a byte-order mark, CR LF and indents"
    yield _attempt(document, name, b"\xef\xbb\xbf" + indented, document.end_if_valid)
  for index in range(number):
    document = documents[index % len(documents)]
    damage = _damage_syntax if rng.random() < 0.4 else _damage_structure
    damaged = damage(document, rng)
    refused = Expected(BAD, (document.name,), leaves_nothing=True)
    yield _attempt(document, damaged.description, damaged.content, refused)


def _attempt(document: Document, name: str, content: bytes, expected: Expected) -> Attempt:
  def prepare(directory: Path) -> Sequence[str]:
    path = directory / document.name
    path.write_bytes(content)
    return document.command(path)

  return Attempt(f"JSON: {document.name}", name, prepare, expected)


# ---- wrong syntax ----------------------------------------------------------------------------------------


def _damage_syntax(document: Document, rng: random.Random) -> DamagedFile:
  """Makes a file that every reader must refuse: its text is not JSON, or no command accepts such values."""
  return DamagedFile(*rng.choice([*_damaged_texts(document, rng), *_documents_with_bad_literals(document, rng)]))


def _damaged_texts(document: Document, rng: random.Random) -> list[tuple[str, bytes]]:
  """Returns a description and the content of files whose text is damaged as a whole or at one place."""
  text = json.dumps(document.value)
  content = text.encode()
  num_kept = rng.randrange(1, len(content) - 1)
  first_key = next(iter(document.value))
  second_value_of_first_key = json.dumps(first_key).encode() + b": null, "
  return [
    (f"cut after {num_kept} bytes", content[:num_kept]),
    ("something behind it", content + rng.choice([b"}", b"]", b"x", b"{}", b",", b"\0"])),
    ("empty", b""),
    ("blank", rng.choice([b" ", b"\n\n", b"\t\r\n"])),
    ("UTF-16", text.encode("utf-16")),
    ("not UTF-8", content.replace(b'"', b'"\xff', 1)),
    ("single quotes", text.replace('"', "'").encode()),
    ("a comma too many", content[:-1] + b"," + content[-1:]),
    (f"key {first_key!r} twice", b"{" + second_value_of_first_key + content[1:]),
    ("a control character in a text", content.replace(b'": "', b'": "\x01', 1)),
    ("another value", json.dumps(rng.choice([[], [document.value], 5, "x", None, True, 0.5])).encode()),
  ]


def _documents_with_bad_literals(document: Document, rng: random.Random) -> list[tuple[str, bytes]]:
  """Returns descriptions and contents of files with a literal, in place of a text or number, that must be refused."""
  path = rng.choice([path for path, kind in document.value_kinds.items() if kind in ("text", "number")])
  depth = rng.randrange(101, 200_000)  # the readers allow 100 levels
  literals = [
    ("NaN", rng.choice(["NaN", "Infinity", "-Infinity"])),
    ("overflow", rng.choice(["1e999", "-1e400", f"{'9' * 400}.0"])),
    ("an integer of many digits", "7" * rng.randrange(4301, 9000)),  # Python's int() allows 4300
    (f"{depth} lists in each other", "[" * depth + "]" * depth),
    (f"{depth} open objects", '{"a":' * depth),
  ]
  with_placeholder = json.dumps(_with_value(document.value, path, "REPLACED"))
  return [
    (f"{description} at {path}", with_placeholder.replace('"REPLACED"', literal).encode())
    for description, literal in literals
  ]


# ---- wrong structure -------------------------------------------------------------------------------------


def _damage_structure(document: Document, rng: random.Random) -> DamagedFile:
  """Makes a file of valid JSON that lacks a required value, or has a value of a wrong type."""
  if document.required and rng.random() < 0.3:
    path = rng.choice(document.required)
    document_value = copy.deepcopy(document.value)
    del _value_at(document_value, path[:-1])[path[-1]]
    return DamagedFile(f"without {path}", json.dumps(document_value).encode())
  path = rng.choice(list(document.value_kinds))
  wrong_value = rng.choice(_VALUES_OF_OTHER_KINDS[document.value_kinds[path]])
  content = json.dumps(_with_value(document.value, path, wrong_value)).encode()
  return DamagedFile(f"{wrong_value!r} at {path}", content)


def _value_at(document_value: Any, path: KeyPath) -> Any:
  value = document_value
  for key in path:
    value = value[key]
  return value


def _with_value(document_value: Any, path: KeyPath, new: Any) -> Any:
  """Returns a copy of a document with the value `new` at `path`."""
  changed = copy.deepcopy(document_value)
  _value_at(changed, path[:-1])[path[-1]] = new
  return changed


# ---- the documents ---------------------------------------------------------------------------------------


def _documents(workplace: Workplace, rng: random.Random) -> Iterator[Document]:
  yield _recipe_document(workplace)
  yield _model_config_document(workplace)
  yield _squad_document(workplace)
  yield _squad_with_answers_document(workplace)
  yield _race_document(rng)
  yield _experiment_document()
  yield _run_config_document(workplace)


_NOTHING_TO_DO = Expected(BAD, ("nothing to do",))


def _squad_command(workplace: Workplace, *flags: str) -> list[str]:
  """run_squad.py without --do_train or another flag that gives it something to do."""
  files_and_lengths = [
    f"--spm_model_file={workplace.vocabulary}",
    "--output_dir=out",
    "--max_query_length=12",
    "--doc_stride=16",
  ]
  return ["run_squad.py", *files_and_lengths, "--max_seq_length=48", *flags]


def _recipe_document(workplace: Workplace) -> Document:
  value = {
    "task": "squad",
    "model": {"hidden_dropout_prob": 0.1, "sharing": "all"},
    "optimizer": {"optimizer": "adamw", "learning_rate": 1e-4, "bias_correction": True},
    "train": {"train_batch_size": 8, "num_train_epochs": 2.0},
    "data": {"do_lower_case": True, "max_answer_length": 7},
  }
  value_kinds: dict[KeyPath, str] = {
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
    ("data", "do_lower_case"): "switch or null",
    ("data", "max_answer_length"): "number",
  }
  return Document(
    "recipe.json",
    value,
    value_kinds,
    (),
    lambda path: _squad_command(workplace, *workplace.model_flags, f"--recipe={path}"),
    _NOTHING_TO_DO,
  )


def _model_config_document(workplace: Workplace) -> Document:
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
  value_kinds: dict[KeyPath, str] = {(key,): "text" if key == "hidden_act" else "number" for key in value}
  return Document(
    "albert_config.json",
    value,
    value_kinds,
    (),
    lambda path: _squad_command(workplace, f"--albert_config_file={path}"),
    _NOTHING_TO_DO,
  )


_SQUAD_KINDS: dict[KeyPath, str] = {
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


def _members_of_objects(value_kinds: dict[KeyPath, str]) -> list[KeyPath]:
  """Returns the values that belong to a key, without the elements of lists."""
  return [path for path in value_kinds if isinstance(path[-1], str)]


def _squad_document(workplace: Workplace) -> Document:
  value = json.loads(workplace.squad_dev_file.read_text(encoding="utf-8"))

  def command(path: Path) -> list[str]:
    return ["-m", "data_prep.question_texts", f"--squad_file={path}", "--output_file=out"]

  return Document(
    "questions.json", value, _SQUAD_KINDS, _members_of_objects(_SQUAD_KINDS), command, Expected(VALID, ("documents",))
  )


def _squad_with_answers_document(workplace: Workplace) -> Document:
  value = json.loads(workplace.squad_train_file.read_text(encoding="utf-8"))
  question = ("data", 0, "paragraphs", 0, "qas", 0)
  value_kinds: dict[KeyPath, str] = {
    (*question, "answers"): "list",
    (*question, "answers", 0): "object",
    (*question, "answers", 0, "text"): "text",
    (*question, "answers", 0, "answer_start"): "number",
    (*question, "is_impossible"): "switch",
  }
  required = [path for path in _members_of_objects(value_kinds) if path[-1] != "is_impossible"]

  def command(path: Path) -> list[str]:
    # With a valid training file the command fails later: --predict_file names a file that doesn't exist.
    flags = ["--do_train", "--from_scratch", "--version_2_with_negative", f"--train_file={path}"]
    return _squad_command(workplace, *workplace.model_flags, *flags, "--do_predict", "--predict_file=absent.json")

  return Document("answers.json", value, _SQUAD_KINDS | value_kinds, required, command, Expected(BAD, ("absent.json",)))


def _race_document(rng: random.Random) -> Document:
  value = make_passage(2, rng, ["The captain sold the river.", "Nobody watched the small teacher before breakfast."])
  value_kinds: dict[KeyPath, str] = {
    ("article",): "text",
    ("questions",): "list",
    ("questions", 0): "text",
    ("options",): "list",
    ("options", 1): "list",
    ("options", 1, 0): "text",
  }

  def command(path: Path) -> list[str]:
    return ["-m", "data_prep.question_texts", f"--race_file={path}", "--output_file=out"]

  required = [("article",), ("questions",), ("options",)]
  return Document("passage.txt", value, value_kinds, required, command, Expected(VALID, ("1 document,",)))


def _experiment_document() -> Document:
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
  variant_0: KeyPath = ("variants", 0)
  variant_1: KeyPath = ("variants", 1)
  value_kinds: dict[KeyPath, str] = {
    ("title",): "text",
    ("source",): "text",
    ("model",): "text",
    ("intrinsic",): "list",
    ("finetuned",): "switch",
    ("variants",): "list",
    variant_0: "object",
    (*variant_0, "name"): "text",
    (*variant_0, "fields"): "object",
    (*variant_0, "fields", "hidden_size"): "number",
    (*variant_0, "steps"): "number",
    (*variant_1, "data"): "object",
    (*variant_1, "data", "masking"): "text",
    (*variant_1, "batch"): "number",
    (*variant_1, "paper"): "object",
    (*variant_1, "paper", "mlm"): "number",
  }
  required: list[KeyPath] = [("title",), ("source",), ("model",), ("variants",), (*variant_0, "name")]

  def command(path: Path) -> list[str]:
    flags = [f"--run={path}", "--output_dir=out", "--dry_run", "--gflops=5"]
    return ["-m", "albert.experiments", *flags]

  return Document("experiment.json", value, value_kinds, required, command, Expected(VALID, ("Two sizes",)))


def _run_config_document(workplace: Workplace) -> Document:
  value = json.loads((workplace.pretraining_run / "config.json").read_text(encoding="utf-8"))
  value_kinds: dict[KeyPath, str] = {
    ("task",): "text",
    ("model",): "object",
    ("optimizer",): "object",
    ("train",): "object",
    ("data",): "object",
    ("model", "hidden_size"): "number",
    ("model", "sharing"): "text",
    ("train", "num_train_steps"): "number",
    ("optimizer", "learning_rate"): "number",
    ("data", "do_lower_case"): "switch or null",
  }

  def command(path: Path) -> list[str]:
    directory = path.parent / "run"
    shutil.copytree(workplace.pretraining_run, directory)
    shutil.copy(path, directory / "config.json")
    # With a valid config.json the command fails later: --eval_input_file names a file that doesn't exist.
    return ["run_pretraining.py", f"--output_dir={directory}", "--do_eval", "--eval_input_file=absent.tfrecord"]

  return Document("config.json", value, value_kinds, (), command, Expected(BAD, ("absent.tfrecord",)))
