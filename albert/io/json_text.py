"""Decodes and encodes JSON with Python's own json module. Errors are one line that says where the fault is.

`albert.io.json_values` also checks the decoded values against a schema. It needs msgspec; this module needs no library,
so that the tokenizer doesn't need one either.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from albert.errors import UserError
from albert.io.text import MAX_VALUE_CHARS, decode_utf8, format_value, replace_surrogates

# Integers whose absolute value is not below this do not fit into any integer type of NumPy or TensorFlow.
_INTEGER_LIMIT = 2**64
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')  # it has no line end


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
    values = _copy(values, lambda value: None if isinstance(value, float) and not math.isfinite(value) else value)
    return json.dumps(values, indent=indent, ensure_ascii=ensure_ascii, allow_nan=False)


def _copy(value: Any, replace: Callable[[Any], Any]) -> Any:
  """Copies nested dicts and lists. `replace` is called for each key and each value that is no dict or list."""
  if isinstance(value, dict):
    return {replace(key): _copy(inner, replace) for key, inner in value.items()}
  if isinstance(value, list | tuple):
    return [_copy(inner, replace) for inner in value]
  return replace(value)


def decode(
  source: str, data: bytes | str, remedy: str = "", *, nan_is_null: bool = False, keep_surrogates: bool = False
) -> Any:
  """Decodes JSON. Of a key that occurs twice, the last value counts.

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
      that overflows, an integer of more than 64 bits (these errors name the line), or thousands of levels of nesting.
  """
  remedy_suffix = f": {remedy}" if remedy else ""
  if isinstance(data, str):
    text = replace_surrogates(data.removeprefix("\ufeff"))
  else:
    text = decode_utf8(source, data, remedy or "save the file as UTF-8")
  try:
    values = (_LENIENT_DECODER if nan_is_null else _STRICT_DECODER).decode(text)
    if not keep_surrogates and _ESCAPED_SURROGATE.search(text):
      values = _copy(values, lambda value: replace_surrogates(value) if isinstance(value, str) else value)
    return values
  except json.JSONDecodeError as error:
    line = f", line {error.lineno}" if "\n" in text and text.strip() else ""
    is_cut = error.msg.startswith("Unterminated") or not text[error.pos :].strip()
    problem = f"{'it ends too early' if is_cut else error.msg}, column {error.colno}" if text.strip() else "it is empty"
    raise UserError(f"{source}{line}: not JSON ({problem}){remedy_suffix}") from error
  except RecursionError as error:
    raise UserError(f"{source}: lists or objects are nested too deeply{remedy_suffix}") from error
  except _RefusedNumberError as error:
    number, problem = error.args
    before = re.split(rf"(?<![^\s:,[]){re.escape(number)}(?![^\s,\]}}])", _STRING.sub("", text))[0]
    line = f", line {before.count(chr(10)) + 1}" if "\n" in text.strip() else ""
    raise UserError(f"{source}{line}: {problem}{remedy_suffix}") from error


def decode_object(
  source: str, data: bytes | str, remedy: str = "", *, nan_is_null: bool = False, keep_surrogates: bool = False
) -> dict[str, Any]:
  """Decodes a JSON object.

  Args: see `decode`.

  Returns:
    The object.

  Raises:
    UserError: see `decode`; or `data` holds another value than an object.
  """
  values = decode(source, data, remedy, nan_is_null=nan_is_null, keep_surrogates=keep_surrogates)
  if not isinstance(values, dict):
    raise UserError(
      f"{source}: must hold a JSON object, holds {format_value(values)}" + (f": {remedy}" if remedy else "")
    )
  return values


class _RefusedNumberError(ValueError):
  """Python's json module accepts a number that no reader of the project does. Arguments: its text, the problem."""


def _parse_integer(text: str) -> int:
  # A text that is longer than the limit is not converted: Python refuses to convert thousands of digits.
  if len(text) > len(str(_INTEGER_LIMIT)) or not -_INTEGER_LIMIT < int(text) < _INTEGER_LIMIT:
    raise _RefusedNumberError(text, f"holds a number that is too long: {format_value(text)}")
  return int(text)


def _parse_finite(text: str) -> float:
  value = float(text)
  if not math.isfinite(value):
    raise _RefusedNumberError(text, f"holds {text[:MAX_VALUE_CHARS]}, which is not a finite number")
  return value


_STRICT_DECODER, _LENIENT_DECODER = (
  json.JSONDecoder(parse_int=_parse_integer, parse_float=_parse_finite, parse_constant=parse_constant)
  for parse_constant in (_parse_finite, lambda text: None)
)
