"""Parsing lines to requests, and answering streams of lines. tests/export/test_export.py tests real models."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from albert.errors import UserError
from albert.export import file_hashes
from albert.io import files, input_lines
from albert.predict import __main__ as command_line
from albert.predict import answers
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import AUTO, JSON, LINES, PredictRequest, RequestParser

ROOT = Path(__file__).parents[2]
TEXT = {"name": "text", "meaning": "any", "is_list": False}
PAIR = [TEXT | {"name": "text_a"}, TEXT | {"name": "text_b"}]
CHOICE = [TEXT | {"name": "article"}, {"name": "options", "meaning": "the options", "is_list": True}]


class Lengths:
  """Takes the place of a model: answers with the length of a text, and records the batches."""

  def __init__(self) -> None:
    self.batches: list[list[int]] = []

  def answer(self, requests: list[PredictRequest]) -> list[dict[str, Any]]:
    self.batches.append([len(request.texts["text"]) for request in requests])
    return [{"length": len(request.texts["text"])} for request in requests]


def parse(fields: list[dict[str, Any]], line: bytes, input_format: str = AUTO) -> PredictRequest:
  request = RequestParser(fields, input_format, "file").parse(3, line)
  assert request is not None
  return request


def test_lines_columns_and_objects() -> None:
  assert parse([TEXT], b"two\twords").texts == {"text": b"two\twords"}
  assert parse(PAIR, b"a b\tc").texts == {"text_a": b"a b", "text_b": b"c"}
  assert parse(CHOICE, b"a\tb\tc").texts == {"article": b"a", "options": [b"b", b"c"]}
  request = parse(CHOICE, '{"id": 7, "article": "é", "options": ["b", ""]}'.encode())
  assert request == PredictRequest(3, {"article": "é".encode(), "options": [b"b", b""]}, {"id": 7})
  assert request.num_bytes == 3
  assert parse([TEXT], b'{"text": "a"}', LINES).texts == {"text": b'{"text": "a"}'}
  assert RequestParser([TEXT], AUTO, "file").parse(1, b"\xef\xbb\xbfa") == PredictRequest(1, {"text": b"a"})


@pytest.mark.parametrize(
  ("fields", "line", "message"),
  [
    (PAIR, b"a", r"file, line 3: has 1 columns; give text_a, text_b"),
    (PAIR, b"a\tb\tc", r"line 3: has 3 columns"),
    (CHOICE, b"a", r"each further column is one more of options"),
    (PAIR, b'{"text_a": "a"}', r"line 3: lacks 'text_b' \(a text: any\)"),
    (PAIR, b'{"text_a": "a", "text_b": 5}', r"'text_b' must be a text, it is 5"),
    (CHOICE, b'{"article": "a", "options": "b"}', r"'options' must be a list of texts"),
    (CHOICE, b'{"article": "a", "options": [1]}', r"must be a list of texts"),
    (PAIR, b'{"text_a": ', r"not JSON \(Expecting value, column 12\)"),
    (PAIR, b'{"text_a": "\xff"}', r"not UTF-8 \(byte 13 of the line is 0xff\)"),
  ],
)
def test_wrong_lines(fields: list[dict[str, Any]], line: bytes, message: str) -> None:
  with pytest.raises(UserError, match=message):
    parse(fields, line)


@pytest.mark.parametrize(
  ("line", "message"),
  [
    (b'{"article": "a", "options": []}', r"^file, line 3: 'options' has no text \(the options\): give at least one$"),
    (b'{"article": "a", "options": ["", ""]}', r"^file, line 3: 'options' has no text"),
    (b"a\t\t", r"^file, line 3: 'options' has no text"),
    (b'{"article": "a", "options": null}', r"^file, line 3: 'options' must be a list of texts, it is null$"),
    (b'{"article": "a", "options": ["b"], "n": ' + b"[" * 100_000, r"^file, line 3: .* nested too deeply"),
    (b'{"article": "a", "options": ["b"], "n": ' + b"1" * 5000 + b"}", r"^file, line 3: \$\.n holds a number"),
  ],
)
def test_no_options_and_json_that_python_refuses(line: bytes, message: str) -> None:
  with pytest.raises(UserError, match=message):
    parse(CHOICE, line)


def test_one_option_and_empty_texts_are_requests() -> None:
  assert parse(CHOICE, b'{"article": "", "options": ["b"]}').texts == {"article": b"", "options": [b"b"]}
  assert parse(CHOICE, b"\t\tc").texts == {"article": b"", "options": [b"", b"c"]}
  assert parse(PAIR, b"\t").texts == {"text_a": b"", "text_b": b""}


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
  """The result is the same as that of Python's UTF-16 decoder with errors="replace"."""
  for text in ("\\ud800", "a\\udc00b", "\\ud83d\\ude00\\ud83d", "\\ude00\\ud83d"):
    line = '{"text": "' + text + '", "kept": "' + text + '"}'
    request = parse([TEXT], line.encode())
    original = json.loads(line)["text"]
    units = original.encode("utf-16-le", "surrogatepass")
    assert request.texts["text"] == units.decode("utf-16-le", "replace").encode()
    assert b"?" not in request.texts["text"]
    assert request.extra_fields == {"kept": original}


