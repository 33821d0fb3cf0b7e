"""Whatever a JSON file contains, the code reads it or refuses it with an error of one line that names the file.

The files are listed in tests/integration/json_files.py. The last test finds modules that read JSON without
albert.io.json_values or albert.io.json_text.
"""

from __future__ import annotations

import ast
import enum
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.io import json_text, json_values
from tests.integration.json_files import JSON_FILES, JsonFile

ROOT = Path(__file__).resolve().parents[2]
DEPTH = 100_000  # far beyond the recursion limit of Python
# Name of the fault -> content.
BAD_CONTENTS = {
  "empty": b"",
  "blank": b" \n",
  "number": b"5",
  "true": b"true",
  "text": b'"text"',
  "null": b"null",
  "list": b"[]",
  "list of lists": b"[[]]",
  "lists without end": b"[" * DEPTH,
  "objects without end": b'{"a":' * DEPTH,
  "5,000 digits": b'{"a": ' + b"1" * 5000 + b"}",
  "overflow": b'{"a": 1e999}',
  "NaN": b'{"a": NaN}',
  "not UTF-8": b'{"a": "\xff"}',
  "UTF-16": '{"a": 1}'.encode("utf-16"),
  "cut": b'{"a": ',
  "no JSON": b"{a: 1}",
}


def _write(directory: Path, json_file: JsonFile, data: bytes) -> Path:
  for name, content in json_file.other_files.items():
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(content)
  path = directory / json_file.path
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(json_file.wrap(data))
  return path


class Outcome(enum.Enum):
  READ = "the content was read"
  DAMAGE = "the content counts as damage, which is no error"
  ERROR = "an error of one line"


def _write_and_read(directory: Path, json_file: JsonFile, data: bytes) -> Outcome:
  """Writes a file with a content and reads it. Checks the line of a UserError. Raises other exceptions."""
  path = _write(directory, json_file, data)
  try:
    result = json_file.read(directory)
  except UserError as error:
    line = str(error)
    assert (json_file.name_in_error or str(path)) in line, line
    assert "\n" not in line
    assert len(line) < 1500, line
    return Outcome.ERROR
  if json_file.result_if_damaged is ...:
    return Outcome.READ
  if isinstance(json_file.result_if_damaged, str) and result:
    return Outcome.DAMAGE if json_file.result_if_damaged in result else Outcome.READ
  return Outcome.DAMAGE if result == json_file.result_if_damaged else Outcome.READ


@pytest.mark.parametrize("name", JSON_FILES)
def test_no_bad_content_is_read(tmp_path: Path, name: str) -> None:
  json_file = JSON_FILES[name]
  for fault, data in BAD_CONTENTS.items():
    if (fault == "NaN" and json_file.reads_nan) or fault in json_file.accepted_contents:
      continue
    assert _write_and_read(tmp_path, json_file, data) != Outcome.READ, fault


def _changed_values(value: Any) -> Iterator[Any]:
  """Yields copies of a JSON value with one change, at any depth.

  In each copy one value has another type, or an object lacks one of its keys, or it has an unknown key.
  """
  replacements: list[Any] = [None, True, -5, 2**63, "../x", [5], {"a": {"b": []}}]
  for replacement in replacements:
    if type(replacement) is not type(value):
      yield replacement
  if isinstance(value, list):
    for index, element in enumerate(value):
      for changed_element in _changed_values(element):
        yield [*value[:index], changed_element, *value[index + 1 :]]
  if isinstance(value, dict):
    for key, member in value.items():
      for changed_member in _changed_values(member):
        yield {**value, key: changed_member}
      yield {other_key: value[other_key] for other_key in value if other_key != key}
      yield {**value, "unknown": member}


@pytest.mark.parametrize("name", JSON_FILES)
def test_a_value_of_another_type_is_read_or_an_error_of_one_line(tmp_path: Path, name: str) -> None:
  json_file = JSON_FILES[name]
  assert _write_and_read(tmp_path, json_file, json.dumps(json_file.valid).encode()) == Outcome.READ
  contents = [json.dumps(changed).encode() for changed in _changed_values(json_file.valid)]
  outcomes = {_write_and_read(tmp_path, json_file, content) for content in contents}
  assert outcomes != {Outcome.READ}  # some change is not accepted, so the values are checked


def _reads_json(node: ast.AST) -> bool:
  """Returns whether a node imports from json or msgspec, or uses one of their functions that read JSON."""
  if isinstance(node, ast.ImportFrom):
    return node.module in ("json", "msgspec")
  if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
    return False
  if node.value.id not in ("json", "msgspec"):
    return False
  return node.attr in ("load", "loads", "JSONDecoder", "decoder", "json", "convert")


def test_no_other_module_reads_json() -> None:
  modules_that_read_json = set()
  for path in [*ROOT.glob("run_*.py"), *ROOT.glob("albert/**/*.py"), *ROOT.glob("data_prep/**/*.py")]:
    text = path.read_text(encoding="utf-8")
    if "json" not in text and "msgspec" not in text:
      continue
    if any(_reads_json(node) for node in ast.walk(ast.parse(text))):
      modules_that_read_json.add(path)
  lines = ROOT / "data_prep/readers/lines.py"  # decodes one field of each line
  assert modules_that_read_json == {Path(str(json_text.__file__)), Path(str(json_values.__file__)), lines}
