"""Decodes and encodes JSON strictly, with Python's own json module. Errors are one line that says where the fault is.

`albert.io.json_values` also checks the decoded values against a schema. It needs msgspec; this module needs no library,
so that the tokenizer doesn't need one either.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from albert.errors import UserError
from albert.io.text_encoding import check_encoding

# Deeper nesting is refused: no file of the project needs it, and it would exceed Python's recursion limit.
_MAX_DEPTH = 100
# Integers whose absolute value is not below this do not fit into any integer type of NumPy or TensorFlow.
_INTEGER_LIMIT = 2**64
MAX_SHOWN_CHARACTERS = 60
_NOT_FINITE_MESSAGE = "must be a finite number, it is "
_LITERALS = {None: "null", True: "true", False: "false"}
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def format_value(value: Any) -> str:
  """Formats a value for an error message. Only the beginning of a long value is shown."""
  text = _LITERALS[value] if value is None or isinstance(value, bool) else repr(value)
  return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."


def replace_surrogates(text: str) -> str:
  """Replaces each lone surrogate in a text by U+FFFD. JSON can contain them ("\\ud800"), UTF-8 cannot."""
  return _SURROGATES.sub("\ufffd", text)


def encode_utf8(text: str) -> bytes:
  """Encodes a text as UTF-8, with U+FFFD for each lone surrogate."""
  try:
    return text.encode("utf-8")
  except UnicodeEncodeError:
    return replace_surrogates(text).encode("utf-8")


def dumps(values: Any, *, indent: int | None = None, ensure_ascii: bool = True) -> str:
  """Serializes values as JSON. Numbers that are not finite, which JSON does not have, are written as null.

  Args:
    values: dicts, lists, strings, numbers, booleans and None.
    indent: spaces for each level; None for one line.
    ensure_ascii: whether characters outside ASCII are written as escapes.
  """
  try:
    return json.dumps(values, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)
  except ValueError:
    return json.dumps(_replace_non_finite(values), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _replace_non_finite(value: Any) -> Any:
  """Copies a value, with None for each number that is not finite."""
  if isinstance(value, dict):
    return {key: _replace_non_finite(inner) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_replace_non_finite(inner) for inner in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def decode(
  source: str, data: bytes | str, remedy: str = "", *, nan_is_null: bool = False, keep_surrogates: bool = False
) -> Any:
  """Decodes JSON.

  Args:
    source: the file, and the line if `data` is one line of it; errors begin with it.
    data: UTF-8 bytes with or without a byte order mark; or a text, such as an environment variable.
    remedy: what the user can do about a fault; errors end with it.
    nan_is_null: whether NaN and Infinity are read as null. Logs and results of earlier versions contain them.
    keep_surrogates: whether lone surrogates in strings are kept; otherwise each is replaced by U+FFFD.

  Returns:
    The values: dicts, lists, strings, numbers, booleans and None.

  Raises:
    UserError: `data` is not UTF-8 or not JSON (the error names line and column), or contains NaN, infinity, a number
      that overflows, an integer of more than 64 bits, more than 100 levels of nesting, or an object with a duplicate
      key.
  """
  remedy_suffix = f": {remedy}" if remedy else ""
  text = _decode_utf8(source, data, remedy_suffix)
  try:
    values = (_LENIENT_DECODER if nan_is_null else _STRICT_DECODER).decode(text)
    if not keep_surrogates and _ESCAPED_SURROGATE.search(text):
      values = _replace_surrogates_inside(values)
  except json.JSONDecodeError as error:
    raise UserError(_describe_syntax_error(source, text, error) + remedy_suffix) from error
  except RecursionError as error:
    raise UserError(f"{source}: lists or objects are nested too deeply{remedy_suffix}") from error
  except _RefusedError as error:
    marking_decoder = _LENIENT_MARKING_DECODER if nan_is_null else _STRICT_MARKING_DECODER
    path, reason = next(_find_refused(marking_decoder.decode(text)), ("$", str(error)))
    fault = reason if path == "$" else f"{path} {reason}"
    raise UserError(f"{source}: {fault}{remedy_suffix}") from error
  if text.count("[") + text.count("{") > _MAX_DEPTH and _depth(values) > _MAX_DEPTH:
    raise UserError(f"{source}: lists or objects are nested too deeply (more than {_MAX_DEPTH} levels){remedy_suffix}")
  return values


def decode_object(source: str, data: bytes | str, remedy: str = "", *, nan_is_null: bool = False) -> dict[str, Any]:
  """Decodes a JSON object.

  Args: see `decode`.

  Returns:
    The object.

  Raises:
    UserError: see `decode`; or `data` holds another value than an object.
  """
  values = decode(source, data, remedy, nan_is_null=nan_is_null)
  if not isinstance(values, dict):
    raise UserError(
      f"{source}: must hold a JSON object, holds {format_value(values)}" + (f": {remedy}" if remedy else "")
    )
  return values


def _decode_utf8(source: str, data: bytes | str, remedy_suffix: str) -> str:
  if isinstance(data, str):
    return replace_surrogates(data.removeprefix("\ufeff"))
  check_encoding(source, data)
  try:
    return data.decode("utf-8-sig")
  except UnicodeDecodeError as error:
    # For a file with a byte order mark, the error's positions do not count the mark.
    content: bytes = error.object
    lines = content[: error.start].split(b"\n")  # up to the wrong byte
    line = f", line {len(lines)}" if b"\n" in content else ""
    raise UserError(
      f"{source}{line}: not UTF-8 (byte {len(lines[-1]) + 1} of the line is 0x{content[error.start]:02x})"
      + (remedy_suffix or ": save the file as UTF-8")
    ) from error


def _describe_syntax_error(source: str, text: str, error: json.JSONDecodeError) -> str:
  if not text.strip():
    return f"{source}: not JSON (it is empty)"
  line = f", line {error.lineno}" if "\n" in text else ""
  return f"{source}{line}: not JSON ({error.msg}, column {error.colno})"


# Python's json module accepts NaN, integers too large for NumPy, and a key that occurs twice. These decoders do not.


class _RefusedError(Exception):
  """A number or an object is refused. The decoder does not know its path; a second pass finds it."""


@dataclasses.dataclass(frozen=True)
class _RefusedValue:
  """Placeholder for a refused value in the second pass."""

  reason: str


def _raise_refused(reason: str) -> Any:
  raise _RefusedError(reason)


def _make_decoder(refuse: Callable[[str], Any], parse_constant: Callable[[str], Any]) -> json.JSONDecoder:
  """Makes a decoder that refuses some numbers and objects.

  Args:
    refuse: called with the reason; it raises an exception, or returns what replaces the refused value.
    parse_constant: called with the text NaN, Infinity or -Infinity; returns the value.
  """

  def parse_integer(text: str) -> Any:
    # A text that is longer than the limit is not converted: Python refuses to convert thousands of digits.
    value = int(text) if len(text) <= len(str(_INTEGER_LIMIT)) else _INTEGER_LIMIT
    return value if abs(value) < _INTEGER_LIMIT else refuse(f"holds a number that is too long: {format_value(text)}")

  def parse_float(text: str) -> Any:
    value = float(text)
    return value if math.isfinite(value) else refuse(_NOT_FINITE_MESSAGE + text[:MAX_SHOWN_CHARACTERS])

  def make_object(pairs: list[tuple[str, Any]]) -> Any:
    values = dict(pairs)
    if len(values) == len(pairs):
      return values
    keys = [key for key, _ in pairs]
    duplicate_key = next(key for key in keys if keys.count(key) > 1)
    return refuse(f"has the key {format_value(duplicate_key)} twice")

  return json.JSONDecoder(
    parse_int=parse_integer, parse_float=parse_float, parse_constant=parse_constant, object_pairs_hook=make_object
  )


# The decoders of the first pass, which stop at the first refused value:
_STRICT_DECODER = _make_decoder(_raise_refused, lambda text: _raise_refused(_NOT_FINITE_MESSAGE + text))
_LENIENT_DECODER = _make_decoder(_raise_refused, lambda text: None)
# The decoders of the second pass, which mark refused values so that their paths can be found:
_STRICT_MARKING_DECODER = _make_decoder(_RefusedValue, lambda text: _RefusedValue(_NOT_FINITE_MESSAGE + text))
_LENIENT_MARKING_DECODER = _make_decoder(_RefusedValue, lambda text: None)
# The decoder of `decode_start`:
_NUMBERS_AS_TEXT_DECODER = json.JSONDecoder(parse_int=str, parse_float=str)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
  """Yields (last step of the path, value) for each element of a list or an object."""
  if isinstance(value, dict):
    yield from ((path_step(key), inner) for key, inner in value.items())
  elif isinstance(value, list):
    yield from ((path_step(index), inner) for index, inner in enumerate(value))


def path_step(key: str | int) -> str:
  """Returns one step of a path: `.key`, `['a key']` or `[index]`."""
  if isinstance(key, int):
    return f"[{key}]"
  return f".{key}" if key.isidentifier() and len(key) <= MAX_SHOWN_CHARACTERS else f"[{format_value(key)}]"


def _find_refused(values: Any) -> Iterator[tuple[str, str]]:
  """Yields (path, reason) of each refused value, in the order of the text."""
  stack = [("$", values)]
  while stack:
    path, value = stack.pop()
    if isinstance(value, _RefusedValue):
      yield path, value.reason
    stack.extend((path + step, inner) for step, inner in reversed(list(_children(value))))


def _depth(values: Any) -> int:
  """Counts the levels of nested lists and objects, up to _MAX_DEPTH + 1. Not recursive, because of Python's limit."""
  depth, values_at_depth = 0, [values]
  while depth <= _MAX_DEPTH and (containers := [value for value in values_at_depth if isinstance(value, list | dict)]):
    depth += 1
    values_at_depth = []
    for container in containers:
      values_at_depth += container.values() if isinstance(container, dict) else container
  return depth


def _replace_surrogates_inside(value: Any) -> Any:
  """Copies a value, with surrogates replaced in all its strings and keys."""
  if isinstance(value, str):
    return replace_surrogates(value)
  if isinstance(value, list):
    return [_replace_surrogates_inside(inner) for inner in value]
  if isinstance(value, dict):
    return {replace_surrogates(key): _replace_surrogates_inside(inner) for key, inner in value.items()}
  return value


def decode_start(text: str, start: int) -> tuple[Any, int]:
  """Decodes the JSON value that begins at an offset of a text, for a text that may not be JSON.

  Returns:
    The value, with numbers as strings, and the offset at which it ends.

  Raises:
    json.JSONDecodeError: there is no JSON value.
    RecursionError: the value is nested too deeply.
  """
  return _NUMBERS_AS_TEXT_DECODER.raw_decode(text, start)
