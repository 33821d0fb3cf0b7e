"""An error in JSON is one line that names the file, the line or the key's path in it, and the remedy."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from albert.errors import UserError
from albert.io import files, json_text, json_values

# The beginning of a Record, up to the value of "files".
RECORD_START = '{"step": 1, "files": '


class Entry(msgspec.Struct):
  bytes: int
  sha256: str


class Record(msgspec.Struct, forbid_unknown_fields=True):
  """The schema of the file F."""

  step: int
  files: dict[str, Entry]
  rows: list[list[int]] = []
  kind: Literal["a", "b"] = "a"
  count: Annotated[int, msgspec.Meta(ge=0)] = 0
  share: float | None = None


# Mistake -> (the content of the file F, the error, in which * stands for any text). The remedy is "mend it".
MISTAKES: dict[str, tuple[str | bytes, str]] = {
  "empty": ("", "F: not JSON (it is empty): mend it"),
  "syntax, one line": ('{"step": }', "F: not JSON (Expecting value, column 10): mend it"),
  "syntax, several lines": ('{"step":\n 1,}', "F, line 2: not JSON (*, column *): mend it"),
  "not UTF-8": (b'{"step":\n "\xff"}', "F, line 2: not UTF-8 (byte 3 of the line is 0xff): mend it"),
  "not UTF-8, after a byte order mark": (b'\xef\xbb\xbf"\xff"', "F: not UTF-8 (byte 2 of the line is 0xff): mend it"),
  "a number": ("5", "F: must be an object, it is a whole number: mend it"),
  "unclosed lists": ("[" * 100_000, "F: lists or objects are nested too deeply: mend it"),
  "unclosed objects": ('{"a":' * 100_000, "F: lists or objects are nested too deeply: mend it"),
  "NaN": (RECORD_START + '{"a": NaN}}', "F: holds NaN, which is not a finite number: mend it"),
  "infinity": ("-Infinity", "F: holds -Infinity, which is not a finite number: mend it"),
  "overflow": ('{"share": -1e999}', "F: holds -1e999, which is not a finite number: mend it"),
  "5,000 digits": ('{"step": ' + "1" * 5000 + "}", "F: holds a number that is too long: '1111*...: mend it"),
  "NaN, several lines": ('["\\\\\\", NaN,",\n\n1, NaN]', "F, line 3: holds NaN, which is not*: mend it"),
  "65 bits": (f"[{2**64}]", "F: holds a number that is too long: '18446744073709551616': mend it"),
  "missing": ("{}", "F: lacks 'step': mend it"),
  "missing inside": (
    RECORD_START + '{"x": {"bytes": 1}}}',
    "F: $.files[...] lacks 'sha256': mend it",
  ),
  "unknown": (RECORD_START + '{}, "more": 1}', "F: has the unknown key 'more': mend it"),
  "true for a number": (
    '{"step": true, "files": {}}',
    "F: $.step must be a whole number, it is true or false: mend it",
  ),
  "in a list": (
    RECORD_START + '{}, "rows": [[1], [2, "3"]]}',
    "F: $.rows[1][1] must be a whole number, it is a text: mend it",
  ),
  "below its range": (RECORD_START + '{}, "count": -1}', "F: $.count must be a whole number >= 0: mend it"),
  "a choice": (RECORD_START + '{}, "kind": "c"}', "F: $.kind is 'c', which is not one of its possible values: mend it"),
}


def _matches(text: str, pattern: str) -> bool:
  """Whether a text matches a pattern in which * stands for any characters. Brackets have no special meaning."""
  return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_error_names_the_mistake(mistake: str) -> None:
  content, message = MISTAKES[mistake]
  with pytest.raises(UserError) as raised:
    json_values.parse("F", content.encode() if isinstance(content, str) else content, Record, "mend it")
  assert _matches(str(raised.value), message), str(raised.value)
  assert len(str(raised.value)) < 200


def test_valid_json_is_read() -> None:
  record = b'\xef\xbb\xbf{"step": 18446744073709551615, "files": {}, "share": 2, "rows": [[1]]}'
  assert json_values.parse("F", record, Record) == Record(2**64 - 1, {}, rows=[[1]], share=2.0)
  assert json_values.parse("F", '{"a": 1, "a": 2}', dict[str, int]) == {"a": 2}


def test_lone_surrogates_become_replacement_characters() -> None:
  content = b'{"\\ud800 key": ["a\\udc00", "\\ud83d\\ude00", {"x": "\\uD83D"}]}'
  assert json_values.parse("F", content, dict[str, Any]) == {"\ufffd key": ["a\ufffd", "\U0001f600", {"x": "\ufffd"}]}
  assert json_text.decode("F", content, keep_surrogates=True) == json.loads(content)
  assert json_values.parse("TF_CONFIG", '["\udcff"]', list[str]) == ["\ufffd"]


def test_nan_is_read_as_null_if_the_caller_allows_it() -> None:
  content = b'{"a": NaN, "b": [-Infinity, 1.5]}'
  assert json_values.parse("F", content, dict[str, Any], nan_is_null=True) == {"a": None, "b": [None, 1.5]}
  with pytest.raises(UserError, match="F: holds 1e999, which is not a finite number"):
    json_values.parse("F", b'{"a": NaN, "c": 1e999}', dict[str, Any], nan_is_null=True)


def test_a_written_file_is_read_with_null_for_nan(tmp_path: Path) -> None:
  path = str(tmp_path / "a.json")
  files.write_json(path, {"loss": math.nan, "all": [1.5, (math.inf, -math.inf)], "step": 3, "é": "\ud800"})
  assert files.read_json(path) == {"loss": None, "all": [1.5, [None, None]], "step": 3, "é": "\ufffd"}
  assert files.read_json(path, dict[str, Any], "mend it") == files.read_json(path)
  with pytest.raises(UserError, match=r"a\.json: \$\[\.\.\.\] must be a whole number, it is null: delete it$"):
    files.read_json(path, dict[str, int], "delete it")
