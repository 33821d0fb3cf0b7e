"""Parses JSON and checks it against a schema. Errors are one line that says where the fault is.

All JSON of the project is read here, or without a schema by `albert.io.json_text`, except for JSON lines of which data
preparation needs a single field. A schema is a type that msgspec can convert to: a `msgspec.Struct`, a dataclass,
`dict[str, float]`, and so on. It is defined beside the code that reads the file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec

from albert.errors import UserError
from albert.io import json_text

Schema = TypeVar("Schema")
# Types for schemas. A FileName has no directory; a Count fits into an int64.
_FILE_NAME_PATTERN = r"^(?!\.{1,2}\Z)[^/\\\x00]+\Z"
FileName = Annotated[str, msgspec.Meta(pattern=_FILE_NAME_PATTERN)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

# Type in a message of msgspec -> its name in our messages.
_TYPE_NAMES = {
  "str": "a text",
  "int": "a whole number",
  "float": "a number",
  "bool": "true or false",
  "array": "a list",
  "object": "an object",
}
# Part of a message of msgspec -> what our message says instead.
_REWORDINGS = (
  (re.compile(r"^Object missing required field `(.+)`"), r"lacks '\1'"),
  (re.compile(r"^Object contains unknown field `(.+)`"), r"has the unknown key '\1'"),
  (re.compile(r"^Invalid (?:enum )?value (.+)"), r"is \1, which is not one of its possible values"),
  (re.compile(r"^Expected "), "must be "),
  (re.compile(", got (?=`)"), ", it is "),
  (re.compile(", got "), ", it has "),
  (re.compile(f" matching regex {re.escape(repr(_FILE_NAME_PATTERN))}"), " that names a file of this directory"),
  (re.compile(" matching regex "), " of the form "),
  (
    re.compile("`([a-z |]+)`"),
    lambda match: " or ".join(_TYPE_NAMES.get(name, name) for name in match[1].split(" | ")),
  ),
)


def parse(
  source: str, data: bytes | str, schema: type[Schema], remedy: str = "", *, nan_is_null: bool = False
) -> Schema:
  """Parses JSON and checks it against a schema.

  Args:
    source: the file, and the line if `data` is one line of it; errors begin with it.
    data: UTF-8 bytes with or without a byte order mark; or a text, such as an environment variable.
    schema: any type that `msgspec.convert` accepts. Strings are not converted to numbers, nor 0 and 1 to
      booleans; an integer is accepted as a float.
    remedy: what the user can do about a fault; errors end with it.
    nan_is_null: whether NaN and Infinity are read as null. Logs and results of earlier versions contain them.

  Returns:
    The value, of type `schema`.

  Raises:
    UserError: `data` is not JSON, see json_text.decode, or does not fit the schema, see `convert`.
  """
  return convert(source, json_text.decode(source, data, remedy, nan_is_null=nan_is_null), schema, remedy)


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
    UserError: a value does not fit the schema. The message names its path, such as $.runs[0].seed.
  """
  try:
    return msgspec.convert(values, schema, strict=True)
  except (msgspec.ValidationError, UnicodeEncodeError) as error:
    # "Expected `str`, got `null` - at `$.id`" becomes "$.id must be a text, it is null".
    problem, _, path = str(error).replace(" - at `key` in", " - at `a key in").partition(" - at `")
    for pattern, words in _REWORDINGS:
      problem = pattern.sub(words, problem)
    message = f"{path.replace('`', '')} {problem}".lstrip()
    raise UserError(f"{source}: {message}" + (f": {remedy}" if remedy else "")) from error
