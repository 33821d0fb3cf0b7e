"""Defines flags of the command line, each with its range. Imports nothing heavy.

absl's own parsers of numbers accept not-a-number in every range.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from albert.config.ranges import Range, text_violation
from albert.errors import UserError

_SHOWN = 200
# What absl says of a required flag that is not given.
_MISSING = re.compile(r"flag --(\w+)=None: Flag --\1 must have a value other than None\.")


class _NumberParser(flags.ArgumentParser):
  """A number in a range; a subclass says how it is read, and what it is called."""

  kind: str
  convert: Callable[[Any], Any]  # of absl's parser

  def __init__(self, allowed: Range):
    super().__init__()
    self._range = allowed

  def parse(self, argument: str | float) -> Any:
    try:
      value = self.convert(argument)
    except ValueError as error:
      raise ValueError(f"must be {self.kind}") from error
    if violation := self._range.violation(value):
      raise ValueError(f"must be {violation}")
    return value


class _IntegerParser(_NumberParser, flags.IntegerParser):
  kind = "a whole number"


class _FloatParser(_NumberParser, flags.FloatParser):
  kind = "a number"


class _SwitchParser(flags.BooleanParser):
  """True or false."""

  def parse(self, argument: str | int | bool) -> bool:
    try:
      return bool(super().parse(argument))
    except ValueError as error:
      raise ValueError("must be true or false") from error


class _TextParser(flags.ArgumentParser):
  """A path, a name or other text."""

  def parse(self, argument: str) -> str:
    if violation := text_violation(argument):
      raise ValueError(f"must be {violation}")
    return argument

  def flag_type(self) -> str:
    return "string"


def define(
  kind: str,
  name: str,
  default: Any,
  help_text: str,
  *,
  allowed: Range = Range(),  # noqa: B008 - frozen
  choices: Sequence[str] | None = None,
  required: bool = False,
) -> None:
  """Defines a flag of the command that is run.

  Args:
    kind: "int", "float", "bool" or "str".
    name: without dashes.
    default: its value where it is not given; None for none.
    help_text: what it is.
    allowed: the range of a number.
    choices: the values of a "str" that has only certain ones.
    required: the command ends with an error if it is not given, or given as an empty text.
  """
  options: dict[str, Any] = {"module_name": sys.argv[0], "required": required}
  if choices is not None:
    flags.DEFINE_enum(name, default, list(choices), help_text, **options)
  elif kind == "bool":
    flag = flags.BooleanFlag(name, default, help_text)
    flag.parser = _SwitchParser()
    flags.DEFINE_flag(flag, **options)
  else:
    parsers: dict[str, Callable[[], Any]] = {
      "int": lambda: _IntegerParser(allowed),
      "float": lambda: _FloatParser(allowed),
      "str": _TextParser,
    }
    flags.DEFINE(parsers[kind](), name, default, help_text, serializer=flags.ArgumentSerializer(), **options)
  if required and kind == "str":
    flags.register_validator(name, lambda value: value != "", message="must not be empty")


def parse(argv: Sequence[str]) -> list[str]:
  """Parses the command line with absl; returns the words that are no flags, the program's name first.

  Raises:
    UserError: a flag that is unknown or missing, a bad value, a flag file that cannot be read.
  """
  try:
    return list(flags.FLAGS(list(argv)))
  except UnicodeDecodeError as error:  # only flag files are decoded
    given = next((word for word in argv if word.lstrip("-").startswith("flagfile")), "--flagfile")
    raise UserError(f"{given}: not UTF-8 ({error.reason} at byte {error.start + 1}): give a text file") from error
  except RecursionError as error:
    raise UserError("--flagfile: the flag files name each other too deeply: give all flags in one file") from error
  except (flags.Error, ValueError) as error:
    message = shortened(_MISSING.sub(r"--\1 is missing", str(error).removeprefix("ERROR:: ")))
    raise UserError(f"{message} (--help lists the flags)") from error


def shortened(message: str) -> str:
  """An error of absl without the middle of a value that is very long, in one line."""
  line = " ".join(message.split())
  return line if len(line) <= 2 * _SHOWN else f"{line[:_SHOWN]} ... {line[-_SHOWN:]}"


def repeated(argv: Sequence[str]) -> list[str]:
  """A warning for each flag that the command line gives more than once with different values: the last one holds.

  Args:
    argv: the command line, which absl has parsed.
  """
  words: dict[str, list[str]] = {}
  for word, following in itertools.zip_longest(argv[1:], argv[2:], fillvalue=""):
    name, equals, _ = word.lstrip("-").partition("=")
    plain = name if name in flags.FLAGS else name.removeprefix("no")
    if not word.startswith("-") or plain not in flags.FLAGS or plain in ("flagfile", "undefok"):
      continue
    has_value = not equals and not flags.FLAGS[plain].boolean
    words.setdefault(plain, []).append(f"{word} {following}" if has_value else word)
  return [
    f"warning: --{name} is given {len(given)} times: {given[-1]} holds"
    for name, given in words.items()
    if len({word.lstrip("-") for word in given}) > 1
  ]
