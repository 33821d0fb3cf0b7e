"""A stream of lines is answered. tests/export/test_export.py tests real models."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from albert.errors import UserError
from albert.export import companion_files
from albert.export.companion_files import Description
from albert.io import files
from albert.io import text as text_module
from albert.predict import requests
from albert.predict.exported_model import ExportedModel
from albert.predict.requests import AUTO, PredictRequest, RequestParser
from tests.predict.test_requests import PAIR_FIELDS, TEXT_FIELD

ROOT = Path(__file__).parents[2]


class LengthModel:
  """Stands in for a model: it answers with the length of the text.

  Attributes:
    batches: the lengths of the texts in each batch.
  """

  def __init__(self) -> None:
    self.batches: list[list[int]] = []

  def answer(self, requests: list[PredictRequest]) -> list[dict[str, Any]]:
    self.batches.append([len(request.texts["text"]) for request in requests])
    return [{"length": len(request.texts["text"])} for request in requests]


def answer_batches(file: bytes | Any, batch_size: int, model: Any = None) -> Iterator[list[dict[str, Any]]]:
  parser = RequestParser([TEXT_FIELD], AUTO, "file")
  file = io.BytesIO(file) if isinstance(file, bytes) else file
  answering: Any = model or LengthModel()
  return requests.answer_batches(answering, parser, file, batch_size=batch_size)


class MaskModel(LengthModel):
  """Answers with the number of [MASK]."""

  def answer(self, requests: list[PredictRequest]) -> list[dict[str, Any]]:
    return [{"num_masks": request.texts["text"].count(b"[MASK]")} for request in requests]


def test_texts_without_a_mask_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
  assert answer_lines(b"a\nb [MASK]\nc\n", MaskModel(), 3) == [{"num_masks": number} for number in (0, 1, 0)]
  assert capsys.readouterr().err.startswith("warning: 2 texts of 3 without [MASK]: ")


def answer_lines(content: bytes, model: Any, batch_size: int) -> list[dict[str, Any]]:
  return [row for batch in answer_batches(content, batch_size, model) for row in batch]


# A command that answers with a LengthModel.
COMMAND = """
from types import SimpleNamespace
from albert import app
from albert.predict import __main__ as predict
from tests.predict.test_predict import TEXT_FIELD, LengthModel
model, description = LengthModel(), SimpleNamespace(fields=[TEXT_FIELD], answers=False)
model.description, model.describe_origin = description, lambda: "a model"
predict.open_model = lambda directory: model
predict.define_flags()
app.run(predict.main, **predict.OTHER_WORDS)
"""


@pytest.mark.parametrize("flags", [[], ["--input_file=/dev/stdin"]])
def test_a_signal_ends_the_wait_for_a_line(flags: list[str]) -> None:
  command, pipe = [sys.executable, "-c", COMMAND, "--model=m", *flags], subprocess.PIPE
  process: Any = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT, bufsize=0)
  with process:
    process.stdin.write(b"a text\n")
    assert process.stdout.readline() == b'{"length": 6}\n'
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert process.stderr.read() == b"answers from a model\nstopped by SIGINT\n"


def test_words_of_the_command_line_are_texts(tmp_path: Path) -> None:
  command = [sys.executable, "-c", COMMAND, "--model=m", "--quiet", "a text", "b"]
  assert subprocess.check_output(command, cwd=ROOT) == b'{"length": 6}\n{"length": 1}\n'
  assert not subprocess.check_output([*command, f"--output_file={tmp_path}/new/a.jsonl"], cwd=ROOT)
  assert (tmp_path / "new" / "a.jsonl").read_text() == '{"length": 6}\n{"length": 1}\n'


def test_blank_lines_between_texts_are_empty_texts() -> None:
  rows = answer_lines(b"\xef\xbb\xbf\n\nab\n\nabc\n\n", LengthModel(), batch_size=1)
  assert [row["length"] for row in rows] == [0, 0, 2, 0, 3, 0]
  assert answer_lines(b"\n\n", LengthModel(), batch_size=1) == [{"length": 0}] * 2


def test_blank_lines_between_columns_are_skipped() -> None:
  parser = RequestParser(PAIR_FIELDS, AUTO, "file")
  assert parser.detect_format([b"", b" "]) is False  # blank lines do not show the format
  requests = [parser.parse(number, line) for number, line in enumerate((b"", b"a\tb", b"  ", b"\t"), start=1)]
  assert [request.line_number if request else None for request in requests] == [None, 2, None, 4]
  with pytest.raises(UserError, match="file, line 6: has 1 column"):
    RequestParser(PAIR_FIELDS, AUTO, "file").parse(6, b"a")


def test_blank_lines_between_json_objects_are_skipped_but_counted() -> None:
  objects = b'\n \r\n{"text": "ab"}\n\n{"text": "abc"}\n\n\t\n'
  assert answer_lines(objects, LengthModel(), batch_size=1) == [{"length": 2}, {"length": 3}]
  batches = answer_batches(b'\n{"text": "a"}\n\n5\n', 2)
  assert next(batches) == [{"length": 1}]
  with pytest.raises(UserError, match="file, line 4: must hold a JSON object"):
    next(batches)


def test_answers_are_in_order_and_batches_have_similar_lengths() -> None:
  lengths = [(7 * index) % 41 for index in range(100)]  # 0 to 40, unsorted
  model = LengthModel()
  rows = answer_lines(b"\n".join(b"x" * length for length in lengths) + b"\n", model, batch_size=8)
  assert [row["length"] for row in rows] == lengths
  assert sum(map(len, model.batches)) == 100
  assert max(map(len, model.batches)) == 8
  mean_difference = sum(max(batch) - min(batch) for batch in model.batches) / len(model.batches)
  assert mean_difference < 15  # in the order of the lines it would be over 30


def test_the_first_answers_come_after_one_batch() -> None:
  """After the first batch, the lines of up to 32 batches are sorted together."""
  lines = [b"%09d\n" % number for number in range(1000)]
  file, model = io.BytesIO(b"".join(lines)), LengthModel()
  sizes: list[int] = []
  for group in answer_batches(file, 4, model):
    assert sizes or model.batches == [[9] * 4]
    sizes.append(len(group))
    # Waits until 2 x 32 batches are read ahead, and one more line.
    num_read = min(1000, sum(sizes) + 2 * 32 * 4 + 1)
    while file.tell() < num_read * len(lines[0]):
      time.sleep(0.001)
  assert sizes[:6] == [4, *[32 * 4] * 5]
  assert sum(sizes) == 1000


def test_the_first_answers_after_a_pause_come_after_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
  is_waiting = threading.Event()
  get = text_module._LineQueue.get

  def report_and_get(lines: text_module._LineQueue, timeout: float | None) -> bytes | Exception:
    if timeout is None:
      is_waiting.set()
    return get(lines, timeout=timeout)

  monkeypatch.setattr(text_module._LineQueue, "get", report_and_get)
  read_descriptor, write_descriptor = os.pipe()
  with os.fdopen(read_descriptor, "rb", buffering=0) as file, os.fdopen(write_descriptor, "wb", buffering=0) as pipe:
    groups = answer_batches(file, 4)
    with ThreadPoolExecutor(max_workers=1) as executor:
      for _ in range(2):
        is_waiting.clear()
        first_group = executor.submit(next, groups)
        assert is_waiting.wait(timeout=20)
        pipe.write(b"x\n" * 20)
        num_answers = len(first_group.result(timeout=20))
        assert 1 <= num_answers <= 4
        while num_answers < 20:
          num_answers += len(next(groups))


def test_an_empty_input_has_no_answers() -> None:
  assert answer_lines(b"", LengthModel(), batch_size=4) == []


def test_each_line_of_a_slow_writer_is_answered_before_the_next_one_comes() -> None:
  read_descriptor, write_descriptor = os.pipe()
  with os.fdopen(read_descriptor, "rb", buffering=0) as file, os.fdopen(write_descriptor, "wb", buffering=0) as pipe:
    batches = answer_batches(file, 8)
    with ThreadPoolExecutor(max_workers=1) as executor:
      for length in (1, 5, 2):
        pipe.write(b"x" * length + b"\n")
        assert executor.submit(next, batches).result(timeout=20) == [{"length": length}]
    pipe.close()
    assert list(batches) == []


def run_predict(*arguments: str) -> subprocess.CompletedProcess[str]:
  """Runs albert.predict in a new process, with one line on its standard input."""
  command = [sys.executable, "-m", "albert.predict", *arguments]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, input="a\n")


def test_an_input_that_cannot_be_read_is_an_error_that_names_input_file() -> None:
  """Such as a closed standard input."""
  reader, writer = os.pipe()
  file = io.FileIO(reader, closefd=False)
  os.close(writer)
  os.close(reader)
  with pytest.raises(UserError, match=r"^file: cannot read it \(Bad file descriptor\): .* or give --input_file$"):
    list(answer_batches(file, 2))


def test_the_command_refuses_directories_without_a_model(tmp_path: Path) -> None:
  assert run_predict().stderr.startswith("error: --model is missing")
  result = run_predict(f"--model={tmp_path}")
  assert result.returncode == 2
  assert "neither a SavedModel nor a directory of versions" in result.stderr
  (tmp_path / "3").mkdir()
  (tmp_path / "3" / "saved_model.pb").write_bytes(b"")
  assert "has no assets.extra/servable.json" in run_predict(f"--model={tmp_path}").stderr
  for name in ("b", "a"):
    (tmp_path / "all" / name / "1").mkdir(parents=True)
  with pytest.raises(UserError, match=f"versions of one: give one of its models, such as --model={tmp_path}/all/a$"):
    ExportedModel(f"{tmp_path}/all")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_files_in_utf_16_or_utf_32_or_with_line_ends_of_old_macs_are_refused(encoding: str) -> None:
  family = encoding[: len("utf-16")].upper()  # UTF-16 or UTF-32
  for text in ('{"text": "a"}', "The river."):
    with pytest.raises(UserError, match=f"^file is {family}: save it as UTF-8$"):
      answer_lines(f"{text}\n{text}\n".encode(encoding), LengthModel(), batch_size=2)
  with pytest.raises(UserError, match=r"^file: its lines end in CR alone"):
    answer_lines(b'{"text": "a"}\r{"text": "b"}\r', LengthModel(), batch_size=2)
  assert answer_lines(b"a\rb\r\n\0\n", LengthModel(), batch_size=2) == [{"length": 3}, {"length": 1}]


def test_a_line_that_is_too_long_is_refused_when_the_lines_before_it_are_answered(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  monkeypatch.setattr(text_module, "MAX_LINE_BYTES", 8)
  assert answer_lines(b"12345678\r\n12345678", LengthModel(), batch_size=2) == [{"length": 8}] * 2
  batches = answer_batches(b"a\n123456789\nb\n", 2)
  assert next(batches) == [{"length": 1}]
  with pytest.raises(UserError, match=r"^file, line 2: has more than 0 MiB: divide it into"):
    next(batches)


def test_lines_are_read_ahead_and_put_into_batches_only_up_to_a_number_of_bytes(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  monkeypatch.setattr(text_module, "_MAX_AHEAD_BYTES", 2000)
  monkeypatch.setattr(requests, "_MAX_BATCH_BYTES", 3000)
  file = io.BytesIO(b"".join(b"x" * 999 + b"\n" for _ in range(100)))
  reader = requests.read_line_batches(file, 64)
  assert [len(line) for line in next(reader)] == [1000] * 2
  assert file.tell() <= 6000  # 2 lines of the batch, 2 lines ahead, and a few that were being read
  model = LengthModel()
  sizes = [999, 5000, 10, 999, 999, 10]
  assert answer_lines(b"\n".join(b"x" * size for size in sizes), model, batch_size=4) == [
    {"length": size} for size in sizes
  ]
  assert max(sum(batch) for batch in model.batches if len(batch) > 1) <= 3000
  assert [5000] in model.batches


def test_an_answer_is_one_line_for_any_program() -> None:
  """Some programs also end lines at U+2028, U+2029, U+0085 and other characters, so these are escaped."""
  row = {"text": "a\u2028b\u2029c\x85d\x0b\x1c\n", "score": 1.5}
  line = requests.format_answer(row)
  assert len(line.splitlines()) == 1
  assert json.loads(line) == row


def test_probabilities_of_classes_have_the_names_of_the_classes() -> None:
  """Probabilities of other things, such as the options of a question, are a list."""
  model = object.__new__(ExportedModel)  # without the TensorFlow model
  model.description = Description(
    task="", fields=[TEXT_FIELD], answers={}, labels=["negative", "neutral", "positive"], counted_by=""
  )
  request = PredictRequest(1, {"text": b"a"})
  probabilities = np.array([0.1, 0.25, 0.65], np.float32)
  assert model._plain_answers({"label": b"positive", "probabilities": probabilities}, request) == {
    "label": "positive",
    "probabilities": {"negative": 0.1, "neutral": 0.25, "positive": 0.65},
  }
  model.description.labels = []
  assert model._plain_answers({"probabilities": probabilities}, request) == {"probabilities": [0.1, 0.25, 0.65]}


DESCRIPTION = {
  "task": "classifier", "fields": [dataclasses.asdict(TEXT_FIELD)], "answers": {"label": "it"}, "labels": ["a", "b"],
  "counted_by": "", "checkpoint": {"path": None, "step": 3},
}  # fmt: skip


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"fields": None}, r"servable\.json: \$\.fields must be a list, it is null: export it again"),
    ({"fields": [{"name": "text"}]}, r"servable\.json: \$\.fields\[0\] lacks '(meaning|is_list)'"),
    ({"answers": ["label"]}, r"servable\.json: \$\.answers must be an object, it is a list"),
    ({"checkpoint": {"step": []}}, r"servable\.json: \$\.checkpoint\.step must be a whole number or null"),
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
def test_a_file_that_was_changed_or_removed_after_the_export_is_named(tmp_path: Path, name: str, message: str) -> None:
  directory = tmp_path / "1"
  for file in ("saved_model.pb", "assets/spiece.model", "variables/variables.index"):
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    (directory / file).write_bytes(b"what was exported")
  (directory / "assets.extra").mkdir()
  description = companion_files.add_hashes(str(directory), DESCRIPTION)
  files.write_json(str(directory / "assets.extra" / "servable.json"), description)
  with pytest.raises(UserError, match="does not load"):  # the hashes agree, but the file is not a model
    ExportedModel(str(tmp_path))
  path = directory / name
  # In servable.json the name of the task changes, in another file its only text.
  path.write_bytes(path.read_bytes().replace(b"exported", b"expected").replace(b'"task": "', b'"task": "x'))
  with pytest.raises(UserError, match=f"{message}.*: export it again"):
    ExportedModel(str(tmp_path))
  path.unlink()
  if name != "assets.extra/servable.json":
    with pytest.raises(UserError, match=f"{name}: is missing, .*: export it again"):
      ExportedModel(str(tmp_path))
