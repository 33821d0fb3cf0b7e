"""Parses JSON strictly and checks it against a schema. Errors are one line that says where the fault is.

All JSON of the project is read here, or without a schema by `albert.io.json_text`. A schema is a type that msgspec can
convert to: a `msgspec.Struct`, a dataclass, `dict[str, float]`, and so on. It is defined beside the code that reads the
file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from albert.errors import UserError
from albert.io import json_text
from albert.io.json_text import decode_start, dumps, encode_utf8, format_value, path_step, replace_surrogates

__all__ = [
  "Count",
  "FileName",
  "convert",
  "decode_start",
  "dumps",
  "encode_utf8",
  "format_value",
  "parse",
  "parse_object",
  "read_text_field",
  "replace_surrogates",
]

Schema = TypeVar("Schema")
# Types for schemas. A FileName has no directory; a Count fits into an int64.
_FILE_NAME_PATTERN = r"^(?!\.{1,2}\Z)[^/\\\x00]+\Z"
FileName = Annotated[str, msgspec.Meta(pattern=_FILE_NAME_PATTERN)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# Type in a message of msgspec -> its name in our messages.
_TYPE_NAMES: dict[str, str] = {
  "str": "a text",
  "int": "a whole number",
  "float": "a number",
  "bool": "true or false",
  "array": "a list",
  "object": "an object",
  "null": "null",
}
# Parts of msgspec's messages, such as "Expected `int`, got `str` - at `$.runs[0].seed`". In the path, [...] is a key or
# an index that msgspec does not name.
_EXPECTED_PATTERN = re.compile(r"^Expected `(?P<types>[^`]+)`(?P<bounds>.*?)(?:, got .*)?$")
_PATH_PATTERN = re.compile(r" - at (?:`(?:key|value)` in )?`(?P<path>\$[^`]*)`$")
_PATH_STEP = re.compile(r"\.(?P<key>\w+)|\[(?P<index>\d+)\]|(?P<unnamed>\[\.\.\.\])")


def parse(
  source: str,
  data: bytes | str,
  schema: type[Schema],
  remedy: str = "",
  *,
  nan_is_null: bool = False,
  keep_surrogates: bool = False,
) -> Schema:
  """Parses JSON and checks it against a schema.

  Args:
    source: the file, and the line if `data` is one line of it; errors begin with it.
    data: UTF-8 bytes with or without a byte order mark; or a text, such as an environment variable.
    schema: any type that `msgspec.convert` accepts. Strings are not converted to numbers, nor 0 and 1 to
      booleans; an integer is accepted as a float.
    remedy: what the user can do about a fault; errors end with it.
    nan_is_null: whether NaN and Infinity are read as null. Logs and results of earlier versions contain them.
    keep_surrogates: whether lone surrogates in strings are kept; otherwise each is replaced by U+FFFD.

  Returns:
    The value, of type `schema`.

  Raises:
    UserError: `data` is not UTF-8 or not JSON (the error names line and column), or contains NaN, infinity, a number
      that overflows, an integer of more than 64 bits, more than 100 levels of nesting, an object with a duplicate key,
      or a value that does not fit the schema (the error names its path, such as $.runs[0].seed).
  """
  values = json_text.decode(source, data, remedy, nan_is_null=nan_is_null, keep_surrogates=keep_surrogates)
  return convert(source, values, schema, remedy)


def convert(source: str, values: Any, schema: type[Schema], remedy: str = "") -> Schema:
  """Checks values that were parsed from JSON against a schema.

  Args:
    source: the file; errors begin with it.
    values: the parsed values or a part of them.
    schema: see `parse`.
    remedy: what the user can do about a fault; errors end with it.

  Returns:
    The value, of type `schema`.

  Raises:
    UserError: a value does not fit the schema.
  """
  try:
    return msgspec.convert(values, schema, strict=True)
  except (msgspec.ValidationError, UnicodeEncodeError) as error:
    path, problem = _explain_mismatch(str(error), values, schema)
    if path != "$":
      message = f"{source}: {path} {problem}"
    else:  # "FILE lacks 'key'", but "FILE: must hold a JSON object"
      message = f"{source} {problem}" if problem.startswith("lacks") else f"{source}: {problem}"
    raise UserError(message + (f": {remedy}" if remedy else "")) from error


def _explain_mismatch(message: str, values: Any, schema: Any) -> tuple[str, str]:
  """Rewrites a message of msgspec so that it names the key and the value.

  Returns:
    The path of the value that does not fit the schema, such as $.runs[0].seed, and what is wrong with it.
  """
  path_match = _PATH_PATTERN.search(message)
  problem = message[: path_match.start()] if path_match else message
  path, value = "$", values
  for step in _PATH_STEP.finditer(path_match["path"] if path_match else ""):
    key = step["key"] or (_find_invalid_key(value, values, schema) if step["unnamed"] else int(step["index"]))
    path += path_step(key)
    value = value[key]
  if "at `key` in" in message:
    key = _find_invalid_key(value, values, schema)
    return path, f"has the key {format_value(key)}, which must be {_describe_expected(problem)}"
  return path, _describe_problem(problem, value, is_top=path == "$")


def _find_invalid_key(container: Any, values: Any, schema: Any) -> Any:
  """Finds the first key or index of a container whose value does not fit; msgspec's message does not contain it.

  Each element is tried alone: the container, which is a part of `values`, is emptied and gets this element only, and
  all of `values` is checked against the schema. At the end the container is as before.
  """
  children = list(container.items()) if isinstance(container, dict) else list(enumerate(container))
  try:
    for key, value in children:
      container.clear()
      container.update({key: value}) if isinstance(container, dict) else container.append(value)
      try:
        msgspec.convert(values, schema, strict=True)
      except (msgspec.ValidationError, UnicodeEncodeError):
        return key
  finally:
    container.clear()
    container.update(children) if isinstance(container, dict) else container.extend(value for _, value in children)
  return children[0][0]


def _describe_expected(problem: str) -> str:
  """Returns the types that a message of msgspec expects, in words; "" if the problem is not a wrong type."""
  match = _EXPECTED_PATTERN.match(problem)
  if not match:
    return ""
  types = " or ".join(_TYPE_NAMES.get(name, name) for name in match["types"].split(" | "))
  is_file_name = repr(_FILE_NAME_PATTERN) in match["bounds"]  # msgspec shows the pattern of FileName
  return types + (" that names a file of this directory" if is_file_name else match["bounds"])


def _describe_problem(problem: str, value: Any, *, is_top: bool) -> str:
  """Rewrites a message of msgspec, without its path, in words that follow the path; `is_top` if the path is "$"."""
  missing = re.match(r"Object missing required field `(.+)`", problem)
  if missing:
    return f"lacks {missing[1]!r}"
  unknown = re.match(r"Object contains unknown field `(.+)`", problem)
  if unknown:
    return f"has the unknown key {unknown[1]!r}"
  if problem.startswith("Invalid enum value"):
    return f"is {format_value(value)}, which is not one of its possible values"
  expected_types = _describe_expected(problem)
  if not expected_types:
    return f"is {format_value(value)} ({problem})"
  if is_top:
    return f"must hold {expected_types.replace('an object', 'a JSON object')}, holds {format_value(value)}"
  return f"must be {expected_types}, it is {format_value(value)}"


def parse_object(source: str, line: bytes) -> dict[str, Any]:
  """Parses a line of a file that must be a JSON object. Lone surrogates in its strings are kept.

  Raises:
    UserError: see `parse`.
  """
  return parse(source, line, dict[str, Any], "give an object a line", keep_surrogates=True)


# The decoders of `read_text_field`:
_RAW_FIELDS_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT_DECODER = msgspec.json.Decoder(str | None)


def read_text_field(line: bytes, field: str) -> str | None:
  """Returns the text in a field of a JSON object, None for null. Other fields are not decoded, which saves time.

  Raises:
    KeyError: the field is missing. The arguments of the error are the fields that are there.
    ValueError: the line is not a JSON object, or the field is neither a text nor null.
  """
  try:
    raw_fields = _RAW_FIELDS_DECODER.decode(line)
    if field in raw_fields:
      return _TEXT_DECODER.decode(raw_fields[field])
  except (msgspec.DecodeError, RecursionError) as error:
    raise ValueError(str(error)) from None
  raise KeyError(*raw_fields)
