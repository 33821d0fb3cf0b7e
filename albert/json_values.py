"""Values of JSON that somebody else has written, checked one by one: each fault is a line that says where it is."""

from __future__ import annotations

import json
import re
from typing import Any

from albert.errors import UserError

_SHOWN = 60
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_KINDS: dict[type, str] = {
  str: "a text",
  int: "a whole number",
  bool: "true or false",
  list: "a list",
  dict: "an object",
}


def shown(value: Any) -> str:
  """The value as an error shows it: its beginning, if it is long."""
  text = repr(value)
  return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def parse_object(where: str, line: bytes) -> dict[str, Any]:
  """The JSON object in a line of a file. UserError, which begins with `where`, if there is none."""
  try:
    values = json.loads(line.decode("utf-8"))
  except json.JSONDecodeError as error:
    raise UserError(f"{where}: not JSON ({error.msg}, column {error.colno}): give an object a line") from error
  except UnicodeDecodeError as error:
    raise UserError(f"{where}: not UTF-8 (byte {error.start + 1} of the line)") from error
  except RecursionError as error:
    raise UserError(f"{where}: lists or objects are nested too deeply: give an object a line") from error
  except ValueError as error:  # Python's limit of an integer's digits
    raise UserError(f"{where}: holds a number that is too long ({error}): give it as a text") from error
  if not isinstance(values, dict):
    raise UserError(f"{where}: not an object but {shown(values)}")
  return values


def encoded(text: str) -> bytes:
  """The text as UTF-8. A lone surrogate, which JSON can write ("\\ud800") and UTF-8 cannot hold, becomes U+FFFD."""
  try:
    return text.encode("utf-8")
  except UnicodeEncodeError:
    return _SURROGATES.sub("\ufffd", text).encode("utf-8")


def field(where: str, values: Any, name: str, kind: type, *, remedy: str = "") -> Any:
  """values[name] of an object. UserError if it is none, lacks the name, or holds a value that is not of this kind."""
  if not isinstance(values, dict):
    raise UserError(f"{where} must be an object with {name!r}, it is {shown(values)}")
  if name not in values:
    raise UserError(f"{where} lacks {name!r}{remedy and ': '}{remedy}")
  value = values[name]
  if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
    raise UserError(f"{where}: {name!r} must be {_KINDS[kind]}, it is {shown(value)}")
  return value
