"""The only place that reads JSON: strict syntax, then a schema. Each fault is one line that says where it is.

A schema is a type that msgspec knows: a `msgspec.Struct`, a dataclass, `dict[str, float]`, and so on. Define it beside
the code that reads the file.
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

# Types for schemas. A name of a file leads to no other directory.
_FILE_NAME = r"^(?!\.{1,2}\Z)[^/\\\x00]+\Z"
FileName = Annotated[str, msgspec.Meta(pattern=_FILE_NAME)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# Deeper nesting is refused: nothing that is read here needs it, and deeper values exhaust Python's recursion limit.
_MAX_DEPTH = 100
# Larger integers fit no type of NumPy or TensorFlow.
_MAX_INTEGER = 2**64
_SHOWN = 60
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
  """The value as an error shows it: its beginning, if it is long."""
  text = _LITERALS[value] if value is None or isinstance(value, bool) else repr(value)
  return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def without_surrogates(text: str) -> str:
  """The text with U+FFFD for each lone surrogate, which JSON can write ("\\ud800") and UTF-8 cannot hold."""
  return _SURROGATES.sub("\ufffd", text)


def encoded(text: str) -> bytes:
  """The text as UTF-8; see without_surrogates."""
  try:
    return text.encode("utf-8")
  except UnicodeEncodeError:
    return without_surrogates(text).encode("utf-8")


def dumps(values: Any, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
  """JSON that `parse` reads: a number that is not finite, which JSON does not have, is written as null."""
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
  """The value that JSON text holds, checked against a schema.

  Args:
    where: the file, with the line if `data` is one line of it; errors begin with it.
    data: the bytes, in UTF-8 with or without a byte order mark; or a text, such as an environment variable.
    kind: the schema: any type that `msgspec.convert` takes. Numbers are not taken from texts, nor 0 and 1 for
      true and false; an integer is taken for a float.
    remedy: what to do about a fault; errors end with it.
    nan_is_null: read NaN and Infinity as null. Logs and results of earlier versions hold them.
    keep_surrogates: leave lone surrogates in texts as they are, instead of replacing each by U+FFFD.
  Raises:
    UserError: not UTF-8; not JSON (with line and column); NaN, infinity or a number that overflows; an integer of
      more than 64 bits; deep nesting; an object with a key twice; a value of another type or out of the range of the
      schema (with its place, such as $.runs[0].seed).
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
  """Values that `parse` read, or a part of them, checked against a schema; see parse."""
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
    # Of a file with a byte order mark, positions are counted without it.
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


# Syntax that Python reads and JSON does not have, or that nothing here can use:


class _RefusedError(Exception):
  """A number or an object is refused. The decoder does not know where it is; a second pass finds it."""


@dataclasses.dataclass(frozen=True)
class _Refused:
  """Stands for what is refused in the second pass."""

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
    return value if math.isfinite(value) else refuse(f"must be a finite number, it is {text[:_SHOWN]}")

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
# Of the second pass:
_MARKING = _decoder(_Refused, lambda text: _Refused(_constant_reason(text)))
_LENIENT_MARKING = _decoder(_Refused, lambda text: None)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
  """(step of the place, value) of a list or an object."""
  if isinstance(value, dict):
    yield from ((_step(key), inner) for key, inner in value.items())
  elif isinstance(value, list):
    yield from ((_step(n), inner) for n, inner in enumerate(value))


def _step(key: str | int) -> str:
  if isinstance(key, int):
    return f"[{key}]"
  return f".{key}" if key.isidentifier() and len(key) <= _SHOWN else f"[{shown(key)}]"


def _refused(values: Any) -> Iterator[tuple[str, str]]:
  """(place, reason) of what is refused, in the order of the text."""
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


# What msgspec says, with the key and the value that are meant:


def _at(place: str) -> str:
  return "" if place == "$" else f"{place} "


def _located(message: str, values: Any, kind: Any) -> tuple[str, str]:
  """(place, problem) of a value that does not fit its schema."""
  found = _PLACE.search(message)
  problem = message[: found.start()] if found else message
  place, value = "$", values
  for step in _STEP.finditer(found["place"] if found else ""):
    key = step["key"] or (_guilty_key(value, values, kind) if step["any"] else int(step["index"]))
    place += _step(key)
    value = value[key]
  if "at `key` in" in message:
    key = _guilty_key(value, values, kind)
    return place, f"has the key {shown(key)}, which must be {_expected(problem)}"
  return place, _problem(problem, value, is_top=place == "$")


def _guilty_key(container: Any, values: Any, kind: Any) -> Any:
  """The key (or the index) of the value that does not fit, which msgspec does not tell."""
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
  """What msgspec expects, in words; "" if the problem is another one."""
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
    return f"is {shown(value)}, which is none of its possible values"
  expected = _expected(problem)
  if not expected:
    return f"is {shown(value)} ({problem})"
  if is_top:
    return f"must hold {expected.replace('an object', 'a JSON object')}, holds {shown(value)}"
  return f"must be {expected}, it is {shown(value)}"


def decode_start(text: str, start: int) -> tuple[Any, int]:
  """The JSON value that begins at `start`, with its numbers as texts, and where it ends; for text that may be no JSON.

  Raises:
    json.JSONDecodeError: it is none.
    RecursionError: it is nested too deeply.
  """
  return _TEXT_NUMBERS.raw_decode(text, start)


def parse_object(where: str, line: bytes) -> dict[str, Any]:
  """The JSON object in a line of a file, with the lone surrogates of its texts. Raises as parse."""
  return parse(where, line, dict[str, Any], "give an object a line", keep_surrogates=True)