def test_extra_fields_with_the_name_of_an_answer_are_renamed() -> None:
  """The new names depend only on the model, and are all different."""
  names = ["label", "input_label", "input_input_label", "labels", "input_id", "id", "input_"]
  parser = RequestParser([TEXT], AUTO, "file", answers=("label", "probabilities"))
  request = parser.parse(1, json.dumps({"text": "a", **{name: name for name in names}}).encode())
  assert request is not None
  assert request.extra_fields == {
    "input_label": "label",
    "input_input_label": "input_label",
    "input_input_input_label": "input_input_label",
    "labels": "labels",
    "input_id": "input_id",
    "id": "id",
    "input_": "input_",
  }
  alone = parser.parse(2, b'{"text": "a", "label": 5}')
  assert alone is not None
  assert alone.extra_fields == {"input_label": 5}


def test_a_json_line_must_be_an_object() -> None:
  with pytest.raises(UserError, match="must hold a JSON object, holds 5"):
    parse([TEXT], b"5", JSON)


def test_lines_need_one_field() -> None:
  with pytest.raises(UserError, match=r"--format=lines: the model takes text_a, text_b: give tsv or json"):
    parse(PAIR, b"a", LINES)


def run(content: bytes, model: Any, batch_size: int) -> list[dict[str, Any]]:
  batches = answers.answer_batches(
    model, RequestParser([TEXT], AUTO, "file"), io.BytesIO(content), batch_size=batch_size
  )
  return [row for batch in batches for row in batch]


def test_blank_lines() -> None:
  """Between JSON objects they are skipped but count in line numbers; if each line is a text, they are empty texts."""
  objects = b'\n \r\n{"text": "ab"}\n\n{"text": "abc"}\n\n\t\n'
  assert run(objects, Lengths(), batch_size=1) == [{"length": 2}, {"length": 3}]
  assert run(b"\xef\xbb\xbf\n\nab\n\nabc\n\n", Lengths(), batch_size=1) == [
    {"length": length} for length in (0, 0, 2, 0, 3, 0)
  ]
  assert run(b"\n\n", Lengths(), batch_size=1) == [{"length": 0}] * 2
  parser = RequestParser(PAIR, AUTO, "file")
  assert parser.detect_format([b"", b" "]) is False
  requests = [parser.parse(number, line) for number, line in enumerate((b"", b"a\tb", b"  ", b"\t"), start=1)]
  assert [request.line_number if request else None for request in requests] == [None, 2, None, 4]
  with pytest.raises(UserError, match="file, line 6: has 1 columns"):
    RequestParser(PAIR, AUTO, "file").parse(6, b"a")
  batches = answers.answer_batches(
    cast(ExportedModel, Lengths()),
    RequestParser([TEXT], AUTO, "file"),
    io.BytesIO(b'\n{"text": "a"}\n\n5\n'),
    batch_size=2,
  )
  assert next(batches) == [{"length": 1}]
  with pytest.raises(UserError, match="file, line 4: must hold a JSON object"):
    next(batches)


