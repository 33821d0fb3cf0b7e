"""Parses JSON strictly and checks it against a schema. Errors are one line that says where the fault is.

All JSON of the project is read here. A schema is a type that msgspec can convert to: a `msgspec.Struct`, a dataclass,
`dict[str, float]`, and so on. It is defined beside the code that reads the file.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypeVar

import msgspec

from albert.errors import UserError
from albert.io.text_encoding import check_encoding

T = TypeVar("T")

# Types for schemas. A FileName has no directory.
_FILE_NAME = r"^(?!\.{1,2}\Z)[^/\\\x00]+\Z"
FileName = Annotated[str, msgspec.Meta(pattern=_FILE_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# Deeper nesting is refused: no file of the project needs it, and it would exceed Python's recursion limit.
_MAX_DEPTH = 100
# Larger integers do not fit into any integer type of NumPy or TensorFlow.
_MAX_INTEGER = 2**64
_MAX_SHOWN_CHARACTERS = 60
_LITERALS = {None: "null", True: "true", False: "false"}
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS: dict[str, str] = {
  "str": "a text",
  "int": "a whole number",
  "float": "a number",
  "bool": "true or false",
  "array": "a list",
  "object": "an object",
  "null": "null",
}
_EXPECTED = re.compile(r"^Expected `(?P<kinds>[^`]+)`(?P<bounds>.*?)(?:, got .*)?$")
_PLACE = re.compile(r" - at (?:`(?:key|value)` in )?`(?P<place>\$[^`]*)`$")
_STEP = re.compile(r"\.(?P<key>\w+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")


def shown(value: Any) -> str:
  """Formats a value for an error message. Only the beginning of a long value is shown."""
  text = _LITERALS[value] if value is None or isinstance(value, bool) else repr(value)
  return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 3] + "..."


def without_surrogates(text: str) -> str:
  """Replaces each lone surrogate in a text by U+FFFD. JSON can contain them ("\\ud800"), UTF-8 cannot."""
  return _SURROGATES.sub("\ufffd", text)


def encoded(text: str) -> bytes:
  """Encodes a text as UTF-8, with U+FFFD for each lone surrogate."""
  try:
    return text.encode("utf-8")
  except UnicodeEncodeError:
    return without_surrogates(text).encode("utf-8")


def dumps(values: Any, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
  """Serializes values as JSON. Numbers that are not finite, which JSON does not have, are written as null.

  Args:
    values: dicts, lists, strings, numbers, booleans and None.
    indent: spaces for each level; None for one line.
    ensure_ascii: whether other characters are written as escapes.
  """
  try:
    return json.dumps(values, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)
  except ValueError:
    return json.dumps(_with_null(values), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _with_null(value: Any) -> Any:
  if isinstance(value, dict):
    return {key: _with_null(inner) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_with_null(inner) for inner in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def parse(
  where: str,
  data: bytes | str,
  kind: type[T],
  remedy: str = "",
  *,
  nan_is_null: bool = False,
  keep_surrogates: bool = False,
) -> T:
  """Parses JSON and checks it against a schema.

  Args:
    where: the file, and the line if `data` is one line of it; errors begin with it.
    data: UTF-8 bytes with or without a byte order mark; or a text, such as an environment variable.
    kind: the schema: any type that `msgspec.convert` accepts. Strings are not converted to numbers, nor 0 and 1 to
      booleans; an integer is accepted as a float.
    remedy: what the user can do about a fault; errors end with it.
    nan_is_null: whether NaN and Infinity are read as null. Logs and results of earlier versions contain them.
    keep_surrogates: whether lone surrogates in strings are kept; otherwise each is replaced by U+FFFD.

  Returns:
    The value, of type `kind`.

  Raises:
    UserError: `data` is not UTF-8 or not JSON (the error names line and column), or contains NaN, infinity, a number
      that overflows, an integer of more than 64 bits, more than 100 levels of nesting, an object with a duplicate key,
      or a value that does not fit the schema (the error names its path, such as $.runs[0].seed).
  """
  end = f": {remedy}" if remedy else ""
  text = _decoded(where, data, end)
  try:
    values = (_LENIENT if nan_is_null else _STRICT).decode(text)
    if not keep_surrogates and _ESCAPED_SURROGATE.search(text):
      values = _cleaned(values)
  except json.JSONDecodeError as error:
    raise UserError(_syntax_error(where, text, error) + end) from error
  except RecursionError as error:
    raise UserError(f"{where}: lists or objects are nested too deeply{end}") from error
  except _RefusedError as error:
    marking = _LENIENT_MARKING if nan_is_null else _MARKING
    place, reason = next(_refused(marking.decode(text)), ("$", str(error)))
    raise UserError(f"{where}: {_at(place)}{reason}{end}") from error
  if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(values) > _MAX_DEPTH:
    raise UserError(f"{where}: lists or objects are nested too deeply (more than {_MAX_DEPTH} levels){end}")
  return convert(where, values, kind, remedy)


def convert(where: str, values: Any, kind: type[T], remedy: str = "") -> T:
  """Checks values that were parsed from JSON against a schema.

  Args:
    where: the file; errors begin with it.
    values: the parsed values or a part of them.
    kind: the schema, see `parse`.
    remedy: what the user can do about a fault; errors end with it.

  Returns:
    The value, of type `kind`.

  Raises:
    UserError: a value does not fit the schema.
  """
  try:
    return msgspec.convert(values, kind, strict=True)
  except (msgspec.ValidationError, UnicodeEncodeError) as error:
    place, problem = _located(str(error), values, kind)
    message = f"{where}: {place} {problem}" if place != "$" else f"{where} {problem}"
    if place == "$" and not problem.startswith("lacks"):
      message = f"{where}: {problem}"
    raise UserError(message + (f": {remedy}" if remedy else "")) from error


def _decoded(where: str, data: bytes | str, end: str) -> str:
  if isinstance(data, str):
    return without_surrogates(data.removeprefix("\ufeff"))
  check_encoding(where, data)
  try:
    return data.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    # For a file with a byte order mark, the error's positions do not count the mark.
    content: bytes = error.object
    start = content.rfind(b"\n", 0, error.start) + 1
    line = f", line {content.count(10, 0, error.start) + 1}" if b"\n" in content else ""
    raise UserError(
      f"{where}{line}: not UTF-8 (byte {error.start - start + 1} of the line is 0x{content[error.start]:02x})"
      + (end or ": save the file as UTF-8")
    ) from error


def _syntax_error(where: str, text: str, error: json.JSONDecodeError) -> str:
  if not text.strip():
    return f"{where}: not JSON (it is empty)"
  line = f", line {error.lineno}" if "\n" in text else ""
  return f"{where}{line}: not JSON ({error.msg}, column {error.colno})"


# Decoders that refuse what Python's json module accepts but JSON does not have, or what NumPy cannot represent:


class _RefusedError(Exception):
  """A number or an object is refused. The decoder does not know its path; a second pass finds it."""


@dataclasses.dataclass(frozen=True)
class _Refused:
  """Placeholder for a refused value in the second pass."""

  reason: str


def _raise(reason: str) -> Any:
  raise _RefusedError(reason)


def _decoder(refuse: Callable[[str], Any], constant: Callable[[str], Any]) -> json.JSONDecoder:
  def integer(text: str) -> Any:
    # Python itself refuses to convert integers of thousands of digits.
    value = int(text) if len(text) <= len(str(_MAX_INTEGER)) else _MAX_INTEGER
    return value if abs(value) < _MAX_INTEGER else refuse(f"holds a number that is too long: {shown(text)}")

  def real(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else refuse(f"must be a finite number, it is {text[:_MAX_SHOWN_CHARACTERS]}")

  def pairs(items: list[tuple[str, Any]]) -> Any:
    values = dict(items)
    if len(values) == len(items):
      return values
    keys = [key for key, _ in items]
    return refuse(f"has the key {shown(next(key for key in keys if keys.count(key) > 1))} twice")

  return json.JSONDecoder(parse_int=integer, parse_float=real, parse_constant=constant, object_pairs_hook=pairs)


def _constant_reason(text: str) -> str:
  return f"must be a finite number, it is {text}"


_STRICT = _decoder(_raise, lambda text: _raise(_constant_reason(text)))
_LENIENT = _decoder(_raise, lambda text: None)
_TEXT_NUMBERS = json.JSONDecoder(parse_int=str, parse_float=str)
# The decoders of the second pass:
_MARKING = _decoder(_Refused, lambda text: _Refused(_constant_reason(text)))
_LENIENT_MARKING = _decoder(_Refused, lambda text: None)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
  """Yields (step of the path, value) for each element of a list or an object."""
  if isinstance(value, dict):
    yield from ((_step(key), inner) for key, inner in value.items())
  elif isinstance(value, list):
    yield from ((_step(n), inner) for n, inner in enumerate(value))


def _step(key: str | int) -> str:
  if isinstance(key, int):
    return f"[{key}]"
  return f".{key}" if key.isidentifier() and len(key) <= _MAX_SHOWN_CHARACTERS else f"[{shown(key)}]"


def _refused(values: Any) -> Iterator[tuple[str, str]]:
  """Yields (path, reason) of each refused value, in the order of the text."""
  stack = [("$", values)]
  while stack:
    place, value = stack.pop()
    if isinstance(value, _Refused):
      yield place, value.reason
    stack.extend((place + step, inner) for step, inner in reversed(list(_children(value))))


def _depth(values: Any) -> int:
  depth, level = 0, [values]
  while level and depth <= _MAX_DEPTH:
    containers = [value for value in level if isinstance(value, list | dict)]
    level = [inner for value in containers for inner in (value.values() if isinstance(value, dict) else value)]
    depth += bool(containers)
  return depth


def _cleaned(value: Any) -> Any:
  if isinstance(value, str):
    return without_surrogates(value)
  if isinstance(value, list):
    return [_cleaned(inner) for inner in value]
  if isinstance(value, dict):
    return {without_surrogates(key): _cleaned(inner) for key, inner in value.items()}
  return value


# Rewrites msgspec's messages so that they name the key and the value:


def _at(place: str) -> str:
  return "" if place == "$" else f"{place} "


def _located(message: str, values: Any, kind: Any) -> tuple[str, str]:
  """Returns (path, problem) of the value that does not fit the schema."""
  found = _PLACE.search(message)
  problem = message[: found.start()] if found else message
  place, value = "$", values
  for step in _STEP.finditer(found["place"] if found else ""):
    key = step["key"] or (_invalid_key(value, values, kind) if step["any"] else int(step["index"]))
    place += _step(key)
    value = value[key]
  if "at `key` in" in message:
    key = _invalid_key(value, values, kind)
    return place, f"has the key {shown(key)}, which must be {_expected(problem)}"
  return place, _problem(problem, value, is_top=place == "$")


def _invalid_key(container: Any, values: Any, kind: Any) -> Any:
  """Finds the key or index of the value that does not fit; msgspec's message does not contain it."""
  children = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
  try:
    for key, value in children:
      container.clear()
      container.update({key: value}) if isinstance(container, dict) else container.append(value)
      try:
        msgspec.convert(values, kind, strict=True)
      except (msgspec.ValidationError, UnicodeEncodeError):
        return key
  finally:
    container.clear()
    container.update(children) if isinstance(container, dict) else container.extend(value for _, value in children)
  return children[0][0]


