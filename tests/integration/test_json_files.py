"""Each JSON file that the code reads is read, or refused with one line that names it, whatever its content.

The files are listed in json_files.py. The last test finds modules that read JSON without albert.io.json_values.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from albert.errors import UserError
from albert.io import json_values
from tests.integration.json_files import JSON_FILES, JsonFile

ROOT = Path(__file__).resolve().parents[2]
DEEP = 100_000
# Name of the fault -> content.
BAD = {
  "empty": b"",
  "blank": b" \n",
  "number": b"5",
  "true": b"true",
  "text": b'"text"',
  "null": b"null",
  "list": b"[]",
  "list of lists": b"[[]]",
  "lists without end": b"[" * DEEP,
  "objects without end": b'{"a":' * DEEP,
  "deep lists": b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}",
  "5,000 digits": b'{"a": ' + b"1" * 5000 + b"}",
  "overflow": b'{"a": 1e999}',
  "NaN": b'{"a": NaN}',
  "not UTF-8": b'{"a": "\xff"}',
  "UTF-16": '{"a": 1}'.encode("utf-16"),
  "doubled key": b'{"a": 1, "a": 2}',
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


def _outcome(directory: Path, json_file: JsonFile, data: bytes) -> str:
  """Writes the file and reads it. Returns "read", "damage" or the line of the error. Other exceptions are raised."""
  path = _write(directory, json_file, data)
  try:
    value = json_file.read(directory)
  except UserError as error:
    line = str(error)
    assert (json_file.name_in_error or str(path)) in line, line
    assert "\n" not in line
    assert len(line) < 1500, line
    return line
  if json_file.damage is ...:
    return "read"
  is_text = isinstance(json_file.damage, str) and value
  is_damage = json_file.damage in value if is_text else value == json_file.damage
  return "damage" if is_damage else "read"


@pytest.mark.parametrize("name", JSON_FILES)
def test_bad_json_is_one_line_or_known_damage(tmp_path: Path, name: str) -> None:
  json_file = JSON_FILES[name]
  for fault, data in BAD.items():
    if (fault == "NaN" and json_file.reads_nan) or fault in json_file.valid_faults:
      continue
    assert _outcome(tmp_path, json_file, data) != "read", fault


def _changed(value: Any) -> Iterator[Any]:
  """Yields copies of a value. In each, one part is left out, or replaced by a value of another type."""
  for other in (None, True, -5, 2**63, "../x", [5], {"a": {"b": []}}):
    if type(other) is not type(value):
      yield other
  items: list[tuple[Any, Any]] = []
  if isinstance(value, dict | list):
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
  for key, inner in items:
    for other in _changed(inner):
      copy = value.copy()
      copy[key] = other
      yield copy
    if isinstance(value, dict):
      yield {k: v for k, v in value.items() if k != key}
      yield {**value, "unknown": inner}


@pytest.mark.parametrize("name", JSON_FILES)
def test_a_value_of_another_kind_is_read_or_one_line(tmp_path: Path, name: str) -> None:
  json_file = JSON_FILES[name]
  expected = "damage" if name == "text that may be JSON" else "read"
  assert _outcome(tmp_path, json_file, json.dumps(json_file.valid).encode()) == expected
  outcomes = [_outcome(tmp_path, json_file, json.dumps(value).encode()) for value in _changed(json_file.valid)]
  assert any(outcome != "read" for outcome in outcomes)


def test_no_other_module_reads_json() -> None:
  readers = {"load", "loads", "JSONDecoder", "decoder", "json", "convert"}
  modules_with_readers = set()
  for path in [*ROOT.glob("run_*.py"), *ROOT.glob("albert/**/*.py"), *ROOT.glob("data_prep/**/*.py")]:
    text = path.read_text(encoding="utf-8")
    if "json" not in text and "msgspec" not in text:
      continue
    for node in ast.walk(ast.parse(text)):
      is_import = isinstance(node, ast.ImportFrom) and node.module in ("json", "msgspec")
      is_call = (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("json", "msgspec")
        and node.attr in readers
      )
      if is_import or is_call:
        modules_with_readers.add(path)
  assert modules_with_readers == {Path(str(json_values.__file__))}