def test_answers_are_in_order_and_batches_have_similar_lengths() -> None:
  lengths = [(7 * index) % 41 for index in range(100)]
  model = Lengths()
  rows = run(b"\n".join(b"x" * length for length in lengths) + b"\n", model, batch_size=8)
  assert [row["length"] for row in rows] == lengths
  assert sum(map(len, model.batches)) == 100
  assert max(map(len, model.batches)) == 8
  mean_difference = sum(max(batch) - min(batch) for batch in model.batches) / len(model.batches)
  assert mean_difference < 15


def test_the_lines_before_a_wrong_one_are_answered() -> None:
  model = cast(ExportedModel, Lengths())
  parser = RequestParser([TEXT], JSON, "file")
  batches = answers.answer_batches(model, parser, io.BytesIO(b'{"text": "ab"}\n{"text": "abc"}\n5\n'), batch_size=2)
  assert [row["length"] for row in next(batches)] == [2, 3]
  with pytest.raises(UserError, match="file, line 3"):
    next(batches)


def test_an_empty_input_has_no_answers() -> None:
  assert run(b"", Lengths(), batch_size=4) == []


def test_a_slow_writer_is_answered_line_by_line() -> None:
  reading, writing = os.pipe()
  model = cast(ExportedModel, Lengths())
  with os.fdopen(reading, "rb", buffering=0) as file, os.fdopen(writing, "wb", buffering=0) as pipe:
    batches = answers.answer_batches(model, RequestParser([TEXT], AUTO, "file"), file, batch_size=8)
    for length in (1, 5, 2):
      pipe.write(b"x" * length + b"\n")
      answered: list[dict[str, Any]] = []
      thread = threading.Thread(target=lambda answered=answered: answered.extend(next(batches)))  # type: ignore[misc]
      thread.start()
      thread.join(timeout=20)
      assert answered == [{"length": length}]
    pipe.close()
    assert list(batches) == []


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
  words = [sys.executable, "-m", "albert.predict", *arguments]
  return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, input="a\n")


def test_the_command_refuses_directories_without_a_model(tmp_path: Path) -> None:
  assert command().stderr.startswith("error: --model is missing")
  result = command(f"--model={tmp_path}")
  assert result.returncode == 2
  assert "neither a SavedModel nor a directory of versions" in result.stderr
  (tmp_path / "3").mkdir()
  (tmp_path / "3" / "saved_model.pb").write_bytes(b"")
  assert "has no assets.extra/servable.json" in command(f"--model={tmp_path}").stderr
  for name in ("b", "a"):
    (tmp_path / "all" / name / "1").mkdir(parents=True)
  with pytest.raises(UserError, match=f"versions of one: give one of its models, such as --model={tmp_path}/all/a$"):
    ExportedModel(f"{tmp_path}/all")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_other_encodings_and_line_ends_are_named(encoding: str) -> None:
  for text in ('{"text": "a"}', "The river."):
    with pytest.raises(UserError, match=f"^file is {encoding[:6].upper()}: save it as UTF-8$"):
      run(f"{text}\n{text}\n".encode(encoding), Lengths(), batch_size=2)
  with pytest.raises(UserError, match=r"^file: its lines end in CR alone"):
    run(b'{"text": "a"}\r{"text": "b"}\r', Lengths(), batch_size=2)
  assert run(b"a\rb\r\n\0\n", Lengths(), batch_size=2) == [{"length": 3}, {"length": 1}]


def test_a_line_that_is_too_long_is_refused_after_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(input_lines, "MAX_LINE_BYTES", 8)
  assert run(b"12345678\r\n12345678", Lengths(), batch_size=2) == [{"length": 8}] * 2
  batches = answers.answer_batches(
    cast(ExportedModel, Lengths()), RequestParser([TEXT], AUTO, "file"), io.BytesIO(b"a\n123456789\nb\n"), batch_size=2
  )
  assert next(batches) == [{"length": 1}]
  with pytest.raises(UserError, match=r"^file, line 2: has more than 0 MiB: give a shorter text"):
    next(batches)