def _expected(problem: str) -> str:
  """Describes the types that msgspec expects; "" if the problem is not a wrong type."""
  found = _EXPECTED.match(problem)
  if not found:
    return ""
  kinds = " or ".join(_KINDS.get(kind, kind) for kind in found["kinds"].split(" | "))
  return kinds + (" that names a file of this directory" if repr(_FILE_NAME) in found["bounds"] else found["bounds"])


def _problem(problem: str, value: Any, *, is_top: bool) -> str:
  missing = re.match(r"Object missing required field `(.+)`", problem)
  if missing:
    return f"lacks {missing[1]!r}"
  unknown = re.match(r"Object contains unknown field `(.+)`", problem)
  if unknown:
    return f"has the unknown key {unknown[1]!r}"
  if problem.startswith("Invalid enum value"):
    return f"is {shown(value)}, which is not one of its possible values"
  expected = _expected(problem)
  if not expected:
    return f"is {shown(value)} ({problem})"
  if is_top:
    return f"must hold {expected.replace('an object', 'a JSON object')}, holds {shown(value)}"
  return f"must be {expected}, it is {shown(value)}"


def decode_start(text: str, start: int) -> tuple[Any, int]:
  """Decodes the JSON value that begins at an offset of a text, for a text that may not be JSON.

  Returns:
    The value, with numbers as strings, and the offset at which it ends.

  Raises:
    json.JSONDecodeError: there is no JSON value.
    RecursionError: the value is nested too deeply.
  """
  return _TEXT_NUMBERS.raw_decode(text, start)


def parse_object(where: str, line: bytes) -> dict[str, Any]:
  """Parses a line of a file that must be a JSON object. Lone surrogates in its strings are kept.

  Raises:
    UserError: see `parse`.
  """
  return parse(where, line, dict[str, Any], "give an object a line", keep_surrogates=True)