def test_long_lines_are_neither_read_far_ahead_nor_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(input_lines, "_MAX_AHEAD_BYTES", 2000)
  monkeypatch.setattr(answers, "_MAX_BATCH_BYTES", 3000)
  file = io.BytesIO(b"".join(b"x" * 999 + b"\n" for _ in range(100)))
  reader = answers.read_line_batches(file, 64)
  assert [len(line) for line in next(reader)] == [1000] * 2
  assert file.tell() <= 6000
  model = Lengths()
  sizes = [999, 5000, 10, 999, 999, 10]
  assert run(b"\n".join(b"x" * size for size in sizes), model, batch_size=4) == [{"length": size} for size in sizes]
  assert sorted(sum(batch) for batch in model.batches if len(batch) > 1)[-1] <= 3000
  assert [5000] in model.batches


def test_no_program_takes_an_answer_for_several_lines() -> None:
  row = {"text": "a\u2028b\u2029c\x85d\x0b\x1c\n", "score": 1.5}
  line = answers.format_answer(row)
  assert len(line.splitlines()) == 1
  assert json.loads(line) == row


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have_are_refused(value: str) -> None:
  with pytest.raises(UserError, match=r"^file, line 3: .*\bx must be a finite number, it is"):
    parse([TEXT], b'{"text": "a", "x": %s}' % value.encode())


def test_a_closed_standard_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(sys, "stdin", None)
  with pytest.raises(UserError, match=r"^standard input is closed: .* or give --input_file$"):
    command_line._standard_input()


DESCRIPTION = {
  "task": "classifier", "fields": [TEXT], "answers": {"label": "it"}, "labels": ["a", "b"], "counted_by": "",
  "checkpoint": {"path": None, "step": 3},
}  # fmt: skip


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"fields": None}, r"servable\.json: \$\.fields must be a list, it is null: export it again"),
    ({"fields": [{"name": "text"}]}, r"servable\.json: \$\.fields\[0\] lacks '(meaning|is_list)'"),
    ({"answers": ["label"]}, r"servable\.json: \$\.answers must be an object"),
    ({"checkpoint": {"step": []}}, r"servable\.json: \$\.checkpoint"),
    ({}, r"^--model=.*: does not load \(.+\): export it again with python -m albert\.export$"),
  ],
)
def test_damaged_models_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
  (tmp_path / "1" / "assets.extra").mkdir(parents=True)
  (tmp_path / "1" / "saved_model.pb").write_bytes(b"damaged")
  (tmp_path / "1" / "assets.extra" / "servable.json").write_text(json.dumps(DESCRIPTION | changes))
  with pytest.raises(UserError, match=message):
    ExportedModel(str(tmp_path))


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("saved_model.pb", "saved_model.pb: is damaged"),
    ("assets/spiece.model", "spiece.model: is damaged"),
    ("variables/variables.index", "variables.index: is damaged"),
    ("assets.extra/servable.json", "servable.json: was changed after the export"),
  ],
)
def test_an_exported_model_is_compared_with_its_hashes(tmp_path: Path, name: str, message: str) -> None:
  directory = tmp_path / "1"
  for file in ("saved_model.pb", "assets/spiece.model", "variables/variables.index"):
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    (directory / file).write_bytes(b"what was exported")
  values = file_hashes.add_hashes(str(directory), DESCRIPTION)
  files.write_json(str(directory / "description.json"), values)
  (directory / "assets.extra").mkdir()
  text = (directory / "description.json").read_text()
  (directory / "assets.extra" / "servable.json").write_text(text)
  with pytest.raises(UserError, match="does not load"):  # the hashes agree, but the file is not a model
    ExportedModel(str(tmp_path))
  path = directory / name
  path.write_bytes(path.read_bytes().replace(b"exported", b"expected").replace(b'"task": "', b'"task": "x'))
  with pytest.raises(UserError, match=f"{message}.*: export it again"):
    ExportedModel(str(tmp_path))
  path.unlink()
  if name != "assets.extra/servable.json":
    with pytest.raises(UserError, match=f"{name}: is missing, .*: export it again"):
      ExportedModel(str(tmp_path))
